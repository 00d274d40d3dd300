"""Reading Arrow's IPC messages into arrays of numpy, without a copy where the layout allows it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy

from wasm_kernel_agent.codecs.arrow_schema import (
    BATCH,
    DICTIONARY,
    SCHEMA,
    ArrowError,
    Field,
    Schema,
    Type,
    read_schema,
)
from wasm_kernel_agent.codecs.flatbuffers import Table

_DAMAGED = "the data are damaged"
_MARKER = 0xFFFFFFFF
_OFFSETS: dict[str, Any] = {"": numpy.dtype("<i4"), "large_": numpy.dtype("<i8")}
_INLINE = 12  # bytes of a short text within its view


@dataclass
class Array:
    """The values of a field in one batch.

    Attributes:
        field: The field.
        length: The number of values.
        valid: Which values are there; None if all are.
        values: Numbers or bytes, whose meaning depends on the type.
        offsets: Where the texts or lists begin in `values` or `children`, and the last one ends.
        children: The parts of nested types; the dictionary of a field with one.
    """

    field: Field
    length: int
    valid: Any = None
    values: Any = None
    offsets: Any = None
    children: tuple[Array, ...] = ()


class Stream:
    """An IPC stream: its schema, and its batches in turn.

    Raises `ArrowError` if it is damaged.
    """

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0
        self._dictionaries: dict[int, Array] = {}
        try:
            kind, header, _ = self._next() or (0, None, None)
            if kind != SCHEMA:
                raise ArrowError("there is no schema")
            self.schema: Schema = read_schema(header)
        except (struct.error, IndexError, RecursionError) as problem:
            raise ArrowError(_DAMAGED) from problem
        self._encoded = {each.dictionary.id: each for each in _with_dictionaries(self.schema)}

    def batches(self) -> Iterator[list[Array]]:
        """Yields the columns of each batch."""
        try:
            while (message := self._next()) is not None:
                kind, header, body = message
                if kind == DICTIONARY and header is not None:
                    self._take_dictionary(header, body)
                elif kind == BATCH and header is not None:
                    reader = _BatchReader(header, body, self._dictionaries)
                    yield [reader.read(each) for each in self.schema.fields]
        except (struct.error, IndexError, RecursionError, ValueError, OverflowError) as problem:
            if isinstance(problem, ArrowError):
                raise
            raise ArrowError(_DAMAGED) from problem

    def _next(self) -> tuple[int, Table | None, memoryview] | None:
        if self._at + 8 > len(self._data):
            return None
        marker, size = struct.unpack_from("<II", self._data, self._at)
        if marker != _MARKER or size == 0:
            return None
        start = self._at + 8
        message = Table.root(self._data[start : start + size])
        begin = start + size
        self._at = begin + message.number(3, "q")
        if self._at < begin or self._at > len(self._data):
            raise ArrowError("the data end too early")
        return message.number(1, "B"), message.table(2), self._data[begin : self._at]

    def _take_dictionary(self, header: Table, body: memoryview) -> None:
        number, data = header.number(0, "q"), header.table(1)
        column = self._encoded.get(number)
        if column is None or data is None or header.number(2, "?"):
            raise ArrowError("a dictionary is not of a kind that can be read")
        reader = _BatchReader(data, body, self._dictionaries)
        plain = Field(column.name, column.type, column.children)
        self._dictionaries[number] = reader.read(plain)


def _with_dictionaries(schema: Schema) -> Iterator[Any]:
    waiting = list(schema.fields)
    while waiting:
        each = waiting.pop()
        waiting += each.children
        if each.dictionary is not None:
            yield each


class _BatchReader:
    """Reads the arrays of one batch, each of which takes its nodes and buffers in turn."""

    def __init__(self, header: Table, body: memoryview, dictionaries: dict[int, Array]) -> None:
        if header.table(3) is not None:
            raise ArrowError("compressed buffers can't be read")
        self._body, self._dictionaries = body, dictionaries
        self._nodes = iter(header.structs(1, "<qq"))
        self._buffers = iter(header.structs(2, "<qq"))
        self._views = iter(header.structs(4, "<q"))

    def read(self, column: Field) -> Array:
        """Reads the values of a field."""
        length, nulls = self._taken(self._nodes)
        if length < 0:
            raise ArrowError(_DAMAGED)
        if column.type.name == "null":
            return Array(column, length)
        made = Array(column, length)
        bits = self._buffer()
        if nulls:
            made.valid = _bits(bits, length)
        if column.dictionary is not None:
            kind = numpy_type(column.dictionary.index)
            made.values = self._numbers(kind, length)
            if column.dictionary.id not in self._dictionaries:
                raise ArrowError("a dictionary is missing")
            made.children = (self._dictionaries[column.dictionary.id],)
            return made
        self._read_values(made, column.type)
        return made

    def _read_values(self, made: Array, kind: Type) -> None:
        size = "large_" if kind.name.startswith("large_") else ""
        match kind.name.removeprefix("large_"):
            case "bool":
                made.values = _bits(self._buffer(), made.length)
            case "binary" | "utf8":
                made.offsets = self._offsets(size, made.length)
                made.values = self._buffer()
                self._check(made, len(made.values))
            case "binary_view" | "utf8_view":
                views = self._numbers(numpy.dtype("V16"), made.length)
                (count,) = self._taken(self._views)
                made.values = _joined(views, [self._buffer() for _ in range(count)], made)
            case "list" | "map":
                made.offsets = self._offsets(size, made.length)
                made.children = (self.read(made.field.children[0]),)
                self._check(made, made.children[0].length)
            case "fixed_list":
                made.children = (self.read(made.field.children[0]),)
                if made.children[0].length < made.length * kind.width:
                    raise ArrowError(_DAMAGED)
            case "struct":
                made.children = tuple(self.read(each) for each in made.field.children)
                if any(each.length < made.length for each in made.children):
                    raise ArrowError(_DAMAGED)
            case _:
                made.values = self._numbers(numpy_type(kind), made.length)

    def _taken(self, numbers: Iterator[tuple[int, ...]]) -> tuple[int, ...]:
        found = next(numbers, None)
        if found is None:
            raise ArrowError(_DAMAGED)
        return found

    def _buffer(self) -> memoryview:
        at, length = self._taken(self._buffers)
        if at < 0 or length < 0 or at + length > len(self._body):
            raise ArrowError(_DAMAGED)
        return self._body[at : at + length]

    def _numbers(self, kind: Any, length: int) -> Any:
        data = self._buffer()
        if len(data) < length * kind.itemsize:
            raise ArrowError(_DAMAGED)
        return numpy.frombuffer(data, kind, length) if length else numpy.empty(0, kind)

    def _offsets(self, size: str, length: int) -> Any:
        kind, data = _OFFSETS[size], self._buffer()
        if not length:
            return numpy.zeros(1, kind)
        if len(data) < (length + 1) * kind.itemsize:
            raise ArrowError(_DAMAGED)
        return numpy.frombuffer(data, kind, length + 1)

    def _check(self, made: Array, most: int) -> None:
        """Raises `ArrowError` unless the offsets rise from 0 or more to `most` at most."""
        offsets = made.offsets
        if offsets[0] < 0 or offsets[-1] > most or (numpy.diff(offsets) < 0).any():
            raise ArrowError(_DAMAGED)


def numpy_type(kind: Type) -> Any:
    """Returns the numpy type that has a type's layout. Raises `ArrowError` if there is none."""
    match kind.name:
        case "int":
            return numpy.dtype(f"<{'i' if kind.signed else 'u'}{kind.width // 8}")
        case "float":
            return numpy.dtype(f"<f{kind.width // 8}")
        case "decimal" | "fixed_binary":
            return numpy.dtype(f"V{kind.width // 8 if kind.name == 'decimal' else kind.width}")
        case "date" | "time" | "timestamp" | "duration":
            return numpy.dtype(f"<i{kind.width // 8}")
    raise ArrowError(f"the type {kind.name} can't be read")


def _bits(data: memoryview, length: int) -> Any:
    if len(data) * 8 < length:
        raise ArrowError(_DAMAGED)
    packed = numpy.frombuffer(data, numpy.uint8) if length else numpy.empty(0, numpy.uint8)
    return numpy.unpackbits(packed, count=length, bitorder="little").view(bool)


def _joined(views: Any, buffers: list[memoryview], made: Array) -> Any:
    """Returns the texts of views as one buffer, and sets their offsets."""
    texts, offsets = [], numpy.zeros(made.length + 1, "<i8")
    for index, view in enumerate(views):
        raw = view.tobytes()
        size = int.from_bytes(raw[:4], "little")
        if made.valid is not None and not made.valid[index]:
            size = 0
        if size <= _INLINE:
            text: Any = raw[4 : 4 + size]
        else:
            number, at = struct.unpack_from("<II", raw, 8)
            text = buffers[number][at : at + size]
            if len(text) != size:
                raise ArrowError(_DAMAGED)
        texts.append(text)
        offsets[index + 1] = offsets[index] + size
    made.offsets = offsets
    return memoryview(b"".join(texts))
