"""Tracebacks end where the user's code does, and stay short."""

from __future__ import annotations

import sys
from types import TracebackType

from wasm_kernel_agent import tracebacks
from wasm_kernel_agent.display import NotSendable, jsonable


def names(trace: TracebackType | None) -> list[str]:
    found = []
    while trace is not None:
        found.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return found


def caught(error: type[BaseException], work: object) -> TracebackType | None:
    try:
        work()  # type: ignore[operator]
    except error as problem:
        return problem.__traceback__
    raise AssertionError("nothing was raised")


def test_the_agents_frames_are_left_out() -> None:
    trace = caught(NotSendable, lambda: jsonable(object()))
    assert "jsonable" in names(trace)
    assert names(tracebacks.without_agent(trace)[0]) == ["caught", "<lambda>"]


def test_a_deep_recursion_is_cut_and_counted() -> None:
    def dive(depth: int) -> None:
        if depth:
            dive(depth - 1)
        else:
            raise ValueError

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        trace = caught(ValueError, lambda: dive(6_000))
    finally:
        sys.setrecursionlimit(limit)
    short, cut = tracebacks.without_agent(trace)
    assert len(names(short)) + cut == len(names(trace))
    assert len(names(short)) == 250
    assert names(short)[0] == "caught"


def test_causes_are_shortened_and_circles_end() -> None:
    cause, error = ValueError(), KeyError()
    cause.__traceback__ = caught(NotSendable, lambda: jsonable(object()))
    cause.__context__, error.__cause__ = error, cause
    tracebacks.shorten_causes(error)
    assert names(cause.__traceback__) == ["caught", "<lambda>"]
