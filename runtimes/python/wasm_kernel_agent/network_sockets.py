"""The sockets of a guest with a network, in place of the standard library's."""

from __future__ import annotations

import errno
import select
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any

from wasm_kernel_agent import network_loop, network_poll
from wasm_kernel_agent.network import (
    INVENTED,
    NO_PART,
    PIECE,
    TLS,
    WAIT_SECONDS,
    Function,
    Host,
    Wire,
    getaddrinfo,
    gethostbyname,
)

_CLOSED = "the socket is closed"
_OPTIONS = {  # clients name these without a check; Linux' numbers
    "SO_REUSEADDR": 2,
    "SO_ERROR": 4,
    "SO_BROADCAST": 6,
    "SO_SNDBUF": 7,
    "SO_RCVBUF": 8,
    "SO_KEEPALIVE": 9,
    "SO_LINGER": 13,
}


class NetworkSocket(socket.socket):
    """A socket of the guest."""

    def __init__(
        self,
        family: int = -1,
        type: int = -1,
        proto: int = -1,
        fileno: Any = None,
    ) -> None:
        if fileno is not None or type not in (-1, socket.SOCK_STREAM):
            raise OSError(errno.ENOTSUP, NO_PART.format(what="is one for streams"))
        self._family = socket.AF_INET if family == -1 else family
        self._proto = max(0, proto)
        self._wire: Wire | None = Wire()
        self._seconds = socket.getdefaulttimeout() if hasattr(socket, "getdefaulttimeout") else None
        self._io_refs = 0
        self._closed = False

    family = property(lambda self: socket.AddressFamily(self._family))
    type = property(lambda _: socket.SOCK_STREAM)
    proto = property(lambda self: self._proto)
    timeout = property(lambda self: self._seconds)

    @property
    def wire(self) -> Wire:
        """The connection; raises `OSError` if the socket is closed."""
        if self._wire is None:
            raise OSError(errno.EBADF, _CLOSED)
        return self._wire

    def connect(self, address: Any) -> None:
        """Connects to a host."""
        __tracebackhide__ = True
        seconds = self._seconds or None  # a socket that does not block is connected at once, too
        self.wire.connect(address, seconds)

    def connect_ex(self, address: Any) -> int:
        """Connects to a host; returns the number of the error, or 0."""
        try:
            self.connect(address)
        except OSError as problem:
            return problem.errno or errno.ECONNREFUSED
        return 0

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Returns bytes as they come; none at the end."""
        __tracebackhide__ = True
        self._wait()
        wire = self.wire
        data = bytes(memoryview(wire.incoming)[:bufsize])
        if not flags & socket.MSG_PEEK:
            del wire.incoming[: len(data)]
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Puts bytes into a buffer; returns their number."""
        __tracebackhide__ = True
        view = memoryview(buffer).cast("B")
        self._wait()
        incoming = self.wire.incoming
        size = min(nbytes or len(view), len(view), len(incoming))
        view[:size] = memoryview(incoming)[:size]
        if not flags & socket.MSG_PEEK:
            del incoming[:size]
        return size

    def send(self, data: Any, flags: int = 0) -> int:
        """Sends bytes."""
        __tracebackhide__ = True
        view = memoryview(data).cast("B")
        self._check_connected()
        self.wire.write(view)
        return len(view)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Sends all bytes."""
        __tracebackhide__ = True
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE):
            self.send(view[start : start + PIECE])

    def _check_connected(self) -> None:
        if not self.wire.number:
            raise OSError(errno.ENOTCONN, "the socket is not connected")

    def _wait(self) -> None:
        """Waits for bytes, as long as the timeout allows."""
        __tracebackhide__ = True
        wire = self.wire
        if wire.incoming or wire.ended:
            return
        self._check_connected()
        end = None if self._seconds is None else time.monotonic() + self._seconds
        while True:
            left = WAIT_SECONDS if end is None else end - time.monotonic()
            if wire.fill(max(0.0, min(left, WAIT_SECONDS))):
                return
            if self._seconds == 0:
                raise BlockingIOError(errno.EAGAIN, "no bytes have come")
            if end is not None and time.monotonic() >= end:
                raise TimeoutError("timed out")

    def settimeout(self, value: float | None) -> None:
        """Sets how long calls may wait."""
        if value is not None and value < 0:
            raise ValueError("Timeout value out of range")
        self._seconds = value

    def gettimeout(self) -> float | None:
        """Returns how long calls may wait."""
        return self._seconds

    def setblocking(self, flag: bool) -> None:
        """Sets whether calls wait."""
        self._seconds = None if flag else 0.0

    def getblocking(self) -> bool:
        """Returns whether calls wait."""
        return self._seconds != 0

    def fileno(self) -> int:
        """Returns a number that no file has; -1 if the socket is closed."""
        return -1 if self._wire is None else self._wire.descriptor

    def getpeername(self) -> Any:
        """Returns the address that it was connected to."""
        self._check_connected()
        return self.wire.address

    def getsockname(self) -> Any:
        """Returns an address for this end."""
        return (str(INVENTED[1]), self.fileno() % 50_000 + 10_000)

    def setsockopt(self, *_: Any) -> None:
        """Does nothing: the host's own connection has its options."""

    def getsockopt(self, *_: Any) -> Any:
        """Returns 0."""
        return 0

    def shutdown(self, how: int) -> None:
        """Sends the bytes that wait."""
        self.wire.flush()

    def bind(self, address: Any) -> None:
        """Accepts an address for this end, which the host chooses."""

    def _refuse(self, *_: Any) -> Any:
        raise OSError(errno.ENOTSUP, NO_PART.format(what="can't be listened at or shared"))

    listen = accept = dup = sendto = recvfrom = sendmsg = recvmsg = share = _refuse

    def detach(self) -> int:
        """Gives the connection up, so that another socket may use it."""
        self._closed, self._wire = True, None
        return -1

    def _real_close(self, *_: Any) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def __del__(self) -> None:
        if getattr(self, "_wire", None) is not None:
            self._real_close()

    def __repr__(self) -> str:
        where = "closed" if self._wire is None else f"to={self._wire.address}"
        return f"<{type(self).__name__} {where}>"


