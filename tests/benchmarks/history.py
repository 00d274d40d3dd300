"""The costs of the memory history alone, in milliseconds, and their goals.

For some rows, methods of the worker are timed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator

from tests.benchmarks.cloudpickled import measured
from tests.benchmarks.sides import Side
from tests.benchmarks.table import Row
from tests.faces import error_of
from tests.faults import faulty
from wasm_kernel import ExecutionPolicy, create_sandbox

MILLISECONDS = 1000
ARRAYS = "import numpy as np\na = np.random.default_rng(1).random(12_500_000)"
FUEL = 3 * 10**9
SETTLED_SECONDS = 1.0  # until a cell's state is on disk


def commits(native: Side, rounds: int) -> Iterator[Row]:
    """The commit of a tiny cell: beside 100 MB and beside nothing, and against cloudpickle."""
    beside: tuple[list[float], list[float]] = ([], [])
    pickled: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        faulty("wasm_kernel.state.recorder:Recorder.commit") as timed,
        create_sandbox(workspace=f"{folder}/large") as large,
        create_sandbox(workspace=f"{folder}/empty") as empty,
    ):
        large.execute(ARRAYS)
        empty.execute("import numpy as np; a = np.zeros(10)")
        for turn in range(rounds * 4):
            for sandbox, times in ((large, beside[0]), (empty, beside[1])):
                assert sandbox.execute(f"a[{turn % 10}] += 1").success
                sandbox.checkpoints()  # waits for the commit, which comes after the result
                times.append(timed["Recorder.commit"].seconds * MILLISECONDS)
            if turn % 4 == 0:
                pickled += measured(native.python)["kept"]
    yield Row("commit of a tiny cell beside 100 MB, and beside none", *beside, "ms", 1.5)
    yield Row("commit after one element of 100 MB, cloudpickle", beside[0], pickled, "ms", 0.1)
    yield Row("commit of a tiny cell, and 2 ms", beside[0], [2.0], "ms", 1.0)


def back_to_work(native: Side, rounds: int) -> Iterator[Row]:
    """The time from the moment that a cell's fuel is used up until the next cell can run."""
    policy, taken = ExecutionPolicy(fuel_budget=FUEL), []
    with (
        tempfile.TemporaryDirectory() as folder,
        faulty("wasm_kernel.execution.turns:GuestTurns._recover") as timed,
        create_sandbox(workspace=folder, policy=policy) as sandbox,
    ):
        sandbox.execute(ARRAYS)
        for turn in range(rounds):
            sandbox.execute(f"a[{turn}] = 0")
            time.sleep(SETTLED_SECONDS)
            assert error_of(sandbox.execute("a[:] = 0\nwhile True: pass")).startswith("OutOfFuel:")
            taken.append(timed["GuestTurns._recover"].seconds * MILLISECONDS)
    yield Row("back to work after OutOfFuel with 100 MB, and 50 ms", taken, [50.0], "ms", 1.0)


def forks(native: Side, rounds: int) -> Iterator[Row]:
    """A fork of a session with 100 MB, until it can run a cell."""
    taken = []
    with (
        tempfile.TemporaryDirectory() as folder,
        create_sandbox(workspace=f"{folder}/parent") as sandbox,
    ):
        sandbox.execute(ARRAYS)
        time.sleep(SETTLED_SECONDS)
        for _ in range(rounds):
            begun = time.perf_counter()
            (fork,) = sandbox.fork()
            taken.append((time.perf_counter() - begun) * MILLISECONDS)
            fork.close()
    yield Row("a fork with 100 MB, and 100 ms", taken, [100.0], "ms", 1.0)
