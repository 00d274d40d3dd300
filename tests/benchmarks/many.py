"""Many sessions of one service: 400 live ones, 5,000 sleeping ones, and cells of 1, 10 and 100."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from unittest.mock import patch

from tests.benchmarks.memory import page_table_bytes, pss_bytes
from tests.benchmarks.service import FRAME, QUIET_SECONDS
from tests.benchmarks.sides import Side
from tests.benchmarks.table import Figure
from tests.faces import fall_asleep
from wasm_kernel import Sandbox, Service, ServiceLimits

LIVE, ASLEEP, AT_ONCE = 400, 5_000, 20
WOKEN, SOME_SECONDS = 30, 5
CELLS = 1_000
GIB, MILLISECONDS = 1024**3, 1000


@contextmanager
def serving() -> Iterator[Service]:
    """A service that leaves nothing in the user's own folders."""
    with (
        tempfile.TemporaryDirectory(prefix="wasm-kernel-many-") as folder,
        patch.dict(os.environ, XDG_STATE_HOME=f"{folder}/state"),
        Service(Path(folder, "sessions"), limits=ServiceLimits(idle_seconds=None)) as service,
    ):
        yield service


def many(_sides: tuple[Side, Side], _rounds: int) -> Iterator[Figure]:
    """Memory and speed of 400 live sessions; disk space and waking time of 5,000 sleeping ones."""
    with serving() as service:
        before = held_bytes()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            begun = time.perf_counter()
            live = list(pool.map(lambda _: _with_frame(service), range(LIVE)))
            taken = time.perf_counter() - begun
        yield Figure(f"starting {LIVE} sessions, {AT_ONCE} at once, each", taken / LIVE, "s")
        time.sleep(2 * QUIET_SECONDS)
        held = held_bytes()
        yield Figure(f"{LIVE} live sessions with a DataFrame, in all", held / GIB, "GiB", 4.0)
        yield Figure("each of them", (held - before) / LIVE / 1024**2, "MiB")
        for count in (1, 10, 100):
            rate = cells_a_second(live[:count])
            yield Figure(f"tiny cells a second, in {count} of them by turns", rate, "cells")
    with serving() as service:
        yield from asleep(service)


def _with_frame(service: Service) -> Sandbox:
    sandbox = service.create()
    assert "text/html" in sandbox.execute(FRAME).outputs[-1].data
    return sandbox


def asleep(service: Service) -> Iterator[Figure]:
    """Forks of one session that sleep from the start."""
    parent, before = _with_frame(service), held_bytes()
    begun = time.perf_counter()
    sleeping = [fork for _ in range(ASLEEP // 100) for fork in parent.fork(100)]
    taken = time.perf_counter() - begun
    yield Figure("forking one off", taken / ASLEEP * MILLISECONDS, "ms")
    fall_asleep(parent)
    added = (held_bytes() - before) / ASLEEP / 1024
    yield Figure(f"memory of one of {ASLEEP:,} that sleep", added, "KiB", 100)
    begun = time.process_time()
    time.sleep(SOME_SECONDS)
    busy = (time.process_time() - begun) / SOME_SECONDS
    yield Figure("processor time that it takes to look after them", busy * 100, "%", 5)
    woken = []
    for sandbox in random.Random(1).sample(sleeping, WOKEN):
        begun = time.perf_counter()
        assert sandbox.execute("pd.DataFrame({'a': [1, 2]})").success
        woken.append((time.perf_counter() - begun) * MILLISECONDS)
        fall_asleep(sandbox)
    yield Figure("waking any of them, and a DataFrame: median", median(woken), "ms")
    yield Figure(f"the slowest of {WOKEN}", max(woken), "ms")


def cells_a_second(sandboxes: Sequence[Sandbox]) -> float:
    """The number of tiny cells that end in a second; a round begins when all have answered."""
    rounds = CELLS // len(sandboxes)
    for sandbox in sandboxes:
        sandbox.execute("x = 1")  # the guest of this sandbox may rest
    begun = time.perf_counter()
    for _ in range(rounds):
        for cell in [sandbox.submit("x = 1") for sandbox in sandboxes]:
            assert cell.result().success
    return rounds * len(sandboxes) / (time.perf_counter() - begun)


def held_bytes() -> int:
    """The memory of this process and its descendants, including page tables."""
    return pss_bytes(os.getpid()) + page_table_bytes(os.getpid())
