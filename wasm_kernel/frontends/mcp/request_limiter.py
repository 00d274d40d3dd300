"""`RequestLimiter`: checks requests before the SDK's application does, and limits each client.

It limits the rate and size of requests, ends unused connections, and notices when clients leave.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from uuid import uuid4

from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wasm_kernel.frontends.http.callers import LEASE_KEY, MemoryLease, client_name
from wasm_kernel.frontends.http.limits import SMALL_BYTES, ClientLimits, Refusal, read_body
from wasm_kernel.frontends.mcp.callers import SESSION_HEADER, connection_scope
from wasm_kernel.frontends.mcp.sessions import AgentSessions
from wasm_kernel.linux.channel import marks_in
from wasm_kernel.policy import MIB

REQUEST_BYTES = 16 * MIB
"""The most bytes of a request."""
REQUEST_VALUES = 10_000
"""The most values of JSON in a request: each takes memory and the event loop's time."""
CONNECTIONS = 1_000
"""The most open connections of the older protocol of one client."""
_OF_REQUEST = {each.encode() for each in (SESSION_HEADER, MCP_PROTOCOL_VERSION_HEADER)}
_OF_REQUEST |= {b"content-length", b"content-type", b"accept"}
_RESUMED = b"last-event-id"  # streams here can't be resumed, and the SDK would give no answer
_JSON = [(b"content-type", b"application/json")]
_JSON += [(b"accept", b"application/json, text/event-stream")]


class RequestLimiter:
    """The checks that every request passes before the SDK's application.

    A client without a known token is identified by its address. Metrics count refusals.
    """

    def __init__(self, app: ASGIApp, sessions: AgentSessions, limits: ClientLimits) -> None:
        self._app = app
        self._sessions = sessions
        self._limits = limits
        self._connections: dict[str, OrderedDict[str, None]] = {}  # least recently used first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        tokens = self._limits.tokens
        known = tokens.name_of(headers.get("authorization", "")) if tokens else ""
        client = client_name(known, scope)
        lease = self._limits.lease(client)
        try:
            connection = headers.get(SESSION_HEADER, "")
            # clients without tokens may share an address: a known connection counts by itself
            is_own = not known and connection in self._connections.get(client, ())
            self._limits.count(f"{client}, {connection}" if is_own else client)
            if scope["method"] == "POST" and (known or tokens is None):
                receive = _again(await self._read(lease, Request(scope, receive)), receive)
            sent = [each for each in scope["headers"] if each[0] != _RESUMED]
            own = {**scope, "headers": sent, LEASE_KEY: lease}
            await self._serve(client, headers, own, receive, send)
        except Refusal as refusal:
            self._limits.metrics.refused(refusal.limit)
            answer = PlainTextResponse(str(refusal), refusal.status, refusal.headers)
            await answer(scope, receive, send)
        finally:
            lease.end()

    @staticmethod
    async def _read(lease: MemoryLease, request: Request) -> bytes:
        """Returns a request's content; raises `Refusal` if it is too large or too slow."""
        most, version = REQUEST_BYTES, request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        is_modern = version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS
        if SESSION_HEADER not in request.headers and not is_modern:
            most = SMALL_BYTES  # it begins a connection, which keeps its content
        words = f"A request may have {REQUEST_BYTES // MIB} MiB, and one that begins a connection "
        words += f"{SMALL_BYTES // 1024} KiB. Send less."
        too_large = Refusal(413, words, "request_bytes")
        content = await read_body(lease, request, too_large, most)
        if marks_in(content, REQUEST_VALUES) > REQUEST_VALUES:
            words = f"A request may hold {REQUEST_VALUES:,} values. Write data as a file's text."
            raise Refusal(413, words, "request_values")
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
        scopes = self._sessions.scopes
        unused = next((each for each in own if connection_scope(each) not in scopes), None)
        if unused is None:
            return
        del own[unused]
        await self._send_for(unused, scope, "DELETE", b"")

    async def _let_go(self, connection: str, scope: Scope) -> None:
        """Makes a connection forget a large request and its reply, by a ping.

        The SDK holds the last request and reply of each connection until others come.
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


def _again(content: bytes, receive: Receive) -> Receive:
    """Returns a `Receive` that replays content that was already read."""
    left: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
