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
from wasm_kernel_agent import interrupts
from wasm_kernel_agent.event_loop import Awaiter, GuestLoop, run_under_way

from tests.faces import PATIENCE


@pytest.fixture
def loop() -> Iterator[GuestLoop]:
    made = GuestLoop()
    yield made
    made.close()


def hold_interrupt(frame: FrameType) -> None:
    """Holds an interrupt that comes in a frame, as the guest's handler does."""
    held = run_under_way(frame)
    assert held is not None
    interrupts.hold(held)


@pytest.mark.parametrize("looked", ["has_ready_callback", "_serve_messages"])
def test_an_interrupt_while_a_wait_looks_for_work_ends_the_wait(
    loop: GuestLoop, looked: str
) -> None:
    """Formerly, the cell waited on, as if nobody had interrupted it."""
    looks = count(1)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == looked and next(looks) == 3:
            hold_interrupt(frame)

    began, before = time.monotonic(), sys.getprofile()
    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.sleep(PATIENCE))
    finally:
        sys.setprofile(before)
    assert time.monotonic() - began < PATIENCE / 2


def test_a_second_interrupt_that_comes_at_once_leaves_no_task_of_the_cell() -> None:
    """Formerly, the cell's error could be the `CancelledError` of its wait."""
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
            hold_interrupt(frame)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            awaiter(cell())
    finally:
        sys.setprofile(before)
        interrupts.forget()
        awaiter.loop.close()
    assert [type(cause) for cause in causes] == [KeyboardInterrupt]
