"""Arrow's schemas: reading and writing their messages (Message.fbs and Schema.fbs of Arrow)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wasm_kernel_agent.codecs import flatbuffers
from wasm_kernel_agent.codecs.flatbuffers import Table, Write

SCHEMA, DICTIONARY, BATCH = 1, 2, 3
VERSION = 4  # the metadata's version: V5
EXTENSION, EXTENDED = "ARROW:extension:name", "ARROW:extension:metadata"  # keys of a field's type
UNITS = ("s", "ms", "us", "ns")
_NAMES = """
null int float binary utf8 bool decimal date time timestamp interval list struct union fixed_binary
fixed_list map duration large_binary large_utf8 large_list run_ends binary_view utf8_view list_view
large_list_view
"""  # by their numbers, from 1
TYPES = dict(enumerate(_NAMES.split(), 1))
_NUMBERS = {name: number for number, name in TYPES.items()}
_DEEPEST = 64


class ArrowError(ValueError):
    """Data in Arrow's format are damaged, or of a type that is not supported."""


@dataclass(frozen=True)
class Type:
    """A type: its name in `TYPES`, its size in bits or bytes, its unit or time zone, and the like.

    Attributes:
        name: The kind of type.
        width: Bits of numbers, times and decimals; bytes or items of fixed binaries and lists.
        signed: Whether an integer has a sign.
        unit: The unit of a time; a date's is "D" or "ms".
        zone: The time zone of a timestamp, or empty.
        precision: The digits of a decimal.
        scale: Its digits behind the point.
    """

    name: str
    width: int = 0
    signed: bool = True
    unit: str = ""
    zone: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Field:
    """A column, or a part of one; `may_lack` says whether values may be missing."""

    name: str
    type: Type
    children: tuple[Field, ...] = ()
    dictionary: Dictionary | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    may_lack: bool = True


@dataclass(frozen=True)
class Dictionary:
    """The dictionary of a field, whose values number its entries: its id, and the numbers' type."""

    id: int
    index: Type
    ordered: bool = False


@dataclass(frozen=True)
class Schema:
    """The columns of a table, and the texts about it in its file."""

    fields: tuple[Field, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)


def read_schema(table: Table | None) -> Schema:
    """Reads a schema. Raises `ArrowError`, `struct.error` or `IndexError` if it is damaged."""
    if table is None:
        raise ArrowError("there is no schema")
    if table.number(0, "h"):
        raise ArrowError("its numbers are big-endian, which can't be read")
    left = iter(range(len(table.data)))  # the fields left: each takes more than a byte
    fields = tuple(_read_field(each, 0, left) for each in table.tables(1))
    return Schema(fields, dict(_pairs(table, 2)))


def _pairs(table: Table, number: int) -> Iterator[tuple[str, str]]:
    for pair in table.tables(number):
        yield pair.text(0) or "", pair.text(1) or ""


def _read_field(table: Table, depth: int, left: Iterator[int]) -> Field:
    if depth > _DEEPEST or next(left, None) is None:  # a part that fields share counts for each
        raise ArrowError("a column is nested too deeply")
    encoding = table.table(4)
    dictionary = None
    if encoding is not None:
        index = encoding.table(1)
        kind = Type("int", 32) if index is None else _int(index)
        dictionary = Dictionary(encoding.number(0, "q"), kind, bool(encoding.number(2, "?")))
    return Field(
        table.text(0) or "",
        _read_type(TYPES.get(table.number(2, "B"), "unknown"), table.table(3)),
        tuple(_read_field(each, depth + 1, left) for each in table.tables(5)),
        dictionary,
        dict(_pairs(table, 6)),
    )


def _int(table: Table) -> Type:
    return Type("int", table.number(0, "i"), bool(table.number(1, "?")))


def _unit(table: Table, default: int) -> str:
    return UNITS[table.number(0, "h", default)]


def _read_type(name: str, table: Table | None) -> Type:
    read = _READERS.get(name)
    return Type(name) if table is None or read is None else read(name, table)


