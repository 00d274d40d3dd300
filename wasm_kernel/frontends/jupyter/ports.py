"""The ports of a connection file, on which a kernel's first process listens at once.

A client connects as soon as it has started the kernel's process. If no process listens by then, it
retries every 100 to 200 ms. So the ports are opened before anything is loaded: a client's messages
wait in them until the kernel's sockets take them over.

Imports here must take less than a millisecond; `json` and `socket` take more.
"""

from __future__ import annotations

import _json
import _socket
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CHANNELS = ("shell", "iopub", "stdin", "hb", "control")
"""The channels that have a port, in the order in which they are opened."""

_BACKLOG = 100  # connections that wait, as in ZMQ


class Ports:
    """Listening sockets that no channel of a kernel has taken over yet."""

    def __init__(self, descriptors: Iterable[int] = ()) -> None:
        self.descriptors = list(descriptors)

    def pop(self, ip: str, port: int) -> int | None:
        """Removes and returns the socket that listens on an address; None if there is none."""
        for descriptor in self.descriptors:
            socket = _socket.socket(fileno=descriptor)
            address = socket.getsockname()
            socket.detach()
            if address == (ip, port):
                self.descriptors.remove(descriptor)
                return descriptor
        return None

    def close(self) -> None:
        """Closes the sockets that were not taken. Safe to call twice."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def listen(arguments: Sequence[str]) -> Ports:
    """Listens on the ports that the connection file of a command line names.

    Ports that fail are left out: the kernel tries them again later, and reports the error.
    """
    try:
        return Ports(_listening(_content(_named(arguments))))
    except Exception:  # the kernel reads the file again, and reports the error
        return Ports()


def _named(arguments: Sequence[str]) -> str:
    """Returns the path of the connection file, as front ends name it."""
    for word, following in zip(arguments, (*arguments[1:], ""), strict=True):
        if word == "-f":
            return following
        if word.startswith("--f="):
            return word.partition("=")[2]
    raise LookupError


class _ScannerSettings:
    """The settings of JSON's scanner, without any hook; Python 3.15 needs `array_hook`."""

    strict, object_hook, object_pairs_hook, array_hook = True, None, None, None
    parse_float, parse_int, parse_constant = float, int, str


def _content(path: str) -> dict[str, object]:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - `pathlib` takes longer
        found, _ = _json.make_scanner(_ScannerSettings)(file.read(), 0)  # type: ignore[arg-type]
    if not isinstance(found, dict):
        raise LookupError
    return found


def _listening(content: dict[str, object]) -> Iterator[int]:
    """The descriptors of the sockets; none for other transports, or for a host name."""
    ip = content.get("ip")
    if content.get("transport") != "tcp" or not isinstance(ip, str):
        return
    _socket.inet_pton(_socket.AF_INET, ip)
    for channel in CHANNELS:
        port = content.get(f"{channel}_port")
        if not isinstance(port, int) or not 0 < port < 1 << 16:
            continue
        socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        try:
            socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            socket.setblocking(False)
            socket.bind((ip, port))
            socket.listen(_BACKLOG)
        except OSError:  # the port is in use, or was a moment ago
            socket.close()
        else:
            yield socket.detach()
