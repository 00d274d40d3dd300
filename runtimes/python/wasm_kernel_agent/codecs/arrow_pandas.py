"""Columns of Arrow as pandas has them: the same types and values as pyarrow's `to_pandas` gives."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy
import pandas
from pandas.api.types import union_categoricals

from wasm_kernel_agent.codecs.arrow_reader import Array
from wasm_kernel_agent.codecs.arrow_schema import EXTENDED, EXTENSION, ArrowError, Field, Type

_EXACT = decimal.Context(prec=100)
_NAT = numpy.iinfo(numpy.int64).min
_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MASKED: dict[str, Any] = {
    "int": pandas.arrays.IntegerArray,
    "float": pandas.arrays.FloatingArray,
    "bool": pandas.arrays.BooleanArray,
}
_TEXTS = ("utf8", "large_utf8", "utf8_view")
_BINARIES = ("binary", "large_binary", "binary_view")
_TEMPORAL = ("timestamp", "duration")


def column(
    parts: Sequence[Array], column: Field, *, nullable: bool = False, keeps_categories: bool
) -> Any:
    """Returns the values of a column, whose batches are `parts`, as pandas holds them.

    `nullable` asks for pandas' types with a mask. `keeps_categories` says whether the file keeps
    categories that are ordered or not texts. Raises `ArrowError`.
    """
    extended = _EXTENDED.get(column.metadata.get(EXTENSION, ""))
    if extended is not None:
        return extended(parts, column)
    if column.dictionary is not None:
        if keeps_categories or column.type.name in _TEXTS + _BINARIES:
            return _categories(parts, column)
        parts = [looked_up(each) for each in parts]  # Parquet keeps no order of such categories
    kind = column.type
    pieces = [_flat(each) for each in parts]
    if not pieces:
        return _finished(kind, numpy.empty(0, numpy_dtype(kind)), None, nullable=nullable)
    values = numpy.concatenate([each for each, _ in pieces])
    missing = None
    if any(each is not None for _, each in pieces):
        masks = [numpy.zeros(len(held), bool) if each is None else each for held, each in pieces]
        missing = numpy.concatenate(masks)
    return _finished(kind, values, missing, nullable=nullable)


def _periods(parts: Sequence[Array], field: Field) -> Any:
    kind = pandas.PeriodDtype(_about(field)["freq"])
    values = [
        numpy.where(each.valid, each.values, _NAT) if each.valid is not None else each.values
        for each in parts
    ]
    if field.type != Type("int", 64):
        raise ArrowError("its periods are not numbers")
    return pandas.arrays.PeriodArray(numpy.concatenate([numpy.empty(0, "i8"), *values]), dtype=kind)


def _intervals(parts: Sequence[Array], field: Field) -> Any:
    closed = _about(field)["closed"]
    if [each.name for each in field.children] != ["left", "right"]:
        raise ArrowError("its intervals have no two ends")
    ends = []
    for number, child in enumerate(field.children):
        inner = [(each, each.children[number]) for each in parts]
        held = [replace(within, valid=_both(each, within)) for each, within in inner]
        ends.append(column(held, child, keeps_categories=True))
    return pandas.arrays.IntervalArray.from_arrays(*ends, closed=closed)


def _both(outer: Array, inner: Array) -> Any:
    if outer.valid is None or inner.valid is None:
        return inner.valid if outer.valid is None else outer.valid
    return outer.valid & inner.valid


def _about(field: Field) -> Any:
    return json.loads(field.metadata.get(EXTENDED, ""))


_EXTENDED: dict[str, Callable[[Sequence[Array], Field], Any]] = {
    "pandas.period": _periods,
    "pandas.interval": _intervals,
}


def looked_up(array: Array) -> Array:
    """Returns the values that stand in a dictionary, in their places."""
    (dictionary,) = array.children
    plain = Field(array.field.name, array.field.type)
    chosen = array.values
    if array.valid is not None:
        chosen = numpy.where(array.valid, chosen, 0)
    if array.length and (chosen.max() >= dictionary.length or chosen.min() < 0):
        if dictionary.length or array.valid is None or array.valid.any():
            raise ArrowError("a value is not in its dictionary")
        kind = "i8" if dictionary.offsets is None else object
        return Array(plain, array.length, array.valid, numpy.zeros(array.length, kind))
    there = array.valid
    if dictionary.valid is not None:
        there = dictionary.valid[chosen] if there is None else there & dictionary.valid[chosen]
    if dictionary.values is None:
        raise ArrowError("dictionaries of nested values can't be read")
    values = dictionary.values
    if dictionary.offsets is not None:
        values = numpy.fromiter(_items(dictionary), object, dictionary.length)
    return Array(plain, array.length, there, values[chosen])


def numpy_dtype(kind: Type) -> Any:
    """Returns numpy's type for a column of numbers; that of objects for other columns."""
    types = {"int": f"{'i' if kind.signed else 'u'}{kind.width // 8}", "bool": "?"}
    types |= {"float": f"f{kind.width // 8}", "timestamp": "i8", "duration": "i8"}
    return numpy.dtype(types.get(kind.name, object))


