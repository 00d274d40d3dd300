"""Sockets of a guest whose owner allows a network: byte streams that the host reads as HTTP.

The functions of the host connect, send, receive and close. The host judges each request and makes
it anew. `ssl` encrypts nothing here: the host makes the secure connection and checks its
certificate. This file is loaded only if the host offers these functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import itertools
import socket
import ssl
import sys
import weakref
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ClassVar, Protocol

from wasm_kernel_agent.host import note
from wasm_kernel_agent.stdlib_patches import NO_NETWORK

TLS: Any = import_module("_ssl")  # the stand-in, which has more names than OpenSSL's
_OFFERS_NONE = "offers no such function"  # the owner has taken the network away
PIECE = 1024 * 1024
WAIT_SECONDS = 5.0  # seconds of one call; a socket without a timeout calls again
_CONNECT_SECONDS = 30.0
FIRST = 1 << 20  # the first number of a socket: files have lower ones
INVENTED = ipaddress.ip_network("198.18.0.0/15")  # addresses that no host on the internet has
NO_PART = "a socket of the sandbox {what}: the host passes HTTP requests on, and nothing else"


class Function(Protocol):
    """A function of the host."""

    def now(self, *args: Any) -> Any:
        """Returns the host's value; raises its error."""

    def begin(self, *args: Any) -> asyncio.Future[dict[str, Any]]:
        """Begins a call for the running loop; the future's answer is for `ended`."""

    def ended(self, future: asyncio.Future[dict[str, Any]]) -> Any:
        """Returns the value of a call that was begun; raises its error."""


class Host:
    """The functions of the host, and the addresses that were invented for names."""

    functions: ClassVar[Mapping[str, Function]] = {}
    names: ClassVar[dict[str, str]] = {}  # the names, by invented address
    wires: ClassVar[weakref.WeakValueDictionary[int, Wire]] = weakref.WeakValueDictionary()
    numbers = itertools.count(FIRST)
    told: ClassVar[set[tuple[int, str]]] = set()


def of_host(work: Callable[..., Any], *args: Any) -> Any:
    """Returns the value of a call of the host; its error is one that sockets raise."""
    __tracebackhide__ = True
    try:
        return work(*args)
    except Exception as problem:
        raise _own_error(problem) from None


def _call(name: str, *args: Any) -> Any:
    __tracebackhide__ = True
    return of_host(Host.functions[name].now, *args)


def _own_error(problem: Exception) -> Exception:
    """Returns the error that sockets raise in place of the host's."""
    name, text = type(problem).__name__, str(problem)
    if name == "gaierror":
        return socket.gaierror(socket.EAI_NONAME, text)
    if name in ("SSLCertVerificationError", "SSLError", "SSLEOFError"):
        made: Exception = getattr(ssl, name)(1, text)
        return made
    if isinstance(problem, PermissionError):
        _tell(text)
        return PermissionError(errno.EACCES, text)
    if isinstance(problem, TimeoutError):
        return TimeoutError(text)
    for kind, number in _NUMBERS.items():
        if isinstance(problem, kind):
            return kind(number, text)
    if _OFFERS_NONE in text:
        text = NO_NETWORK.format(what="another machine")
    return OSError(errno.ENETUNREACH, text)


_NUMBERS: dict[type[OSError], int] = {
    BrokenPipeError: errno.EPIPE,
    ConnectionRefusedError: errno.ECONNREFUSED,
    ConnectionResetError: errno.ECONNRESET,
    ConnectionAbortedError: errno.ECONNABORTED,
    ConnectionError: errno.ECONNABORTED,
}


