"""`Channel`: the line between a service and one worker, which carries messages as frames of
`multiprocessing.connection`. Nothing is ever pickled.
"""

from __future__ import annotations

import select
import threading
from multiprocessing.connection import Connection

import msgspec
from msgspec import Struct

from wasm_kernel.guests.protocol import FRAME_BYTES, check_size
from wasm_kernel.service.messages import SPARE


class Channel:
    """One end of the line, which is closed with it. One thread receives; any may send."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Struct) -> None:
        """Sends a message; waits while the other side does not read; `FrameError` if too large."""
        data = msgspec.json.encode(message)
        check_size(data, SPARE)
        with self._sending:
            self._connection.send_bytes(data)

    def send_at_once(self, message: Struct) -> bool:
        """Sends a short message if that does not mean to wait; returns whether it did."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            poll = select.poll()
            poll.register(self._connection, select.POLLOUT)
            if not poll.poll(0):
                return False
            self._connection.send_bytes(msgspec.json.encode(message))
            return True
        finally:
            self._sending.release()

    def receive(self) -> bytes:
        """Waits for a message, and returns it unread; `EOFError` or `OSError` if there is none."""
        return self._connection.recv_bytes(FRAME_BYTES + SPARE)

    def is_quiet(self, seconds: float) -> bool:
        """Waits until there is a message, or for so many seconds; returns whether there is none."""
        return not self._connection.poll(seconds)

    def close(self) -> None:
        """Closes this end, when the other side is gone. Safe to call twice."""
        with self._sending:  # the number of its descriptor may be another line's at once
            self._connection.close()
