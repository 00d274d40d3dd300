"""The measures. Each runs both sides in alternation, so that a slow minute hits both."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod

from tests.benchmarks import compute, history, service
from tests.benchmarks.agents import agents
from tests.benchmarks.batch import batch
from tests.benchmarks.cold import cold
from tests.benchmarks.e2b import sandboxes
from tests.benchmarks.javascript import javascript
from tests.benchmarks.many import many
from tests.benchmarks.memory import pss_bytes
from tests.benchmarks.network import network
from tests.benchmarks.notebooks import in_two_processes
from tests.benchmarks.sides import PATIENCE, Kernel, Side
from tests.benchmarks.table import Line, Row, by_turns
from tests.benchmarks.timeline import changes, timeline
from wasm_kernel.frontends.jupyter import launcher
from wasm_kernel.frontends.jupyter.kernel_sandbox import AWAKE_SECONDS

FRAME = "import pandas as pd\npd.DataFrame({'city': ['Oslo', 'Rome'], 'degrees': [4.5, 17.0]})"
MIB = 1024 * 1024
IDLE_KERNELS = 3
SLEEP_SECONDS = 10.0  # seconds for all sandboxes to fall asleep
TRIPS = 200

Sides = tuple[Side, Side]
Measure = Callable[[Sides, int], Iterator[Line]]


def _started(side: Side, code: str, kind: str) -> float:
    begun = time.perf_counter()
    with Kernel(side) as kernel:
        shown = kernel.execute(code)
        taken = time.perf_counter() - begun
    assert shown.data(kind)
    return taken


def kernel_start(sides: Sides, rounds: int) -> Iterator[Row]:
    """The time from starting the process to the value of `1+1`."""
    yield from _starts(sides, rounds, "1+1", "text/plain", "1+1", (0.9, 0.3))


def first_frame(sides: Sides, rounds: int) -> Iterator[Row]:
    """The time from starting the process to a DataFrame as HTML."""
    yield from _starts(sides, rounds, FRAME, "text/html", "first rendered DataFrame", (0.6, 0.2))


def _starts(
    sides: Sides, rounds: int, code: str, kind: str, what: str, aims: tuple[float, float]
) -> Iterator[Row]:
    """Runs three kernels in alternation: a started one, a forked one, and ipykernel."""
    ours, theirs = sides
    alone = replace(ours, forked=False)
    _started(ours, code, kind)
    until = time.monotonic() + PATIENCE
    while not launcher.running() and time.monotonic() < until:  # the first kernel starts it
        time.sleep(0.1)
    samples: dict[Side, list[float]] = {alone: [], ours: [], theirs: []}
    for turn in range(-1, rounds):  # the first turn is not counted
        order = list(samples) if turn % 2 == 0 else list(samples)[::-1]
        for side in order:
            taken = _started(side, code, kind)
            if turn >= 0:
                samples[side].append(taken)
    first = f"kernel start to {what}, over ZMQ"
    yield Row(first, samples[alone], samples[theirs], "s", aims[0])
    yield Row("  forked from a loaded process", samples[ours], samples[theirs], "s", aims[1])


def round_trip(sides: Sides, rounds: int) -> Iterator[Row]:
    """A tiny cell in a kernel that has run some, with its reply and idle status."""
    ways: dict[str, Callable[[Kernel], object]] = {
        "round trip of a tiny cell, over ZMQ": lambda kernel: kernel.execute("x = 1"),
        "  by `execute_interactive`, with a display": lambda kernel: kernel.run("display(1)"),
    }
    with Kernel(sides[0]) as ours, Kernel(sides[1]) as theirs:
        kernels = {sides[0]: ours, sides[1]: theirs}
        for what, run in ways.items():

            def sample(side: Side, run: Callable[[Kernel], object] = run) -> float:
                begun = time.perf_counter()
                run(kernels[side])
                return (time.perf_counter() - begun) * 1000

            by_turns(sides, 10, sample)
            yield Row(what, *by_turns(sides, TRIPS, sample), "ms", 0.9)


def idle_memory(sides: Sides, rounds: int) -> Iterator[Row]:
    """The memory of the only kernel with pandas, and of each further one, awake and asleep."""
    only = by_turns(sides, max(1, rounds // 3), lambda side: _memory_of(side, 1))
    yield Row("memory of the only idle kernel with pandas (PSS)", *only, "MiB", 1.0)
    more = by_turns(sides, max(1, rounds // 3), _added_memory)
    yield Row("memory of each further idle kernel with pandas (PSS)", *more, "MiB", 1.0)
    asleep = [_added_memory(sides[0], AWAKE_SECONDS + SLEEP_SECONDS)]
    yield Row("  asleep", asleep, more[1], "MiB")


def _added_memory(side: Side, seconds: float = 1.0) -> float:
    all_of_them = _memory_of(side, IDLE_KERNELS, seconds)
    return (all_of_them - _memory_of(side, 1, seconds)) / (IDLE_KERNELS - 1)


def _memory_of(side: Side, count: int, seconds: float = 1.0) -> float:
    """The memory of kernels in MiB, and of the process that they were forked from."""
    with ExitStack() as stack:
        kernels = [stack.enter_context(Kernel(side)) for _ in range(count)]
        for kernel in kernels:
            kernel.execute(FRAME)
        time.sleep(seconds)
        forkers = [] if side.name == "ipykernel" else launcher.running()
        return sum(map(pss_bytes, [*(kernel.pid for kernel in kernels), *forkers])) / MIB


def pure_python(sides: Sides, rounds: int) -> Iterator[Row]:
    """Loops in pure Python; the goal is for the geometric mean of their ratios."""
    rows = _computed(sides, rounds, compute.LOOPS, compute.seconds)
    yield Row("pure-Python compute, geometric mean of:", [_mean(rows)], [1.0], "x", 3.5)
    yield from rows


def libraries(sides: Sides, rounds: int) -> Iterator[Row]:
    """Work of scikit-learn, in processor time, on one processor."""
    rows = _worked(sides, rounds, compute.LIBRARIES)
    yield Row("scikit-learn, geometric mean", [_mean(rows)], [1.0], "x")
    yield from rows


def eight(sides: Sides, rounds: int) -> Iterator[Row]:
    """Eight common tasks of numpy and pandas, in processor time on one processor.

    They run once completely in the guest, and once with the host's numpy.
    """
    alone = (replace(sides[0], hidden=("numpy",)), sides[1])
    for which, what, aim in (
        (alone, "eight of numpy and pandas, geometric mean of:", 2.5),
        (sides, "the same with wasm-kernel[fast]:", 1.8),
    ):
        rows = _worked(which, rounds, compute.EIGHT)
        yield Row(what, [_mean(rows)], [1.0], "x", aim)
        yield from rows


def formats(sides: Sides, rounds: int) -> Iterator[Row]:
    """Reading and writing Parquet and photos, in processor time on one processor."""
    rows = _worked(sides, rounds, compute.FORMATS)
    yield Row("Parquet and photos, geometric mean of:", [_mean(rows)], [1.0], "x", 4.0)
    yield from rows


def large(sides: Sides, rounds: int) -> Iterator[Row]:
    """Reading and writing 1 GB of Parquet and a folder of photos, in processor time."""
    limit = f"--WasmKernel.memory_bytes={3 << 30}"
    ours = replace(sides[0], arguments=(*sides[0].arguments, limit))
    for row in _worked((ours, sides[1]), rounds, compute.LARGE):
        yield replace(row, aim=4.0)


def _mean(rows: Sequence[Row]) -> float:
    return prod(row.ratio for row in rows) ** (1 / len(rows))


def _worked(sides: Sides, rounds: int, jobs: Mapping[str, str]) -> list[Row]:
    """Jobs in processor time, of kernels that are not forked: the system counts Jupyter's child."""
    started = (replace(sides[0], forked=False), sides[1])
    return _computed(started, rounds, jobs, compute.processor_seconds)


