"""The connection to the front end: its file, and the sockets of the five channels.

Control and heartbeat have their own threads, so that they always answer.
"""

# mypy: disable-error-code="no-untyped-call"
# (ipykernel carries no types)

from __future__ import annotations

import asyncio
import errno
import json
import stat
import threading
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import zmq
from ipykernel.control import ControlThread
from jupyter_client.connect import ConnectionFileMixin
from jupyter_client.jsonutil import json_default
from jupyter_client.session import Session, json_unpacker, new_id_bytes
from jupyter_core.paths import allow_insecure_writes
from traitlets import Bytes, TraitError, Type

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.jupyter.channels import Publisher
from wasm_kernel.frontends.jupyter.ports import Ports

# -- the connection file

_LOOPBACK = "127.0.0.1"
_END_SECONDS = 1.0


class KernelConnection(ConnectionFileMixin):
    """The kernel's side of a connection file. Only the main thread uses it.

    An existing file is read, and closed to other users, who could run code with its key. Otherwise
    a file is written, for its owner only, and removed at the end.
    """

    curve_publickey = Bytes(allow_none=True, default_value=None)
    curve_secretkey = Bytes(allow_none=True, default_value=None)
    blocking_class = Type(None, klass=object, help="A kernel makes no clients: none is imported.")

    def _ip_default(self) -> str:
        """Returns the loopback address for tcp, so that only this machine reaches the kernel.

        Jupyter would find it with psutil, which takes long, even if the file names an address.
        """
        return _LOOPBACK if self.transport == "tcp" else str(super()._ip_default())

    def open(self, *, allow_unsigned: bool) -> None:
        """Reads the connection file, or prepares to write one; raises `WasmKernelError`."""
        self.session = Session(parent=self.parent)
        if self.session.packer == "json":
            self.session.pack, self.session.unpack = _pack, _unpack
        path = Path(self.connection_file)
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.session.key = self.session.key or new_id_bytes()
            return
        if not allow_insecure_writes:
            with suppress(OSError):  # the file is another user's, or lies on a read-only disk
                path.chmod(path.stat().st_mode & stat.S_IRWXU)
        try:
            self.load_connection_file(str(path))
        except (OSError, ValueError, TypeError, AttributeError, TraitError) as problem:
            raise WasmKernelError(
                "The connection file can't be read. No kernel was started."
            ) from problem
        if not self.session.key and not allow_unsigned:
            raise WasmKernelError(
                "The connection file holds no key, so anyone who reaches the kernel's ports could "
                "run code. No kernel was started. Use a file with a key, or set "
                "WasmKernel.allow_unsigned=True."
            )

    def save(self) -> None:
        """Writes the file if there is none; all ports must be known."""
        if not Path(self.connection_file).exists():
            self.write_connection_file()

    def cleanup(self) -> None:
        """Removes the file that `save` wrote."""
        if self._connection_file_written:
            self.cleanup_connection_file()
            self.cleanup_ipc_files()


def _pack(value: Any) -> bytes:
    """Returns JSON; escapes values that msgspec refuses, such as a lone surrogate."""
    try:
        return msgspec.json.encode(value, enc_hook=json_default)
    except (TypeError, ValueError):
        return json.dumps(value, default=json_default).encode()


def _unpack(data: bytes) -> Any:
    """Returns the value of JSON; reads what msgspec refuses, such as `NaN`, as Jupyter does."""
    try:
        return msgspec.json.decode(data)
    except ValueError:
        return json_unpacker(data)


# -- the sockets

LINGER = 1000  # milliseconds for a closing socket to send its last messages
_TRIES = 100
# Any client may send topics to the IOPub channel; each byte of one takes a hundred of memory.
_TOPIC_BYTES = 1024  # as much as encryption needs to begin
# Jupyter chooses ports before it starts a kernel, and a restarted kernel gets the last one's ports.
# In between, another connection of this machine may use one for a moment.
_SECONDS_IN_USE = 3.0


