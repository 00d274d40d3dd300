"""Writing columns of pandas as Arrow's IPC stream."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy
import pandas

from wasm_kernel_agent.codecs.arrow_messages import Out
from wasm_kernel_agent.codecs.arrow_schema import (
    EXTENDED,
    EXTENSION,
    UNITS,
    Dictionary,
    Field,
    Type,
)

_INT32_MOST = 2**31 - 1
_DIGITS_MOST = 38
_BETWEEN = "\0"  # joins texts
_ADVICE = "Convert it first, for example with astype('str')."


_ARROW_NAMES = {
    "float64": "double",
    "float32": "float",
    **{f"datetime64[{unit}]": f"timestamp[{unit}]" for unit in UNITS},
    **{f"timedelta64[{unit}]": f"duration[{unit}]" for unit in UNITS},
}


# -- columns


def written(name: str, column: pandas.Series, *, keeps_categories: bool) -> tuple[Field, Out, str]:
    """Returns a column's field, its values, and the name of its type in pandas' metadata.

    `keeps_categories` says whether the format keeps categories that are ordered or not texts.

    Raises `ValueError` with the column's name if it can't be written.
    """
    extension = _extension(column.dtype)
    try:
        if isinstance(column.dtype, pandas.CategoricalDtype):
            categories = column.cat.categories
            is_plain = not column.cat.ordered and categories.inferred_type == "string"
            if keeps_categories or is_plain:
                return _category(name, column)
            # a dictionary would give other readers the categories in another order
            extension = _extension(categories.dtype)
            kind, made, children = _column(column.astype(categories.dtype))
            return Field(name, kind, children, metadata=extension), made, "categorical"
        kind, made, children = _column(column)
    except (ValueError, TypeError, OverflowError) as problem:
        raise ValueError(f"column {name!r} can't be written: {problem}") from None
    return Field(name, kind, children, metadata=extension), made, _pandas_name(kind, children)


def _extension(kind: Any) -> dict[str, str]:
    """Returns pandas' mark in the metadata of columns of periods and intervals."""
    if isinstance(kind, pandas.PeriodDtype):
        return {EXTENSION: "pandas.period", EXTENDED: json.dumps({"freq": kind.name[7:-1]})}
    if isinstance(kind, pandas.IntervalDtype):
        subtype = _ARROW_NAMES.get(str(kind.subtype), str(kind.subtype))
        about = {"subtype": subtype, "closed": kind.closed}
        return {EXTENSION: "pandas.interval", EXTENDED: json.dumps(about)}
    return {}


def _pandas_name(kind: Type, children: tuple[Field, ...]) -> str:
    """Returns the name of a type in pandas' metadata."""
    match kind.name:
        case "int" | "float":
            return f"{'' if kind.signed else 'u'}{kind.name}{kind.width}"
        case "list":
            return f"list[{_pandas_name(children[0].type, children[0].children)}]"
        case "timestamp":
            return "datetimetz" if kind.zone else "datetime"
    return _NAMES.get(kind.name, kind.name)


_NAMES = {
    "utf8": "unicode",
    "binary": "bytes",
    "duration": "timedelta",
    "null": "empty",
    "struct": "object",
}


def _category(name: str, column: pandas.Series) -> tuple[Field, Out, str]:
    categories = pandas.Series(column.cat.categories)
    kind, made, children = _column(categories)
    codes = column.cat.codes.to_numpy()
    missing = codes < 0
    index = Type("int", 8 * codes.dtype.itemsize)
    values = numpy.where(missing, 0, codes).astype(codes.dtype)
    out = Out(len(codes), int(missing.sum()), [_bits(missing), values], dictionary=made)
    field = Field(name, kind, children, Dictionary(0, index, bool(column.cat.ordered)))
    return field, out, "categorical"


_Made = tuple[Type, Out, tuple[Field, ...]]


