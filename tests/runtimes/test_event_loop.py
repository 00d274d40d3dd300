"""The event loop that waits by sleeping."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from wasm_kernel_agent.event_loop import (
    GuestLoop,
    postpone_interrupt,
    take_postponed_interrupt,
)


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
