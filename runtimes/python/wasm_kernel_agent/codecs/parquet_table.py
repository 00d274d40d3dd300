"""The table of one Parquet file or of several, and the filters of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy
import pandas

from wasm_kernel_agent.codecs import arrow_pandas, frames
from wasm_kernel_agent.codecs.arrow_fitting import fitted
from wasm_kernel_agent.codecs.arrow_reader import Array, IpcStream
from wasm_kernel_agent.codecs.arrow_schema import ArrowError, Field, Schema
from wasm_kernel_agent.codecs.calls import CodecError, call
from wasm_kernel_agent.codecs.parquet_file import SPELLED_OUT, ParquetError, ParquetFile
from wasm_kernel_agent.codecs.parquet_folders import Partitions, TableFile

_CODEC = "parquet"

Conditions = list[list[Any]]
"""Alternatives, each of which is a list of conditions: a column's name, an operator and a value."""


class ParquetTable:
    """The table of some files, with the columns of the first one.

    Args:
        files: The files.
        columns: The wanted columns; None for all.
        groups: The conditions for rows. Files that they exclude are not read.

    Raises:
        ParquetError: A file is damaged, has none of the columns, or has values that can't be read.
    """

    def __init__(
        self, files: Sequence[TableFile], columns: Sequence[str] | None, groups: Conditions
    ) -> None:
        self._partitions, self._groups = Partitions(files), groups
        self._wanted = None if columns is None else [*columns]
        self._added: list[str] = []  # columns that only conditions need
        if columns is not None:
            named = dict.fromkeys(name for group in groups for name, _, _ in group)
            self._added = [each for each in named if each not in columns]
            self._wanted = [*columns, *self._added]
        self._files = [each for each in files if self._may_hold(each)] or [*files[:1]]
        self._batches: list[list[Array]] = []
        with self._first() as file:
            self._layout = frames.Layout(file.metadata, keeps_categories=False)
            self._names = self._layout.with_index(self._wanted)
            self._schema: Schema | None = None

    def _may_hold(self, file: TableFile) -> bool:
        """Says whether rows of a file may fulfil the conditions, by the values in its name."""
        named = self._partitions.names
        groups = [[each for each in group if each[0] in named] for group in self._groups]
        if not named or not groups or not all(groups):
            return True
        return bool(_rows(self._partitions.of(file), groups)[0])

    @contextmanager
    def _first(self) -> Iterator[ParquetFile]:
        """Opens the first file, which must have the wanted columns."""
        with _open(self._files[0]) as file:
            for name in self._wanted or ():
                if name not in (*file.names, *self._partitions.names):
                    raise ParquetError(f"the file has no column {name!r}")
            for name in self._partitions.names:
                if name in file.names:
                    raise ParquetError(f"column {name!r} is in the file and in its folder's name")
            yield file

    def frame(self, *, nullable: bool) -> pandas.DataFrame:
        """Returns the table as a frame; `nullable` asks for pandas' types with a mask."""
        counts = [self._read(each) for each in self._files]
        assert self._schema is not None
        more = {
            name: self._partitions.column(name, self._files, counts)
            for name in self._partitions.names
            if self._names is None or name in self._names
        }
        rows = sum(counts)
        try:
            frame = self._layout.frame(
                self._schema, self._batches, self._wanted, rows, nullable=nullable, more=more
            )
        except ArrowError as problem:
            raise ParquetError(str(problem)) from None
        return self._filtered(frame) if self._groups else frame

    def _read(self, source: TableFile) -> int:
        """Reads a file; returns the number of its rows."""
        with _open(source) as file:
            rows = 0
            for part in file.parts(self._names):
                stream = IpcStream(call(_CODEC, "read", part)[0])
                schema = replace(
                    stream.schema, fields=tuple(map(_plain_field, stream.schema.fields))
                )
                self._schema = self._schema or schema
                for found in stream.batches():
                    batch = [
                        arrow_pandas.looked_up(each) if SPELLED_OUT in each.field.metadata else each
                        for each in found
                    ]
                    length = batch[0].length if batch else 0
                    self._batches.append(fitted(batch, length, self._schema))
                    rows += length
            if stream.schema.fields and rows != file.rows:
                raise ParquetError(f"the file is damaged: {rows} of its {file.rows} rows are there")
            return file.rows

    def _filtered(self, frame: pandas.DataFrame) -> pandas.DataFrame:
        """Returns the rows that fulfil the conditions, and the wanted columns of them."""
        rows, is_counted = _rows(frame, self._groups), isinstance(frame.index, pandas.RangeIndex)
        kept = frame.shape[1] - sum(each in frame.columns for each in self._added)
        frame = frame.iloc[:, :kept][rows]
        return frame.reset_index(drop=True) if is_counted else frame


def _plain_field(field: Field) -> Field:
    return Field(field.name, field.type) if SPELLED_OUT in field.metadata else field


@contextmanager
def _open(source: TableFile) -> Iterator[ParquetFile]:
    """Opens a file; in a folder, errors name the file."""
    try:
        with source.opened() as held:
            yield ParquetFile(held)
    except CodecError as problem:
        raise ParquetError(f"{source.name or 'the file'} can't be read: {problem}") from None
    except (ParquetError, ArrowError) as problem:
        name = f"{source.name}: " if source.name else ""
        raise ParquetError(f"{name}{problem}") from None


# -- filters

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda column, value: column == value,
    "==": lambda column, value: column == value,
    "!=": lambda column, value: (column != value) & column.notna(),
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
    "in": lambda column, value: column.isin(value),
    "not in": lambda column, value: ~column.isin(value) & column.notna(),
}


def conditions(filters: Any) -> Conditions:
    """Returns the filters of pandas as conditions. Raises `ValueError` if they are malformed."""
    try:
        listed = [*filters]
        groups = [listed] if isinstance(listed[0][0], str) else [[*each] for each in listed]
        if all(operator in _COMPARISONS for group in groups for _, operator, _ in group):
            return groups
    except (TypeError, ValueError, IndexError):
        pass
    raise ValueError(
        f"filters must be tuples such as ('column', '>', 1), with one of {', '.join(_COMPARISONS)}"
    )


def _rows(frame: pandas.DataFrame, groups: Conditions) -> Any:
    """Returns which rows of a frame fulfil filters."""
    chosen = numpy.zeros(len(frame), bool)
    for group in groups:
        these = numpy.ones(len(frame), bool)
        for name, operator, value in group:
            if name in frame.columns:
                column = frame[name]
            else:
                column = frame.index.get_level_values(name).to_series(index=frame.index)
            if isinstance(column.dtype, pandas.CategoricalDtype):
                column = _plain(column)
            _check(name, column, value)
            met = _COMPARISONS[operator](column, value)
            these &= met.fillna(False).to_numpy(bool)
        chosen |= these
    return chosen


def _check(name: str, column: pandas.Series, value: Any) -> None:
    """Raises `TypeError` if a text is compared with numbers, which would fit no row."""
    values = value if isinstance(value, list | tuple | set) else [value]
    is_number = pandas.api.types.is_numeric_dtype(column.dtype)
    is_text = isinstance(column.dtype, pandas.StringDtype)
    for each in values:
        if isinstance(each, str) if is_number else is_text and isinstance(each, int | float):
            kind = "numbers" if is_number else "texts"
            raise TypeError(f"filters: column {name!r} has {kind}, and {each!r} is none of them")


def _plain(column: pandas.Series) -> pandas.Series:
    """Returns the values of categories, which have no order that a comparison needs."""
    kind = column.cat.categories.dtype
    return column.astype("Int64" if kind.kind in "iu" else kind)
