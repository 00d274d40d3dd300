"""The stdin channel: a running cell asks the person in front of the notebook for a line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import zmq
from jupyter_client.session import Session

from wasm_kernel.execution.listener import InputInterrupted

Interrupted = Callable[[], bool]
POLL_MILLISECONDS = 50  # how late an interrupt may be seen
_SHOWN_CHARACTERS = 100_000


class StdinChannel:
    """Asks and waits. Belongs to the guest's thread once the first cell has asked.

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
        """The line that the client behind `ident` answers with.

        Raises:
            InputInterrupted: `interrupted` became true before an answer came.
        """
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
        """Send the question; a client whose stdin channel is not connected yet is waited for."""
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
        """The reply's value; None where the message was none of this session's."""
        try:
            _, reply = self._session.recv(self._socket, zmq.NOBLOCK)
            value = reply["content"]["value"] if reply else None
        except (ValueError, KeyError, TypeError, zmq.Again):
            return None
        return value if isinstance(value, str) else None
