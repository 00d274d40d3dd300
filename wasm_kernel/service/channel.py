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
_PIECE = 1024 * 1024  # the most bytes that are read at once
_TOO_LARGE = "a message is larger than any may be"


class Channel:
    """One end of the line; it owns the socket. One thread receives; any thread may send."""

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
        """Sends a short message if that needs no wait; returns whether it was sent."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            if self._line.fileno() < 0:  # another thread has closed it
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
                # the worker may be gone, and SIGPIPE would end a program that does not ignore it
                left = left[self._line.send(left, socket.MSG_NOSIGNAL) :]

    def receive(self) -> bytes:
        """Waits for a message, and returns its bytes.

        Raises `EOFError` or `OSError` if the line is closed, `FrameError` if it is too large.
        """
        size = int.from_bytes(self._read(_SIZE_BYTES))
        if size > FRAME_BYTES + SPARE:
            raise FrameError(_TOO_LARGE)
        return self._read(size)

    def _read(self, size: int) -> bytes:
        read = BytesIO()  # not a list: a message sent byte by byte must not take more memory
        while size > 0:
            piece = self._line.recv(min(size, _PIECE))
            if not piece:
                raise EOFError
            size -= read.write(piece)
        return read.getvalue()

    def is_quiet(self, seconds: float) -> bool:
        """Waits up to `seconds` for a message; returns whether there is none."""
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        return not poll.poll(seconds * 1000)

    def close(self) -> None:
        """Closes this end, after the other side is gone. Safe to call twice."""
        with self._sending:  # the descriptor's number may be reused at once
            self._line.close()
