"""The outline of a Parquet file: its footer, and smaller files of some of its columns and rows.

A codec reads whole files. It gets one small file for each row group, made of the bytes of the
wanted columns and a footer of its own. So a large file need not fit into memory twice, and the
other columns are not read at all.
Source: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from wasm_kernel_agent.codecs import thrift
from wasm_kernel_agent.codecs.arrow_reader import reading
from wasm_kernel_agent.codecs.arrow_schema import (
    SCHEMA,
    ArrowError,
    Dictionary,
    Field,
    Schema,
    Type,
    number_dictionaries,
    read_schema,
    schema_table,
    write_message,
)
from wasm_kernel_agent.codecs.calls import grouped
from wasm_kernel_agent.codecs.flatbuffers import Table
from wasm_kernel_agent.codecs.thrift import BINARY, I64, LIST, STRUCT, Struct, ThriftError, Value

MAGIC = b"PAR1"
_TAIL = 8
_ARROW_SCHEMA = b"ARROW:schema"

# Numbers of fields: of a file's metadata, a schema's element, a row group, a column chunk and its
# metadata.
_SCHEMA, _ROWS, _GROUPS, _PAIRS = 2, 3, 4, 5
_NAME, _CHILDREN, _CONVERTED = 4, 5, 6
_COLUMNS, _GROUP_ROWS, _GROUP_OFFSET, _GROUP_NUMBER = 1, 3, 5, 7
_CHUNK_FILE, _CHUNK_OFFSET, _CHUNK = 1, 2, 3
_INDEXES = (4, 5, 6, 7)  # places and lengths of indexes, which a smaller file does not have
_INDEX_PLACES = (4, 6)
_ENCODINGS, _UNPACKED, _SIZE, _DATA, _DICTIONARY, _PAGES = 2, 6, 7, 9, 11, 13
_INDEX_PAGE, _BLOOM = 10, 14
_PLACES = (_INDEX_PAGE, _DICTIONARY, _BLOOM, 15)  # the last is the length of the Bloom filter
_IN_DICTIONARY, _LEVELS = (2, 8), (3, 4)  # encodings of values, and of their nesting
_DICTIONARY_PAGE = 2
_TOGETHER = 8 * 1024 * 1024  # bytes of values of row groups that are decoded together
_A_VALUE = 8  # the bytes that a value may take if the file holds less of it
_TEXTS = ("utf8", "large_utf8")
_UTF8, _UNSAID = Type("utf8"), Type("null")  # to the codec, a null type leaves a column's type open

SPELLED_OUT = "wasm-kernel:spelled-out"
"""The mark of a field in Arrow's schema: its dictionary is the file's, and not the table's."""


class ParquetError(ValueError):
    """A file is not Parquet, or damaged."""