def _column(column: pandas.Series) -> _Made:
    kind = column.dtype
    if isinstance(kind, pandas.DatetimeTZDtype):
        times = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
        return _times(times, str(kind.tz))
    if isinstance(kind, numpy.dtype):
        if kind.kind == "O":
            return _objects(column.tolist())
        if kind.kind in "mMiufb":
            values = column.to_numpy()
            return _times(values) if kind.kind in "mM" else _numbers(values, None)
    elif isinstance(kind, pandas.PeriodDtype | pandas.IntervalDtype):
        return _periods(column) if isinstance(kind, pandas.PeriodDtype) else _intervals(column)
    elif isinstance(kind, pandas.StringDtype):
        return _text_column(column)
    elif str(kind) in _MASKED:
        missing = column.isna().to_numpy()
        plain = _MASKED[str(kind)]
        return _numbers(column.to_numpy(plain, na_value=plain.type(0)), missing)
    raise ValueError(f"there is no type for {kind}. {_ADVICE}")


def _text_column(column: pandas.Series) -> _Made:
    values = numpy.asarray(column, object).tolist()
    try:
        return _texts(values, None)
    except TypeError:  # a missing value is not text
        return _texts(values, column.isna().to_numpy())


_MASKED = {
    **{f"{u}Int{n}": numpy.dtype(f"{u.lower()}int{n}") for u in ("", "U") for n in (8, 16, 32, 64)},
    **{f"Float{n}": numpy.dtype(f"float{n}") for n in (32, 64)},
    "boolean": numpy.dtype(bool),
}


def _bits(missing: Any) -> Any:
    """Returns the buffer of bits that say which values are there; empty if all are."""
    if missing is None or not missing.any():
        return b""
    return numpy.packbits(~missing, bitorder="little")


def _numbers(values: Any, missing: Any) -> _Made:
    values = numpy.ascontiguousarray(values)
    kind = values.dtype
    if kind.kind == "f":
        gaps = numpy.isnan(values)
        missing = gaps if missing is None else missing | gaps
    nulls = 0 if missing is None else int(missing.sum())
    data = numpy.packbits(values, bitorder="little") if kind.kind == "b" else values
    out = Out(len(values), nulls, [_bits(missing), data])
    if kind.kind == "b":
        return Type("bool"), out, ()
    if kind.kind == "f":
        return Type("float", 8 * kind.itemsize), out, ()
    return Type("int", 8 * kind.itemsize, kind.kind == "i"), out, ()


def _times(values: Any, zone: str = "") -> _Made:
    name = "timestamp" if values.dtype.kind == "M" else "duration"
    unit = numpy.datetime_data(values.dtype)[0]
    missing = numpy.isnat(values)
    data = numpy.ascontiguousarray(values).view(numpy.int64)
    out = Out(len(values), int(missing.sum()), [_bits(missing), data])
    return Type(name, 64, unit=unit, zone=zone), out, ()


def _periods(column: pandas.Series) -> _Made:
    missing = column.isna().to_numpy()
    values = numpy.where(missing, 0, column.array.asi8).astype(numpy.int64)
    return Type("int", 64), Out(len(values), int(missing.sum()), [_bits(missing), values]), ()


def _intervals(column: pandas.Series) -> _Made:
    missing = column.isna().to_numpy()
    ends = [(name, pandas.Series(getattr(column.array, name))) for name in ("left", "right")]
    fields, children = [], []
    for name, values in ends:
        kind, made, parts = _column(values)
        fields.append(Field(name, kind, parts))
        children.append(made)
    out = Out(len(missing), int(missing.sum()), [_bits(missing)], tuple(children))
    return Type("struct"), out, tuple(fields)


def _objects(values: list[Any]) -> _Made:
    """Returns the array of objects, all of which must be of one kind."""
    missing = pandas.isna(numpy.fromiter(values, object, len(values)))
    kinds = {_kind(each) for each in set(map(type, values))} - {""}
    if missing.all():
        kinds = set()
    elif len(kinds) > 1:  # gaps may be floats
        there = {type(each) for each, gap in zip(values, missing.tolist(), strict=True) if not gap}
        kinds = {_kind(each) for each in there}
    if kinds == {"int", "float"}:
        kinds = {"float"}
    if len(kinds) > 1:
        raise TypeError(f"it has values of several types ({', '.join(sorted(kinds))}). {_ADVICE}")
    kind = kinds.pop() if kinds else "null"
    if kind == "null":
        return Type("null"), Out(len(values), len(values), []), ()
    return _WRITERS[kind](values, missing)


