"""`HostWork`: the threads for work on clients' files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio

from wasm_kernel.frontends.http.callers import Caller

T = TypeVar("T")
_THREADS = 8


class HostWork:
    """The work on files that threads of this process do for clients.

    The threads share the interpreter with the event loop, whose turns would wait for all of them.
    So there are few threads, and the work of one client is done one after the other.
    """

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def work(self, caller: Caller, work: Callable[[], T]) -> T:
        """Runs `work` for a client on a thread; waits for its end even if it is cancelled."""
        async with self._turns.setdefault(caller.owner, asyncio.Lock()):
            return await anyio.to_thread.run_sync(work, limiter=self._threads)
