"""`CALLER`: the client that makes a call of the protocol."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.context import ServerRequestContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from wasm_kernel.frontends.http.callers import ADMIN, Caller, client_name

SESSION_HEADER = "mcp-session-id"
CALLER: ContextVar[Caller] = ContextVar("caller")
"""The client that makes the current call."""
NO_CALLER = Caller("", "", "")
"""The local caller of a server without a client over stdio."""


def caller_of(context: ServerRequestContext[Any, Any], local: Caller) -> Caller:
    """Returns the client that makes a request; over stdio, it is `local`."""
    request = context.request
    if request is None:
        return local
    user = request.scope.get("user")
    token = user.access_token if isinstance(user, AuthenticatedUser) else None
    credential, owner, is_admin = "", "", False
    if token is not None:
        credential, owner, is_admin = token.client_id, token.subject or "", ADMIN in token.scopes
    scope = f"owner {owner}" if owner else ""
    if not scope and context.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
        scope = connection_scope(request.headers.get(SESSION_HEADER, ""))  # the SDK has checked it
    owner = owner or scope or client_name(credential, request.scope)
    return Caller(scope, credential, owner, is_admin)


def connection_scope(session_header: str) -> str:
    """Returns the scope of a connection of the older protocol, by its `Mcp-Session-Id`."""
    return f"connection {session_header}"
