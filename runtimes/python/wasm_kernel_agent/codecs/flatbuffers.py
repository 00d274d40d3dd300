"""A reader and a builder of the FlatBuffers tables that Arrow's metadata consist of.

A table begins with the distance back to its vtable. The vtable holds the place of each field in
the table, or 0 for an absent field. All other distances count forward from their own place.
Source of the layout: https://flatbuffers.dev/internals.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_U16, _I32, _U32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")


class Table:
    """A table in a buffer. Raises `struct.error` or `IndexError` if it points outside."""

    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at = data, at
        self._vtable = at - _I32.unpack_from(data, at)[0]
        if self._vtable < 0:
            raise IndexError("a vtable before the buffer")
        self._size = _U16.unpack_from(data, self._vtable)[0]

    @classmethod
    def root(cls, data: memoryview) -> Table:
        """Returns the root table of a buffer."""
        return cls(data, _U32.unpack_from(data, 0)[0])

    def place(self, number: int) -> int:
        """Returns the place of a field; 0 if the table lacks the field."""
        entry = 4 + 2 * number
        if entry >= self._size:
            return 0
        offset = _U16.unpack_from(self.data, self._vtable + entry)[0]
        return self.at + offset if offset else 0

    def number(self, number: int, kind: str, default: int = 0) -> int:
        """Returns a number; `kind` is its letter in `struct`."""
        at = self.place(number)
        return int(struct.unpack_from(f"<{kind}", self.data, at)[0]) if at else default

    def _target(self, at: int) -> int:
        return at + int(_U32.unpack_from(self.data, at)[0])

    def table(self, number: int) -> Table | None:
        """Returns a table within, or None."""
        at = self.place(number)
        return Table(self.data, self._target(at)) if at else None

    def vector(self, number: int) -> tuple[int, int]:
        """Returns the place of a vector's first item, and the number of items."""
        at = self.place(number)
        if not at:
            return 0, 0
        start = self._target(at)
        return start + 4, int(_U32.unpack_from(self.data, start)[0])

    def tables(self, number: int) -> Iterator[Table]:
        """Yields the tables of a vector."""
        start, count = self.vector(number)
        for at in range(start, start + 4 * count, 4):
            yield Table(self.data, self._target(at))

    def text(self, number: int) -> str | None:
        """Returns a text, or None."""
        if not self.place(number):
            return None
        start, size = self.vector(number)
        if start + size > len(self.data):
            raise IndexError("a text behind the buffer")
        return bytes(self.data[start : start + size]).decode("utf-8", "replace")

    def structs(self, number: int, layout: str) -> list[tuple[int, ...]]:
        """Returns the items of a vector of structs, each of which has this layout."""
        start, count = self.vector(number)
        size = struct.calcsize(layout)
        if start + count * size > len(self.data):
            raise IndexError("a vector behind the buffer")
        return list(struct.iter_unpack(layout, self.data[start : start + count * size]))


# -- building

Write = Callable[["Builder"], int]
"""Appends an object to a builder; returns its place."""


class Builder:
    """Builds a buffer from its beginning: a table stands before the objects that it points to."""

    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, size: int) -> None:
        """Goes to a multiple of `size`."""
        self.data += bytes(-len(self.data) % size)

    def _point(self, at: int, target: int) -> None:
        _U32.pack_into(self.data, at, target - at)


def text(value: str | bytes) -> Write:
    """Returns a text to write."""

    def write(builder: Builder) -> int:
        data = value.encode() if isinstance(value, str) else value
        builder.align(4)
        at = len(builder.data)
        builder.data += _U32.pack(len(data)) + data + b"\0"
        return at

    return write


def structs(layout: str, items: Sequence[tuple[int, ...]]) -> Write:
    """Returns a vector of structs of 64-bit numbers to write."""

    def write(builder: Builder) -> int:
        builder.align(8)
        builder.data += bytes(4)  # so that the items are aligned
        at = len(builder.data)
        builder.data += _U32.pack(len(items))
        for item in items:
            builder.data += struct.pack(layout, *item)
        return at

    return write


def tables(items: Sequence[Write]) -> Write:
    """Returns a vector of tables to write."""

    def write(builder: Builder) -> int:
        builder.align(4)
        at = len(builder.data)
        builder.data += _U32.pack(len(items)) + bytes(4 * len(items))
        for index, item in enumerate(items):
            entry = at + 4 + 4 * index
            builder._point(entry, item(builder))
        return at

    return write


def table(fields: dict[int, tuple[str, Any] | Write | None]) -> Write:
    """Returns a table to write. Its fields are numbers with their kind, or objects; None is left
    out. Each has a place of 8 bytes.
    """
    present = {number: value for number, value in fields.items() if value is not None}
    count = max(present, default=-1) + 1

    def write(builder: Builder) -> int:
        builder.align(8)
        slots = {number: 8 + 8 * index for index, number in enumerate(sorted(present))}
        size, vtable = 8 + 8 * len(present), len(builder.data)
        offsets = [slots.get(number, 0) for number in range(count)]
        builder.data += struct.pack(f"<HH{count}H", 4 + 2 * count, size, *offsets)
        builder.align(8)
        at = len(builder.data)
        builder.data += _I32.pack(at - vtable) + bytes(size - 4)
        for number, value in present.items():
            place = at + slots[number]
            if isinstance(value, tuple):
                struct.pack_into(f"<{value[0]}", builder.data, place, value[1])
            else:
                builder._point(place, value(builder))
        return at

    return write


def buffer(root: Write) -> bytes:
    """Returns a whole buffer with this root."""
    builder = Builder()
    builder.data += bytes(8)
    _U32.pack_into(builder.data, 0, root(builder))
    builder.align(8)
    return bytes(builder.data)
