"""The kernel's five channels, bound and served.

The shell and stdin sockets belong to the main thread's loop and to the guest's thread; control,
iopub and heartbeat have threads of their own, so that they answer whatever goes on elsewhere.
"""

# mypy: disable-error-code="no-untyped-call"
# (ipykernel carries no types)

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import zmq
from ipykernel.control import ControlThread
from ipykernel.heartbeat import Heartbeat
from ipykernel.iostream import IOPubThread
from jupyter_client.session import Session

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.jupyter.connection import Connection

LINGER = 1000  # milliseconds that a closing socket waits for its last messages to leave
_TRIES = 100


class ListenError(WasmKernelError):
    """An address of the connection file can't be listened on; no kernel was started."""


class Publisher(IOPubThread):
    """The iopub thread; tells when the first client has subscribed."""

    def __init__(self, socket: zmq.Socket[Any], *, session: Session) -> None:
        self._heard: Future[None] = Future()
        super().__init__(socket, pipe=False, session=session)

    def when_heard(self, tell: Callable[[], None]) -> None:
        """Have `tell` called once somebody listens; from any thread, at once if that is so."""
        self._heard.add_done_callback(lambda _: tell())

    def _handle_subscription(self, message: list[bytes]) -> None:
        super()._handle_subscription(message)
        if message[0][:1] == b"\x01" and not self._heard.done():
            self._heard.set_result(None)


class Beat(Heartbeat):
    """The heartbeat's thread, which binds its own socket; `start` returns when it listens."""

    def __init__(self, connection: Connection) -> None:
        self._listens: Future[None] = Future()
        super().__init__(
            zmq.Context(),  # a context of its own, which nothing else can hold up
            (connection.transport, connection.ip, connection.hb_port),
            curve_publickey=connection.curve_publickey,
            curve_secretkey=connection.curve_secretkey,
        )

    def start(self) -> None:
        """Listen and answer.

        Raises:
            ListenError: the address can't be listened on.
        """
        super().start()
        try:
            self._listens.result()
        except zmq.ZMQError as problem:
            raise _cant_listen("heartbeat", problem) from problem

    def run(self) -> None:
        """What the thread does."""
        try:
            super().run()
        except Exception as problem:
            if self._listens.done():
                raise
            self._listens.set_exception(problem)  # `start` tells

    def _bind_socket(self) -> None:
        super()._bind_socket()
        self._listens.set_result(None)


class KernelSockets:
    """All sockets of one kernel. Made, opened and closed by the main thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._context: zmq.Context[Any] = zmq.Context()
        self.shell = self._bound(zmq.ROUTER, "shell")
        self.stdin = self._bound(zmq.ROUTER, "stdin")
        self.control = self._bound(zmq.ROUTER, "control")
        for socket in (self.shell, self.stdin, self.control):
            # a client that comes back under its old identity takes its place again
            socket.router_handover = 1
        self.iopub_thread = Publisher(self._bound(zmq.XPUB, "iopub"), session=connection.session)
        # At once: what is sent before its thread runs is sent from here, which can swallow the
        # wake-up of a subscription that has just come.
        self.iopub_thread.start()
        self.iopub = self.iopub_thread.background_socket
        self.control_thread = ControlThread(daemon=True)
        self._heartbeat = Beat(connection)
        connection.hb_port = self._heartbeat.port

    def start(self) -> None:
        """Answer on the control and heartbeat channels; from here on nothing more is bound.

        Raises:
            ListenError: the heartbeat's address can't be listened on.
        """
        self.control_thread.start()
        self._heartbeat.start()

    def close(self) -> None:
        """Let the last messages leave, then give everything back."""
        # control first: it may still be publishing the end of the shutdown that it answered
        if self.control_thread.is_alive():
            self.control_thread.stop()
            self.control_thread.join()
        self._heartbeat.context.term()
        self.iopub_thread.stop()
        self.iopub_thread.close()
        for socket in (self.shell, self.stdin, self.control):
            socket.close()
        self._context.term()

    def _bound(self, kind: int, channel: str) -> zmq.Socket[Any]:
        socket: zmq.Socket[Any] = self._context.socket(kind)
        socket.linger = LINGER
        secret = self._connection.curve_secretkey
        if secret is not None:
            socket.curve_secretkey = secret
            socket.curve_publickey = self._connection.curve_publickey or b""
            socket.curve_server = True
        name = f"{channel}_port"
        try:
            port = self._bind(socket, getattr(self._connection, name))
        except zmq.ZMQError as problem:
            raise _cant_listen(channel, problem) from problem
        setattr(self._connection, name, port)
        return socket

    def _bind(self, socket: zmq.Socket[Any], port: int) -> int:
        transport, ip = self._connection.transport, self._connection.ip
        if transport == "ipc":
            number = port if port > 0 else _free_number(ip)
            socket.bind(f"ipc://{ip}-{number}")
            return number
        if port > 0:
            socket.bind(f"tcp://{ip}:{port}")
            return port
        return int(socket.bind_to_random_port(f"tcp://{ip}", max_tries=_TRIES))


def _cant_listen(channel: str, problem: zmq.ZMQError) -> ListenError:
    return ListenError(
        f"The kernel can't listen on its {channel} channel: {problem}. No cell can reach "
        "it, so it was not started. Start it again, or choose another address."
    )


def _free_number(stem: str) -> int:
    for number in range(1, _TRIES * _TRIES):
        if not Path(f"{stem}-{number}").exists():
            return number
    raise OSError(errno.EADDRINUSE, "no free number for an ipc socket")
