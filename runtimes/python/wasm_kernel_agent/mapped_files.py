"""`mmap` without an operating system that maps files: a map is a copy of its part of the file.

So a map that would change its file is refused: other readers would see the changes late, or never.
The interface is that of Python's `mmap` on Linux.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Self, SupportsIndex

_DEFAULT, _READ, _WRITE, _COPY = range(4)
_PAGE = 4096
_PIECE = 1 << 20
_NO_WRITING = (
    "a map can't change its file here. To read, use mode='r' or 'c' (np.memmap), mmap_mode='r' or "
    "'c' (np.load), access=mmap.ACCESS_READ or ACCESS_COPY; to write, np.save or the file itself"
)
_ADVICE = ("NORMAL", "RANDOM", "SEQUENTIAL", "WILLNEED", "DONTNEED")
_NAMES = {
    "ACCESS_DEFAULT": _DEFAULT,
    "ACCESS_READ": _READ,
    "ACCESS_WRITE": _WRITE,
    "ACCESS_COPY": _COPY,
    "PAGESIZE": _PAGE,
    "ALLOCATIONGRANULARITY": _PAGE,
    "MAP_SHARED": 1,
    "MAP_PRIVATE": 2,
    "MAP_ANON": 32,
    "MAP_ANONYMOUS": 32,
    "PROT_READ": 1,
    "PROT_WRITE": 2,
    "PROT_EXEC": 4,
    **{f"MADV_{name}": number for number, name in enumerate(_ADVICE)},
}


def install(module: ModuleType) -> None:
    """Completes the guest's module `mmap`, which has a class that only refuses."""
    vars(module).update(_NAMES, mmap=MappedFile, error=OSError)


class MappedFile:
    """A copy of a part of a file, or memory alone if `fileno` is -1."""

    def __init__(  # noqa: PLR0917 - as Python's `mmap`
        self,
        fileno: int,
        length: int,
        flags: int = 1,
        prot: int = 3,
        access: int = _DEFAULT,
        offset: int = 0,
        *,
        trackfd: bool = True,
    ) -> None:
        self.closed, self._position, self._offset = True, 0, offset
        if length < 0 or offset < 0:
            raise OverflowError("memory mapped length and offset must be positive")
        if offset % _PAGE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if access == _DEFAULT:
            is_shared, is_written = bool(flags & 1), bool(prot & 2)
            access = (_WRITE if is_shared else _COPY) if is_written else _READ
        if access == _WRITE and fileno != -1:
            raise OSError(errno.ENOTSUP, _NO_WRITING)
        self._access = access
        self._data = bytearray(length) if fileno == -1 else self._read(fileno, length)
        self.closed = False

    def _read(self, fileno: int, length: int) -> bytearray:
        size = os.fstat(fileno).st_size
        if not length and not size:
            raise ValueError("cannot mmap an empty file")
        if self._offset + length > size or (not length and self._offset >= size):
            raise ValueError("mmap length is greater than file size")
        data, done = bytearray(length or size - self._offset), 0
        # in pieces, so that no second copy of the whole file needs memory
        while piece := os.pread(fileno, min(_PIECE, len(data) - done), self._offset + done):
            data[done : done + len(piece)] = piece
            done += len(piece)
        return data

    def flush(self, *_: int) -> None:
        """Does nothing: the map has no file to change."""
        self._check()

    def close(self) -> None:
        """Ends the use of the map. Safe to call twice."""
        self.closed, self._data = True, bytearray()

    def size(self) -> int:
        """Returns the size of the map."""
        return len(self)

    def madvise(self, *_: int) -> None:
        """Does nothing: advice is for a system that maps files."""
        self._check()

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the bytes

    def __buffer__(self, flags: int) -> memoryview:
        self._check()
        view = memoryview(self._data)
        return view.toreadonly() if self._access == _READ else view

    def __len__(self) -> int:
        self._check()
        return len(self._data)

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        self._check()
        found = self._data[key]
        return bytes(found) if isinstance(found, bytearray) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check(to_write=True)
        if isinstance(key, slice) and len(self._data[key]) != len(value):
            raise IndexError("mmap slice assignment is wrong size")
        self._data[key] = value

    def __iter__(self) -> Iterator[bytes]:
        return (bytes((each,)) for each in self._data)

    def find(self, sub: bytes, start: int | None = None, *end: int) -> int:
        """Returns the first place of `sub` from `start` or the position on; -1 if it has none."""
        self._check()
        return self._data.find(sub, self._position if start is None else start, *end)

    def rfind(self, sub: bytes, start: int | None = None, *end: int) -> int:
        """Returns the last place of `sub` from `start` or the position on; -1 if it has none."""
        self._check()
        return self._data.rfind(sub, self._position if start is None else start, *end)

    def move(self, dest: int, src: int, count: int) -> None:
        """Copies bytes within the map."""
        self._check(to_write=True)
        if min(dest, src, count) < 0 or max(dest, src) + count > len(self._data):
            raise ValueError("source, destination, or count out of range")
        self._data[dest : dest + count] = self._data[src : src + count]

    # -- the position

    def tell(self) -> int:
        """Returns the position."""
        self._check()
        return self._position

    def seek(self, pos: int, whence: int = 0) -> int:
        """Sets the position; returns it."""
        self._check()
        to = pos + (0, self._position, len(self._data))[whence]
        if not 0 <= to <= len(self._data):
            raise ValueError("seek out of range")
        self._position = to
        return to

    def read(self, n: int | None = None) -> bytes:
        """Returns the next bytes, at most `n`."""
        self._check()
        end = len(self._data) if n is None or n < 0 else self._position + n
        found = bytes(self._data[self._position : end])
        self._position += len(found)
        return found

    def readline(self) -> bytes:
        """Returns the bytes up to the end of the line."""
        end = self.find(b"\n")
        return self.read(None if end < 0 else end + 1 - self._position)

    def read_byte(self) -> int:
        """Returns the next byte as a number."""
        found = self.read(1)
        if not found:
            raise ValueError("read byte out of range")
        return found[0]

    def write(self, data: Any) -> int:
        """Writes bytes at the position; returns their number."""
        raw = memoryview(data).cast("B")
        self._check(to_write=True)
        if self._position + len(raw) > len(self._data):
            raise ValueError("data out of range")
        self[self._position : self._position + len(raw)] = raw
        self._position += len(raw)
        return len(raw)

    def write_byte(self, byte: int) -> None:
        """Writes one byte, given as a number."""
        self.write(bytes((byte,)))

    def _check(self, *, to_write: bool = False) -> None:
        if self.closed:
            raise ValueError("mmap closed or invalid")
        if to_write and self._access == _READ:
            raise TypeError("mmap can't modify a readonly memory map.")


MappedFile.__name__ = MappedFile.__qualname__ = "mmap"
MappedFile.__module__ = "mmap"
