"""The event loop that waits by sleeping."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from itertools import count
from types import FrameType
from typing import Any

import pytest
from wasm_kernel_agent.event_loop import (
    Awaiter,
    GuestLoop,
    postpone_interrupt,
    take_postponed_interrupt,
)

from tests.faces import PATIENCE


@pytest.fixture
def loop() -> Iterator[GuestLoop]:
    made = GuestLoop()
    yield made
    made.close()


@pytest.mark.parametrize("number", range(4, 10))  # from the second look on, when the task runs
def test_an_interrupt_at_any_line_of_the_look_for_interrupts_ends_the_run(
    loop: GuestLoop, number: int
) -> None:
    lines = iter(range(1, 1000))

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not take_postponed_interrupt.__code__:
            return None
        if event == "line" and next(lines) == number:
            assert postpone_interrupt(frame)
        return trace

    async def turn() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(turn())
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("looked", ["has_ready_callback", "_serve_messages"])
def test_an_interrupt_while_a_wait_looks_for_work_ends_the_wait(
    loop: GuestLoop, looked: str
) -> None:
    """Before, the cell waited on, as if nobody had interrupted it."""
    looks = count(1)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == looked and next(looks) == 3:
            assert postpone_interrupt(frame)

    began, before = time.monotonic(), sys.getprofile()
    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.sleep(PATIENCE))
    finally:
        sys.setprofile(before)
    assert time.monotonic() - began < PATIENCE / 2


def test_a_second_interrupt_that_comes_at_once_leaves_no_task_of_the_cell() -> None:
    """Before, the cell's error could be the `CancelledError` of its wait."""
    awaiter, causes = Awaiter(), list[BaseException | None]()

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def cell() -> None:
        asyncio.get_running_loop().call_later(0.01, interrupt)
        try:
            await asyncio.gather(asyncio.sleep(PATIENCE), asyncio.sleep(PATIENCE))
        finally:
            causes.append(awaiter.cause)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is Awaiter._end_wait.__code__:
            assert postpone_interrupt(frame)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            awaiter(cell())
    finally:
        sys.setprofile(before)
        take_postponed_interrupt()
        awaiter.loop.close()
    assert [type(cause) for cause in causes] == [KeyboardInterrupt]