class ParquetFile:
    """A Parquet file: its columns, its rows, and the texts in its footer.

    Args:
        file: The file, open for reading, which can seek.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        tail = file.read(_TAIL)
        if tail[4:] == b"PARE":
            raise ParquetError("the file is encrypted")
        if size < 12 or tail[4:] != MAGIC:
            raise ParquetError("the file is not Parquet: it does not end as such files do")
        length = int.from_bytes(tail[:4], "little")
        if length > size - _TAIL - 4:
            raise ParquetError("the file is damaged: its footer is longer than the file")
        file.seek(size - _TAIL - length)
        with _reading_footer():
            self._footer, _ = thrift.read(file.read(length))
            self._elements: list[Struct] = self._footer[_SCHEMA].value[1]
            self._groups: list[Struct] = [*self._footer[_GROUPS].value[1]]
            self.rows: int = sum(each[_GROUP_ROWS].value for each in self._groups)
            self._tops = list(self._found_tops())
            self.names = [self._elements[at][_NAME].value.decode() for at, *_ in self._tops]
            held = self._footer.get(_PAIRS)
            self._pairs: list[Struct] = [] if held is None else held.value[1]
            self.metadata = {
                each[1].value.decode("utf-8", "replace"): each[2].value.decode("utf-8", "replace")
                for each in self._pairs
                if 1 in each and 2 in each
            }
        self._size = size - _TAIL - length

    def _found_tops(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields each column: its first and last element, and its first and last leaf."""
        elements, at, leaf = self._elements, 1, 0
        for _ in range(elements[0][_CHILDREN].value if _CHILDREN in elements[0] else 0):
            start, first, open_ = at, leaf, 1
            while open_:
                children = elements[at].get(_CHILDREN)
                count = children.value if children is not None else 0
                open_ += count - 1
                leaf += count == 0
                at += 1
            yield start, at, first, leaf

    def parts(self, wanted: Collection[str] | None) -> Iterator[bytes]:
        """Yields a file of the wanted columns for each row group or run of small ones.

        There is one without rows if there is no row group.
        Raises `ParquetError` if the file is damaged.
        """
        kept = [n for n, name in enumerate(self.names) if wanted is None or name in wanted]
        with _reading_footer():
            elements = [
                {**self._elements[0], _CHILDREN: Value(thrift.I32, len(kept))},
                *(e for n in kept for e in self._elements[slice(*self._tops[n][:2])]),
            ]
            fields = self._fields_of(kept)
            pairs = _pairs_of(fields) if fields else []
            leaves = [leaf for n in kept for leaf in range(*self._tops[n][2:])]
            has_categories = any(
                each.dictionary and SPELLED_OUT not in each.metadata for each in fields
            )
            runs = [[each] for each in self._groups] if has_categories else [*self._runs(leaves)]
        for groups in runs or [[]]:
            with _reading_footer():
                part = self._part(elements, pairs, groups, leaves)
            yield part

    def _runs(self, leaves: Collection[int]) -> Iterator[list[Struct]]:
        """Yields row groups; those that are small are decoded together."""
        sizes = {}
        for number, group in enumerate(self._groups):
            chunks = group[_COLUMNS].value[1]
            unpacked = sum(chunks[leaf][_CHUNK].value[_UNPACKED].value for leaf in leaves)
            sizes[number] = max(unpacked, _A_VALUE * len(leaves) * group[_GROUP_ROWS].value)
        for numbers in grouped(sizes, _TOGETHER):
            yield [self._groups[number] for number in numbers]

    def _fields_of(self, kept: list[int]) -> list[Field]:
        """Returns the fields of the kept columns in Arrow's schema; none if they are not known.

        Columns of texts that the file holds as numbers of a dictionary become dictionaries.
        """
        key = Value(BINARY, _ARROW_SCHEMA)
        encoded = next((each[2].value for each in self._pairs if each.get(1) == key), None)
        fields = self._flat_fields() if encoded is None else _arrow_fields(encoded)
        if len(fields) != len(self.names):
            return []
        repeated = self._repeated(kept)
        return [_as_dictionary(fields[n]) if n in repeated else fields[n] for n in kept]

    def _flat_fields(self) -> list[Field]:
        """Returns fields that say which columns are texts; none if a column is nested."""
        if any(end - start > 1 for start, end, *_ in self._tops):
            return []
        utf8 = Value(thrift.I32, 0)
        are_texts = [self._elements[at].get(_CONVERTED) == utf8 for at, *_ in self._tops]
        kinds = [_UTF8 if is_text else _UNSAID for is_text in are_texts]
        return [Field(name, kind) for name, kind in zip(self.names, kinds, strict=True)]

    def _repeated(self, kept: list[int]) -> set[int]:
        """Returns the columns whose values all are numbers of dictionaries."""
        leaves = {n: self._tops[n][2] for n in kept}
        return {
            n
            for n, leaf in leaves.items()
            if all(
                _is_repeated(group[_COLUMNS].value[1][leaf][_CHUNK].value) for group in self._groups
            )
        }

    def _part(
        self,
        elements: list[Struct],
        pairs: list[Struct],
        groups: Sequence[Struct],
        leaves: list[int],
    ) -> bytes:
        pieces, at, moved = [MAGIC], len(MAGIC), []
        for group in groups:
            chunks, columns = group[_COLUMNS].value[1], []
            for leaf in leaves:
                data, chunk = self._chunk(chunks[leaf], at)
                pieces.append(data)
                columns.append(chunk)
                at += len(data)
                if at > self._size + len(MAGIC):
                    raise ParquetError("the file is damaged: its columns are longer than it")
            kept = {n: v for n, v in group.items() if n != _GROUP_OFFSET}
            moved.append({**kept, _COLUMNS: Value(LIST, (STRUCT, columns))})
        footer = {
            **{n: v for n, v in self._footer.items() if n <= _PAIRS},
            _SCHEMA: Value(LIST, (STRUCT, elements)),
            _ROWS: Value(I64, sum(each[_GROUP_ROWS].value for each in groups)),
            _GROUPS: Value(LIST, (STRUCT, moved)),
            _PAIRS: Value(LIST, (STRUCT, pairs)),
        }
        end = thrift.write(footer)
        return b"".join([*pieces, end, struct.pack("<I", len(end)), MAGIC])

    def _chunk(self, chunk: Struct, at: int) -> tuple[bytes, Struct]:
        """Returns the bytes of a column chunk, and its description for a file with them at `at`."""
        if _CHUNK_FILE in chunk:
            raise ParquetError("the file's columns lie in other files")
        about = chunk[_CHUNK].value
        begin = about[_DATA].value
        dictionary = about.get(_DICTIONARY)
        if dictionary is not None and not 0 < dictionary.value < begin:
            dictionary = None  # some writers note 0, for none
        if dictionary is not None:
            begin = dictionary.value
        size = about[_SIZE].value
        if begin < 0 or size < 0 or begin + size > self._size:
            raise ParquetError("the file is damaged: a column lies outside of it")
        self._file.seek(begin)
        moved = {n: v for n, v in about.items() if n not in _PLACES}
        moved[_DATA] = Value(I64, about[_DATA].value - begin + at)
        if dictionary is not None:
            moved[_DICTIONARY] = Value(I64, dictionary.value - begin + at)
        made = {n: v for n, v in chunk.items() if n not in _INDEXES}
        made |= {_CHUNK_OFFSET: Value(I64, 0), _CHUNK: Value(STRUCT, moved)}
        return self._file.read(size), made


