"""Fits batches to another file's columns: files of one table may differ in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy

from wasm_kernel_agent.codecs import arrow_pandas
from wasm_kernel_agent.codecs.arrow_reader import Array
from wasm_kernel_agent.codecs.arrow_schema import ArrowError, Field, Schema, Type

_NUMBERS = ("int", "float")
_TIMES = ("timestamp", "duration")
_FAMILIES = (
    *(("utf8", "large_utf8", "utf8_view"), ("binary", "large_binary", "binary_view")),
    *(("decimal",), ("list", "large_list"), ("struct",), ("map",)),
)
"""Types whose values are objects in pandas, so that a column may have several of one family."""


def fitted(batch: Sequence[Array], rows: int, schema: Schema) -> list[Array]:
    """Returns a batch with a schema's columns; columns that the batch lacks have missing values.

    Raises:
        ArrowError: A column's type is too different, or its values do not fit.
    """
    if [each.field for each in batch] == [*schema.fields]:
        return [*batch]
    there = {each.field.name: each for each in batch}
    return [_fitted(there.get(each.name), rows, each) for each in schema.fields]


def _fitted(array: Array | None, rows: int, field: Field) -> Array:
    if array is None or array.field.type.name == "null":
        return _missing(field, rows)
    if array.field.dictionary is not None and field.dictionary is None:
        array = arrow_pandas.looked_up(array)
    kind, wanted = array.field.type, field.type
    is_encoded = array.field.dictionary is not None, field.dictionary is not None
    if is_encoded[0] == is_encoded[1]:
        if kind == wanted:
            return replace(array, field=replace(field, children=array.field.children))
        if any(kind.name in some and wanted.name in some for some in _FAMILIES):
            return array
        if not any(is_encoded) and (made := _cast(array, wanted)) is not None:
            return replace(array, field=field, values=made)
    raise ArrowError(
        f"column {field.name!r}: it is of {_named(kind)}, and of {_named(wanted)} in the first file"
    )


def _named(kind: Type) -> str:
    return f"{kind.name}{kind.width or ''}{f'[{kind.unit}]' if kind.unit else ''}"


def _missing(field: Field, rows: int) -> Array:
    """Returns an array of missing values."""
    valid = numpy.zeros(rows, bool)
    kind = field.type
    if field.dictionary is not None:
        plain = Field(field.name, kind, field.children)
        empty = Array(plain, 0, values=memoryview(b""), offsets=numpy.zeros(1, "<i8"))
        return Array(field, rows, valid, numpy.zeros(rows, "i8"), children=(empty,))
    if kind.name in (*_NUMBERS, *_TIMES, "bool"):
        dtype = arrow_pandas.numpy_dtype(kind)
        return Array(field, rows, valid, numpy.zeros(rows, dtype))
    return Array(Field(field.name, Type("null")), rows)


def _cast(array: Array, wanted: Type) -> Any:
    """Converts numbers or times to another type; returns None if a value does not fit."""
    kind, values = array.field.type, array.values
    if kind.name in _NUMBERS and wanted.name in _NUMBERS:
        made = values.astype(arrow_pandas.numpy_dtype(wanted))
        back = made.astype(values.dtype)
    elif kind.name == wanted.name and kind.name in _TIMES and bool(kind.zone) == bool(wanted.zone):
        made = values.view(f"M8[{kind.unit}]").astype(f"M8[{wanted.unit}]")
        back, made = made.astype(f"M8[{kind.unit}]").view("i8"), made.view("i8")
    else:
        return None
    fits = (back == values) | numpy.isnan(values)
    if array.valid is not None:
        fits |= ~array.valid
    return made if fits.all() else None
