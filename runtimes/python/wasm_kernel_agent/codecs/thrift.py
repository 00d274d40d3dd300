"""The part of Thrift's compact protocol that footers of Parquet files need: a structure is read
into a tree of fields, and written again.

Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_DEEPEST = 32

Struct = dict[int, "Value"]
"""Fields by their numbers."""


class ThriftError(ValueError):
    """A structure is damaged."""


@dataclass
class Value:
    """A value with its type; the value of a list is a pair of its items' type and the items."""

    type: int
    value: Any


def read(data: bytes) -> tuple[Struct, int]:
    """Reads a structure; returns its fields, and its length. Raises `ThriftError`."""
    reader = _ThriftReader(data)
    try:
        return reader.structure(0), reader.at
    except IndexError:
        raise ThriftError("the structure ends too early") from None


def write(structure: Struct) -> bytes:
    """Returns the bytes of a structure."""
    made = bytearray()
    _write_structure(made, structure)
    return bytes(made)


class _ThriftReader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def structure(self, depth: int) -> Struct:
        if depth > _DEEPEST:
            raise ThriftError("the structure is nested too deeply")
        fields: Struct = {}
        number = 0
        while True:
            head = self._byte()
            if head == 0:
                return fields
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            value = kind == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth)
            fields[number] = Value(kind, value)

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _unsigned(self) -> int:
        result = shift = 0
        while True:
            byte = self._byte()
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
            if shift > 63:
                raise ThriftError("a number is too long")

    def _signed(self) -> int:
        found = self._unsigned()
        return (found >> 1) ^ -(found & 1)

    def _bytes(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise IndexError
        self.at += size
        return self.data[self.at - size : self.at]

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE, BYTE):  # a boolean is a byte in a list
            return self._byte()
        if kind in (I16, I32, I64):
            return self._signed()
        if kind in (DOUBLE, BINARY):
            return self._bytes(8 if kind == DOUBLE else self._unsigned())
        if kind in (LIST, SET):
            return self._list(depth)
        if kind == STRUCT:
            return self.structure(depth + 1)
        raise ThriftError(f"a value of the type {kind}")

    def _list(self, depth: int) -> tuple[int, list[Any]]:
        if depth > _DEEPEST:
            raise ThriftError("the structure is nested too deeply")
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._unsigned()
        if count > len(self.data) - self.at:
            raise IndexError
        return kind, [self._value(kind, depth + 1) for _ in range(count)]


def _write_structure(made: bytearray, structure: Struct) -> None:
    last = 0
    for number, value in sorted(structure.items()):
        kind = value.type
        if kind in (TRUE, FALSE):
            kind = TRUE if value.value else FALSE
        if 0 < number - last <= 15:
            made.append(number - last << 4 | kind)
        else:
            made.append(kind)
            _write_signed(made, number)
        last = number
        if kind not in (TRUE, FALSE):
            _write_value(made, kind, value.value)
    made.append(0)


def _write_value(made: bytearray, kind: int, value: Any) -> None:
    if kind in (I16, I32, I64):
        _write_signed(made, value)
    elif kind in (BYTE, TRUE, FALSE):
        made.append(value)
    elif kind == DOUBLE:
        made += value
    elif kind == BINARY:
        _write_unsigned(made, len(value))
        made += value
    elif kind in (LIST, SET):
        items_type, items = value
        if len(items) < 15:
            made.append(len(items) << 4 | items_type)
        else:
            made.append(0xF0 | items_type)
            _write_unsigned(made, len(items))
        for each in items:
            _write_value(made, items_type, each)
    else:
        _write_structure(made, value)


def _write_unsigned(made: bytearray, value: int) -> None:
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)


def _write_signed(made: bytearray, value: int) -> None:
    _write_unsigned(made, (value << 1) ^ (value >> 63))
