"""The server over Streamable HTTP: addresses, tokens, rates, `/healthz` and `/metrics`."""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from msgspec import Struct
from pydantic import AnyHttpUrl
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wasm_kernel.errors import PolicyError
from wasm_kernel.frontends.mcp.callers import (
    ADMIN,
    SESSION_HEADER,
    Caller,
    Tokens,
    connection_scope,
)
from wasm_kernel.frontends.mcp.metrics import CONTENT_TYPE, Metrics
from wasm_kernel.frontends.mcp.server import WorkspaceServer
from wasm_kernel.frontends.mcp.sessions import AgentSessions

REQUEST_BYTES = 16 * 1024 * 1024
"""The most bytes of a request."""
RATE, BURST = 100.0, 500.0
"""The requests a second of one client, and those that it may send at once."""
_CLIENTS_MOST = 10_000  # whose rates are known
_CONNECTIONS_MOST = 1_000  # of the older protocol at once
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_UNPROTECTED = (
    "is needed for an address that other machines reach: whoever reaches it could run code in your "
    "sessions. Name a file of tokens, or serve 127.0.0.1."
)


_Page = Callable[[Request], Awaitable[Response]]


class Address(Struct, frozen=True):
    """Where to listen.

    Attributes:
        host: The host.
        port: The port; 0 for any that is free.
        names: Further names that clients reach it by.
    """

    host: str
    port: int
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, names: tuple[str, ...], *, has_tokens: bool) -> Address:
        """Returns the address that `HOST:PORT` says.

        Raises:
            PolicyError: the text is not of that form; or other machines reach the address, and
                there is no token.
        """
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) < 2**16):
            raise PolicyError("--http", f"takes HOST:PORT, not {text!r}")
        if not (has_tokens or host in _LOOPBACK):
            raise PolicyError("--token-file", _UNPROTECTED)
        return cls(host, int(port), names)

    def listening(self) -> socket.socket:
        """Returns a socket that listens there.

        Raises:
            OSError: the address can't be had.
        """
        host = self.host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, self.port), family=family)

    @property
    def security(self) -> TransportSecuritySettings:
        """The names that a request may call this server by, so that no web page can rebind one."""
        names = [*_LOOPBACK, self.host, *self.names]
        origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in names]
        return TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=[*names, *(f"{name}:*" for name in names)],
            allowed_origins=[*origins, *(f"{origin}:*" for origin in origins)],
        )


class Rates:
    """How many requests clients have sent lately."""

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


class Gate:
    """What stands before the SDK's application: it limits rates, and sees that clients leave.

    Args:
        app: The SDK's application.
        sessions: The sessions of all clients.
        tokens: The tokens that it takes; who shows none of them is known by the address.
    """

    def __init__(self, app: ASGIApp, sessions: AgentSessions, tokens: Tokens | None) -> None:
        self._app = app
        self._sessions = sessions
        self._tokens = tokens
        self._rates = Rates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        known = self._tokens.name_of(headers.get("authorization", "")) if self._tokens else ""
        if not self._rates.allows(known or f"at {(scope.get('client') or ('',))[0]}"):
            words = f"Too many requests: {RATE:g} a second may come from one client. Wait a moment."
            await PlainTextResponse(words, 429, {"retry-after": "1"})(scope, receive, send)
            return
        if scope["method"] != "DELETE":
            await self._app(scope, receive, send)
            return
        status = 500

        async def watch(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await self._app(scope, receive, watch)
        if status < 300:
            await self._sessions.end_scope(connection_scope(headers.get(SESSION_HEADER, "")))


async def serve_http(
    sessions: AgentSessions,
    address: Address,
    tokens: Tokens | None,
    idle_seconds: float | None,
    listener: socket.socket,
) -> None:
    """Serves until a signal ends it.

    Args:
        sessions: The sessions of all clients.
        address: Where it listens.
        tokens: The tokens that it takes; None for no token.
        idle_seconds: After so long without a request, a connection of the older protocol ends.
        listener: The socket.
    """
    own = AnyHttpUrl(f"http://{address.host}:{listener.getsockname()[1]}")
    secured: dict[str, Any] = {}
    if tokens is not None:
        auth = AuthSettings(issuer_url=own, resource_server_url=None)
        secured = {"token_verifier": tokens, "auth": auth}
    server = WorkspaceServer(sessions, Metrics(), Caller(""), **secured)
    _add_pages(server, needs_admin=tokens is not None and tokens.has_admin)
    app = server.streamable_http_app(
        host=address.host,
        transport_security=address.security,
        max_request_body_size=REQUEST_BYTES,
        session_idle_timeout=idle_seconds,
        max_sessions=_CONNECTIONS_MOST,
    )
    config = uvicorn.Config(Gate(app, sessions, tokens), log_level="warning", access_log=False)
    await uvicorn.Server(config).serve(sockets=[listener])


def _add_pages(server: WorkspaceServer, *, needs_admin: bool) -> None:
    def page(path: str) -> Callable[[_Page], _Page]:
        def add(serve: _Page) -> _Page:
            async def checked(request: Request) -> Response:
                if needs_admin and ADMIN not in request.auth.scopes:
                    return PlainTextResponse("This page takes the admin token.", 401)
                return await serve(request)

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
