"""DataFrames of cells for the host's functions, and tables of functions for cells.

A cell sends the buffers of its columns in Arrow's layout, and describes them in JSON. Messages of
Arrow's own would not do: pyarrow reads one of 260 kB whose columns share a name as 4 GB, and it
unpacks what is compressed. A table of a function, which is the host's own data, goes to a cell as a
stream of Arrow IPC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

_DEEPEST = 16  # levels of lists and dicts in columns
_OBJECTS_MOST = 2_000_000  # values in lists and dicts, and gaps of columns without values
_COLUMNS_MOST = 10_000
_NO_PYARROW = "a table needs the package pyarrow in this program: pip install pyarrow"
_LIMITS = (
    f"a table for the host has at most {_COLUMNS_MOST:,} columns, and {_OBJECTS_MOST:,} values in "
    "lists, in dicts and in columns that are empty"
)
_UNITS = ("s", "ms", "us", "ns")
_PLAIN = {
    *("bool", "float16", "float32", "float64", "utf8", "binary", "date32", "time64[us]"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"{kind}[{unit}]" for kind in ("timestamp", "duration") for unit in _UNITS),
}
_OF_OBJECTS = {"null", "list", "struct"}

Json = Any
Take = Callable[[int, int], bytes]
"""Returns some of a message's bytes, by their place and number."""

Number = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Count = Annotated[int, Meta(ge=0, le=2**31)]
Kind = Annotated[str, Meta(pattern=r"^[A-Za-z]+\d{0,3}(\[[^\]]{0,100}\])?\Z")]


class NotPlainError(TypeError):
    """A value is not plain data; the text says which."""


class _Column(Struct, frozen=True):
    """A column, or a part of one; `zone`, `digits` and `scale` are parts of its type."""

    name: str
    type: Kind
    length: Count
    buffers: Annotated[list[tuple[int, int]], Meta(max_length=3)]
    children: list[_Column] = []
    dictionary: _Column | None = None
    ordered: bool = False
    zone: str = ""
    digits: int = 0
    scale: int = 0


class _Range(Struct, frozen=True):
    kind: Literal["range"]
    name: str | None
    start: Number
    stop: Number
    step: Number


class _Zone(Struct, frozen=True):
    timezone: str = ""


class _Labels(Struct, frozen=True):
    """The description of a column's label, or of a level of labels."""

    name: str | None
    field_name: str | None
    pandas_type: Kind
    numpy_type: Kind
    metadata: _Zone | None = None


class _Pandas(Struct, frozen=True):
    """The parts of pandas' metadata that make the index and the labels."""

    index_columns: list[str | _Range]
    column_indexes: Annotated[list[_Labels], Meta(max_length=_DEEPEST)]
    columns: list[_Labels]


class _Table(Struct, frozen=True):
    columns: list[_Column]
    pandas: _Pandas


def table_of(content: Json, take: Take, *, as_arrow: bool) -> Any:
    """Returns a cell's DataFrame, as a DataFrame of pandas or as a table of pyarrow.

    Raises `NotPlainError` if it is not what an honest guest sends, or too large.
    """
    arrow = _pyarrow()
    try:
        table = _table(arrow, msgspec.convert(content, _Table), take)
        return table if as_arrow else table.to_pandas()
    except Exception as problem:  # pyarrow and pandas have errors of their own
        raise NotPlainError(f"the DataFrame can't be read: {problem}") from problem


def _table(arrow: Any, sent: _Table, take: Take) -> Any:
    if len(sent.columns) > _COLUMNS_MOST:
        raise ValueError(_LIMITS)
    reader = _ColumnReader(arrow, take)
    arrays = [reader.array(each) for each in sent.columns]
    kinds = [(each.name, made.type) for each, made in zip(sent.columns, arrays, strict=True)]
    about = {b"pandas": msgspec.json.encode(sent.pandas)}
    table = arrow.Table.from_arrays(arrays, schema=arrow.schema(kinds, metadata=about))
    table.validate(full=True)
    return table


def table_of_records(rows: list[Any], kind: Any) -> Any:
    """Returns a table of dicts, as cells in JavaScript give them. Raises `TypeError`."""
    if not all(isinstance(each, dict) for each in rows):
        raise TypeError(f"Expected `{kind.__name__}` or a list of dicts")
    if len(rows) * len({name for each in rows for name in each}) > _OBJECTS_MOST:
        raise TypeError(f"a list of dicts for a table has at most {_OBJECTS_MOST:,} values")
    make = getattr(kind, "from_pylist", kind)  # pyarrow's way, and pandas'
    return make(rows)


class _ColumnReader:
    """Makes arrays of pyarrow. Each byte is taken once, so they hold no more than was sent."""

    def __init__(self, arrow: Any, take: Take) -> None:
        self._arrow, self._take = arrow, take
        self._left = _OBJECTS_MOST

    def array(self, column: _Column, depth: int = 0) -> Any:
        """Returns the values of a column."""
        if depth or column.type in _OF_OBJECTS:
            self._left -= column.length
        if self._left < 0 or depth > _DEEPEST:
            raise ValueError(_LIMITS)
        plain = self._plain(column, depth)
        if column.dictionary is None:
            return plain
        values = self.array(column.dictionary, depth + 1)
        return self._arrow.DictionaryArray.from_arrays(plain, values, ordered=column.ordered)

    def _plain(self, column: _Column, depth: int) -> Any:
        parts = [self.array(each, depth + 1) for each in column.children]
        kind = self._type(column, parts)
        held = [self._arrow.py_buffer(self._take(*each)) for each in column.buffers]
        if held and not held[0]:
            held[0] = None  # no value is missing
        return self._arrow.Array.from_buffers(kind, column.length, held, children=parts)

    def _type(self, column: _Column, parts: list[Any]) -> Any:
        arrow, name = self._arrow, column.type
        match name, column.children:
            case "list", [each]:
                return arrow.list_(arrow.field(each.name, parts[0].type))
            case "struct", [_, *_] as some:
                fields = zip(some, parts, strict=True)
                return arrow.struct([(each.name, part.type) for each, part in fields])
            case "decimal", []:
                return arrow.decimal128(column.digits, column.scale)
            case "null", []:
                return arrow.null()
        if name not in _PLAIN or parts:
            raise ValueError(f"the host takes no column of the type {name}")
        if column.zone:
            return arrow.timestamp(name[len("timestamp[") : -1], column.zone)
        return arrow.type_for_alias(name)


def stream_of(value: Any) -> bytes:
    """Returns a table, of whatever library, as a stream of Arrow IPC.

    Raises `NotPlainError` if pyarrow is not there, or does not take it.
    """
    arrow = _pyarrow()
    made = arrow.BufferOutputStream()
    try:
        table = arrow.table(value)
        with arrow.ipc.new_stream(made, table.schema) as writer:
            for batch in table.to_batches():
                writer.write_batch(batch)
            if not table.num_rows:  # still a batch: it brings the categories of columns
                columns = [each.combine_chunks() for each in table.columns]
                writer.write_batch(arrow.RecordBatch.from_arrays(columns, schema=table.schema))
    except (arrow.ArrowException, TypeError, ValueError) as problem:
        raise NotPlainError(f"{type(value).__name__} is not a table: {problem}") from problem
    return bytes(made.getvalue())


def _pyarrow() -> Any:
    try:
        import pyarrow.ipc
    except ModuleNotFoundError as problem:
        raise NotPlainError(_NO_PYARROW) from problem
    return pyarrow