class RequestThread(ControlThread):
    """The thread of the control channel, whose loop leaves no request half-answered.

    A front end may ask for the end twice, and the first request stops the loop.
    """

    def run(self) -> None:
        """Answers until the loop is stopped; then gives running tasks a moment to end."""
        try:
            self.io_loop.start()
            loop: Any = self.io_loop.asyncio_loop  # type: ignore[attr-defined]  # tornado's own
            if left := asyncio.all_tasks(loop):
                with suppress(RuntimeError):  # the second request stops the loop once more
                    loop.run_until_complete(asyncio.wait(left, timeout=_END_SECONDS))
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self.io_loop.close()


class KernelSockets:
    """All sockets of one kernel. Made, opened and closed by the main thread.

    Args:
        connection: Has their addresses.
        ports: The ports on which this process already listens.
    """

    def __init__(self, connection: KernelConnection, ports: Ports) -> None:
        self._connection, self._ports = connection, ports
        self._context: zmq.Context[Any] = zmq.Context()
        self.shell = self._bound(zmq.ROUTER, "shell")
        self.stdin = self._bound(zmq.ROUTER, "stdin")
        self.control = self._bound(zmq.ROUTER, "control")
        for socket in (self.shell, self.stdin, self.control):
            # a client that reconnects under its old identity replaces the old connection
            socket.router_handover = 1
        self.iopub = Publisher(self._bound(zmq.XPUB, "iopub"), connection.session)
        self.control_thread = RequestThread(daemon=True)
        beats = self._bound(zmq.ROUTER, "hb", zmq.Context())  # so that nothing else delays it
        self._heartbeat = threading.Thread(target=_echo, args=(beats,), name="beat", daemon=True)
        self._beats = beats

    def start(self) -> None:
        """Begins to answer on the control and heartbeat channels."""
        self.control_thread.start()
        self._heartbeat.start()
        self._ports.close()  # those that no channel uses

    def close(self) -> None:
        """Sends the last messages, then closes all sockets and threads."""
        # control first: it may still be publishing the end of a shutdown request
        if self.control_thread.is_alive():
            self.control_thread.stop()
            self.control_thread.join()
        if not self._heartbeat.is_alive():
            self._beats.close()
        self._beats.context.term()
        self.iopub.close()
        for socket in (self.shell, self.stdin, self.control):
            socket.close()
        self._context.term()

    def _bound(
        self, kind: int, channel: str, context: zmq.Context[Any] | None = None
    ) -> zmq.Socket[Any]:
        socket: zmq.Socket[Any] = (context or self._context).socket(kind)
        socket.linger = LINGER
        if kind == zmq.XPUB:
            socket.maxmsgsize = _TOPIC_BYTES
        secret = self._connection.curve_secretkey
        if secret is not None:
            socket.curve_secretkey = secret
            socket.curve_publickey = self._connection.curve_publickey or b""
            socket.curve_server = True
        name = f"{channel}_port"
        try:
            port = self._bind(socket, getattr(self._connection, name))
        except zmq.ZMQError as problem:
            name = "heartbeat" if channel == "hb" else channel
            raise WasmKernelError(
                f"The kernel can't listen on its {name} channel: {problem}. No cell can reach "
                "it, so it was not started. Start it again, or choose another address."
            ) from problem
        setattr(self._connection, name, port)
        return socket

    def _bind(self, socket: zmq.Socket[Any], port: int) -> int:
        transport, ip = self._connection.transport, self._connection.ip
        if transport == "ipc":
            if port <= 0:
                port = next(each for each in count(1) if not Path(f"{ip}-{each}").exists())
            socket.bind(f"ipc://{ip}-{port}")
            return port
        if port <= 0:
            return int(socket.bind_to_random_port(f"tcp://{ip}", max_tries=_TRIES))
        if (descriptor := self._ports.pop(ip, port)) is not None:
            socket.setsockopt(zmq.USE_FD, descriptor)  # ZMQ closes it
        latest = time.monotonic() + _SECONDS_IN_USE
        while True:
            try:
                socket.bind(f"tcp://{ip}:{port}")
                return port
            except zmq.ZMQError as problem:
                if problem.errno != errno.EADDRINUSE or time.monotonic() > latest:
                    raise
            time.sleep(0.05)


def _echo(beats: zmq.Socket[Any]) -> None:
    """Sends each message back until the context ends."""
    with suppress(zmq.ContextTerminated):
        zmq.proxy(beats, beats)
    beats.close()
