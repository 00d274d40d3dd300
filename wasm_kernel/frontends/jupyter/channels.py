"""The kernel's channels for messages: shell, IOPub, and stdin, for questions to the user.

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

# the first byte of a message on an XPUB socket: a client subscribes, or ends a subscription
_SUBSCRIBES, _UNSUBSCRIBES = b"\x01", b"\x00"
_READABLE = int(zmq.POLLIN)  # an enumeration's operators take longer than polling a socket
_FLUSHED_MOST = 1000  # messages; ZMQ keeps as many per client
_WELCOMED_MOST = 20  # subscriptions that are handled before other work has its turn
_TOPICS_MOST = 100  # topics of clients; one for all topics is always possible
POLL_MILLISECONDS = 50  # how late an interrupt may be seen
_SHOWN_CHARACTERS = 100_000

Content = dict[str, Any]
Interrupted = Callable[[], bool]


class ShellChannel:
    """The shell channel, on the main thread's loop: requests come in, replies leave at once.

    A ROUTER socket never waits: it drops messages that it can't send. A `ZMQStream` would queue a
    reply, and its polling would take a tenth of the time of a tiny cell.

    Attributes:
        io_loop: The loop; the base class needs it.
    """

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        self.io_loop = IOLoop.current()
        self._socket = socket
        self._will_pass_on = False
        self._receive: Callable[[list[zmq.Frame]], object] = lambda message: None

    def on_recv(self, receive: Callable[[list[zmq.Frame]], object], **_: Any) -> None:
        """Passes messages to `receive` from now on."""
        self._receive = receive
        asyncio.get_event_loop().add_reader(self._socket.fileno(), self._pass_on)

    def send_multipart(self, parts: Sequence[Any], **options: Any) -> None:
        """Sends a message, after the messages received before it are passed on."""
        self.flush()
        self._socket.send_multipart(parts, **options)
        self._pass_on_soon()  # the send may have swallowed the wake-up of a request

    def flush(self, _: int = 0) -> None:
        """Passes on received messages, at most `_FLUSHED_MOST`; there are never any to send."""
        for _ in range(_FLUSHED_MOST):
            if not self._is_readable():
                return
            self._receive(self._socket.recv_multipart(copy=False))

    def _pass_on(self) -> None:
        """Passes on one message, then yields: programs without the key may flood the port."""
        self._will_pass_on = False
        if self._is_readable():
            self._receive(self._socket.recv_multipart(copy=False))
            self._pass_on_soon()

    def _pass_on_soon(self) -> None:
        if not self._will_pass_on and self._is_readable():
            self._will_pass_on = True
            self.io_loop.add_callback(self._pass_on)

    def _is_readable(self) -> bool:
        return not self._socket.closed and bool(int(self._socket.get(zmq.EVENTS)) & _READABLE)


class Publisher:
    """The IOPub channel: any thread's messages leave at once.

    ZMQ's own thread does the slow work. Several threads may use a socket under a lock. ipykernel
    has a separate thread for this instead, but waking it for each message takes longer than sending
    the message.

    A client is subscribed once `welcome` or a send has welcomed it, so that its first message is
    the welcome, even if others are published before.
    """

    def __init__(self, socket: zmq.Socket[Any], session: Session) -> None:
        self._socket, self._session = socket, session
        self._topics: set[bytes] = set()
        socket.set(zmq.XPUB_MANUAL, 1)
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._will_welcome = False
        self._subscribed: Future[None] = Future()

    def when_subscribed(self, call: Callable[[], None]) -> None:
        """Calls `call` when a client has subscribed, at once if one already has. Any thread."""
        self._subscribed.add_done_callback(lambda _: call())

    def send_multipart(self, parts: Sequence[Any], *_: Any, **options: Any) -> None:
        """Sends a message; does nothing once the socket is closed. Any thread may call it."""
        with self._guard:
            if not self._socket.closed:
                self._welcome()  # so that new subscribers get this message
                self._socket.send_multipart(parts, **options)
                self._welcome()  # the send may have swallowed the wake-up of a subscription

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes a loop watch for new subscribers; called on the loop's thread."""
        self._loop = loop
        loop.add_reader(self._socket.fileno(), self.welcome)

    def welcome(self) -> None:
        """Welcomes the clients that have subscribed."""
        with self._guard:
            self._will_welcome = False
            if not self._socket.closed:
                self._welcome()

    def _welcome(self) -> None:
        """Welcomes some clients; the loop welcomes the rest, since there may be endlessly many."""
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
        if self._loop is not None and not self._will_welcome:
            self._will_welcome = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.welcome)

    def close(self) -> None:
        """Closes the socket; ZMQ still sends the last messages."""
        with self._guard:
            self._socket.close()


class StdinChannel:
    """Asks the user for a line, for a running cell. Only the guest's thread uses it.

    One thread at a time may use a ZMQ socket: the main thread binds it before any cell runs, and
    closes it after the last cell.
    """

    def __init__(self, socket: zmq.Socket[Any], session: Session) -> None:
        self._socket = socket
        self._socket.router_mandatory = 1  # a question that can't be delivered is not dropped
        self._session = session

    def ask(
        self, prompt: str, password: bool, *, parent: Content, ident: Any, interrupted: Interrupted
    ) -> str:
        """Asks the client `ident` for a line, and waits; `InputInterrupted` ends the wait."""
        while self._socket.poll(0):
            # a late reply to an earlier question
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
        self, content: Content, parent: Content, ident: Any, interrupted: Interrupted
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

    def _receive(self) -> str | None:
        """The reply's value; None if it is not a reply of this session."""
        try:
            _, reply = self._session.recv(self._socket, zmq.NOBLOCK)
            value = reply["content"]["value"] if reply else None
        except (ValueError, KeyError, TypeError, zmq.Again):
            return None
        return value if isinstance(value, str) else None