def _categories(parts: Sequence[Array], column: Field) -> Any:
    assert column.dictionary is not None
    ordered = column.dictionary.ordered
    made = []
    for part in parts:
        (dictionary,) = part.children
        values = _finished(dictionary.field.type, *_flat(dictionary), nullable=False)
        codes = part.values.astype(numpy.int64)
        if part.valid is not None:
            codes = numpy.where(part.valid, codes, -1)
        if part.length and (codes.max() >= len(values) or codes.min() < -1):
            raise ArrowError("a value is not in its dictionary")
        made.append(pandas.Categorical.from_codes(codes, pandas.Index(values), ordered=ordered))
    if not made:
        return pandas.Categorical([], ordered=ordered)
    first = made[0]
    if all(each.dtype == first.dtype for each in made) and len(made) > 1:
        codes = numpy.concatenate([each.codes for each in made])
        return pandas.Categorical.from_codes(codes, dtype=first.dtype)
    if len(made) == 1:
        return first
    joined = union_categoricals(made, ignore_order=True)
    return joined.as_ordered() if ordered else joined


def _finished(kind: Type, values: Any, missing: Any, *, nullable: bool) -> Any:
    """Returns values with their gaps, as pandas holds them."""
    if missing is not None and not missing.any():
        missing = None
    if nullable and kind.name in _MASKED and not (kind.name == "float" and kind.width == 16):
        mask = numpy.zeros(len(values), bool) if missing is None else missing
        return _MASKED[kind.name](values, mask)
    if kind.name in _TEXTS:
        gap = pandas.NA if nullable else numpy.nan
        return pandas.array(values, dtype=pandas.StringDtype("python", na_value=gap))
    if kind.name in _TEMPORAL:
        if missing is not None:
            values = numpy.where(missing, _NAT, values)
        times = values.view(f"{'M' if kind.name == 'timestamp' else 'm'}8[{kind.unit}]")
        if kind.zone:
            return pandas.Series(times).dt.tz_localize("UTC").dt.tz_convert(kind.zone).array
        return times
    if missing is None or values.dtype == object:
        return values
    if kind.name == "int":
        values = values.astype(numpy.float64)
    if kind.name == "bool":
        values = values.astype(object)
        values[missing] = None
    else:
        values = numpy.where(missing, values.dtype.type(numpy.nan), values)
    return values


def _flat(array: Array) -> tuple[Any, Any]:
    """Returns the values of a batch, and which of them are missing. Objects have None there."""
    kind = array.field.type
    missing = None if array.valid is None else ~array.valid
    if kind.name in ("int", "float", "bool", *_TEMPORAL):
        return array.values, missing
    if kind.name not in _OBJECTS:
        raise ArrowError(f"pandas has no values of the type {kind.name}")
    if _are_objects(array):
        values = array.values
        return values if missing is None else numpy.where(missing, None, values), missing
    return numpy.fromiter(_items(array), object, array.length), missing


def _items(array: Array) -> list[Any]:
    """Returns the values of a batch as a list of objects, with None for missing ones."""
    if array.field.dictionary is not None:
        values = _categories([array], array.field)
        return [None if code < 0 else values.categories[code] for code in values.codes]
    kind = array.field.type
    if kind.name in ("int", "float", "bool"):
        found = array.values.tolist()
    elif kind.name in _TEMPORAL:
        found = _instants(array)
    elif _are_objects(array):
        found = array.values.tolist()
    elif kind.name in _OBJECTS:
        found = _OBJECTS[kind.name](array)
    else:
        raise ArrowError(f"pandas has no values of the type {kind.name}")
    if array.valid is None:
        return list(found)
    return [
        each if is_there else None
        for each, is_there in zip(found, array.valid.tolist(), strict=True)
    ]


