"""The connection to the front end: its file, the five channels, and questions to the user.

The shell socket belongs to the main thread's loop, the stdin socket to the guest's thread. Control
and heartbeat have threads of their own, so that they answer whatever goes on elsewhere. Any thread
may publish.
"""

# mypy: disable-error-code="no-untyped-call"
# (ipykernel carries no types)

from __future__ import annotations

import asyncio
import errno
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import zmq
from ipykernel.control import ControlThread
from ipykernel.heartbeat import Heartbeat
from jupyter_client.connect import ConnectionFileMixin
from jupyter_client.jsonutil import json_default
from jupyter_client.session import Session, json_unpacker, new_id_bytes
from tornado.ioloop import IOLoop
from traitlets import Bytes, TraitError, Type

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.execution.interfaces import InputInterrupted
from wasm_kernel.frontends.jupyter.ports import Ports

# -- the connection file

_LOOPBACK = "127.0.0.1"
_END_SECONDS = 1.0


class ConnectionFileError(WasmKernelError):
    """A connection file that can't be used; no kernel was started."""


class Connection(ConnectionFileMixin):
    """The kernel's side of a connection file; the main thread's own.

    A file that exists is read. Otherwise one is written, for its owner alone, and removed at the
    end.
    """

    curve_publickey = Bytes(allow_none=True, default_value=None)
    curve_secretkey = Bytes(allow_none=True, default_value=None)
    blocking_class = Type(None, klass=object, help="A kernel makes no clients: none is imported.")

    def _ip_default(self) -> str:
        """Returns the loopback address for tcp, so that only this machine reaches the kernel.

        Jupyter would look it up with psutil, which takes long, even if the file names an address.
        """
        return _LOOPBACK if self.transport == "tcp" else str(super()._ip_default())

    def open(self, *, allow_unsigned: bool) -> None:
        """Reads the connection file, or prepares to write one; or `ConnectionFileError`."""
        self.session = Session(parent=self.parent)
        if self.session.packer == "json":
            self.session.pack, self.session.unpack = _pack, _unpack
        path = Path(self.connection_file)
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.session.key = self.session.key or new_id_bytes()
            return
        try:
            self.load_connection_file(str(path))
        except (OSError, ValueError, TypeError, AttributeError, TraitError) as problem:
            raise ConnectionFileError(
                "The connection file can't be read. No kernel was started."
            ) from (problem)
        if not self.session.key and not allow_unsigned:
            raise ConnectionFileError(
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
    """Returns JSON; what msgspec refuses, such as half a character, with escapes."""
    try:
        return msgspec.json.encode(value, enc_hook=json_default)
    except (TypeError, ValueError):
        return json.dumps(value, default=json_default).encode()


def _unpack(data: bytes) -> Any:
    """Returns what JSON says; what msgspec refuses, such as `NaN`, as Jupyter reads it."""
    try:
        return msgspec.json.decode(data)
    except ValueError:
        return json_unpacker(data)


def ports_of(connection: Connection) -> dict[str, int]:
    """The ports by name, as `connect_request` asks for them."""
    names = ("shell", "iopub", "stdin", "hb", "control")
    return {f"{name}_port": getattr(connection, f"{name}_port") for name in names}


# -- the channels

LINGER = 1000  # milliseconds that a closing socket waits for its last messages to leave
# the first byte of what an XPUB socket receives of a client that subscribes or ends a subscription
_SUBSCRIBES, _UNSUBSCRIBES = b"\x01", b"\x00"
_READABLE = int(zmq.POLLIN)  # an enumeration's own operators take longer than a look at a socket
_FLUSHED_MOST = 1000  # messages; ZMQ keeps as many of a client
_WELCOMED_MOST = 20  # subscriptions, before others have their turn
_TOPICS_MOST = 100  # that clients subscribe to; everything, as front ends do, is always open
_TRIES = 100
# Jupyter chooses ports before it starts a kernel, and a restarted one gets those of the last.
# Meanwhile another connection of this machine may have one for a moment.
_SECONDS_IN_USE = 3.0


class ListenError(WasmKernelError):
    """An address of the connection file that can't be listened on; no kernel was started."""


class ShellChannel:
    """The shell channel, on the main thread's loop: requests come in, replies leave at once.

    A ROUTER socket never waits: what it can't send is dropped. A `ZMQStream` would queue a reply,
    and spend a tenth of a tiny cell on looking when it can be sent.

    Attributes:
        io_loop: The loop; the base class asks for it.
    """

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        self.io_loop = IOLoop.current()
        self._socket = socket
        self._is_looking = False
        self._receive: Callable[[list[zmq.Frame]], object] = lambda message: None

    def on_recv(self, receive: Callable[[list[zmq.Frame]], object], **_: Any) -> None:
        """Hands messages to `receive` from now on."""
        self._receive = receive
        asyncio.get_event_loop().add_reader(self._socket.fileno(), self._look)

    def send_multipart(self, parts: Sequence[Any], **options: Any) -> None:
        """Sends a message, once those that have come are handed on: they came before it left."""
        self.flush()
        self._socket.send_multipart(parts, **options)
        self._look_soon()  # the send may have swallowed the wake-up of a request

    def flush(self, _: int = 0) -> None:
        """Hands on the messages that have come, but so many at most; none waits to be sent."""
        for _ in range(_FLUSHED_MOST):
            if not self._is_readable():
                return
            self._receive(self._socket.recv_multipart(copy=False))

    def _look(self) -> None:
        """Hands on one message. What it begins, and others on the loop, come before the next one.

        Whoever reaches the port may send more than can be answered, with the key or without.
        """
        self._is_looking = False
        if self._is_readable():
            self._receive(self._socket.recv_multipart(copy=False))
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._is_looking and self._is_readable():
            self._is_looking = True
            self.io_loop.add_callback(self._look)

    def _is_readable(self) -> bool:
        return not self._socket.closed and bool(int(self._socket.get(zmq.EVENTS)) & _READABLE)


class Publisher:
    """The IOPub channel: what any thread sends leaves at once.

    ZMQ's own thread does what takes long. A socket may go from one thread to another if a lock lies
    between them. ipykernel has a thread of its own for this instead: to wake it up for each message
    takes longer than to send it.

    A client is subscribed once `look` or a send has welcomed it, so its first message is that
    welcome, however much is published meanwhile.
    """

    def __init__(self, socket: zmq.Socket[Any], session: Session) -> None:
        self._socket, self._session = socket, session
        self._topics: set[bytes] = set()
        socket.set(zmq.XPUB_MANUAL, 1)
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_looking = False
        self._subscribed: Future[None] = Future()

    def when_subscribed(self, call: Callable[[], None]) -> None:
        """Calls `call` once a client has subscribed, at once if one has; from any thread."""
        self._subscribed.add_done_callback(lambda _: call())

    def send_multipart(self, parts: Sequence[Any], *_: Any, **options: Any) -> None:
        """Sends a message; after the end, nothing. Any thread may."""
        with self._guard:
            if not self._socket.closed:
                self._welcome()  # who has subscribed by now gets this message
                self._socket.send_multipart(parts, **options)
                self._welcome()  # the send may have swallowed the wake-up of a subscription

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has a loop look for clients that subscribe; on the loop's thread."""
        self._loop = loop
        loop.add_reader(self._socket.fileno(), self.look)

    def look(self) -> None:
        """Welcomes the clients that have subscribed."""
        with self._guard:
            self._is_looking = False
            if not self._socket.closed:
                self._welcome()

    def _welcome(self) -> None:
        """Welcomes some clients; others wait for the loop, as one may subscribe without end."""
        for _ in range(_WELCOMED_MOST):
            if not int(self._socket.get(zmq.EVENTS)) & _READABLE:
                return
            event, *_ = self._socket.recv_multipart()
            kind, topic = event[:1], event[1:]
            if kind == _UNSUBSCRIBES:
                self._socket.set(zmq.UNSUBSCRIBE, topic)
                self._topics.discard(topic)
            if kind != _SUBSCRIBES or (topic and len(self._topics) >= _TOPICS_MOST):
                continue
            self._socket.set(zmq.SUBSCRIBE, topic)
            self._topics.add(topic)
            told = {"subscription": topic.decode(errors="replace")}
            message = self._session.msg("iopub_welcome", told)
            self._socket.send_multipart(self._session.serialize(message, topic or None))
            if not self._subscribed.done():
                self._subscribed.set_result(None)
        if self._loop is not None and not self._is_looking:
            self._is_looking = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.look)

    def close(self) -> None:
        """Closes the socket, from which the last messages leave by themselves."""
        with self._guard:
            self._socket.close()


