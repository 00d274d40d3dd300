"""The server over Streamable HTTP, with `/healthz` and `/metrics`."""

from __future__ import annotations

from typing import Any

from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecurityMiddleware
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from wasm_kernel.frontends.http.callers import ADMIN
from wasm_kernel.frontends.http.limits import ClientLimits
from wasm_kernel.frontends.http.metrics import CONTENT_TYPE
from wasm_kernel.frontends.http.serving import Address
from wasm_kernel.frontends.mcp.request_limiter import REQUEST_BYTES, RequestLimiter
from wasm_kernel.frontends.mcp.server import WorkspaceServer
from wasm_kernel.frontends.mcp.sessions import AgentSessions

_CONNECTIONS_MOST = 10_000  # connections of the older protocol, of all clients
_HEALTH = "/healthz"


def http_server(
    sessions: AgentSessions, address: Address, limits: ClientLimits, **options: Any
) -> WorkspaceServer:
    """Returns a server with its pages, for the clients of `limits`, and with further options."""
    tokens = limits.tokens
    if tokens is not None:
        own = AnyHttpUrl(f"http://{address.host}:{address.port}")
        auth = AuthSettings(issuer_url=own, resource_server_url=None)
        options |= {"token_verifier": tokens, "auth": auth}
    server = WorkspaceServer(sessions, limits.metrics, **options)
    add_pages(server, None if tokens else address, needs_admin=bool(tokens and tokens.has_admin))
    return server


def http_app(
    server: WorkspaceServer, address: Address, limits: ClientLimits, idle_seconds: float | None
) -> ASGIApp:
    """Returns the application that serves `server`.

    After `idle_seconds` without a request, a connection of the older protocol ends.
    """
    app = server.streamable_http_app(
        host=address.host,
        transport_security=address.security,
        max_request_body_size=REQUEST_BYTES,
        session_idle_timeout=idle_seconds,
        max_sessions=_CONNECTIONS_MOST,
    )
    return RequestLimiter(app, server.sessions, limits)


def add_pages(server: WorkspaceServer, opened: Address | None, *, needs_admin: bool) -> None:
    """Adds `/healthz` and `/metrics`, which require the admin token if `needs_admin`.

    `opened` is the address of a server without tokens, which must refuse web pages that rebind
    their names to it.
    """
    security = TransportSecurityMiddleware(None if opened is None else opened.security)

    async def page(request: Request) -> Response:
        if needs_admin and ADMIN not in request.auth.scopes:
            return PlainTextResponse("This page takes the admin token.", 401)
        if (refused := await security.validate_request(request)) is not None:
            return refused
        service = await server.sessions.service()
        if request.url.path == _HEALTH:
            return PlainTextResponse("ok\n")
        return Response(server.metrics.page(await service.list()), media_type=CONTENT_TYPE)

    for path in (_HEALTH, "/metrics"):
        server.custom_route(path, methods=["GET"])(page)
