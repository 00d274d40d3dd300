"""Plain data: the values that pass between a program's functions and its cells.

They are the values of JSON and some more, which travel as objects with the key `$`, as
`runtimes/PROTOCOL.md` describes. Bytes are behind the JSON. Nothing is ever pickled.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from wasm_kernel.service.arrow_tables import Json, NotPlainError, Take, stream_of, table_of_records

_MARK = "$"
_EXACT_MOST = 2**53  # a larger number would lose digits in JavaScript
_DIGITS_MOST = 4000  # digits of a whole number: reading takes time that grows with their square


Tables = Callable[[Json, Take], Any]
"""Makes a table from its description."""


class SentTable(bytes):
    """A table for a cell, as a stream of Arrow IPC."""


_SENT = (bytes, bytearray, memoryview, SentTable)


def encoded(value: Any, raw: bytearray) -> Json:
    """Returns a value as JSON for the guest; adds its bytes to `raw`.

    Dataclasses, structs and pydantic's models become objects; sets and tuples become arrays; times,
    decimals and UUIDs become texts; tables become DataFrames. Raises `NotPlainError` if it holds
    something else.
    """
    try:
        plain = msgspec.to_builtins(value, builtin_types=_SENT, enc_hook=_converted)
        return _marked(plain, raw)
    except RecursionError as problem:
        raise NotPlainError("it is nested too deeply, or holds itself") from problem
    except (TypeError, ValueError) as problem:
        raise NotPlainError(str(problem)) from problem


def _converted(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump()
    for base in (str, int, float):  # a value of a subclass
        if isinstance(value, base):
            return base(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a number of numpy's
        return value.item()
    if hasattr(type(value), "__arrow_c_stream__"):  # a table of pandas, polars, pyarrow and others
        return SentTable(stream_of(value))
    raise NotPlainError(f"{type(value).__name__} is not plain data")


def _marked(value: Any, raw: bytearray) -> Json:
    match value:
        case list() | tuple():
            return [_marked(each, raw) for each in value]
        case dict():
            return _object(value, raw)
        case bool() | None | str():
            return value
        case int():
            return value if abs(value) <= _EXACT_MOST else {_MARK: "int", "value": str(value)}
        case float():
            return value if math.isfinite(value) else {_MARK: "float", "value": str(value)}
    start = len(raw)
    raw += value
    kind = "table" if isinstance(value, SentTable) else "bytes"
    return {_MARK: kind, "value": [start, len(raw) - start]}


def _object(value: dict[Any, Any], raw: bytearray) -> Json:
    plain = {}
    for key, each in value.items():
        if not isinstance(key, str):
            raise NotPlainError(f"the keys of a dict are texts, not {type(key).__name__}")
        plain[key] = _marked(each, raw)
    return plain if _MARK not in plain else {_MARK: "object", "value": [*plain.items()]}


class GuestData:
    """The values in a message of a guest, which may be anything, with its `raw` bytes."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._left = raw, len(raw)

    def decoded(self, value: Json, tables: Tables) -> Any:
        """Returns a value, with tables that `tables` makes of their descriptions.

        Raises `NotPlainError` if it is not what an honest guest sends.
        """
        if isinstance(value, list):
            return [self.decoded(each, tables) for each in value]
        if not isinstance(value, dict):
            return value
        if _MARK not in value:
            return {key: self.decoded(each, tables) for key, each in value.items()}
        try:
            return self._unmarked(value[_MARK], value["value"], tables)
        except NotPlainError:
            raise
        except (KeyError, TypeError, ValueError) as problem:
            raise NotPlainError("an argument is not in the form that cells send") from problem

    def _unmarked(self, kind: Json, content: Json, tables: Tables) -> Any:
        match kind, content:
            case "table", _:
                return tables(content, self._taken)
            case "object", list():
                return {str(key): self.decoded(each, tables) for key, each in content}
            case "bytes", [int(start), int(length)]:
                return self._taken(start, length)
            case "int", str() if len(content) <= _DIGITS_MOST:
                return int(content)
            case "float", "nan" | "inf" | "-inf":
                return float(content)
        raise ValueError

    def _taken(self, start: int, length: int) -> bytes:
        """Returns some of the message's bytes; in all, no more than were sent."""
        self._left -= length
        if not 0 <= start <= start + length <= len(self._raw) or self._left < 0:
            raise ValueError
        return self._raw[start : start + length]


def converted(value: Any, kind: Any) -> Any:
    """Returns a value as an annotation's type: a dataclass, a model, a time, a number.

    Raises `TypeError` or `ValueError`, which says where, if it is not of that type.
    """
    return msgspec.convert(value, kind, dec_hook=_model, builtin_types=(bytes,))


def _model(kind: type, value: Any) -> Any:
    if _is_model(kind):
        return kind.model_validate(value)  # type: ignore[attr-defined]
    if isinstance(value, kind):
        return value
    if isinstance(value, list):
        return table_of_records(value, kind)
    raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def check_type(kind: Any) -> bool:
    """Returns whether a type has tables of pyarrow; `TypeError` if plain data can't become it."""
    tables: set[tuple[str, str]] = set()

    def custom(found: type) -> dict[str, Any]:
        name = found.__module__.partition(".")[0], found.__name__
        if name in _TABLES:
            tables.add(name)
        elif not _is_model(found):
            raise TypeError(f"{found.__name__} is not a type of plain data")
        return {"type": "object"}

    msgspec.json.schema(kind, schema_hook=custom)
    return _ARROW in tables


_ARROW = ("pyarrow", "Table")
_TABLES = {_ARROW, ("pandas", "DataFrame")}


def _is_model(kind: type) -> bool:
    pydantic = sys.modules.get("pydantic")  # a program with a model has imported it
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
