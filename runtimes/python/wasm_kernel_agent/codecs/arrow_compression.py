"""Compressed buffers of Arrow's IPC messages, by the codec of Parquet.

Parquet compresses as Arrow does. So each buffer becomes a column of one row in a small file of
Parquet, which the codec reads or writes: a value of that size makes a page of its own.
Source: https://arrow.apache.org/docs/format/Columnar.html#compression.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from wasm_kernel_agent.codecs import thrift
from wasm_kernel_agent.codecs.arrow_messages import Out, stream_of
from wasm_kernel_agent.codecs.arrow_reader import IpcStream
from wasm_kernel_agent.codecs.arrow_schema import ArrowError, Field, Schema, Type
from wasm_kernel_agent.codecs.calls import CodecError, call, grouped
from wasm_kernel_agent.codecs.thrift import BINARY, I32, I64, LIST, STRUCT, Struct, Value

_CODEC = "parquet"
_MAGIC = b"PAR1"
_LENGTH = struct.Struct("<q")  # the length before compression, in front of a buffer
_RAW = -1  # a length: the buffer is not compressed
_AT_ONCE = 64 * 1024 * 1024  # the bytes of buffers that one call takes
_MOST = 2**31 - 1  # the most bytes of one value

LZ4, ZSTD = 0, 1  # Arrow's numbers of the codecs
_READING = {LZ4: 5, ZSTD: 6}  # Parquet's numbers: 5 reads frames of LZ4
_WRITING = {LZ4: 6, ZSTD: 5}  # the codec's numbers: 6 is a block of LZ4 without a frame
_FIXED, _PLAIN, _RLE = 7, 0, 3

# A frame of LZ4 with independent blocks of 4 MiB, without checksums, and its header's own checksum.
# Source: https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md
_FRAME, _END = b"\x04\x22\x4d\x18\x60\x70\x73", bytes(4)
_BLOCK = 4 * 1024 * 1024


def unpacked(kind: int, buffers: Sequence[memoryview]) -> list[memoryview]:
    """Returns the buffers before they were compressed. Raises `ArrowError` if they are damaged."""
    if kind not in _READING:
        raise ArrowError("the data are compressed in an unknown way")
    found = [each[_LENGTH.size :] for each in buffers]
    sizes = {n: _LENGTH.unpack_from(each)[0] for n, each in enumerate(buffers) if len(each)}
    packed = {n: size for n, size in sizes.items() if size not in (_RAW, 0)}
    if any(not 0 < size <= _MOST for size in packed.values()):
        raise ArrowError("the data are damaged")
    for some in grouped(packed, _AT_ONCE):
        file = _file([(found[n], packed[n]) for n in some], _READING[kind])
        try:
            stream = IpcStream(call(_CODEC, "read", file)[0])
        except CodecError as problem:
            raise ArrowError(str(problem)) from None
        (columns,) = stream.batches()
        for n, column in zip(some, columns, strict=True):
            found[n] = memoryview(column.values).cast("B")
    return found


def packed(kind: int, buffers: Sequence[bytes]) -> list[bytes]:
    """Returns the compressed buffers."""
    step = _BLOCK if kind == LZ4 else _MOST
    pieces = {
        (n, at): min(step, len(each) - at)
        for n, each in enumerate(buffers)
        for at in range(0, len(each), step)
    }
    made: list[list[bytes]] = [[_LENGTH.pack(len(each))] if len(each) else [] for each in buffers]
    for some in grouped(pieces, _AT_ONCE):
        pages = _pages([buffers[n][at : at + pieces[n, at]] for n, at in some], _WRITING[kind])
        for (n, at), page in zip(some, pages, strict=True):
            if kind == LZ4:
                made[n] += [_FRAME] if at == 0 else []
                made[n] += [struct.pack("<I", len(page)), page]
                made[n] += [_END] if at + step >= len(buffers[n]) else []
            else:
                made[n].append(page)
    return [b"".join(each) for each in made]


def _pages(values: Sequence[bytes], codec: int) -> Iterator[bytes]:
    """Yields the compressed pages of values."""
    fields = [
        Field(str(n), Type("fixed_binary", len(each)), may_lack=False)
        for n, each in enumerate(values)
    ]
    stream = stream_of(Schema(tuple(fields)), [Out(1, 0, [b"", each]) for each in values], 1)
    data = call(_CODEC, "write_plain", stream, codec)[0]
    length = int.from_bytes(data[-8:-4], "little")
    footer, _ = thrift.read(bytes(data[-8 - length : -8]))
    (group,) = footer[4].value[1]
    for chunk in group[1].value[1]:
        about = chunk[3].value
        begin, end = about[9].value, about[9].value + about[7].value
        _, head = thrift.read(bytes(data[begin : begin + 64]))
        yield bytes(data[begin + head : end])


def _file(pages: Sequence[tuple[memoryview, int]], codec: int) -> bytes:
    """Returns a file of Parquet with a column for each page: its bytes, and its size unpacked."""
    pieces: list[Any] = [_MAGIC]
    at, elements, chunks = len(_MAGIC), [], []
    for number, (data, size) in enumerate(pages):
        name = Value(BINARY, b"%d" % number)
        head = thrift.write(_page(len(data), size))
        elements.append(_numbers(I32, {1: _FIXED, 2: size, 3: 0}) | {4: name})
        whole = len(head) + len(data)
        about = _numbers(I32, {1: _FIXED, 4: codec}) | {
            2: Value(LIST, (I32, [_PLAIN])),
            3: Value(LIST, (BINARY, [name.value])),
        }
        about |= _numbers(I64, {5: 1, 6: len(head) + size, 7: whole, 9: at})
        chunks.append({2: Value(I64, at), 3: Value(STRUCT, about)})
        pieces += [head, data]
        at += whole
    root = {4: Value(BINARY, b"schema"), 5: Value(I32, len(elements))}
    group = {1: Value(LIST, (STRUCT, chunks)), **_numbers(I64, {2: at, 3: 1})}
    footer = thrift.write(
        {
            1: Value(I32, 1),
            2: Value(LIST, (STRUCT, [root, *elements])),
            3: Value(I64, 1),
            4: Value(LIST, (STRUCT, [group])),
        }
    )
    return b"".join([*pieces, footer, struct.pack("<I", len(footer)), _MAGIC])


def _page(packed_size: int, size: int) -> Struct:
    about = _numbers(I32, {1: 1, 2: _PLAIN, 3: _RLE, 4: _RLE})
    return _numbers(I32, {1: 0, 2: size, 3: packed_size}) | {5: Value(STRUCT, about)}


def _numbers(kind: int, fields: dict[int, int]) -> Struct:
    return {number: Value(kind, value) for number, value in fields.items()}