def _kind(of: type) -> str:
    """Returns the kind of values of a type; empty for gaps."""
    if issubclass(of, _GAPS):
        return ""
    for kind, types in _TYPES.items():
        if issubclass(of, types):
            return kind
    raise TypeError(f"there is no type for a value of the type {of.__name__}. {_ADVICE}")


_GAPS = (type(None), type(pandas.NA), type(pandas.NaT))
_TYPES: dict[str, Any] = {
    "utf8": str,
    "binary": (bytes, bytearray, memoryview),
    "bool": (bool, numpy.bool_),
    "int": (int, numpy.integer),
    "float": (float, numpy.floating),
    "decimal": decimal.Decimal,
    "timestamp": (datetime.datetime, numpy.datetime64),
    "date": datetime.date,
    "time": datetime.time,
    "duration": (datetime.timedelta, numpy.timedelta64),
    "struct": dict,
    "list": (list, tuple, set, numpy.ndarray, pandas.Series, pandas.api.extensions.ExtensionArray),
}


def _pieces(kind: str, encode: Callable[[Any], bytes]) -> Callable[[list[Any], Any], _Made]:
    def write(values: list[Any], missing: Any) -> _Made:
        data = [
            b"" if gap else encode(each) for each, gap in zip(values, missing.tolist(), strict=True)
        ]
        offsets = _offsets(map(len, data), len(data))
        out = Out(len(data), int(missing.sum()), [_bits(missing), offsets, b"".join(data)])
        return Type(kind), out, ()

    return write


def _texts(values: list[Any], missing: Any) -> _Made:
    """Writes texts. They are encoded in one piece, joined by a character that none of them has."""
    if missing is not None and missing.any():
        values = ["" if gap else each for each, gap in zip(values, missing.tolist(), strict=True)]
    joined = numpy.frombuffer(_encoded(_BETWEEN.join(values)), numpy.uint8)
    ends = numpy.flatnonzero(joined == ord(_BETWEEN))
    if len(ends) != len(values) - 1:
        return _ENCODED(values, numpy.zeros(len(values), bool) if missing is None else missing)
    offsets = numpy.zeros(len(values) + 1, numpy.int64)
    offsets[1:-1] = ends - numpy.arange(len(ends))
    offsets[-1] = len(joined) - len(ends)
    nulls = 0 if missing is None else int(missing.sum())
    data = joined[joined != ord(_BETWEEN)] if len(ends) else joined
    return Type("utf8"), Out(len(values), nulls, [_bits(missing), _checked(offsets), data]), ()


def _offsets(lengths: Any, count: int) -> Any:
    ends = numpy.zeros(count + 1, numpy.int64)
    numpy.cumsum(numpy.fromiter(lengths, numpy.int64, count), out=ends[1:])
    return _checked(ends)


def _checked(offsets: Any) -> Any:
    """Returns offsets with 32 bits, which Arrow's usual types have."""
    if offsets[-1] > _INT32_MOST:
        raise ValueError("it has more than 2 GiB of values")
    return offsets.astype("<i4")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _plain(kind: str) -> Callable[[list[Any], Any], _Made]:
    dtype = {"int": numpy.int64, "float": numpy.float64, "bool": numpy.bool_}[kind]

    def write(values: list[Any], missing: Any) -> _Made:
        if missing.any():
            values = [
                0 if gap else each for each, gap in zip(values, missing.tolist(), strict=True)
            ]
        return _numbers(numpy.array(values, dtype), missing)

    return write