_READERS: dict[str, Callable[[str, Table], Type]] = {
    "int": lambda _, table: _int(table),
    "float": lambda name, table: Type(name, (16, 32, 64)[table.number(0, "h")]),
    "decimal": lambda name, table: Type(
        name, table.number(2, "i", 128), precision=table.number(0, "i"), scale=table.number(1, "i")
    ),
    "date": lambda name, table: (
        Type(name, 64, unit="ms") if table.number(0, "h", 1) else Type(name, 32, unit="D")
    ),
    "time": lambda name, table: Type(name, table.number(1, "i", 32), unit=_unit(table, 1)),
    "timestamp": lambda name, table: Type(name, 64, unit=_unit(table, 0), zone=table.text(1) or ""),
    "duration": lambda name, table: Type(name, 64, unit=_unit(table, 1)),
    "fixed_binary": lambda name, table: Type(name, table.number(0, "i")),
    "fixed_list": lambda name, table: Type(name, table.number(0, "i")),
}


def write_message(kind: int, header: Write, body_length: int) -> bytes:
    """Returns a message's head: its marker, its length and its metadata, padded."""
    message = flatbuffers.table(
        {0: ("h", VERSION), 1: ("B", kind), 2: header, 3: ("q", body_length)}
    )
    data = flatbuffers.buffer(message)
    return b"\xff\xff\xff\xff" + len(data).to_bytes(4, "little") + data


def schema_table(schema: Schema) -> Write:
    """Returns a schema to write."""
    fields = flatbuffers.tables([_field_table(each) for each in schema.fields])
    return flatbuffers.table({0: ("h", 0), 1: fields, 2: _pair_tables(schema.metadata)})


def _pair_tables(pairs: Mapping[str, str]) -> Write | None:
    if not pairs:
        return None
    made = [
        flatbuffers.table({0: flatbuffers.text(key), 1: flatbuffers.text(value)})
        for key, value in pairs.items()
    ]
    return flatbuffers.tables(made)


def _field_table(column: Field) -> Write:
    encoding = None
    if column.dictionary is not None:
        numbers = _type_table(column.dictionary.index)
        ordered = ("?", column.dictionary.ordered)
        encoding = flatbuffers.table({0: ("q", column.dictionary.id), 1: numbers, 2: ordered})
    return flatbuffers.table(
        {
            0: flatbuffers.text(column.name),
            1: ("?", column.may_lack),
            2: ("B", _NUMBERS[column.type.name]),
            3: _type_table(column.type),
            4: encoding,
            5: flatbuffers.tables([_field_table(each) for each in column.children]),
            6: _pair_tables(column.metadata),
        }
    )


def _type_table(kind: Type) -> Write:
    fields: dict[int, Any] = {}
    unit = ("h", UNITS.index(kind.unit)) if kind.unit in UNITS else None
    match kind.name:
        case "int":
            fields = {0: ("i", kind.width), 1: ("?", kind.signed)}
        case "float":
            fields = {0: ("h", (16, 32, 64).index(kind.width))}
        case "decimal":
            fields = {0: ("i", kind.precision), 1: ("i", kind.scale), 2: ("i", kind.width)}
        case "date":
            fields = {0: ("h", 0 if kind.unit == "D" else 1)}
        case "time":
            fields = {0: unit, 1: ("i", kind.width)}
        case "timestamp":
            fields = {0: unit, 1: flatbuffers.text(kind.zone) if kind.zone else None}
        case "duration":
            fields = {0: unit}
        case "fixed_binary" | "fixed_list":
            fields = {0: ("i", kind.width)}
    return flatbuffers.table(fields)


def number_dictionaries(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Returns fields whose dictionaries have the ids 0, 1 and so on."""
    ids = iter(range(len(fields)))
    return tuple(
        each
        if each.dictionary is None
        else replace(each, dictionary=replace(each.dictionary, id=next(ids)))
        for each in fields
    )
