"""Arrow's IPC messages: a schema, dictionaries, and batches of arrays."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wasm_kernel_agent.codecs import flatbuffers
from wasm_kernel_agent.codecs.arrow_schema import (
    BATCH,
    DICTIONARY,
    SCHEMA,
    Schema,
    number_dictionaries,
    schema_table,
    write_message,
)

_PADDING = 8
END = struct.pack("<II", 0xFFFFFFFF, 0)
"""The end of a stream."""


@dataclass
class Out:
    """An array to write.

    Attributes:
        length: The number of values.
        nulls: How many of them are missing.
        buffers: Its buffers, without those of its children.
        children: Its children.
        dictionary: The values that its numbers stand for.
    """

    length: int
    nulls: int
    buffers: list[Any]
    children: tuple[Out, ...] = ()
    dictionary: Out | None = None


Pack = Callable[[Sequence[bytes]], list[bytes]]
"""Compresses buffers."""


@dataclass
class Compression:
    """A way to compress buffers: Arrow's number of it, and the function."""

    number: int
    pack: Pack


@dataclass
class Message:
    """An IPC message: its kind, its head, and the pieces of its body."""

    kind: int
    head: bytes
    body: list[bytes]

    @property
    def length(self) -> int:
        """The length of the message's body."""
        return sum(map(len, self.body))


def messages(
    schema: Schema, arrays: Sequence[Out], rows: int, compression: Compression | None = None
) -> Iterator[Message]:
    """Yields the messages of a table whose rows, `rows` in number, are one batch.

    The fields' dictionaries have numbers already.
    """
    yield Message(SCHEMA, write_message(SCHEMA, schema_table(schema), 0), [])
    for field, array in zip(schema.fields, arrays, strict=True):
        if field.dictionary is not None and array.dictionary is not None:
            values = array.dictionary
            header, body = _batch(values.length, [values], compression)
            table = flatbuffers.table({0: ("q", field.dictionary.id), 1: header})
            yield _message(DICTIONARY, table, body)
    yield _message(BATCH, *_batch(rows, arrays, compression))


def _message(kind: int, header: flatbuffers.Write, body: list[bytes]) -> Message:
    return Message(kind, write_message(kind, header, sum(map(len, body))), body)


def stream_of(schema: Schema, arrays: Sequence[Out], rows: int) -> bytes:
    """Returns the IPC stream of a table whose rows, `rows` in number, are one batch."""
    numbered = replace(schema, fields=number_dictionaries(schema.fields))
    pieces = [
        piece for each in messages(numbered, arrays, rows) for piece in (each.head, *each.body)
    ]
    return b"".join([*pieces, END])


def _batch(
    length: int, arrays: Sequence[Out], compression: Compression | None
) -> tuple[flatbuffers.Write, list[bytes]]:
    """Returns a batch's header, and the pieces of its body."""
    listed = [*_all(arrays)]
    data = [
        bytes(memoryview(buffer).cast("B")) if len(buffer) else b""
        for each in listed
        for buffer in each.buffers
    ]
    if compression is not None:
        data = compression.pack(data)
    places, body, at = [], [], 0
    for each in data:
        padding = bytes(-len(each) % _PADDING)
        places.append((at, len(each)))
        body += [each, padding]
        at += len(each) + len(padding)
    header: dict[int, Any] = {
        0: ("q", length),
        1: flatbuffers.structs("<qq", [(each.length, each.nulls) for each in listed]),
        2: flatbuffers.structs("<qq", places),
    }
    if compression is not None:
        header[3] = flatbuffers.table({0: ("b", compression.number)})
    return flatbuffers.table(header), body


def _all(arrays: Sequence[Out]) -> Iterator[Out]:
    for each in arrays:
        yield each
        yield from _all(each.children)
