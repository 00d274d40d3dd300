"""A part of this process's memory that a test writes to: anonymous, or a file copy-on-write."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from wasm_kernel.linux.memory import Range
from wasm_kernel.state.pages import PAGE

PAGES = 300  # more than one of Compare's blocks


class Stretch:
    """`PAGES` pages of memory, to be closed with `close`."""

    def __init__(self, file: Path | None = None) -> None:
        size = PAGES * PAGE
        if file is None:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            file.write_bytes(bytes(page % 251 for page in range(PAGES) for _ in range(PAGE)))
            descriptor = os.open(file, os.O_RDONLY)
            access = mmap.PROT_READ | mmap.PROT_WRITE
            self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=access)
            os.close(descriptor)
        self._anchor: ctypes.c_char | None = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor)

    def write(self, at: int, data: bytes) -> None:
        ctypes.memmove(self.address + at, data, len(data))

    def read(self, at: int, length: int) -> bytes:
        return ctypes.string_at(self.address + at, length)

    def touch(self, page: int) -> None:
        """Change one byte in the middle of a page."""
        at = page * PAGE + 1234
        self.write(at, bytes([(self.read(at, 1)[0] + 1) % 256]))

    def close(self) -> None:
        self._anchor = None
        self._map.close()


def pages_of(ranges: list[Range]) -> set[int]:
    """The numbers of the pages that ranges cover."""
    return {page for start, end in ranges for page in range(start // PAGE, end // PAGE)}