def _are_objects(array: Array) -> bool:
    """Returns whether the values are objects, as those of a dictionary are."""
    return isinstance(array.values, numpy.ndarray) and array.values.dtype.kind == "O"


def _instants(array: Array) -> list[Any]:
    """Returns points and spans of time as pyarrow has them in dicts: nanoseconds are integers."""
    kind = array.field.type
    code = "M" if kind.name == "timestamp" else "m"
    found: list[Any] = array.values.view(f"{code}8[{kind.unit}]").astype(object).tolist()
    if not kind.zone or kind.unit == "ns":
        return found
    zone = pandas.DatetimeTZDtype(tz=kind.zone).tz
    return [
        each.replace(tzinfo=datetime.UTC).astimezone(zone)
        if isinstance(each, datetime.datetime)
        else each
        for each in found
    ]


def _pieces(array: Array) -> list[bytes]:
    data, ends = bytes(array.values), array.offsets.tolist()
    return [data[start:end] for start, end in pairwise(ends)]


def _texts(array: Array) -> list[Any]:
    data = bytes(array.values)
    try:
        if not data.isascii():
            return [each.decode() for each in _pieces(array)]
    except UnicodeDecodeError:
        raise ArrowError("a text is not UTF-8") from None
    text, ends = data.decode("ascii"), array.offsets.tolist()
    return [text[start:end] for start, end in pairwise(ends)]


def _decimals(array: Array) -> list[Any]:
    scale = array.field.type.scale
    numbers = (int.from_bytes(each.tobytes(), "little", signed=True) for each in array.values)
    return [decimal.Decimal(each).scaleb(-scale, _EXACT) for each in numbers]


def _dates(array: Array) -> list[Any]:
    days = array.values.astype(numpy.int64).view(f"M8[{array.field.type.unit}]").astype("M8[D]")
    found: list[Any] = days.astype(object).tolist()
    return found


def _times(array: Array) -> list[Any]:
    unit = array.field.type.unit
    moments = (array.values.astype("i8") % (86_400 * _A_SECOND[unit])).view(f"M8[{unit}]")
    return [each.time() for each in moments.astype("M8[us]").tolist()]


def _lists(array: Array) -> list[Any]:
    child, ends = _child(array.children[0]), array.offsets.tolist()
    return [child[start:end] for start, end in pairwise(ends)]


def _fixed_lists(array: Array) -> list[Any]:
    child, size = _child(array.children[0]), array.field.type.width
    return [child[at : at + size] for at in range(0, array.length * size, size or 1)]


def _child(array: Array) -> Any:
    """Returns the values of a list's items as one array of numpy."""
    if array.field.dictionary is None:
        kind = array.field.type
        if kind.name in ("int", "float", "bool", *_TEMPORAL):
            plain = Type(kind.name, kind.width, kind.signed, kind.unit)
            return _finished(plain, *_flat(array), nullable=False)
    return numpy.fromiter(_items(array), object, array.length)


def _maps(array: Array) -> list[Any]:
    (entries,) = array.children
    if len(entries.children) != 2:
        raise ArrowError("a map is not of keys and values")
    pairs = list(zip(*map(_items, entries.children), strict=False))
    ends = array.offsets.tolist()
    return [pairs[start:end] for start, end in pairwise(ends)]


def _structs(array: Array) -> list[Any]:
    names = [each.field.name for each in array.children]
    members = [_items(each) for each in array.children]
    return [
        dict(zip(names, (each[row] for each in members), strict=True))
        for row in range(array.length)
    ]


_OBJECTS: dict[str, Callable[[Array], list[Any]]] = {
    "null": lambda array: [None] * array.length,
    **dict.fromkeys(_TEXTS, _texts),
    **dict.fromkeys(_BINARIES, _pieces),
    "fixed_binary": lambda array: [each.tobytes() for each in array.values],
    "decimal": _decimals,
    "date": _dates,
    "time": _times,
    "list": _lists,
    "large_list": _lists,
    "fixed_list": _fixed_lists,
    "map": _maps,
    "struct": _structs,
}
