"""The costs of a service's session: starting, keeping and waking it."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.benchmarks.cloudpickled import measured
from tests.benchmarks.sides import Side
from tests.benchmarks.table import Row
from tests.faces import fall_asleep
from wasm_kernel import Sandbox, Service, ServiceLimits

FRAME = "import pandas as pd; pd.DataFrame({'a': [1, 2]})"
ARRAY = "import numpy as np; a = np.random.default_rng(1).random(13_107_200)"
CALLS = """
import time
begun = time.perf_counter()
for n in range(1000): look_up(n)
print(time.perf_counter() - begun)
"""  # prints the milliseconds of one
MIB, MILLISECONDS = 1024 * 1024, 1000
SESSIONS = 10
QUIET_SECONDS = 3.0  # until a worker has given back unneeded memory


@contextmanager
def loaded() -> Iterator[Service]:
    """A service that has started a session before."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Service(folder, limits=ServiceLimits(idle_seconds=None)) as service,
    ):
        service.create().execute(FRAME)
        yield service


def sessions(native: Side, rounds: int) -> Iterator[Row]:
    """A session to its first DataFrame; its memory after that; a tiny cell; a call of a
    host's function; waking it with 100 MB.
    """
    started: list[float] = []
    imported: list[float] = []
    with loaded() as service:
        kept: list[Sandbox] = []
        for _ in range(max(rounds, SESSIONS)):
            begun = time.perf_counter()
            kept.append(service.create())
            assert "text/html" in kept[-1].execute(FRAME).outputs[-1].data
            started.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            subprocess.run([str(native.python), "-c", "import pandas"], check=True)
            imported.append(time.perf_counter() - begun)
        yield Row("a session to its first DataFrame, import pandas", started, imported, "s", 0.12)
        time.sleep(QUIET_SECONDS)
        held = [service.info(each.session_id).host_bytes / MIB for each in kept]
        yield Row("memory of one more idle session with pandas, and 10 MiB", held, [10.0], "MiB", 1)
        rested = [_milliseconds(each, "x = 1") for each in kept]
        yield Row("a tiny cell after a rest, and 12 ms", rested, [12.0], "ms", 1)
        trips = [_milliseconds(kept[0], "x = 1") for _ in range(20 * rounds)]
        yield Row("a tiny cell in a session, and 4 ms", trips, [4.0], "ms", 1)
        kept[0].offer_functions([look_up])
        calls = [float(kept[0].execute(CALLS).stdout) for _ in range(max(rounds, 3))]
        yield Row("a call of a host's function from a cell, and 1 ms", calls, [1.0], "ms", 1)
        woken, restored = [], []
        kept[0].execute(ARRAY)
        for _ in range(rounds):
            fall_asleep(kept[0])
            woken.append(_milliseconds(kept[0], "a[0] += 1"))
            restored += measured(native.python)["back"]
        yield Row("waking a session with 100 MB, cloudpickle", woken, restored, "ms", 0.3)


def look_up(number: int) -> int:
    """Returns the number."""
    return number


def _milliseconds(sandbox: Sandbox, code: str) -> float:
    begun = time.perf_counter()
    assert sandbox.execute(code).success
    return (time.perf_counter() - begun) * MILLISECONDS
