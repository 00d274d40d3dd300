"""Reading Arrow's IPC messages into arrays of numpy, without a copy where the layout allows it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

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
MARKER = 0xFFFFFFFF
_OFFSETS: dict[str, Any] = {"": numpy.dtype("<i4"), "large_": numpy.dtype("<i8")}
_Part = TypeVar("_Part")
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


Body = Callable[[int, int], memoryview]
"""Returns a part of a message's body: its place and its length in; raises `ArrowError`."""

Unpack = Callable[[int, Sequence[memoryview]], list[memoryview]]
"""Decompresses buffers, all of which are compressed in the way that has this number."""


@contextmanager
def reading() -> Iterator[None]:
    """Raises `ArrowError` for any error while messages are read."""
    try:
        yield
    except ArrowError:
        raise
    except (
        struct.error,
        IndexError,
        RecursionError,
        ValueError,
        OverflowError,
        TypeError,
    ) as problem:
        raise ArrowError(_DAMAGED) from problem


class IpcStream:
    """An IPC stream: its schema, and its batches in turn.

    Raises `ArrowError` if it is damaged.
    """

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0
        with reading():
            kind, header, _ = self._next() or (0, None, memoryview(b""))
            if kind != SCHEMA:
                raise ArrowError("there is no schema")
            self.schema: Schema = read_schema(header)
        self._reader = BatchReader(self.schema)

    def batches(self) -> Iterator[list[Array]]:
        """Yields the columns of each batch."""
        with reading():
            while (message := self._next()) is not None:
                kind, header, data = message
                body = partial(part_of, data)
                if kind == DICTIONARY and header is not None:
                    self._reader.take_dictionary(header, body)
                elif kind == BATCH and header is not None:
                    yield self._reader.read(header, body)

    def _next(self) -> tuple[int, Table | None, memoryview] | None:
        if self._at + 8 > len(self._data):
            return None
        marker, size = struct.unpack_from("<II", self._data, self._at)
        if marker != MARKER or size == 0:
            return None
        start = self._at + 8
        kind, header, length = read_message(self._data[start : start + size])
        begin = start + size
        self._at = begin + length
        if self._at < begin or self._at > len(self._data):
            raise ArrowError("the data end too early")
        return kind, header, self._data[begin : self._at]


def part_of(data: memoryview, at: int, length: int) -> memoryview:
    """Returns a part of some bytes. Raises `ArrowError` if it lies outside of them."""
    if at < 0 or length < 0 or at + length > len(data):
        raise ArrowError(_DAMAGED)
    return data[at : at + length]


def read_message(data: memoryview) -> tuple[int, Table | None, int]:
    """Returns a message's kind, its header, and the length of its body."""
    message = Table.root(data)
    return message.number(1, "B"), message.table(2), message.number(3, "q")


class BatchReader:
    """Reads batches of a table.

    Args:
        schema: The table's schema.
        wanted: The places of the columns to read; None for all.
        unpack: Decompresses buffers.
    """

    def __init__(
        self,
        schema: Schema,
        wanted: Collection[int] | None = None,
        unpack: Unpack | None = None,
    ) -> None:
        self._schema, self._unpack = schema, unpack
        self._wanted = range(len(schema.fields)) if wanted is None else wanted
        self.fields = tuple(each for n, each in enumerate(schema.fields) if n in self._wanted)
        self._encoded = {each.dictionary.id: each for each in _with_dictionaries(self.fields)}
        self._dictionaries: dict[int, Array] = {}

    def take_dictionary(self, header: Table, body: Body) -> None:
        """Keeps a dictionary for the batches that follow."""
        number, data = header.number(0, "q"), header.table(1)
        column = self._encoded.get(number)
        if column is None and self._wanted != range(len(self._schema.fields)):
            return
        if column is None or data is None or header.number(2, "?"):
            raise ArrowError("a dictionary is not of a kind that can be read")
        plain = Field(column.name, column.type, column.children)
        parts = _BatchParts(data, body, self._dictionaries)
        parts.take_all(self._unpack)
        self._dictionaries[number] = parts.read(plain)

    def read(self, header: Table, body: Body) -> list[Array]:
        """Returns the wanted columns of a batch."""
        parts = _BatchParts(header, body, self._dictionaries)
        if len(self.fields) == len(self._schema.fields):
            parts.take_all(self._unpack)
        else:
            parts.take_some(self._schema.fields, self._wanted, self._unpack)
        found = [parts.read_named(each) for each in self.fields]
        if any(each.length != header.number(0, "q") for each in found):
            raise ArrowError(_DAMAGED)
        return found


