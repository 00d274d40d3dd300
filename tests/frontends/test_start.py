"""The modules that a kernel has loaded, and its sockets, when it confines itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(code: str, *words: str) -> list[str]:
    """Runs a program to its end; returns the lines that it prints."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


LOADED = """
import sys
import wasm_kernel.frontends.jupyter.app
print(*{name.partition(".")[0] for name in sys.modules})
import wasm_kernel.frontends.cli.main
print(*{name.partition(".")[0] for name in sys.modules})
"""


def test_nothing_heavy_is_imported_before_the_settings_are_read() -> None:
    kernel, command = (set(names.split()) for names in run(LOADED))
    assert not {"wasmtime", "zmq", "IPython", "ipykernel"} & kernel
    assert not {"zmq", "IPython", "ipykernel", "mcp"} & command


SLOW_HEARTBEAT = """
import socket, time
from ipykernel.heartbeat import Heartbeat
from wasm_kernel.frontends.jupyter.connection import KernelConnection, KernelSockets
from wasm_kernel.frontends.jupyter.ports import Ports

its_own = Heartbeat._try_bind_socket
def slowly(heartbeat):
    time.sleep(0.3)
    return its_own(heartbeat)
Heartbeat._try_bind_socket = slowly

connection = KernelConnection(ip="127.0.0.1")
sockets = KernelSockets(connection, Ports())
sockets.start()
socket.create_connection(("127.0.0.1", connection.hb_port), timeout=5).close()
sockets.close()
"""


def test_all_channels_listen_before_new_sockets_are_given_up() -> None:
    """In a process of its own, since ipykernel's publishing thread leaves a task behind when it
    stops.
    """
    run(SLOW_HEARTBEAT)


TAKEN_PORT = """
import os, socket, sys, threading
from wasm_kernel.frontends.jupyter import connection as ours
from wasm_kernel.frontends.jupyter.connection import KernelConnection, KernelSockets
from wasm_kernel.frontends.jupyter.ports import Ports

ours._SECONDS_IN_USE = 60.0
taken = socket.create_server(("127.0.0.1", 0))
port = taken.getsockname()[1]
connection = KernelConnection(connection_file=sys.argv[1], shell_port=port)
connection.open(allow_unsigned=False)
threading.Timer(0.3, taken.close).start()
KernelSockets(connection, Ports())
os._exit(connection.shell_port != port)
"""


def test_a_port_that_is_free_a_moment_later_is_listened_on(tmp_path: Path) -> None:
    """A restarted kernel has the ports of the last one, which other processes may have taken."""
    run(TAKEN_PORT, str(tmp_path / "k.json"))
