"""Ports for servers that must know theirs before they listen, such as kernels.

A free port that Linux assigns may go to another test process before the server has it. So each
process of the tests searches its own share of ports below those that Linux assigns.
"""

from __future__ import annotations

import os
import socket
from itertools import cycle
from pathlib import Path
from typing import Any

_SHARES = 64
_LOWEST, _HIGHEST = 10_000, 32_000
_OWN = cycle(range(_LOWEST + os.getpid() % _SHARES, _HIGHEST, _SHARES))


def free_port(ip: str = "127.0.0.1") -> int:
    """A free port; the same one comes again only after hundreds of others."""
    while True:
        port = next(_OWN)
        with socket.socket() as probe:
            # a server may have closed its connections there a moment ago
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ip, port))
            except OSError:
                continue
        return port


def write_connection(path: Path, **more: Any) -> None:
    """Writes a connection file like Jupyter, for a kernel that a test starts itself."""
    from jupyter_client.connect import write_connection_file

    channels = ("shell", "iopub", "stdin", "control", "hb")
    ports: dict[str, Any] = {f"{channel}_port": free_port() for channel in channels}
    write_connection_file(str(path), key=b"k", **ports, **more)


def hand_out_own() -> None:
    """Makes the kernel managers of this process take their ports from here."""
    from jupyter_client.connect import LocalPortCache

    def find(_: LocalPortCache, ip: str) -> int:
        return free_port(ip)

    LocalPortCache.find_available_port = find  # type: ignore[assignment,method-assign]
