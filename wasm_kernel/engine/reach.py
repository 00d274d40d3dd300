"""Reaching into a guest's memory, with every address and length checked first."""

from __future__ import annotations

import ctypes
import struct

from wasm_kernel.engine.seams import RawMemory


class OutOfBounds(Exception):
    """An address or a length from the guest that lies outside its memory."""


class Reach:
    """Reads and writes one guest's memory. Only the guest's own thread uses it."""

    def __init__(self, memory: RawMemory) -> None:
        self._memory = memory
        self.address = memory.address()
        self._known = memory.size()  # it only grows: asked for again where this is too small
        self._whole = memoryview(bytearray())

    @property
    def size(self) -> int:
        """The size of the memory in bytes."""
        return self._memory.size()

    def _check(self, at: int, length: int) -> int:
        if at < 0 or length < 0 or at + length > self._known:
            self._known = self._memory.size()
            if at < 0 or length < 0 or at + length > self._known:
                raise OutOfBounds(f"{length} bytes at {at}")
        return self.address + at

    def read(self, at: int, length: int) -> bytes:
        """`length` bytes at `at`.

        Raises:
            OutOfBounds: they are not all inside the memory.
        """
        return ctypes.string_at(self._check(at, length), length)

    def write(self, at: int, data: bytes) -> None:
        """Put `data` at `at`.

        Raises:
            OutOfBounds: it would not lie inside the memory.
        """
        ctypes.memmove(self._check(at, len(data)), data, len(data))

    def view(self, at: int, length: int) -> memoryview:
        """`length` bytes at `at`, to be read and written in place; use it within one host call.

        Raises:
            OutOfBounds: they are not all inside the memory.
        """
        self._check(at, length)
        if len(self._whole) < at + length:
            memory = (ctypes.c_char * self._known).from_address(self.address)
            self._whole = memoryview(memory).cast("B")
        return self._whole[at : at + length]

    def read_word(self, at: int) -> int:
        """The 32-bit word at `at`."""
        return int(struct.unpack("<I", self.read(at, 4))[0])

    def write_word(self, at: int, value: int) -> None:
        """Put a 32-bit word at `at`."""
        self.write(at, struct.pack("<I", value & 0xFFFFFFFF))

    def buffers(self, table: int, count: int) -> list[tuple[int, int]]:
        """The (address, length) pairs of an array of WASI's `iovec`."""
        if count > 1024:
            raise OutOfBounds(f"{count} buffers")
        return list(struct.iter_unpack("<II", self.read(table, 8 * count)))
