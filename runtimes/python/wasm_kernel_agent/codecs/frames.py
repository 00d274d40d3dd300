"""Frames of pandas as tables of columns, and back: index, labels and types as pandas' metadata say.

Source: https://pandas.pydata.org/docs/development/developer.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy
import pandas

from wasm_kernel_agent.codecs import arrow_pandas
from wasm_kernel_agent.codecs.arrow_reader import Array
from wasm_kernel_agent.codecs.arrow_schema import ArrowError, Field, Schema
from wasm_kernel_agent.codecs.arrow_writer import written

_LABEL_TYPES = {
    "integer": "int64",
    "floating": "float64",
    "boolean": "bool",
    "bytes": "bytes",
    "empty": "empty",
    "datetime64": "datetime",
    "datetimetz": "datetimetz",
}
_PLAIN = ("string", "integer", "boolean")
_CATEGORIES_MOST = 10_000
_ATTRIBUTES = "PANDAS_ATTRS"
_LEVEL = "__index_level_{}__"
_MASKED = {
    *("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
    *("Float32", "Float64", "boolean"),
}


class Layout:
    """The layout of a frame, as the metadata of a file have it.

    Args:
        metadata: The file's pairs.
        keeps_categories: Whether the file keeps categories that are ordered or not texts.
    """

    def __init__(self, metadata: Mapping[str, str], *, keeps_categories: bool) -> None:
        self._attributes = metadata.get(_ATTRIBUTES)
        self._keeps_categories = keeps_categories
        try:
            about = json.loads(metadata.get("pandas", "{}"))
            self._index = [*about.get("index_columns", ())]
            self._columns = {
                each.get("field_name") or each["name"]: each for each in about.get("columns", ())
            }
            self._labels = [*about.get("column_indexes", ())]
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
            self._index, self._columns, self._labels = [], {}, []

    def with_index(self, wanted: Sequence[str] | None) -> list[str] | None:
        """Returns wanted columns and those of the index."""
        if wanted is None:
            return None
        return [*wanted, *(each for each in self._index if isinstance(each, str))]

    def frame(
        self,
        schema: Schema,
        parts: Sequence[Sequence[Array]],
        wanted: Sequence[str] | None,
        rows: int,
        *,
        nullable: bool,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> pandas.DataFrame:
        """Returns the frame of a table's batches, in the order of the wanted columns.

        `rows` is their number, which a table without columns does not tell. `more` are columns
        that are not in the table.

        Raises `ArrowError` if a column has no type in pandas; it names the column.
        """
        columns = []
        for number, field in enumerate(schema.fields):
            batches = [each[number] for each in parts]
            columns.append(self._column(field, batches, nullable=nullable))
        rows = sum(each[0].length for each in parts) if schema.fields else rows
        names = [*(each.name for each in schema.fields), *more]
        columns += more.values()
        index, used = self._made_index(dict(zip(names, columns, strict=True)), rows)
        shown = [n for n, name in enumerate(names) if name not in used]
        if wanted is not None:
            places = {names[n]: n for n in shown}
            shown = [places[name] for name in wanted if name in places]
        copied = len(set(shown)) < len(shown)  # one column may be wanted twice
        held = {place: columns[n] for place, n in enumerate(shown)}
        frame = pandas.DataFrame(held, index=index, copy=copied)
        frame.columns = self._made_labels([names[n] for n in shown])
        if self._attributes is not None:
            frame.attrs = json.loads(self._attributes)
        return frame

    def _column(self, field: Field, batches: Sequence[Array], *, nullable: bool) -> Any:
        about = self._columns.get(field.name, {})
        kind = about.get("numpy_type")
        try:
            found = arrow_pandas.column(
                batches,
                field,
                nullable=nullable or kind in _MASKED,
                keeps_categories=self._keeps_categories,
            )
        except (ValueError, KeyError, TypeError, OverflowError) as problem:
            raise ArrowError(f"column {field.name!r}: {problem}") from None
        categories = (about.get("metadata") or {}).get("categories")
        if isinstance(categories, list) and about.get("pandas_type") == "categorical":
            found = _recoded(found, categories, bool(about["metadata"].get("ordered")))
        is_text = isinstance(getattr(found, "dtype", None), pandas.StringDtype)
        if (is_text and kind == "string" and not nullable) or (is_text and nullable):
            found = found.astype(pandas.StringDtype("python"))
        return found

    def _made_index(self, columns: Mapping[str, Any], rows: int) -> tuple[Any, set[str]]:
        """Returns the index, and the names of the columns that make it."""
        levels, names, used = [], [], set()
        for each in self._index:
            if isinstance(each, dict) and each.get("kind") == "range":
                start, stop, step = (each.get(key) for key in ("start", "stop", "step"))
                made = pandas.RangeIndex(start, stop, step) if step else pandas.RangeIndex(rows)
                made = made if len(made) == rows or not columns else pandas.RangeIndex(rows)
                levels.append(made)
                names.append(each.get("name"))
            elif isinstance(each, str) and each in columns:
                levels.append(pandas.Index(columns[each]))
                names.append(self._columns.get(each, {}).get("name"))
                used.add(each)
        if not levels:
            return pandas.RangeIndex(rows), used
        if len(levels) == 1:
            return levels[0].rename(names[0]), used
        return pandas.MultiIndex.from_arrays(levels, names=names), used

    def _made_labels(self, fields: Sequence[str]) -> Any:
        """Returns the labels of the columns with their types."""
        names = [self._columns.get(each, {}).get("name", each) for each in fields]
        names = [field if name is None else name for field, name in zip(fields, names, strict=True)]
        if len(self._labels) > 1:
            rows = [_as_tuple(each, len(self._labels)) for each in names]
            titles = [each.get("name") for each in self._labels]
            if rows and all(each is not None for each in rows):
                return pandas.MultiIndex.from_tuples(rows, names=titles)
            return pandas.Index(names)
        about = self._labels[0] if self._labels else {}
        found = pandas.Index(names, dtype=None if names else "str", name=about.get("name"))
        if names and about.get("pandas_type") in ("unicode", "string", "empty", None):
            return found
        try:
            return _with_type(found, about) if about else found
        except (ValueError, TypeError, AttributeError):
            return found


def _with_type(labels: Any, about: Mapping[str, Any]) -> Any:
    """Returns labels, which are texts, with the type that a description names."""
    if about.get("pandas_type") == "bytes":
        return pandas.Index([each.encode() for each in labels], name=labels.name)
    if about.get("pandas_type") == "datetimetz":
        zone = (about.get("metadata") or {}).get("timezone", "UTC")
        return pandas.to_datetime(labels).tz_convert(zone)
    return labels.astype(str(about.get("numpy_type", "object")))


def _recoded(found: Any, categories: list[Any], ordered: bool) -> Any:
    """Returns values as categories in their earlier order, if all values are among them."""
    kind = pandas.CategoricalDtype(pandas.Index(categories), ordered=ordered)
    made = pandas.Categorical(found, dtype=kind)
    return found if (made.isna() & ~pandas.isna(found)).any() else made


def _as_tuple(text: str, size: int) -> tuple[Any, ...] | None:
    """Returns the labels behind a name such as `('a', 'b')`."""
    import ast

    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return found if isinstance(found, tuple) and len(found) == size else None


# -- taking apart


def taken_apart(
    frame: pandas.DataFrame, index: bool | None, *, keeps_categories: bool
) -> tuple[Schema, list[Any]]:
    """Returns the schema and the arrays of a frame; `index` as pandas' `to_parquet` has it.

    `keeps_categories` says whether the format keeps categories that are ordered or not texts.

    Raises `ValueError` with the name of a column that can't be written.
    """
    names = [_name_of(each) for each in frame.columns]
    if len(set(names)) < len(names):
        raise ValueError("Duplicate column names found: each column needs a name of its own")
    labelled = enumerate(zip(names, frame.columns, strict=True))
    columns = [(name, frame.iloc[:, n], label) for n, (name, label) in labelled]
    levels, about_index = _index_columns(frame, index, set(names))
    fields, arrays, about = [], [], []
    for name, held, label in [*columns, *levels]:
        field, array, pandas_type = written(name, held, keeps_categories=keeps_categories)
        fields.append(field)
        arrays.append(array)
        about.append(_about(name, label, held, pandas_type))
    metadata = {
        "index_columns": about_index,
        "column_indexes": [_about_labels(frame.columns, n) for n in range(frame.columns.nlevels)],
        "columns": about,
        "attributes": {},
        "creator": {"library": "wasm-kernel", "version": "1"},
        "pandas_version": pandas.__version__,
    }
    pairs = {"pandas": json.dumps(metadata)}
    if frame.attrs:
        pairs[_ATTRIBUTES] = json.dumps(frame.attrs)
    return Schema(tuple(fields), pairs), arrays


def _name_of(label: Any) -> str:
    return label.decode() if isinstance(label, bytes) else str(label)


def _index_columns(
    frame: pandas.DataFrame, index: bool | None, taken: set[str]
) -> tuple[list[tuple[str, Any, Any]], list[Any]]:
    """Returns the columns that the index becomes, and its description."""
    if index is False:
        return [], []
    held = frame.index
    if isinstance(held, pandas.RangeIndex) and index is None:
        name = None if held.name is None else str(held.name)
        ends: dict[str, Any] = {"start": held.start, "stop": held.stop, "step": held.step}
        return [], [{"kind": "range", "name": name, **ends}]
    columns: list[tuple[str, Any, Any]] = []
    for number in range(held.nlevels):
        label = held.names[number]
        is_free = label is not None and str(label) not in taken
        name = str(label) if is_free else _LEVEL.format(number)
        level = held.get_level_values(number)
        columns.append((name, pandas.Series(level, copy=False), label))
    return columns, [name for name, _, _ in columns]


def _about(name: str, label: Any, held: Any, pandas_type: str) -> dict[str, Any]:
    metadata: Any = None
    kind = held.dtype
    if isinstance(kind, pandas.CategoricalDtype):
        codes = held.cat.codes.dtype
        metadata = {"num_categories": len(kind.categories), "ordered": bool(kind.ordered)}
        if kind.categories.inferred_type in _PLAIN and len(kind.categories) <= _CATEGORIES_MOST:
            metadata["categories"] = kind.categories.tolist()  # the file itself keeps no order
        numpy_type = str(codes)
    elif isinstance(kind, pandas.DatetimeTZDtype):
        metadata, numpy_type = {"timezone": str(kind.tz)}, f"datetime64[{kind.unit}]"
    else:
        numpy_type = "str" if kind == "str" else str(kind)
    return {
        "name": None if label is None else _name_of(label),
        "field_name": name,
        "pandas_type": pandas_type,
        "numpy_type": numpy_type,
        "metadata": metadata,
    }


def _about_labels(labels: Any, level: int) -> dict[str, Any]:
    held = labels.get_level_values(level)
    kind = held.dtype
    metadata: Any = None
    inferred = held.inferred_type
    if isinstance(kind, pandas.DatetimeTZDtype):
        inferred, metadata = "datetimetz", {"timezone": str(kind.tz)}
    is_text = inferred == "string" or (inferred == "empty" and not isinstance(kind, numpy.dtype))
    pandas_type = "unicode" if is_text else _LABEL_TYPES.get(inferred, str(kind))
    name = labels.names[level]
    return {
        "name": None if name is None else str(name),
        "field_name": None if name is None else str(name),
        "pandas_type": pandas_type,
        "numpy_type": "str" if kind == "str" else str(kind),
        "metadata": {"encoding": "UTF-8"} if is_text else metadata,
    }
