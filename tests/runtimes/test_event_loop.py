"""The event loop that waits by sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from wasm_kernel_agent.event_loop import GuestLoop, NothingToWaitFor


@pytest.fixture
def loop() -> Iterator[GuestLoop]:
    made = GuestLoop()
    yield made
    made.close()


def test_timers_fire_in_order(loop: GuestLoop) -> None:
    async def late(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def both() -> list[float]:
        return [await each for each in asyncio.as_completed([late(0.02), late(0.01)])]

    assert loop.run_until_complete(both()) == [0.01, 0.02]


def test_work_for_a_thread_is_done_at_once(loop: GuestLoop) -> None:
    async def work() -> int:
        return await asyncio.to_thread(abs, -3)

    assert loop.run_until_complete(work()) == 3


def test_a_wait_that_can_never_end_is_an_error(loop: GuestLoop) -> None:
    future = loop.create_future()
    with pytest.raises(NothingToWaitFor, match="can never end"):
        loop.run_until_complete(future)
