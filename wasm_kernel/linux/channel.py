"""`Channel`: the line between two processes of ours, such as a service and one worker.

A message is its size in four bytes, and JSON. The bytes in its field `raw` follow behind a zero
byte, which JSON never holds. Nothing is ever pickled. The process at the other end may have been
taken over, so a message is bounded before it is read, as a guest's frames are.
"""

from __future__ import annotations

import select
import threading
from _socket import MSG_NOSIGNAL  # `socket` takes longer to import, and few processes need it
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import FrameError

if TYPE_CHECKING:
    import socket

Message = TypeVar("Message", bound=Struct)

FRAME_BYTES = 64 * 1024 * 1024
FRAME_MEMORY = 128 * 1024 * 1024  # bytes of a frame's text in Python's memory
FRAME_NODES = 500_000
SPARE = 4096
"""Bytes and values that a message may hold beyond the guest's frame in it."""

_MARKS = (b"[", b"{", b",")
_UNMARKED = bytes({*range(256)} - {*b'"[{,'})
_SIZE_BYTES = 4
_PIECE = 1024 * 1024  # the most bytes that are read at once
_AT_ONCE = 32 * 1024  # bytes; a socket is writable if three quarters of its buffer are free


class Channel:
    """One end of the line; it owns the socket. One thread receives; any thread may send."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._line.setblocking(True)  # a program may have set another default for its sockets
        self._sending = threading.Lock()

    @property
    def fileno(self) -> int:
        """The descriptor of this end."""
        return self._line.fileno()

    def send(self, message: Struct) -> None:
        """Sends a message; waits while the other side does not read; `FrameError` if too large."""
        text, raw = parts_of(message)
        check_size(text, SPARE, len(raw))
        with self._sending:
            self._write(text, raw)

    def send_at_once(self, message: Struct) -> bool:
        """Sends a short message without `raw` bytes if that needs no wait; returns whether it did.

        Raises as `send`.
        """
        data = msgspec.json.encode(message)
        if len(data) > _AT_ONCE or not self._sending.acquire(blocking=False):
            return False
        try:
            if self._line.fileno() < 0:  # another thread has closed it
                return False
            poll = select.poll()
            poll.register(self._line, select.POLLOUT)
            if not poll.poll(0):
                return False
            check_size(data, SPARE)
            self._write(data)
            return True
        finally:
            self._sending.release()

    def _write(self, text: bytes, raw: bytes = b"") -> None:
        behind = (b"\0", raw) if raw else ()
        size = (len(text) + sum(map(len, behind))).to_bytes(_SIZE_BYTES)
        small = b"".join((size, text, *behind[:1]))
        for part in (small, raw) if raw else (small,):
            left = memoryview(part)
            while left:
                # the worker may be gone, and SIGPIPE would end a program that does not ignore it
                left = left[self._line.send(left, MSG_NOSIGNAL) :]

    def receive(self) -> bytes:
        """Waits for a message, and returns its bytes.

        Raises `EOFError` or `OSError` if the line is closed, `FrameError` if the message is too
        large, or would be once it is read.
        """
        size = int.from_bytes(self._read(_SIZE_BYTES))
        if size > FRAME_BYTES + SPARE:
            raise FrameError("a message is larger than any may be")
        data = self._read(size)
        check_size(data, SPARE)
        return data

    def _read(self, size: int) -> bytes:
        read = BytesIO()  # not a list: a message sent byte by byte must not take more memory
        while size > 0:
            piece = self._line.recv(min(size, _PIECE))
            if not piece:
                raise EOFError
            size -= read.write(piece)
        return read.getvalue()

    def is_quiet(self, seconds: float) -> bool:
        """Waits up to `seconds` for a message; returns whether there is none.

        Raises `EOFError` if this end is closed.
        """
        poll = select.poll()
        try:
            poll.register(self._line, select.POLLIN)
        except ValueError:  # another thread has closed it
            raise EOFError from None
        return not poll.poll(seconds * 1000)

    def close(self) -> None:
        """Closes this end, after the other side is gone. Safe to call twice."""
        with self._sending:  # the descriptor's number may be reused at once
            self._line.close()


def parts_of(message: Struct) -> tuple[bytes, bytes]:
    """Returns a message as JSON, and its `raw` bytes, which are not in it."""
    raw: bytes = getattr(message, "raw", b"")
    return msgspec.json.encode(replace(message, raw=b"") if raw else message), raw


def read(data: bytes, decode: Callable[[bytes], Message]) -> Message:
    """Returns the message in bytes that were received; `decode` reads its JSON."""
    text, _, raw = data.partition(b"\0")
    return with_raw(decode(text), raw)


def with_raw(message: Message, raw: bytes) -> Message:
    """Returns a message that was read from JSON, with the bytes behind it if it takes some."""
    return replace(message, raw=raw) if raw and hasattr(message, "raw") else message


def check_size(data: bytes, spare: int = 0, more: int = 0) -> None:
    """Checks the cost of reading JSON before it is read; raises `FrameError`.

    `spare` more bytes and values are allowed than in a frame, for a message around a frame. `more`
    is the number of bytes behind the data. Bytes behind a zero byte are not read as JSON.
    """
    nodes = FRAME_NODES + spare
    if len(data) + more > FRAME_BYTES + spare:
        raise FrameError(f"it is larger than {FRAME_BYTES // 2**20} MiB")
    data = data.partition(b"\0")[0]
    if marks_in(data, nodes) > nodes:
        raise FrameError("it holds too many values")
    if len(data) * _WIDEST > FRAME_MEMORY and len(data) * _width(data) > FRAME_MEMORY:
        raise FrameError(f"its text takes more than {FRAME_MEMORY // 2**20} MiB of memory")


def marks_in(data: bytes | bytearray, most: int) -> int:
    """Returns the number of marks in a JSON text that a value may follow, without reading it.

    Each value but the first follows a mark. If there are more than `most` marks, those in strings
    are left out, unless the text is UTF-16, which some readers take and which holds zeros.
    """
    if len(data) <= most:
        return len(data)
    found = sum(map(data.count, _MARKS))
    if found <= most or b"\0" in data:
        return found
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    told = plain.translate(None, _UNMARKED)
    if told.count(b'"') > 4 * most:  # a key and a value have four
        return found
    return len(b"".join(told.split(b'"')[::2]))


# Python keeps each character of a text in as many bytes as the widest of them needs.
_WIDEST = 4
_LATIN_1, _PLANE_0 = bytes(range(0xC4)), bytes(range(0xF0))  # UTF-8 and continuation bytes


def _width(data: bytes) -> int:
    beyond = data.translate(None, _LATIN_1)
    if beyond.translate(None, _PLANE_0) or b"\\ud" in data or b"\\uD" in data:
        return _WIDEST
    return 2 if beyond or b"\\u" in data else 1
