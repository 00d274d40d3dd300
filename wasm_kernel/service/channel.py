"""`Channel`: the line between a service and one worker. A message is its size in four bytes, and
JSON. Nothing is ever pickled.
"""

from __future__ import annotations

import select
import socket
import threading
from io import BytesIO

import msgspec
from msgspec import Struct

from wasm_kernel.errors import FrameError
from wasm_kernel.guests.protocol import FRAME_BYTES, check_size
from wasm_kernel.service.messages import SPARE

_SIZE_BYTES = 4
_PIECE = 1024 * 1024  # bytes that are read at once; no more than the system has at hand
_TOO_LARGE = "a message is larger than any may be"


class Channel:
    """One end of the line, which is closed with it. One thread receives; any may send."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._line.setblocking(True)  # a program may have set another default for its sockets
        self._sending = threading.Lock()

    def send(self, message: Struct) -> None:
        """Sends a message; waits while the other side does not read; `FrameError` if too large."""
        data = msgspec.json.encode(message)
        check_size(data, SPARE)
        with self._sending:
            self._write(data)

    def send_at_once(self, message: Struct) -> bool:
        """Sends a short message if that does not mean to wait; returns whether it did."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            if self._line.fileno() < 0:  # it was closed meanwhile
                return False
            poll = select.poll()
            poll.register(self._line, select.POLLOUT)
            if not poll.poll(0):
                return False
            self._write(msgspec.json.encode(message))
            return True
        finally:
            self._sending.release()

    def _write(self, data: bytes) -> None:
        size = len(data).to_bytes(_SIZE_BYTES)
        for part in (size + data,) if len(data) < _PIECE else (size, data):
            left = memoryview(part)
            while left:
                # to a worker that is gone: a program may have SIGPIPE end it
                left = left[self._line.send(left, socket.MSG_NOSIGNAL) :]

    def receive(self) -> bytes:
        """Waits for a message, and returns it unread.

        Raises `EOFError` or `OSError` if there is none, `FrameError` if it is too large.
        """
        size = int.from_bytes(self._read(_SIZE_BYTES))
        if size > FRAME_BYTES + SPARE:
            raise FrameError(_TOO_LARGE)
        return self._read(size)

    def _read(self, size: int) -> bytes:
        read = BytesIO()  # not a list: who sends it byte by byte must not have it take more
        while size > 0:
            piece = self._line.recv(min(size, _PIECE))
            if not piece:
                raise EOFError
            size -= read.write(piece)
        return read.getvalue()

    def is_quiet(self, seconds: float) -> bool:
        """Waits until there is a message, or for so many seconds; returns whether there is none."""
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        return not poll.poll(seconds * 1000)

    def close(self) -> None:
        """Closes this end, when the other side is gone. Safe to call twice."""
        with self._sending:  # the number of its descriptor may be another line's at once
            self._line.close()