class SecureSocket(NetworkSocket, TLS.SecureFacts):  # type: ignore[misc]
    """A secure connection; the host encrypts, and checks the certificate."""

    def __init__(self, plain: NetworkSocket, context: Any, name: str | None) -> None:
        NetworkSocket.__init__(self, plain.family, proto=plain.proto)
        self._wire, self._seconds = plain.wire, plain.gettimeout()
        self.context, self.server_hostname = context, name
        plain.detach()
        if self.wire.number:
            self.do_handshake()

    def connect(self, address: Any) -> None:
        """Connects to a host."""
        __tracebackhide__ = True
        super().connect(address)
        self.do_handshake()

    def do_handshake(self, block: bool = False) -> None:
        """Makes the host secure its connection with TLS."""
        __tracebackhide__ = True
        if self.wire.secure_name is None:
            self.wire.secure(self.server_hostname)

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """Returns bytes, or puts them into a buffer."""
        return self.recv(len) if buffer is None else self.recv_into(buffer, len)

    def write(self, data: Any) -> int:
        """Sends bytes."""
        return self.send(data)

    def pending(self) -> int:
        """Returns how many bytes can be read at once."""
        return len(self.wire.incoming)

    def unwrap(self) -> NetworkSocket:
        """Ends the secure connection, which ends with its socket."""
        return self


def _wrap_socket(
    self: ssl.SSLContext,
    sock: Any,
    server_side: bool = False,
    do_handshake_on_connect: bool = True,
    suppress_ragged_eofs: bool = True,
    server_hostname: Any = None,
    session: Any = None,
) -> Any:
    """Returns a secure connection over a socket."""
    __tracebackhide__ = True
    if server_side or not isinstance(sock, NetworkSocket):
        raise OSError(errno.ENOTSUP, NO_PART.format(what="is a client's"))
    if self.check_hostname and not server_hostname:
        raise ValueError("check_hostname requires server_hostname")
    name = server_hostname.decode() if isinstance(server_hostname, bytes) else server_hostname
    return SecureSocket(sock, self, name)


def install(functions: Mapping[str, Function]) -> None:
    """Gives the standard library sockets that call these functions."""
    Host.functions = functions
    replaced: tuple[tuple[Any, str, Any], ...] = (
        (socket, "socket", NetworkSocket),
        (socket, "SocketType", NetworkSocket),
        (socket, "getaddrinfo", getaddrinfo),
        (socket, "gethostbyname", gethostbyname),
        (select, "poll", network_poll.Poll),
        (select, "select", network_poll.select_ready),
        (ssl.SSLContext, "wrap_socket", _wrap_socket),
    )
    for owner, name, stand_in in replaced:
        setattr(owner, name, stand_in)
    for name, number in _OPTIONS.items():
        setattr(socket, name, number)
    network_loop.install()
