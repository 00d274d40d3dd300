"""The modules that a kernel has loaded, and its sockets, when it confines itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_heavy_is_imported_before_the_settings_are_read() -> None:
    code = (
        "import sys, wasm_kernel.frontends.jupyter.app; "
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"wasmtime", "zmq", "IPython", "ipykernel"} & set(done.stdout.split())


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
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SLOW_HEARTBEAT],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m wasm_kernel.frontends.cli.main doctor | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


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
    done = subprocess.run(
        [sys.executable, "-c", TAKEN_PORT, str(tmp_path / "k.json")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
