"""The event loop that waits by sleeping."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from itertools import count
from types import FrameType
from typing import Any, cast

import pytest
from wasm_kernel_agent.event_loop import Awaiter, GuestLoop
from wasm_kernel_agent.host import FrameChannel
from wasm_kernel_agent.signals import SignalHandlers, interrupt_when_freed

from tests.faces import PATIENCE


@pytest.fixture
def loop() -> Iterator[GuestLoop]:
    made = GuestLoop()
    yield made
    made.close()


@pytest.fixture
def signals() -> Iterator[SignalHandlers]:
    """The signals of a guest, in the test's own process."""
    before = signal.getsignal(signal.SIGINT)
    channel = cast("FrameChannel", None)  # no test asks for input
    yield SignalHandlers(channel)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("looked", ["has_ready_callback", "_serve_messages"])
def test_interrupt_while_a_wait_looks_for_work_ends_the_wait(
    loop: GuestLoop, signals: SignalHandlers, looked: str
) -> None:
    """Formerly, the cell waited on, as if no interrupt had come."""
    looks = count(1)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == looked and next(looks) == 3:
            sys.setprofile(None)
            _ = interrupt_when_freed()  # when this function has ended

    began, before = time.monotonic(), sys.getprofile()
    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait = asyncio.sleep(PATIENCE)
            signals.interruptible(lambda: loop.run_until_complete(wait))
    finally:
        sys.setprofile(before)
    assert time.monotonic() - began < PATIENCE / 2


def test_a_second_interrupt_that_comes_at_once_leaves_no_task_of_the_cell(
    signals: SignalHandlers,
) -> None:
    """Formerly, the cell's error could be the `CancelledError` of its wait."""
    awaiter = Awaiter()

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def cell() -> None:
        asyncio.get_running_loop().call_later(0.01, interrupt)
        await asyncio.gather(asyncio.sleep(PATIENCE), asyncio.sleep(PATIENCE))

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is Awaiter._end_wait.__code__:
            sys.setprofile(None)
            _ = interrupt_when_freed()  # when this function has ended

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            signals.interruptible(lambda: awaiter(cell()))
    finally:
        sys.setprofile(before)
    assert not asyncio.all_tasks(awaiter.loop)
    awaiter.loop.close()
