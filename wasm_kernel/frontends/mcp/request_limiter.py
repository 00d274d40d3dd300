"""`RequestLimiter`: checks requests before the SDK's application does, and limits each client.

It limits the rate and size of requests, ends unused connections, and notices when clients leave.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, OrderedDict
from uuid import uuid4

from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wasm_kernel.frontends.mcp.callers import (
    LEASE_KEY,
    SESSION_HEADER,
    MemoryLease,
    Tokens,
    client_name,
    connection_scope,
)
from wasm_kernel.frontends.mcp.metrics import Metrics
from wasm_kernel.frontends.mcp.sessions import AgentSessions
from wasm_kernel.linux.channel import marks_in
from wasm_kernel.policy import MIB

REQUEST_BYTES = 16 * MIB
"""The most bytes of a request."""
REQUEST_VALUES = 10_000
"""The most values of JSON in a request: each takes memory and the event loop's time."""
RATE, BURST = 100.0, 500.0
"""The requests per second of one client, and the number that it may send at once."""
CONNECTIONS = 1_000
"""The most open connections of the older protocol of one client."""
_BODY_SECONDS = 60.0  # for a request's content to arrive
_SMALL_BYTES = 64 * 1024  # the most of a request that does not count towards its client's memory
_CLIENTS_MOST = 10_000  # whose rates are remembered
_OF_REQUEST = {each.encode() for each in (SESSION_HEADER, MCP_PROTOCOL_VERSION_HEADER)}
_OF_REQUEST |= {b"content-length", b"content-type", b"accept"}
_JSON = [(b"content-type", b"application/json")]
_JSON += [(b"accept", b"application/json, text/event-stream")]


