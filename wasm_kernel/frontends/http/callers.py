"""`Caller`: the client that makes a call, and the scope of its automatic sessions; `MemoryLease`:
the memory of a request; `Tokens`: the bearer tokens that a server over HTTP accepts.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from typing import Self

from mcp.server.auth.provider import AccessToken
from msgspec import Struct
from starlette.types import Scope

from wasm_kernel.errors import PolicyError
from wasm_kernel.policy import MIB, read_toml

ADMIN = "admin"
ENDING = "this server is ending; try again when it, or another one, is up"
"""The error for requests that arrive while the server ends."""
LEASE_KEY = "wasm_kernel.lease"
"""The key of a request's `MemoryLease` in its ASGI scope."""
HELD_BYTES = 64 * MIB
"""The most bytes that the requests of one client, and large replies to them, hold at once."""
_TOKEN_CHARACTERS = 16  # the least of a token: shorter ones can be guessed
_KEYS = {"token", "admin", "owners"}


class MemoryLease:
    """The memory that a request and its reply hold, within the limit of its client.

    `held` has the bytes of all requests of each client.
    """

    def __init__(self, held: Counter[str], client: str) -> None:
        self._held = held
        self._client = client
        self._own = 0
        self._has_ended = False

    @property
    def is_used(self) -> bool:
        """True if the lease holds any memory."""
        return self._own > 0

    def reserve(self, size: int) -> bool:
        """Takes `size` bytes until the request ends; returns whether the limit allows it."""
        if self._has_ended or self._held[self._client] + size > HELD_BYTES:
            return False
        self._held[self._client] += size
        self._own += size
        return True

    def give_back(self, size: int) -> None:
        """Releases `size` bytes of the lease."""
        if not self._has_ended:
            self._held[self._client] -= size
            self._own -= size

    def end(self) -> None:
        """Releases the lease's bytes."""
        self._has_ended = True
        self._held[self._client] -= self._own
        if not self._held[self._client]:
            del self._held[self._client]


LEASE: ContextVar[MemoryLease | None] = ContextVar("lease", default=None)
"""The lease of the current request; None over stdio, which has only one client."""


class Caller(Struct, frozen=True):
    """The client that makes a call.

    Attributes:
        scope: The name that binds its calls to its automatic sessions: of its token's owner, the
            connection, or the process. If it is empty, each call needs a session's handle.
        credential: The name of its token: only the same credential may use its sessions.
        owner: The name under which the limits count its sessions.
        is_admin: Whether it may see and use the sessions of other clients.
    """

    scope: str
    credential: str
    owner: str
    is_admin: bool = False


def client_name(credential: str, scope: Scope) -> str:
    """Returns the name of a request's client: its credential, or else its address."""
    return credential or f"at {(scope.get('client') or ('',))[0]}"


def key_name(key: str) -> str:
    """Returns the name for a key that nothing checks: clients with the same key have the same."""
    return f"key {_digest(key).hex()}"


class Tokens:
    """The bearer tokens that a server takes: a `TokenVerifier` of the SDK.

    They are kept as SHA-256, so that the time of a look-up tells nothing of a token's beginning.
    """

    def __init__(self, known: dict[bytes, AccessToken]) -> None:
        self._known = known
        self.has_admin = any(ADMIN in each.scopes for each in known.values())

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Returns the tokens of a TOML file: `token`, `admin`, and a table `owners`.

        Raises `PolicyError` if the file can't be read, or a token in it can't be used.
        """
        found = read_toml(path)
        for key in found.keys() - _KEYS:
            raise PolicyError(
                key, "is not a key; there are token, admin and owners", where=path.name
            )
        owners = found.get("owners", {})
        if not isinstance(owners, dict):
            raise PolicyError("owners", "is a table of names with their tokens", where=path.name)
        rows = [(f"owner {name}", name, text) for name, text in owners.items()]
        rows += [(key, None, found[key]) for key in ("token", ADMIN) if key in found]
        known: dict[bytes, AccessToken] = {}
        for name, subject, text in rows:
            if not isinstance(text, str) or len(text) < _TOKEN_CHARACTERS or not text.isascii():
                rule = f"is not a token of {_TOKEN_CHARACTERS} ASCII characters or more"
                raise PolicyError(name, rule, where=path.name)
            if _digest(text) in known:
                raise PolicyError(name, "has a token that stands there twice", where=path.name)
            scopes = [ADMIN] if name == ADMIN else []
            known[_digest(text)] = AccessToken(
                token="", client_id=name, scopes=scopes, subject=subject
            )
        if not known:
            raise PolicyError(path.name, "holds no token: write token, or a table owners")
        return cls(known)

    def name_of(self, authorization: str) -> str:
        """Returns the name of the token in an `Authorization` header; empty if it is unknown."""
        kind, _, token = authorization.partition(" ")
        known = self._known.get(_digest(token)) if kind.lower() == "bearer" else None
        return known.client_id if known is not None else ""

    def caller_of(self, token: str) -> Caller | None:
        """Returns the client with a token; None if it is unknown."""
        known = self._known.get(_digest(token))
        if known is None:
            return None
        name = known.client_id
        return Caller("", name, known.subject or name, ADMIN in known.scopes)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Returns the rights of a token; None if it is unknown."""
        return self._known.get(_digest(token))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
