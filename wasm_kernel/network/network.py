"""`Network`: the connections of one session's cells.

Its methods are the functions that the guest's sockets call. They run on the loop of the process
that owns the sandbox; a worker never has a socket.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from wasm_kernel.network.connection import PIECE_BYTES, Connection, Log
from wasm_kernel.network.exchanges import Exchanges
from wasm_kernel.network.judge import Judge
from wasm_kernel.network.upstream import CONNECT_SECONDS, Upstream
from wasm_kernel.policy import ExecutionPolicy

RECEIVE_SECONDS = 5.0
"""The longest wait for bytes in one call; a client that waits longer makes another call."""

_CONNECTIONS_MOST = 32
_IDLE_SECONDS = 90.0
_LEFT_SECONDS = 10.0
_NUMBER_BITS = 48  # random bits of the first number: variables may have an earlier program's
_LAST_MOST, _SHOWN = 5, 200  # requests in words, and the characters of one


class Network:
    """The connections of a session. Only the loop's thread uses it."""

    def __init__(self, policy: ExecutionPolicy, log: Log, exchanges: Exchanges) -> None:
        self._write_log = log
        self._last: deque[str] = deque(maxlen=_LAST_MOST)
        self._exchanges = exchanges
        self._judge = Judge(policy.network, policy.door, counts=not self._exchanges.replays)
        self._connections: dict[int, Connection] = {}
        self._opening = 0
        self._numbers = itertools.count(random.getrandbits(_NUMBER_BITS))

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions for the guest."""
        return (self.connect, self.secure, self.send, self.receive, self.close, self.requests)

    async def requests(self) -> dict[str, Any]:
        """Returns how many requests there were, their bytes, and the last that ended, in words."""
        count, size = self.used
        return {"requests": count, "bytes": size, "last": [*self._last]}

    @property
    def used(self) -> tuple[int, int]:
        """The number of requests so far, and their bytes."""
        return self._judge.used

    @property
    def waiting(self) -> int:
        """The bytes of answers that wait for the cells' clients."""
        return sum(each.waiting for each in self._connections.values())

    def _log(self, **facts: Any) -> None:
        where = f"{facts['method']} {facts['host']}{facts['path']}"[:_SHOWN]
        self._last.append(f"{where} -> {facts['status'] or 'no answer'}")
        self._write_log(**facts)

    async def connect(self, host: str, port: int, seconds: float) -> int:
        """Connects to a host within some seconds; returns the connection's number."""
        plain = self._judge.host(host, port)
        self._opening += 1
        wait = max(0.0, min(seconds, CONNECT_SECONDS))
        try:
            await self._make_room()
            opening = partial(self._open, plain, port, wait)
            upstream = await self._exchanges.connect(f"{plain}:{port}", opening)
            number = next(self._numbers)
            self._connections[number] = Connection(
                plain,
                port,
                upstream,
                judge=self._judge,
                exchanges=self._exchanges,
                log=self._log,
                waiting_in_session=lambda: self.waiting,
            )
        finally:
            self._opening -= 1
        return number

    async def _open(self, host: str, port: int, seconds: float) -> Upstream | None:
        if self._exchanges.replays:
            return None
        try:
            async with asyncio.timeout(seconds) as time_out:
                return await Upstream.open(host, port, self._judge)
        except TimeoutError:
            within = f" within {seconds:g} seconds" if time_out.expired() else ""
            raise TimeoutError(f"{host} did not answer{within}") from None

    async def secure(self, number: int, name: str) -> None:
        """Makes a connection a secure one."""
        await self._connection(number).secure(name)

    async def send(self, number: int, received: int, data: bytes) -> None:
        """Sends bytes of a request; `received` counts the answers' bytes that the client has."""
        if len(data) > PIECE_BYTES:
            raise ValueError(f"a piece has at most {PIECE_BYTES:,} bytes")
        await self._connection(number).send(received, data)

    async def receive(
        self, number: int, received: int, seconds: float, data: bytes = b""
    ) -> dict[str, Any]:
        """Returns bytes of an answer, after those that were received; first sends some if given."""
        if data:
            await self.send(number, received, data)
        wait = max(0.0, min(seconds, RECEIVE_SECONDS))
        try:
            return await self._connection(number).receive(received, PIECE_BYTES, wait)
        except ConnectionResetError:
            if not data:
                raise
            # the next call raises it: of this one, it would say that the data were not sent
            return {"data": b"", "ended": False, "idle": False}

    async def close(self, number: int) -> None:
        """Closes a connection."""
        if (found := self._connections.pop(number, None)) is not None:
            await found.close()

    async def close_all(self) -> None:
        """Closes all connections."""
        for number in [*self._connections]:
            await self.close(number)

    def _connection(self, number: int) -> Connection:
        if (found := self._connections.get(number)) is None:
            raise ConnectionResetError("the connection is closed")
        return found

    async def _make_room(self) -> None:
        """Closes connections that are idle for long; if there are many, the one unused longest.

        One with a request under way is closed only if its client has left it alone for a while.
        """
        now = time.monotonic()
        for number, each in [*self._connections.items()]:
            if each.is_idle and now - each.used > _IDLE_SECONDS:
                await self.close(number)
        while len(self._connections) + self._opening > _CONNECTIONS_MOST:
            open_ones = self._connections.items()
            left = [
                (not each.is_idle, each.used, number)
                for number, each in open_ones
                if each.is_idle or now - each.used > _LEFT_SECONDS
            ]
            if not left:
                raise OSError(f"{_CONNECTIONS_MOST} connections are open and busy; close some")
            await self.close(min(left)[2])