def _computed(
    sides: Sides, rounds: int, jobs: Mapping[str, str], timed: Callable[[Kernel, str], float]
) -> list[Row]:
    with Kernel(sides[0]) as ours, Kernel(sides[1]) as theirs:
        kernels = {sides[0]: ours, sides[1]: theirs}
        rows = []
        for what, source in jobs.items():

            def sample(side: Side, source: str = source) -> float:
                return timed(kernels[side], source)

            rows.append(Row(f"  {what}", *by_turns(sides, rounds, sample), "s"))
    return rows


def python_api(sides: Sides, rounds: int) -> Iterator[Row]:
    """The time from starting a Python process to a DataFrame as HTML, without Jupyter."""
    samples = by_turns(sides, rounds, _first_frame_of_a_process)
    yield Row("Python API: new process to first DataFrame", *samples, "s", 0.5)


def _first_frame_of_a_process(side: Side) -> float:
    command = [str(side.python), "-c", side.api, str(side.folder)]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=side.folder, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "<table" in line:
                taken = time.perf_counter() - begun
                break
        else:
            raise RuntimeError(f"{side.name} rendered no DataFrame")
        process.stdout.read()
    return taken


def _with_native(measure: Callable[[Side, int], Iterator[Line]]) -> Measure:
    """A measure for which this very process is our side."""
    return lambda sides, rounds: measure(sides[1], rounds)


MEASURES: dict[str, Measure] = {
    "start": kernel_start,
    "frame": first_frame,
    "trip": round_trip,
    "api": python_api,
    "notebooks": in_two_processes,
    "memory": idle_memory,
    "compute": pure_python,
    "eight": eight,
    "libraries": libraries,
    "formats": formats,
    "large": large,
    "network": network,
    "timeline": timeline,
    "changes": changes,
    "commit": _with_native(history.commits),
    "fuel": _with_native(history.back_to_work),
    "fork": _with_native(history.forks),
    "service": _with_native(service.sessions),
    "agents": _with_native(agents),
    "e2b": _with_native(sandboxes),
    "many": many,
    "cold": cold,
    "batch": batch,
    "javascript": javascript,
}
