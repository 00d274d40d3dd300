"""The server over Streamable HTTP: its address and connections, `/healthz` and `/metrics`."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import uvicorn
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from msgspec import Struct
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from wasm_kernel.errors import PolicyError
from wasm_kernel.frontends.mcp.callers import ADMIN, Tokens
from wasm_kernel.frontends.mcp.metrics import CONTENT_TYPE, Metrics
from wasm_kernel.frontends.mcp.request_limiter import REQUEST_BYTES, RequestLimiter
from wasm_kernel.frontends.mcp.server import WorkspaceServer
from wasm_kernel.frontends.mcp.sessions import AgentSessions

_CONNECTIONS_MOST = 10_000  # of the older protocol, of all clients
_LINES_MOST = 5_000  # at once
_HEAD_SECONDS = 10.0  # for the head of a request to arrive
_LEAVE_SECONDS = 3  # for running requests when the server ends
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_UNPROTECTED = (
    "is needed for an address that other machines reach: anyone who reaches it could run code in "
    "your sessions. Name a file of tokens, or serve 127.0.0.1."
)


_Page = Callable[[Request], Awaitable[Response]]


class Address(Struct, frozen=True):
    """The address to listen on. Port 0 is any free port; `names` are further names of the host."""

    host: str
    port: int
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, names: tuple[str, ...], *, has_tokens: bool) -> Address:
        """Returns the address in `HOST:PORT`; raises `PolicyError` if it is not one.

        Also raises `PolicyError` if other machines reach the address, and there is no token.
        """
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) < 2**16):
            raise PolicyError("--http", f"takes HOST:PORT, not {text!r}")
        if not (has_tokens or host in _LOOPBACK):
            raise PolicyError("--token-file", _UNPROTECTED)
        return cls(host, int(port), names)

    def listening(self) -> socket.socket:
        """Returns a socket that listens on the address."""
        host = self.host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, self.port), family=family)
        # asyncio does not take this function's sockets for TCP: a reply's rest would wait 40 ms
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener

    @property
    def security(self) -> TransportSecuritySettings:
        """The names by which requests may call this server, so that no web page can rebind one."""
        names = [*_LOOPBACK, self.host, *self.names]
        origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in names]
        return TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=[*names, *(f"{name}:*" for name in names)],
            allowed_origins=[*origins, *(f"{origin}:*" for origin in origins)],
        )


class Line(H11Protocol):
    """A connection, which takes a descriptor. It ends if the head of a request does not arrive.

    uvicorn's own time-out begins only after the first response, and any byte ends it.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(transport)
        self._late = self.loop.call_later(_HEAD_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        """Takes received data; waits for the rest, if it is a part of a head."""
        super().data_received(data)
        is_waiting = self.conn.their_state is h11.IDLE
        if self._late is not None and not is_waiting:
            self._late.cancel()
            self._late = None
        elif self._late is None and is_waiting:
            self._late = self.loop.call_later(_HEAD_SECONDS, self.transport.close)


class Server(uvicorn.Server):
    """A server that does not wait for cells when it is told to end."""

    def __init__(self, config: uvicorn.Config, sessions: AgentSessions) -> None:
        super().__init__(config)
        self._sessions = sessions

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the sessions first, so that requests that wait for a cell are answered."""
        await self._sessions.close()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # streams are cut off
        await super().shutdown(sockets)


def http_server(
    sessions: AgentSessions, address: Address, tokens: Tokens | None, characters: int
) -> WorkspaceServer:
    """Returns a server with its pages, and with `tokens` if given.

    A reply holds at most `characters` of one output.
    """
    secured: dict[str, Any] = {}
    if tokens is not None:
        own = AnyHttpUrl(f"http://{address.host}:{address.port}")
        auth = AuthSettings(issuer_url=own, resource_server_url=None)
        secured = {"token_verifier": tokens, "auth": auth}
    server = WorkspaceServer(sessions, Metrics(), characters=characters, **secured)
    add_pages(server, None if tokens else address, needs_admin=bool(tokens and tokens.has_admin))
    return server


async def serve_http(
    server: WorkspaceServer,
    address: Address,
    tokens: Tokens | None,
    idle_seconds: float | None,
    listener: socket.socket,
) -> None:
    """Serves until a signal comes.

    After `idle_seconds` without a request, a connection of the older protocol ends.
    """
    sessions = server.sessions
    app = server.streamable_http_app(
        host=address.host,
        transport_security=address.security,
        max_request_body_size=REQUEST_BYTES,
        session_idle_timeout=idle_seconds,
        max_sessions=_CONNECTIONS_MOST,
    )
    config = uvicorn.Config(
        RequestLimiter(app, sessions, tokens, server.metrics),
        http=Line,
        log_level="warning",
        access_log=False,
        proxy_headers=tokens is not None,  # otherwise any program could pose as another client
        limit_concurrency=_LINES_MOST,
        timeout_graceful_shutdown=_LEAVE_SECONDS,
    )
    await Server(config, sessions).serve(sockets=[listener])


def add_pages(server: WorkspaceServer, opened: Address | None, *, needs_admin: bool) -> None:
    """Adds `/healthz` and `/metrics`, which require the admin token if `needs_admin`.

    `opened` is the address of a server without tokens, which must refuse web pages that rebind
    their names to it.
    """
    security = TransportSecurityMiddleware(None if opened is None else opened.security)

    def page(path: str) -> Callable[[_Page], _Page]:
        def add(serve: _Page) -> _Page:
            async def checked(request: Request) -> Response:
                if needs_admin and ADMIN not in request.auth.scopes:
                    return PlainTextResponse("This page takes the admin token.", 401)
                return await security.validate_request(request) or await serve(request)

            server.custom_route(path, methods=["GET"])(checked)
            return serve

        return add

    @page("/healthz")
    async def healthz(_: Request) -> Response:
        await server.sessions.service()
        return PlainTextResponse("ok\n")

    @page("/metrics")
    async def metrics(_: Request) -> Response:
        service = await server.sessions.service()
        content = server.metrics.page(await service.list())
        return Response(content, media_type=CONTENT_TYPE)
