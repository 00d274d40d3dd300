"""asyncio's connections over the host's network: transports whose calls the event loop awaits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from wasm_kernel_agent.event_loop import GuestLoop
from wasm_kernel_agent.network import TLS, Host, Wire, address_of, of_host

_HIGH, _LOW = 1024 * 1024, 256 * 1024  # bytes that wait to be sent, for a protocol to pause
_WAIT_SECONDS = 5.0
_LOST = "ends with its cell"  # the end of an error about a call that an earlier cell began


class NetworkTransport(asyncio.Transport):
    """A connection of asyncio's: calls of the host read and write, one of each at a time."""

    def __init__(self, sock: Any, protocol: Any, context: Any) -> None:
        extra = {"socket": sock, "peername": sock.getpeername(), "sockname": sock.getsockname()}
        if context is not None:
            facts = TLS.SecureFacts(sock.wire.secure_name)
            extra |= {"sslcontext": context, "ssl_object": facts, "cipher": facts.cipher()}
            extra["peercert"] = facts.getpeercert()
        super().__init__(extra)
        self._sock, self._wire, self._protocol = sock, sock.wire, protocol
        self._wire.is_awaited = True
        self._reading: asyncio.Future[Any] | None = None
        self._sending: asyncio.Future[Any] | None = None
        self._is_paused = self._holds = self._closing = self._is_over = False

    def begin(self) -> None:
        """Tells the protocol of the connection, and begins to read."""
        self._protocol.connection_made(self)
        self._read()

    # -- reading

    def _read(self) -> None:
        if self._reading is None and not (self._is_paused or self._closing):
            wire = self._wire
            step = (wire.number, wire.received, _WAIT_SECONDS)
            try:
                self._reading = _begun("receive", *step)
            except Exception as problem:
                self._end(problem)
                return
            self._reading.add_done_callback(self._came)

    def _came(self, future: asyncio.Future[Any]) -> None:
        self._reading = None
        if future.cancelled() or self._is_over:
            return
        try:
            data = self._wire.take(_ended("receive", future))
        except Exception as problem:
            if _LOST not in str(problem):
                self._end(problem)
                return
            data = b""
        self._wire.incoming.clear()
        if data:
            self._hand_on(data)
        if self._wire.ended:
            self._protocol.eof_received()
            self.close()
        self._read()

    def _hand_on(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return
        while data:
            buffer = self._protocol.get_buffer(len(data))
            view = memoryview(buffer)
            size = min(len(view), len(data))
            view[:size] = data[:size]
            self._protocol.buffer_updated(size)
            data = data[size:]

    def is_reading(self) -> bool:
        """Returns whether the transport reads."""
        return not (self._is_paused or self._closing)

    def pause_reading(self) -> None:
        """Hands nothing on for now."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Goes on reading."""
        self._is_paused = False
        self._read()

    # -- writing

    def write(self, data: Any) -> None:
        """Sends bytes, later."""
        if self._closing:
            return
        self._wire.outgoing += data
        self._send()
        if len(self._wire.outgoing) > _HIGH and not self._holds:
            self._holds = True
            self._protocol.pause_writing()

    def _send(self) -> None:
        if self._sending is not None or self._is_over:
            return
        step = self._wire.next_step()
        if step is None:
            if self._closing:
                self._end(None)
            return
        try:
            self._sending = _begun(*step)
        except Exception as problem:
            self._end(problem)
            return
        self._sending.add_done_callback(lambda future: self._sent(step[0], future))

    def _sent(self, name: str, future: asyncio.Future[Any]) -> None:
        self._sending = None
        if future.cancelled() or self._is_over:
            return
        try:
            _ended(name, future)
        except Exception as problem:
            self._end(problem)
            return
        if self._holds and len(self._wire.outgoing) < _LOW:
            self._holds = False
            self._protocol.resume_writing()
        self._send()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Does nothing: pieces are small, and the host takes them one by one."""

    def can_write_eof(self) -> bool:
        """Returns False: a request says its own end."""
        return False

    def get_write_buffer_size(self) -> int:
        """Returns the number of bytes that wait to be sent."""
        return len(self._wire.outgoing)

    def get_protocol(self) -> Any:
        """Returns the protocol."""
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        """Hands received bytes to another protocol from now on."""
        self._protocol = protocol

    # -- the end

    def is_closing(self) -> bool:
        """Returns whether the connection is closed, or about to be."""
        return self._closing

    def close(self) -> None:
        """Closes the connection when all is sent."""
        if not self._closing:
            self._closing = True
            self._send()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._wire.outgoing.clear()
        self.close()
        self._end(None)

    def _end(self, problem: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = self._closing = True
        for future in (self._reading, self._sending):
            if future is not None and not future.done():
                future.cancel()
        self._wire.outgoing.clear()
        with contextlib.suppress(Exception):
            self._sock.close()
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, problem)


async def _connected(wire: Wire, address: Any) -> None:
    wire.connected(await _value("connect", *wire.prepare(address)))


def _begun(name: str, *args: Any) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = of_host(Host.functions[name].begin, *args)
    return future


def _ended(name: str, future: asyncio.Future[Any]) -> Any:
    return of_host(Host.functions[name].ended, future)


async def _value(name: str, *args: Any) -> Any:
    future = _begun(name, *args)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        future.cancel()
        raise
    return _ended(name, future)


async def _sock_connect(_: GuestLoop, sock: Any, address: Any) -> None:
    """Connects a socket, while other tasks run."""
    await _connected(sock.wire, address)


async def _create_connection(
    _loop: GuestLoop,
    protocol_factory: Any,
    host: Any = None,
    port: Any = None,
    *,
    ssl: Any = None,
    sock: Any = None,
    server_hostname: str | None = None,
    **_: Any,
) -> tuple[NetworkTransport, Any]:
    """Connects to a host, while other tasks run; returns the transport and the protocol."""
    if sock is None:
        sock = socket.socket()
        await _connected(sock.wire, address_of(host, port))
    context = None
    if ssl:
        import ssl as library

        context = library.create_default_context() if ssl is True else ssl
        wire = sock.wire
        wire.secure_name = wire.name_for(server_hostname)
        await _value("secure", wire.number, wire.secure_name)
    protocol = protocol_factory()
    transport = NetworkTransport(sock, protocol, context)
    transport.begin()
    return transport, protocol


def install() -> None:
    """Gives event loops these connections."""
    loops: Any = GuestLoop
    loops.create_connection, loops.sock_connect = _create_connection, _sock_connect