def _with_dictionaries(fields: Iterable[Field]) -> Iterator[Any]:
    waiting = list(fields)
    while waiting:
        each = waiting.pop()
        waiting += each.children
        if each.dictionary is not None:
            yield each


_BUFFERS = {
    **dict.fromkeys(("struct", "fixed_list"), 0),
    **dict.fromkeys(("binary", "utf8", "large_binary", "large_utf8"), 2),
    **dict.fromkeys(("list", "large_list", "map", "bool", "int", "float", "decimal"), 1),
    **dict.fromkeys(("date", "time", "timestamp", "duration", "interval", "fixed_binary"), 1),
}
"""The number of buffers of each type, without the one of its gaps."""


def _sizes(column: Field, views: Iterator[tuple[int, ...]]) -> tuple[int, int, int]:
    """Returns how many nodes, buffers and counts of views a column has."""
    kind = column.type.name
    if kind == "null":
        return 1, 0, 0
    if column.dictionary is not None:
        return 1, 2, 0
    if kind in ("binary_view", "utf8_view"):
        return 1, 2 + next(views)[0], 1
    if kind not in _BUFFERS:
        raise ArrowError(f"the type {kind} can't be read")
    nodes, buffers, counts = 1, 1 + _BUFFERS[kind], 0
    for each in column.children:
        more = _sizes(each, views)
        nodes, buffers, counts = nodes + more[0], buffers + more[1], counts + more[2]
    return nodes, buffers, counts


class _BatchParts:
    """The parts of one batch. Its arrays take their nodes and buffers in turn."""

    def __init__(self, header: Table, body: Body, dictionaries: dict[int, Array]) -> None:
        self._body, self._dictionaries = body, dictionaries
        compression = header.table(3)
        self._compression = None if compression is None else compression.number(0, "b")
        self._all = header.structs(1, "<qq"), header.structs(2, "<qq"), header.structs(4, "<q")

    def take_all(self, unpack: Unpack | None) -> None:
        """Takes the parts of all columns."""
        self._read_buffers(*self._all, unpack)

    def take_some(
        self, fields: Sequence[Field], wanted: Collection[int], unpack: Unpack | None
    ) -> None:
        """Takes the parts of some columns, and reads nothing of the others."""
        counts, at = iter(self._all[2]), (0, 0, 0)
        kept: tuple[list[Any], list[Any], list[Any]] = [], [], []
        for number, field in enumerate(fields):
            sizes = _sizes(field, counts)
            if number in wanted:
                for some, of_all, start, size in zip(kept, self._all, at, sizes, strict=True):
                    some.extend(of_all[start : start + size])
            at = at[0] + sizes[0], at[1] + sizes[1], at[2] + sizes[2]
        self._read_buffers(*kept, unpack)

    def _read_buffers(
        self, nodes: list[Any], places: list[Any], views: list[Any], unpack: Unpack | None
    ) -> None:
        buffers = [self._body(*place) for place in places]
        if self._compression is not None:
            if unpack is None:
                raise ArrowError("compressed buffers can't be read")
            buffers = unpack(self._compression, buffers)
        self._nodes, self._buffers, self._views = iter(nodes), iter(buffers), iter(views)

    def read_named(self, column: Field) -> Array:
        """Reads the values of a column; an error has the name of the column."""
        try:
            return self.read(column)
        except ArrowError as problem:
            raise ArrowError(f"column {column.name!r}: {problem}") from None

    def read(self, column: Field) -> Array:
        """Reads the values of a field."""
        length, nulls = self._taken(self._nodes)
        if length < 0:
            raise ArrowError(_DAMAGED)
        if column.type.name == "null":
            return Array(column, length)
        made = Array(column, length)
        bits = self._taken(self._buffers)
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
                made.values = _bits(self._taken(self._buffers), made.length)
            case "binary" | "utf8":
                made.offsets = self._offsets(size, made.length)
                made.values = self._taken(self._buffers)
                self._check(made, len(made.values))
            case "binary_view" | "utf8_view":
                views = self._numbers(numpy.dtype("V16"), made.length)
                (count,) = self._taken(self._views)
                made.values = _joined(
                    views, [self._taken(self._buffers) for _ in range(count)], made
                )
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

    def _taken(self, parts: Iterator[_Part]) -> _Part:
        found = next(parts, None)
        if found is None:
            raise ArrowError(_DAMAGED)
        return found

    def _numbers(self, kind: Any, length: int) -> Any:
        data = self._taken(self._buffers)
        if len(data) < length * kind.itemsize:
            raise ArrowError(_DAMAGED)
        return numpy.frombuffer(data, kind, length) if length else numpy.empty(0, kind)

    def _offsets(self, size: str, length: int) -> Any:
        kind, data = _OFFSETS[size], self._taken(self._buffers)
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
