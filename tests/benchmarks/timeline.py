"""A tiny cell with the timeline's panel open, against the same kernel without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from tests.benchmarks.compute import processor_seconds_at_rest
from tests.benchmarks.sides import PATIENCE, Kernel, Side, running
from tests.benchmarks.table import Row
from wasm_kernel.frontends.jupyter.timeline import TARGET

CELLS = 100  # of a round, so that the pushed trees have their share
VIEW = "view"
WHAT = (
    "tiny cell, timeline open, against none",
    "  processor time, with pushed states",
)


def timeline(sides: tuple[Side, Side], rounds: int) -> Iterator[Row]:
    """A tiny cell, in two of our kernels: by the clock, and in processor time with what follows.

    The panel gets the states at most twice a second, so a round has many cells.
    """
    ours = replace(sides[0], forked=False)  # so that its processor time is counted
    with running(ours) as watched, running(ours) as alone:
        _open_view(watched)
        samples: dict[Kernel, list[tuple[float, float]]] = {watched: [], alone: []}
        for turn in range(-1, rounds):  # the first is not counted
            for kernel in list(samples)[:: 1 if turn % 2 else -1]:
                taken = _cells(kernel)
                if turn >= 0:
                    samples[kernel].append(taken)
        for which, what in enumerate(WHAT):
            pair = [[each[which] for each in samples[one]] for one in (watched, alone)]
            yield Row(what, pair[0], pair[1], "ms", 1.1)


def _cells(kernel: Kernel) -> tuple[float, float]:
    """The milliseconds of a cell, and those of processor time with the work after its reply."""
    before = processor_seconds_at_rest(kernel.pid)
    begun = time.perf_counter()
    for _ in range(CELLS):
        kernel.run("x = 1")
    taken = time.perf_counter() - begun
    used = processor_seconds_at_rest(kernel.pid) - before
    return taken / CELLS * 1000, used / CELLS * 1000


def _open_view(kernel: Kernel) -> None:
    session = kernel.client.session
    sent = session.msg("comm_open", {"comm_id": VIEW, "target_name": TARGET, "data": {}})
    session.send(kernel.client.shell_channel.socket, sent)
    while kernel.client.get_iopub_msg(timeout=PATIENCE)["content"].get("comm_id") != VIEW:
        pass  # until the first tree