def _as_dates(values: list[Any], missing: Any) -> _Made:
    epoch = datetime.date(1970, 1, 1).toordinal()
    days = [
        0 if gap else each.toordinal() - epoch
        for each, gap in zip(values, missing.tolist(), strict=True)
    ]
    out = Out(len(days), int(missing.sum()), [_bits(missing), numpy.array(days, "<i4")])
    return Type("date", 32, unit="D"), out, ()


def _as_day_times(values: list[Any], missing: Any) -> _Made:
    made = [
        0 if gap else ((each.hour * 60 + each.minute) * 60 + each.second) * 10**6 + each.microsecond
        for each, gap in zip(values, missing.tolist(), strict=True)
    ]
    out = Out(len(made), int(missing.sum()), [_bits(missing), numpy.array(made, "<i8")])
    return Type("time", 64, unit="us"), out, ()


def _as_decimals(values: list[Any], missing: Any) -> _Made:
    there = [each for each, gap in zip(values, missing.tolist(), strict=True) if not gap]
    parts = [each.as_tuple() for each in there]
    if not all(isinstance(each.exponent, int) for each in parts):
        raise ValueError("it has a decimal that is infinite")
    scale = max([0, *(-each.exponent for each in parts)])
    whole = max(len(each.digits) + each.exponent for each in parts)
    precision = max(1, scale + max(0, whole))
    if precision > _DIGITS_MOST:
        raise ValueError(f"its decimals need {precision} digits, and there are {_DIGITS_MOST}")
    exact = decimal.Context(prec=_DIGITS_MOST + 2)
    data = b"".join(
        (0 if gap else int(each.scaleb(scale, exact))).to_bytes(16, "little", signed=True)
        for each, gap in zip(values, missing.tolist(), strict=True)
    )
    out = Out(len(values), int(missing.sum()), [_bits(missing), data])
    return Type("decimal", 128, precision=precision, scale=scale), out, ()


def _as_lists(values: list[Any], missing: Any) -> _Made:
    rows = [() if gap else each for each, gap in zip(values, missing.tolist(), strict=True)]
    offsets = _offsets(map(len, rows), len(rows))
    types = {getattr(each, "dtype", None) for each in rows if len(each)}
    (only,) = types if len(types) == 1 else (None,)
    if isinstance(only, numpy.dtype) and only.kind in "iufbmM":
        joined = numpy.concatenate([each for each in rows if len(each)])
        kind, made, children = _column(pandas.Series(joined))
    else:
        kind, made, children = _objects(list(chain.from_iterable(rows)))
    out = Out(len(rows), int(missing.sum()), [_bits(missing), offsets], (made,))
    return Type("list"), out, (Field("element", kind, children),)


def _as_structs(values: list[Any], missing: Any) -> _Made:
    rows = [{} if gap else each for each, gap in zip(values, missing.tolist(), strict=True)]
    names = dict.fromkeys(name for row in rows for name in row)
    if not names:
        raise ValueError("it has dicts without a key")
    if not all(isinstance(name, str) for name in names):
        raise TypeError("it has dicts whose keys are not texts")
    fields, children = [], []
    for name in names:
        kind, made, parts = _objects([row.get(name) for row in rows])
        fields.append(Field(name, kind, parts))
        children.append(made)
    out = Out(len(rows), int(missing.sum()), [_bits(missing)], tuple(children))
    return Type("struct"), out, tuple(fields)


_ENCODED = _pieces("utf8", _encoded)
_WRITERS: dict[str, Callable[[list[Any], Any], _Made]] = {
    "utf8": _texts,
    "binary": _pieces("binary", bytes),
    "bool": _plain("bool"),
    "int": _plain("int"),
    "float": _plain("float"),
    "decimal": _as_decimals,
    "timestamp": lambda values, _: _column(pandas.Series(pandas.to_datetime(values))),
    "duration": lambda values, _: _column(pandas.Series(pandas.to_timedelta(values))),
    "date": _as_dates,
    "time": _as_day_times,
    "struct": _as_structs,
    "list": _as_lists,
}
