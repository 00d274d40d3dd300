"""The channels on which a kernel talks: shell, IOPub, and questions to the user.

The shell socket belongs to the main thread's loop, the stdin socket to the guest's thread. Any
thread may publish.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import zmq
from jupyter_client.session import Session
from tornado.ioloop import IOLoop

from wasm_kernel.execution.interfaces import InputInterrupted

# the first byte of what an XPUB socket receives of a client that subscribes or ends a subscription
_SUBSCRIBES, _UNSUBSCRIBES = b"\x01", b"\x00"
_READABLE = int(zmq.POLLIN)  # an enumeration's own operators take longer than a look at a socket
_FLUSHED_MOST = 1000  # messages; ZMQ keeps as many of a client
_WELCOMED_MOST = 20  # subscriptions, before others have their turn
_TOPICS_MOST = 100  # that clients subscribe to; everything, as front ends do, is always open
POLL_MILLISECONDS = 50  # how late an interrupt may be seen
_SHOWN_CHARACTERS = 100_000

Interrupted = Callable[[], bool]


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
