"""Tracebacks without the agent: a user's error ends where the user's code does."""

from __future__ import annotations

from types import TracebackType

_PACKAGE = __name__.partition(".")[0]
_MOST = 5_000  # a traceback of a million frames would take minutes to render
_CAUSES = 50
_NO_SOURCE = "Could not get source, probably due dynamically evaluated source code."
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


def shorten_causes(error: BaseException) -> None:
    """Leave the agent's frames out of the errors that led to `error`, too."""
    seen = {id(error)}
    waiting = [error]
    while waiting and len(seen) < _CAUSES:
        each = waiting.pop()
        for cause in (each.__cause__, each.__context__):
            if cause is not None and id(cause) not in seen:
                seen.add(id(cause))
                waiting.append(cause)
                cause.with_traceback(shown(cause.__traceback__)[0])


def without_missing(lines: list[str]) -> list[str]:
    """Rendered traceback `lines`, without IPython's excuses for a library without its source."""
    return [
        "".join(line for line in block.splitlines(keepends=True) if _NO_SOURCE not in line)
        if _NO_SOURCE in block
        else block
        for block in lines
    ]


def _is_ours(step: TracebackType) -> bool:
    name = step.tb_frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == _PACKAGE