class Rates:
    """The recent numbers of requests of clients."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        """Counts a request; returns whether it may be served."""
        now = time.monotonic()
        left, since = self._left.pop(client, (BURST, now))
        left = min(BURST, left + (now - since) * RATE) - 1
        self._left[client] = (max(left, 0.0), now)
        while len(self._left) > _CLIENTS_MOST:
            self._left.popitem(last=False)
        return left >= 0


class _Refusal(Exception):
    """A request that is not served: the status, the limit that it met, and words for its client."""

    def __init__(self, status: int, limit: str, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.limit = limit

    def answer(self) -> PlainTextResponse:
        headers = {"connection": "close"} if self.status in (408, 413) else {"retry-after": "1"}
        return PlainTextResponse(str(self), self.status, headers)


class RequestLimiter:
    """The checks that every request passes before the SDK's application.

    A client without a known token is identified by its address. Metrics count refusals.
    """

    def __init__(
        self, app: ASGIApp, sessions: AgentSessions, tokens: Tokens | None, metrics: Metrics
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._tokens = tokens
        self._metrics = metrics
        self._rates = Rates()
        self._held: Counter[str] = Counter()
        self._connections: dict[str, OrderedDict[str, None]] = {}  # least recently used first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        known = self._tokens.name_of(headers.get("authorization", "")) if self._tokens else ""
        client = client_name(known, scope)
        lease = MemoryLease(self._held, client)
        try:
            if not self._rates.allows(self._counted_as(client, headers, known)):
                words = f"{RATE:g} a second may come from one client. Wait a moment."
                raise _Refusal(429, "requests", f"Too many requests: {words}")
            if scope["method"] == "POST" and (known or self._tokens is None):
                receive = _again(await self._read(lease, headers, receive), receive)
            await self._serve(client, headers, {**scope, LEASE_KEY: lease}, receive, send)
        except _Refusal as refusal:
            self._metrics.refused(refusal.limit)
            await refusal.answer()(scope, receive, send)
        finally:
            lease.end()

    def _counted_as(self, client: str, headers: Headers, known: str) -> str:
        """Returns the name under which the rate of a request is counted.

        Clients without tokens may share an address, so a known connection is counted by itself.
        """
        connection = headers.get(SESSION_HEADER, "")
        is_own = not known and connection in self._connections.get(client, ())
        return f"{client}, {connection}" if is_own else client

    @staticmethod
    async def _read(lease: MemoryLease, headers: Headers, receive: Receive) -> bytes:
        """Returns a request's content; raises `_Refusal` if it is too large or too slow."""
        told = headers.get("content-length", "")
        most = REQUEST_BYTES
        if SESSION_HEADER not in headers and not _is_modern(headers):
            most = _SMALL_BYTES  # it begins a connection, which keeps its content
        words = f"A request may have {REQUEST_BYTES // MIB} MiB, and one that begins a connection "
        too_large = _Refusal(413, "request_bytes", f"{words}{_SMALL_BYTES // 1024} KiB. Send less.")
        if told.isdecimal() and int(told[:20]) > most:
            raise too_large
        content = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refusal(408, "request_seconds", "The request did not come whole.")
                    part = message.get("body", b"")
                    if len(content) + len(part) > most:
                        raise too_large
                    content += part
                    if len(content) > _SMALL_BYTES and not lease.take(len(part)):
                        words = "Too many large requests at once. Send one after the other."
                        raise _Refusal(503, "request_bytes", words)
                    more = message.get("more_body", False)
        except TimeoutError:
            words = f"The request did not come within {_BODY_SECONDS:g} seconds."
            raise _Refusal(408, "request_seconds", words) from None
        if marks_in(content, REQUEST_VALUES) > REQUEST_VALUES:
            words = (
                f"A request may hold {REQUEST_VALUES:,} values. Write data as the text of a file."
            )
            raise _Refusal(413, "request_values", words)
        return bytes(content)

    async def _serve(
        self, client: str, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serves a request, and notes the state of its connection."""
        status, header = 500, headers.get(SESSION_HEADER, "")
        own = self._connections.get(client, OrderedDict())
        if header:
            self._sessions.client_is_there(connection_scope(header), True)
        elif scope["method"] == "POST" and len(own) >= CONNECTIONS:
            await self._end_unused(own, scope)

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                connection = Headers(raw=message["headers"]).get(SESSION_HEADER)
                if connection and status < 300:
                    known = self._connections.setdefault(client, own)
                    known[connection] = None
                    known.move_to_end(connection)
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            if scope["method"] == "GET" and status < 300 and header:
                self._sessions.client_is_there(connection_scope(header), False)
            if header and scope[LEASE_KEY].is_used:
                await self._let_go(header, scope)
        if scope["method"] == "DELETE" and status < 300:
            own.pop(header, None)
            await self._sessions.end_scope(connection_scope(header))

    async def _end_unused(self, own: OrderedDict[str, None], scope: Scope) -> None:
        """Ends a client's connection without a session, on behalf of a request of that client.

        A client that uses it later is told that it is gone, and begins another.
        """
        has_session = self._sessions.has_automatic
        unused = next((each for each in own if not has_session(connection_scope(each))), None)
        if unused is None:
            return
        del own[unused]
        await self._send_for(unused, scope, "DELETE", b"")

    async def _let_go(self, connection: str, scope: Scope) -> None:
        """Makes a connection forget a large request and its reply, by a ping.

        The SDK holds the last ones of each connection until others come.
        """
        ping = {"jsonrpc": "2.0", "id": f"limiter {uuid4()}", "method": "ping"}
        await self._send_for(connection, scope, "POST", json.dumps(ping).encode())

    async def _send_for(self, connection: str, scope: Scope, verb: str, content: bytes) -> None:
        """Sends a request on behalf of the client whose request `scope` describes."""
        headers = [(name, value) for name, value in scope["headers"] if name not in _OF_REQUEST]
        headers += [*_JSON, (SESSION_HEADER.encode(), connection.encode())]

        async def nothing_more() -> Message:
            return await asyncio.Future[Message]()

        async def discard(_: Message) -> None:
            pass

        replayed = _again(content, nothing_more)
        await self._app({**scope, "method": verb, "headers": headers}, replayed, discard)


def _is_modern(headers: Headers) -> bool:
    """Returns whether a request uses a protocol without connections, as the SDK decides it."""
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    return version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS


def _again(content: bytes, receive: Receive) -> Receive:
    """Returns a `Receive` that replays content that was already read."""
    left: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
