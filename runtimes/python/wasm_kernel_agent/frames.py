"""Tracebacks without the agent: a user's error ends where the user's code does."""

from __future__ import annotations

from types import TracebackType

_PACKAGE = __name__.partition(".")[0]
_MOST = 5_000  # a traceback of a million frames would take minutes to render
_FIRST, _LAST = 50, 200


def shown(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """`trace` as a user should see it, and how many frames of a deep recursion it leaves out.

    The agent's own frames are left out too, but not counted.
    """
    steps = []
    step = trace
    while step is not None:
        steps.append(step)
        step = step.tb_next
    kept = [each for each in steps if not _is_ours(each)]
    cut = 0
    if len(kept) > _MOST:
        cut = len(kept) - _FIRST - _LAST
        kept = kept[:_FIRST] + kept[-_LAST:]
    if len(kept) == len(steps):
        return trace, 0
    rebuilt: TracebackType | None = None
    for each in reversed(kept):
        rebuilt = TracebackType(rebuilt, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rebuilt, cut


def _is_ours(step: TracebackType) -> bool:
    name = step.tb_frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == _PACKAGE
