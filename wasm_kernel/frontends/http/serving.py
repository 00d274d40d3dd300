"""A server over HTTP: its address, its connections and its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Collection

import h11
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from msgspec import Struct
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from wasm_kernel.errors import OutOfDescriptors, PolicyError
from wasm_kernel.execution.descriptors import make_room

App = ASGIApp
_LINES_MOST = 5_000  # connections at once
_BACKLOG = 100  # connections that the system accepts before the server sees one
_HEAD_SECONDS = 10.0  # for the head of a request to arrive
_LEAVE_SECONDS = 3  # for running requests when the server ends
_ANSWER_SECONDS = 0.5  # for the answers to waiting requests, once the sessions have ended
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = "HOST:PORT"
_UNPROTECTED = (
    "is needed for an address that other machines reach: anyone who reaches it could run code in "
    "your sessions. Name a file of tokens, or serve 127.0.0.1."
)


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
        is_host = bool(colon and host) and "/" not in host
        if not (is_host and port.isdecimal() and int(port) < 2**16):
            raise PolicyError(
                _HOST, f"is an address and a port, as in 127.0.0.1:8811, not {text!r}"
            )
        if not (has_tokens or host in _LOOPBACK):
            raise PolicyError("--token-file", _UNPROTECTED)
        return cls(host, int(port), names)

    def listening(self) -> socket.socket:
        """Returns a socket that listens on the address; raises `PolicyError` if it can't."""
        host = self.host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, self.port), family=family)
        except OSError as problem:
            raise PolicyError(_HOST, self._why_not(problem)) from None
        # asyncio does not take this function's sockets for TCP: a reply's rest would wait 40 ms
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener

    def _why_not(self, problem: OSError) -> str:
        if problem.errno == errno.EADDRINUSE:
            return f"is taken: a program listens on port {self.port} already. Name another port."
        is_of_name = isinstance(problem, socket.gaierror)
        why = problem.strerror if is_of_name else os.strerror(problem.errno or 0)
        return f"can't be {self.host}:{self.port} ({why}). Name an address of this machine."

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


class HttpConnection(H11Protocol):
    """A connection. It ends if the head of a request does not arrive in time.

    uvicorn's own time-out begins only after the first response, and any byte ends it. At its limit
    of connections, uvicorn accepts further ones, and refuses requests on all of them, old ones
    included. Here, a further connection takes the place of a free one.
    """

    _late: asyncio.TimerHandle | None = None
    _heard = 0.0  # the time of the last data

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(transport)
        self._heard = self.loop.time()
        if self.limit_concurrency and len(self.connections) >= self.limit_concurrency:
            # otherwise clients that do nothing could keep others out
            others = (each for each in self.connections if isinstance(each, HttpConnection))
            free = [each for each in others if each.is_free and each is not self]
            min(free, key=lambda each: each._heard, default=self).transport.abort()
        self._late = self.loop.call_later(_HEAD_SECONDS, transport.close)

    @property
    def is_free(self) -> bool:
        """True if the client has no request here, or does not read the answer."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return (is_answered or self.flow.write_paused) and not self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Takes received data; waits for the rest, if it is a part of a head."""
        self._heard = self.loop.time()
        super().data_received(data)
        is_waiting = self.conn.their_state is h11.IDLE
        if self._late is not None and not is_waiting:
            self._late.cancel()
            self._late = None
        elif self._late is None and is_waiting:
            self._late = self.loop.call_later(_HEAD_SECONDS, self.transport.close)


class CutOff(Exception):
    """Ends the connection of an answer that has begun, so that its client sees the cut."""

    @classmethod
    def is_unknown(cls, record: logging.LogRecord) -> bool:
        """Returns whether a log record is about anything but a cut connection."""
        return not (record.exc_info and isinstance(record.exc_info[1], cls))


class Server(uvicorn.Server):
    """A server that does not wait for cells when it is told to end."""

    def __init__(self, config: uvicorn.Config, close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._close = close
        # otherwise the signal ends the streams of agents before their answers
        AppStatus.enable_automatic_graceful_drain = False

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the sessions first, so that requests that wait for a cell are answered."""
        await self._close()
        if self.server_state.tasks:
            await asyncio.sleep(_ANSWER_SECONDS)
        AppStatus.should_exit = True
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # streams are cut off
        await super().shutdown(sockets)


def by_path(paths: Collection[str], first: App, second: App) -> App:
    """Returns an application that serves requests for `paths` by `first`, others by `second`."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_first = scope["type"] != "http" or scope["path"] in paths
        await (first if is_first else second)(scope, receive, send)

    return app


def awaiting_clients(app: App) -> App:
    """Wraps an application, so that an answer ends when its client has received all of it.

    uvicorn waits for the client before each part of an answer, but not after the last one.
    """

    async def serve_all(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_part(message: Message) -> None:
            if message.get("body"):
                await send({**message, "more_body": True})
                if message.get("more_body"):
                    return
                message = {**message, "body": b""}
            await send(message)

        await app(scope, receive, send_part)

    return serve_all


def _most_connections() -> int:
    """Returns the most connections: half of the descriptors. The other half is for sessions."""
    with contextlib.suppress(OutOfDescriptors):
        make_room(None, 2 * _LINES_MOST)
    return min(_LINES_MOST, os.sysconf("SC_OPEN_MAX") // 2)


async def serve(
    app: App, listener: socket.socket, close: Callable[[], Awaitable[None]], *, has_tokens: bool
) -> None:
    """Serves until a signal comes; `close` then ends the sessions.

    A server that `has_tokens` believes a reverse proxy which address a client has.
    """
    config = uvicorn.Config(
        awaiting_clients(app),
        http=HttpConnection,
        log_level="warning",
        access_log=False,
        proxy_headers=has_tokens,  # otherwise any program could pose as another client
        limit_concurrency=_most_connections(),
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_LEAVE_SECONDS,
    )
    # the SDK's handler opens a file for a traceback, which ended a server without descriptors
    logging.basicConfig(level=logging.WARNING, force=True)
    logging.getLogger("uvicorn.error").addFilter(CutOff.is_unknown)
    await Server(config, close).serve(sockets=[listener])
