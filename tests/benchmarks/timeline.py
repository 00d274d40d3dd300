"""The timeline: a tiny cell with its panel open, and what changed at a state."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.benchmarks.compute import processor_seconds_at_rest
from tests.benchmarks.sides import Kernel, Side
from tests.benchmarks.table import Row
from wasm_kernel.frontends.jupyter.timeline import TARGET

CELLS = 100  # cells of a round: enough for the pushed trees to have their share
VIEW = "view"
WHAT = ("tiny cell, timeline open, against none", "  processor time, with pushed states")
MILLION = {
    "python": (
        "big = [object() for _ in range(1_000_000)]; many = {str(n): [n] for n in range(100_000)}",
        "x = 1",
    ),
    "javascript": (
        "var big = []; for (let n = 0; n < 1e6; n++) big.push({n}); var many = new Map()",
        "var x = 1",
    ),
}
LATER = 5  # further questions to a kernel
CLICK_SECONDS = 0.5  # from the end of a cell until its reader asks


def timeline(sides: tuple[Side, Side], rounds: int) -> Iterator[Row]:
    """A tiny cell, by the clock and in processor time, in kernels with and without an open view.

    The panel gets the states at most twice a second, so a round has many cells.
    """
    ours = replace(sides[0], forked=False)  # only then is its processor time counted
    with Kernel(ours) as watched, Kernel(ours) as alone:
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
        kernel.execute("x = 1")
    taken = time.perf_counter() - begun
    used = processor_seconds_at_rest(kernel.pid) - before
    return taken / CELLS * 1000, used / CELLS * 1000


def changes(sides: tuple[Side, Side], rounds: int) -> Iterator[Row]:
    """The variables that changed at a state beside a million objects, against 100 ms.

    The two states take 73 MB in Python, and 99 MB in JavaScript.
    """
    for language, cells in MILLION.items():
        side = replace(sides[0], kernel_name=f"wasm-{language}")
        at_once, first, later = list[float](), list[float](), list[float]()
        for number in range(2 * rounds):
            with Kernel(side) as kernel:
                for code in cells:
                    kernel.execute(code)
                _open_view(kernel)
                time.sleep(CLICK_SECONDS * (number % 2))
                taken = [_asked(kernel) for _ in range(1 + LATER)]
                (first if number % 2 else at_once).append(taken[0])
                later += taken[1:] if number % 2 else []
        yield Row(f"what changed beside a million objects, {language}", later, [100], "ms", 1.0)
        yield Row("  the first question, half a second after the cell", first, [100], "ms", 1.0)
        yield Row("  the first question, at once", at_once, [100], "ms")


def _asked(kernel: Kernel) -> float:
    """The milliseconds of a question for the last two states."""
    states = [each["id"] for each in _reply(kernel, request="tree")["states"]]
    begun = time.perf_counter()
    found = _reply(kernel, request="changes", since=states[-2], state=states[-1])
    taken = time.perf_counter() - begun
    assert [each["name"] for each in found["variables"]] == ["x"]
    return taken * 1000


def _reply(kernel: Kernel, **request: Any) -> dict[str, Any]:
    number = time.monotonic_ns() % 2**31
    kernel.comm("msg", VIEW, {**request, "id": number})
    while (heard := _heard(kernel)).get("id") != number:
        pass
    return heard


def _heard(kernel: Kernel) -> dict[str, Any]:
    """The next message for the view."""
    return dict(kernel.hear_comm(VIEW)["content"]["data"])


def _open_view(kernel: Kernel) -> None:
    kernel.comm("open", VIEW, {}, target_name=TARGET)
    _heard(kernel)  # the first tree