def _tell(text: str) -> None:
    """Notes a refusal, once a cell: a client may hide it in an error of its own."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    key = (getattr(shell, "execution_count", 0), text)
    if key not in Host.told:
        Host.told = {each for each in Host.told if each[0] == key[0]} | {key}
        note(text)


class Wire:
    """One connection: the bytes that wait to be sent, and those that have come."""

    def __init__(self) -> None:
        self.address: tuple[Any, ...] = ()
        self.number = 0
        self.descriptor = next(Host.numbers)
        Host.wires[self.descriptor] = self
        self.incoming, self.outgoing = bytearray(), bytearray()
        self.received = 0
        self.ended = False
        self.is_idle = False  # nothing comes before the next request
        self.is_awaited = False  # a transport of asyncio's takes all bytes
        self.secure_name: str | None = None
        self._fresh = True  # nothing was sent since the last bytes came

    def connect(self, address: tuple[Any, ...], timeout: float | None = None) -> None:
        """Makes the host connect to an address."""
        __tracebackhide__ = True
        self.connected(_call("connect", *self.prepare(address, timeout)))

    def prepare(
        self, address: tuple[Any, ...], timeout: float | None = None
    ) -> tuple[str, int, float]:
        """Takes an address; returns the host function's arguments for connecting."""
        self.address = address
        return *self.place, float(_CONNECT_SECONDS if timeout is None else timeout)

    def connected(self, number: int) -> None:
        """Notes the number that the host gave to a new connection."""
        self.number, self.received, self._fresh = number, 0, True

    def name_for(self, name: str | None) -> str:
        """Returns the name of a secure connection, as the host knows it."""
        return (name or self.place[0]).encode("idna").decode("ascii")

    @property
    def place(self) -> tuple[str, int]:
        """The host and the port."""
        host, port = str(self.address[0]), int(self.address[1])
        return Host.names.get(host, host), port

    def secure(self, name: str | None) -> None:
        """Makes the host secure its connection with TLS."""
        __tracebackhide__ = True
        self.secure_name = self.name_for(name)
        _call("secure", self.number, self.secure_name)

    def write(self, data: Any) -> None:
        """Sends bytes, a little later if they are few."""
        __tracebackhide__ = True
        self.outgoing += data
        if len(self.outgoing) >= PIECE:
            self.flush()

    def flush(self) -> None:
        """Sends the bytes that wait."""
        __tracebackhide__ = True
        while self.outgoing and self._began_as_secure():
            self._send("send", self._take_piece())

    def _take_piece(self) -> bytes:
        """Takes out bytes to be sent."""
        piece = bytes(memoryview(self.outgoing)[:PIECE])
        del self.outgoing[:PIECE]
        return piece

    def _began_as_secure(self) -> bool:
        """Removes a secure connection's first bytes; returns whether the next can be sent."""
        __tracebackhide__ = True
        name = self._take_secure()
        if name is not None:
            self.secure(name)
        return bool(self.outgoing) and not self._is_half_secure

    def _take_secure(self) -> str | None:
        """Takes out the request for a secure connection; returns its name."""
        end = self.outgoing.find(b"\n")
        if self.secure_name is not None or not self.outgoing.startswith(TLS.SECURE) or end < 0:
            return None
        name = self.outgoing[len(TLS.SECURE) : end].decode("ascii")
        del self.outgoing[: end + 1]
        return name

    @property
    def _is_half_secure(self) -> bool:
        return self.secure_name is None and self.outgoing[:1] == TLS.SECURE[:1]

    def _send(self, name: str, *values: Any) -> Any:
        """Calls a function that sends the last of the values."""
        __tracebackhide__ = True
        is_fresh, self._fresh = self._fresh, False
        self.is_idle = False
        try:
            try:
                return _call(name, self.number, self.received, *values)
            except ConnectionResetError:
                if not is_fresh:
                    raise
                self.connect(self.address)  # the host closed the connection after the last answer
                if self.secure_name is not None:
                    self.secure(self.secure_name)
                self._fresh = False
                return _call(name, self.number, self.received, *values)
        except BaseException:
            self.outgoing.clear()  # half a request is of no use to anyone
            raise

    def next_step(self) -> tuple[Any, ...] | None:
        """Returns the next call for the bytes that wait; None if none do."""
        name = self._take_secure()
        if name is not None:
            self.secure_name = self.name_for(name)
            return "secure", self.number, self.secure_name
        if not self.outgoing or self._is_half_secure:
            return None
        return "send", self.number, self.received, self._take_piece()

    def fill(self, seconds: float) -> bool:
        """Waits for bytes; returns whether some have come, or the end."""
        __tracebackhide__ = True
        if self.is_awaited:
            return self.ended
        while len(self.outgoing) > PIECE and self._began_as_secure():
            self._send("send", self._take_piece())
        if self.incoming or self.ended:
            self.flush()
        elif self._began_as_secure():
            self.take(self._send("receive", float(seconds), self._take_piece()))
        elif seconds or not self.is_idle:
            self.take(_call("receive", self.number, self.received, float(seconds)))
        return bool(self.incoming or self.ended)

    def take(self, answer: Mapping[str, Any]) -> bytes:
        """Takes the host's answer to a wait for bytes; returns the new ones."""
        data: bytes = answer["data"]
        self.received += len(data)
        self.incoming += data
        self._fresh = self._fresh or bool(data)
        self.ended, self.is_idle = bool(answer["ended"]), bool(answer["idle"])
        return data

    def close(self) -> None:
        """Closes the connection."""
        number, self.number = self.number, 0
        if number:
            with contextlib.suppress(Exception):
                self.flush()
            with contextlib.suppress(Exception):
                _call("close", number)


# -- names


def getaddrinfo(
    host: Any,
    port: Any,
    family: int = 0,
    type: int = 0,
    proto: int = 0,
    flags: int = 0,
) -> list[Any]:
    """Returns an address for a host: an invented one for a name, which the host resolves itself."""
    if host is None:
        raise socket.gaierror(socket.EAI_NONAME, NO_PART.format(what="can't be listened at"))
    name = host.decode("ascii") if isinstance(host, bytes) else str(host)
    number = {"https": 443, "http": 80}.get(port, port) if isinstance(port, str) else port
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(name)
        kind = socket.AF_INET6 if found.version == 6 else socket.AF_INET
        address: tuple[Any, ...] = (str(found), int(number or 0))
        if kind == socket.AF_INET6:
            address = (*address, 0, 0)
        return _only(family, kind, address)
    return _only(family, socket.AF_INET, (_invented(name), int(number or 0)))


def address_of(host: Any, port: Any) -> tuple[Any, ...]:
    """Returns an address for a host and a port."""
    found: tuple[Any, ...] = getaddrinfo(host, port)[0][4]
    return found


def _only(family: int, kind: int, address: tuple[Any, ...]) -> list[Any]:
    if family not in (0, kind):
        raise socket.gaierror(socket.EAI_NONAME, f"{address[0]} has no address of this family")
    found = socket.AddressFamily(kind)
    return [(found, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)]


def _invented(name: str) -> str:
    """Returns the address that stands for a name."""
    try:
        plain = name.encode("ascii" if name.isascii() else "idna").decode("ascii").lower()
    except UnicodeError:
        raise socket.gaierror(
            socket.EAI_NONAME, f"{name!r:.100} is not the name of a host"
        ) from None
    known = {host: address for address, host in Host.names.items()}
    if plain not in known:
        known[plain] = str(INVENTED[(len(Host.names) + 2) % INVENTED.num_addresses])
        Host.names[known[plain]] = plain
    return known[plain]


def gethostbyname(host: str) -> str:
    """Returns an address for a host."""
    return str(getaddrinfo(host, 0)[0][4][0])