class HeartbeatThread(Heartbeat):
    """The heartbeat's thread, which binds its own socket; `start` returns when it listens."""

    def __init__(self, connection: Connection, ports: Ports) -> None:
        self._listens: Future[None] = Future()
        self._ports = ports
        super().__init__(
            zmq.Context(),  # a context of its own, so that nothing else delays it
            (connection.transport, connection.ip, connection.hb_port),
            curve_publickey=connection.curve_publickey,
            curve_secretkey=connection.curve_secretkey,
        )

    def start(self) -> None:
        """Listens and answers, or raises `ListenError`."""
        super().start()
        try:
            self._listens.result()
        except zmq.ZMQError as problem:
            raise _cant_listen("heartbeat", problem) from problem

    def run(self) -> None:
        """The work of the thread."""
        try:
            super().run()
        except Exception as problem:
            if self._listens.done():
                raise
            self._listens.set_exception(problem)  # `start` raises it

    def _bind_socket(self) -> None:
        _take_over(self._ports, self.socket, *self.addr)
        _when_free(super()._bind_socket)
        self._listens.set_result(None)


class RequestThread(ControlThread):
    """The thread of the control channel, whose loop leaves no request half-answered.

    A front end may ask for the end twice, and the first request stops the loop.
    """

    def run(self) -> None:
        """Answers until the loop is stopped; what is under way by then gets a moment to end."""
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
        connection: Names their addresses.
        ports: Those on which this process listens already.
    """

    def __init__(self, connection: Connection, ports: Ports) -> None:
        self._connection, self._ports = connection, ports
        self._context: zmq.Context[Any] = zmq.Context()
        self.shell = self._bound(zmq.ROUTER, "shell")
        self.stdin = self._bound(zmq.ROUTER, "stdin")
        self.control = self._bound(zmq.ROUTER, "control")
        for socket in (self.shell, self.stdin, self.control):
            # a client that comes back under its old identity takes its place again
            socket.router_handover = 1
        self.iopub = Publisher(self._bound(zmq.XPUB, "iopub"), connection.session)
        self.control_thread = RequestThread(daemon=True)
        self._heartbeat = HeartbeatThread(connection, ports)
        connection.hb_port = self._heartbeat.port

    def start(self) -> None:
        """Answers on the control and heartbeat channels; nothing more is bound afterwards.

        Raises `ListenError` if the heartbeat's address can't be listened on.
        """
        self.control_thread.start()
        self._heartbeat.start()
        self._ports.close()  # addresses that are not the kernel's

    def close(self) -> None:
        """Sends the last messages, then closes all sockets and threads."""
        # control first: it may still be publishing the end of the shutdown that it answered
        if self.control_thread.is_alive():
            self.control_thread.stop()
            self.control_thread.join()
        self._heartbeat.context.term()
        self.iopub.close()
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
            _take_over(self._ports, socket, ip, port)
            _when_free(lambda: socket.bind(f"tcp://{ip}:{port}"))
            return port
        return int(socket.bind_to_random_port(f"tcp://{ip}", max_tries=_TRIES))


def _take_over(ports: Ports, socket: zmq.Socket[Any], ip: str, port: int) -> None:
    """Has `socket`, when it is bound, listen where this process does already."""
    descriptor = ports.take(ip, port)
    if descriptor is not None:
        socket.setsockopt(zmq.USE_FD, descriptor)  # and closes it


def _when_free(bind: Callable[[], object]) -> None:
    """Calls `bind`, and again for `_SECONDS_IN_USE` if another has the address."""
    latest = time.monotonic() + _SECONDS_IN_USE
    while True:
        try:
            bind()
        except zmq.ZMQError as problem:
            if problem.errno != errno.EADDRINUSE or time.monotonic() > latest:
                raise
            time.sleep(0.05)
        else:
            return


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


# -- questions

Interrupted = Callable[[], bool]
POLL_MILLISECONDS = 50  # how late an interrupt may be seen
_SHOWN_CHARACTERS = 100_000


class StdinChannel:
    """Asks the user for a line, for a running cell. Used by the guest's thread alone.

    A ZMQ socket is used by one thread at a time: the main thread binds it before any cell runs, and
    closes it when no cell runs any more.
    """

    def __init__(self, socket: zmq.Socket[Any], session: Session) -> None:
        self._socket = socket
        self._socket.router_mandatory = 1  # a question that can't be delivered is not dropped
        self._session = session
        self._owner: int | None = None

    def ask(
        self,
        prompt: str,
        password: bool,
        *,
        parent: dict[str, Any],
        ident: Any,
        interrupted: Interrupted,
    ) -> str:
        """Asks the client behind `ident` for a line, and waits; or `InputInterrupted`."""
        self._own()
        while self._socket.poll(0):
            # a reply to an earlier question that nobody waits for any more
            self._socket.recv_multipart(zmq.NOBLOCK)
        content = {"prompt": prompt[:_SHOWN_CHARACTERS], "password": password}
        self._send(content, parent, ident, interrupted)
        while not interrupted():
            if self._socket.poll(POLL_MILLISECONDS):
                answer = self._receive()
                if answer is not None:
                    return answer
        raise InputInterrupted

    def _send(
        self, content: dict[str, Any], parent: dict[str, Any], ident: Any, interrupted: Interrupted
    ) -> None:
        """Sends the question; waits for a client whose stdin channel is not connected yet."""
        while True:
            try:
                self._session.send(self._socket, "input_request", content, parent, ident=ident)
            except zmq.ZMQError as problem:
                if problem.errno != zmq.EHOSTUNREACH:
                    raise
            else:
                return
            if interrupted():
                raise InputInterrupted
            time.sleep(POLL_MILLISECONDS / 1000)

    def _own(self) -> None:
        here = threading.get_ident()
        if self._owner is None:
            self._owner = here
        assert self._owner == here, "the stdin socket belongs to the guest's thread"

    def _receive(self) -> str | None:
        """The reply's value; None if it is not a reply of this session."""
        try:
            _, reply = self._session.recv(self._socket, zmq.NOBLOCK)
            value = reply["content"]["value"] if reply else None
        except (ValueError, KeyError, TypeError, zmq.Again):
            return None
        return value if isinstance(value, str) else None