@contextmanager
def _reading_footer() -> Iterator[None]:
    """Raises `ParquetError` if a footer lacks a required field, or has one of another type."""
    try:
        yield
    except (
        AttributeError,
        KeyError,
        IndexError,
        TypeError,
        ThriftError,
        UnicodeDecodeError,
    ) as why:
        raise ParquetError(f"the file's footer is damaged ({why})") from None


def _is_repeated(about: Struct) -> bool:
    """Says whether all values of a column chunk are numbers of a dictionary."""
    if _PAGES in about:
        pages = about[_PAGES].value[1]
        return all(
            each[2].value in _IN_DICTIONARY for each in pages if each[1].value != _DICTIONARY_PAGE
        )
    return _DICTIONARY in about and {*about[_ENCODINGS].value[1]} <= {*_IN_DICTIONARY, *_LEVELS}


def _arrow_fields(encoded: bytes) -> Sequence[Field]:
    """Returns the fields of Arrow's schema in a footer; none if it can't be read."""
    try:
        with reading():
            message = base64.b64decode(encoded)
            start = 8 if message[:4] == b"\xff\xff\xff\xff" else 4
            schema = read_schema(Table.root(memoryview(message)[start:]).table(2))
            schema_table(schema)
    except (KeyError, ArrowError):  # a field may have a type that is not known here
        return ()
    return schema.fields


def _pairs_of(fields: Sequence[Field]) -> list[Struct]:
    """Returns the pairs of a footer that hold Arrow's schema."""
    schema = schema_table(Schema(number_dictionaries(fields)))
    message = base64.b64encode(write_message(SCHEMA, schema, 0))
    return [{1: Value(BINARY, _ARROW_SCHEMA), 2: Value(BINARY, message)}]


def _as_dictionary(field: Field) -> Field:
    if field.dictionary is not None or field.type.name not in _TEXTS:
        return field
    numbers = Dictionary(0, Type("int", 32))
    return replace(field, dictionary=numbers, metadata={**field.metadata, SPELLED_OUT: ""})


def joined(files: Iterable[Any], pairs: Mapping[str, str]) -> Iterator[Any]:
    """Yields the pieces of a file that has the row groups of some files, and further pairs."""
    yield MAGIC
    at = len(MAGIC)
    groups: list[Struct] = []
    footer: Struct = {}
    for data in files:
        length = int.from_bytes(data[-_TAIL:-4], "little")
        begin = len(data) - _TAIL - length
        found, _ = thrift.read(bytes(data[begin : begin + length]))
        footer = footer or found
        for group in found[_GROUPS].value[1]:
            _move(group, at - len(MAGIC), len(groups))
            groups.append(group)
        yield data[len(MAGIC) : begin]
        at += begin - len(MAGIC)
    held = footer[_PAIRS].value[1] if _PAIRS in footer else []
    held = [each for each in held if each[1].value.decode() not in pairs]
    made = [
        {1: Value(BINARY, key.encode()), 2: Value(BINARY, value.encode())}
        for key, value in pairs.items()
    ]
    footer[_PAIRS] = Value(LIST, (STRUCT, [*held, *made]))
    footer[_GROUPS] = Value(LIST, (STRUCT, groups))
    footer[_ROWS] = Value(I64, sum(each[_GROUP_ROWS].value for each in groups))
    end = thrift.write(footer)
    yield end + struct.pack("<I", len(end)) + MAGIC


def _move(group: Struct, by: int, number: int) -> None:
    """Moves a row group by some bytes, and gives it another number."""
    for chunk in group[_COLUMNS].value[1]:
        about = chunk[_CHUNK].value
        places = [chunk.get(n) for n in (_CHUNK_OFFSET, *_INDEX_PLACES)]
        places += [about.get(n) for n in (_DATA, _INDEX_PAGE, _DICTIONARY, _BLOOM)]
        for place in places:
            if place is not None and place.value:  # 0 stands for none
                place.value += by
    if _GROUP_OFFSET in group:
        group[_GROUP_OFFSET].value += by
    if _GROUP_NUMBER in group:
        group[_GROUP_NUMBER].value = number
