"""Tracebacks without the agent: a user's error ends where the user's code does."""

from __future__ import annotations

from types import TracebackType

_PACKAGE = __name__.partition(".")[0]


def without_agent(trace: TracebackType | None) -> TracebackType | None:
    """`trace` with the agent's own frames left out."""
    steps = []
    step = trace
    while step is not None:
        steps.append(step)
        step = step.tb_next
    kept = [each for each in steps if not _is_ours(each)]
    if len(kept) == len(steps):
        return trace
    rebuilt: TracebackType | None = None
    for each in reversed(kept):
        rebuilt = TracebackType(rebuilt, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rebuilt


def _is_ours(step: TracebackType) -> bool:
    name = step.tb_frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == _PACKAGE
