"""Feather for pandas: `read_feather` and `DataFrame.to_feather`, in place of pyarrow.

A file of Feather is one of Arrow's IPC format.
Source: https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas
from pandas.api.extensions import no_default
from pandas.io.common import get_handle
from pandas.util._validators import check_dtype_backend

from wasm_kernel_agent.codecs import arrow_compression, flatbuffers, frames
from wasm_kernel_agent.codecs.arrow_messages import END, Compression, Message, messages
from wasm_kernel_agent.codecs.arrow_reader import (
    MARKER,
    Array,
    BatchReader,
    Body,
    read_message,
    reading,
)
from wasm_kernel_agent.codecs.arrow_schema import (
    BATCH,
    DICTIONARY,
    VERSION,
    ArrowError,
    Schema,
    number_dictionaries,
    read_schema,
    schema_table,
)
from wasm_kernel_agent.codecs.calls import CodecError
from wasm_kernel_agent.codecs.flatbuffers import Table

_MAGIC, _FIRST_VERSION = b"ARROW1", b"FEA1"
_HEAD = _MAGIC + b"\0\0"
_TAIL = 4 + len(_MAGIC)  # the footer's length, and the magic
_BLOCK = "<qi4xq"  # the place of a message, and the lengths of its head and its body
_COMPRESSIONS = {"lz4": arrow_compression.LZ4, "zstd": arrow_compression.ZSTD, "uncompressed": None}
_NO_PYARROW = "dtype_backend='pyarrow' needs pyarrow; 'numpy_nullable' works"
_WITHOUT = (
    "{} can't be used here: Feather is written without pyarrow. The argument compression works"
)


def read_feather(
    path: Any,
    columns: Sequence[Any] | None = None,
    use_threads: bool = True,  # noqa: ARG001 - pandas' own
    storage_options: Any = None,
    dtype_backend: Any = no_default,
) -> pandas.DataFrame:
    """Reads a file or a file object.

    Raises:
        ArrowError: The file is damaged, or holds values that can't be read.
    """
    check_dtype_backend(dtype_backend)
    if dtype_backend == "pyarrow":
        raise ImportError(_NO_PYARROW)
    with get_handle(path, "rb", storage_options=storage_options, is_text=False) as handles:
        file = FeatherFile(handles.handle)
        names = None if columns is None else _names(file.schema, columns)
        places = [
            n for n, each in enumerate(file.schema.fields) if names is None or each.name in names
        ]
        parts = [*file.batches(places)]
    kept = replace(file.schema, fields=tuple(file.schema.fields[n] for n in places))
    layout = frames.Layout(kept.metadata, keeps_categories=True)
    is_nullable = dtype_backend == "numpy_nullable"
    return layout.frame(kept, parts, names, file.rows, nullable=is_nullable)


def _names(schema: Schema, columns: Sequence[Any]) -> list[str]:
    """Returns the names of wanted columns, which may be given as places."""
    there = [each.name for each in schema.fields]
    if all(type(each) is int for each in columns):
        if all(0 <= each < len(there) for each in columns):
            return [there[each] for each in columns]
        raise IndexError(f"the file has {len(there)} columns")
    if not all(isinstance(each, str) for each in columns):
        raise TypeError("columns must be names, or places")
    for each in columns:
        if each not in there:
            raise ValueError(f"the file has no column {each!r}")
    return [*columns]


def to_feather(
    df: pandas.DataFrame,
    path: Any,
    storage_options: Any = None,
    *,
    compression: str | None = None,
    version: int = 2,
    **options: Any,
) -> None:
    """Writes a frame to a file or a file object.

    Raises:
        ValueError: A column has values that Arrow has no type for.
    """
    if not isinstance(df, pandas.DataFrame):
        raise ValueError("feather only support IO with DataFrames")
    if options:
        raise NotImplementedError(_WITHOUT.format(", ".join(sorted(options))))
    if version != 2:
        raise ValueError("only version 2 of Feather can be written")
    kind = "lz4" if compression is None else compression
    if kind not in _COMPRESSIONS:
        raise ValueError(f"compression must be one of {', '.join(_COMPRESSIONS)}")
    schema, arrays = frames.taken_apart(df, None, keeps_categories=True)
    numbered = replace(schema, fields=number_dictionaries(schema.fields))
    try:
        made = [*messages(numbered, arrays, len(df), _compression(_COMPRESSIONS[kind]))]
    except CodecError as problem:
        raise ValueError(f"Feather can't be written: {problem}") from None
    with get_handle(path, "wb", storage_options=storage_options, is_text=False) as handles:
        for piece in _pieces(numbered, made):
            handles.handle.write(piece)


def _compression(number: int | None) -> Compression | None:
    if number is None:
        return None
    return Compression(number, partial(arrow_compression.packed, number))


def _pieces(schema: Schema, made: Sequence[Message]) -> Iterator[bytes]:
    """Yields the pieces of a file."""
    yield _HEAD
    blocks: dict[int, list[tuple[int, int, int]]] = {DICTIONARY: [], BATCH: []}
    at = len(_HEAD)
    for each in made:
        blocks.get(each.kind, []).append((at, len(each.head), each.length))
        at += len(each.head) + each.length
        yield each.head
        yield from each.body
    footer = flatbuffers.buffer(
        flatbuffers.table(
            {
                0: ("h", VERSION),
                1: schema_table(schema),
                2: flatbuffers.structs(_BLOCK, blocks[DICTIONARY]),
                3: flatbuffers.structs(_BLOCK, blocks[BATCH]),
            }
        )
    )
    yield END + footer + struct.pack("<I", len(footer)) + _MAGIC


class FeatherFile:
    """A file of Feather: its schema and its batches.

    Args:
        file: The file, open for reading, which can seek.

    Raises:
        ArrowError: It is damaged, or of Feather's first version.
    """

    def __init__(self, file: Any) -> None:
        self._file, self._size = file, file.seek(0, 2)
        file.seek(0)
        head = file.read(len(_MAGIC))
        if head.startswith(_FIRST_VERSION):
            raise ArrowError("the file is of Feather's first version, which can't be read")
        file.seek(max(0, self._size - _TAIL))
        tail = file.read(_TAIL)
        if head != _MAGIC or tail[4:] != _MAGIC:
            raise ArrowError("the file is not Feather: it does not begin and end as such files do")
        length = int.from_bytes(tail[:4], "little")
        with reading():
            footer = Table.root(self._bytes(self._size - _TAIL - length, length))
            self.schema = read_schema(footer.table(1))
            self._dictionaries = footer.structs(2, _BLOCK)
            self._batches = footer.structs(3, _BLOCK)
        self.rows = 0

    def batches(self, wanted: Collection[int]) -> Iterator[list[Array]]:
        """Yields the columns of each batch that have the wanted places."""
        reader = BatchReader(self.schema, wanted, arrow_compression.unpacked)
        with reading():
            for block in self._dictionaries:
                reader.take_dictionary(*self._message(DICTIONARY, *block))
            for block in self._batches:
                header, body = self._message(BATCH, *block)
                self.rows += header.number(0, "q")
                yield reader.read(header, body)

    def _message(self, kind: int, at: int, head: int, length: int) -> tuple[Table, Body]:
        data = self._bytes(at, head)
        marker, size = struct.unpack_from("<II", data, 0)
        found, header, _ = read_message(data[8 : 8 + size])
        if marker != MARKER or found != kind or header is None:
            raise ArrowError("the data are damaged")
        return header, partial(self._bytes, begin=at + head, end=at + head + length)

    def _bytes(self, at: int, length: int, begin: int = 0, end: int | None = None) -> memoryview:
        """Returns bytes of the file, or of the part from `begin` to `end`."""
        most = self._size if end is None else min(end, self._size)
        if at < 0 or length < 0 or begin < 0 or begin + at + length > most:
            raise ArrowError("the data end too early")
        self._file.seek(begin + at)
        return memoryview(self._file.read(length))
