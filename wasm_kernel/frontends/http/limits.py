"""`ClientLimits`: the limits that all requests of one client have together, whatever they ask for.

A request is checked before anything reads it: its rate, its size, and the time that it takes to
arrive.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict

from starlette.requests import Request

from wasm_kernel.frontends.http.callers import MemoryLease, Tokens
from wasm_kernel.frontends.http.metrics import Metrics

RATE, BURST = 100.0, 500.0
"""The requests per second of one client, and the number that it may send at once."""
SMALL_BYTES = 64 * 1024
"""The most bytes of a request that does not count towards its client's memory."""
_BODY_SECONDS = 60.0  # for a request's content to arrive
_CLIENTS_MOST = 10_000  # clients whose rates are remembered


class Refusal(Exception):
    """A request that is not served: its status, words for the client, and the limit that it met."""

    def __init__(self, status: int, words: str, limit: str = "") -> None:
        super().__init__(words)
        self.status = status
        self.limit = limit

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer: content that has not arrived is not waited for."""
        if self.status in (408, 413):
            return {"connection": "close"}
        return {"retry-after": "1"} if self.limit else {}


class ClientLimits:
    """The limits of a server's clients, and what they have used of them.

    `tokens` are None on a server that takes requests without one. `metrics` count refusals.
    """

    def __init__(self, tokens: Tokens | None, metrics: Metrics) -> None:
        self.tokens = tokens
        self.metrics = metrics
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._held: Counter[str] = Counter()

    def lease(self, client: str) -> MemoryLease:
        """Returns a lease for a request of a client; the caller ends it."""
        return MemoryLease(self._held, client)

    def count(self, client: str) -> None:
        """Counts a request; raises `Refusal` if too many came."""
        now = time.monotonic()
        left, since = self._left.pop(client, (BURST, now))
        left = min(BURST, left + (now - since) * RATE) - 1
        self._left[client] = (max(left, 0.0), now)
        while len(self._left) > _CLIENTS_MOST:
            self._left.popitem(last=False)
        if left < 0:
            words = f"{RATE:g} a second may come from one client. Wait a moment."
            raise Refusal(429, f"Too many requests: {words}", "requests")


async def read_body(
    lease: MemoryLease, request: Request, too_large: Refusal, most: int, *, to_the_end: bool = False
) -> bytearray:
    """Returns a request's content.

    Raises `too_large` if it has more than `most` bytes, or another `Refusal` if it is too slow.
    Reads too large content `to_the_end` if asked: many clients read an answer only after they have
    sent all.
    """
    told = request.headers.get("content-length", "")
    is_large, more = told.isdecimal() and int(told[:20]) > most, True
    if is_large and not to_the_end:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(408, "The request did not come whole.", "request_seconds")
                part, more = message.get("body", b""), message.get("more_body", False)
                is_large = is_large or len(content) + len(part) > most
                if is_large:
                    if to_the_end:
                        continue
                    raise too_large
                content += part
                if len(content) > SMALL_BYTES and not lease.reserve(len(part)):
                    words = "Too many large requests at once. Send one after the other."
                    raise Refusal(503, words, "request_bytes")
    except TimeoutError:
        words = f"The request did not come within {_BODY_SECONDS:g} seconds."
        raise Refusal(408, words, "request_seconds") from None
    if is_large:
        raise too_large
    return content
