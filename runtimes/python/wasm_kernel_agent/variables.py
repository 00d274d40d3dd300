"""The variables of a memory, for a question to a guest that ends with the answer.

No code of a cell runs for it: no `__repr__`, no property, no metaclass. It looks at values through
builtin types alone, and objects of all others through the references that the garbage collector
knows.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import types
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

_NAMES_MOST = 300  # the newest variables
_OBJECTS_MOST = 3_000  # objects that are looked at, of all variables
_OBJECTS_LEAST = 20  # objects of each variable
_STEPS = (20, 100, 500)  # objects after which a trace is taken
_CHARACTERS_MOST = 60
_BYTES_MOST = 1024 * 1024  # bytes of a text or an array; an n-th of that for the n-th object
_BYTES_LEAST = 64
_BITS_MOST = 256
_ATTRIBUTES_MOST = 50  # attributes of a table
_TOLD, _TOLD_MOST = 200, 100  # characters of a name or text, names
_PACKAGES = "*.dist-info"
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: such a type may have been made by a cell

_name_of = type.__dict__["__name__"].__get__
_flags_of = type.__dict__["__flags__"].__get__
_numbers = frozenset({type(None), bool, int, float, complex})
_texts = frozenset({str, bytes})
_containers = frozenset({list, tuple, set, frozenset, dict, deque})
_tables = frozenset({"DataFrame", "Series"})
_apart = frozenset({type, types.ModuleType, types.FunctionType, types.FrameType, types.CodeType})


def answer(shell: Any, _: dict[str, Any]) -> dict[str, Any]:
    """Returns the newest variables, oldest first; `more` says whether there are others."""
    gc.disable()  # a collection might run a `__del__`; this memory is not used any more
    space, hidden = shell.user_ns, shell.user_ns_hidden
    shown = (name for name in reversed(space) if _is_shown(name, hidden))
    names = [*itertools.islice(shown, _NAMES_MOST)]
    most = max(_OBJECTS_LEAST, _OBJECTS_MOST // max(1, len(names)))
    variables = [_described(name, space[name], most) for name in reversed(names)]
    return {"status": "ok", "variables": variables, "more": next(shown, None) is not None}


def overview(shell: Any) -> str:
    """Returns variables, newest first, modules and packages, as JSON inside a quoted text.

    A client asks for it after each cell. No code of a cell runs.
    """
    shown = [(name, shell.user_ns[name]) for name in reversed(shell.user_ns)]
    shown = [pair for pair in shown if _is_shown(pair[0], shell.user_ns_hidden)]
    modules = [_as_imported(*pair) for pair in shown if type(pair[1]) is types.ModuleType]
    found = [
        (name[:_TOLD], _name_of(type(value))[:_TOLD], _text(value)[:_TOLD])
        for name, value in shown
        if type(value) is not types.ModuleType
    ]
    site = Path(next((path for path in sys.path if path.endswith("/site-packages")), ""))
    listed = itertools.islice(site.glob(_PACKAGES), _TOLD_MOST)
    told = {"variables": found[:_TOLD_MOST], "count": len(found), "modules": modules[:_TOLD_MOST]}
    return quote(json.dumps(told | {"packages": sorted(each.stem[:_TOLD] for each in listed)}))


def _as_imported(name: str, module: types.ModuleType) -> str:
    real = module.__dict__.get("__name__", name)
    return name[:_TOLD] if real == name else f"{real} as {name}"[:_TOLD]


def _is_shown(name: Any, hidden: Any) -> bool:
    return type(name) is str and not name.startswith("_") and name not in hidden


def _described(name: str, value: Any, most: int) -> dict[str, Any]:
    size, traces, is_whole = _measured(value, most)
    return {
        "name": name[:200],
        "type": _name_of(type(value))[:200],
        "text": _text(value),
        "size": size,
        "traces": traces,
        "whole": is_whole,
    }


def _text(value: Any) -> str:
    """Returns a short text of a value of a builtin type, an array or a table; otherwise none."""
    kind = type(value)
    if kind is int and value.bit_length() > _BITS_MOST:
        return f"{value.bit_length():,} bits"
    if kind in _numbers:
        return repr(value)
    if kind in _texts:
        more = "..." if len(value) > _CHARACTERS_MOST else ""
        return repr(value[:_CHARACTERS_MOST]) + more
    if kind in _containers:
        return f"{len(value):,} item{'' if len(value) == 1 else 's'}"
    if _is_array(kind):
        return " x ".join(map(str, kind.shape.__get__(value)))
    return _table_shape(value) if _name_of(kind) in _tables else ""


def _table_shape(value: Any) -> str:
    """Returns the shape of a table of pandas, by its references alone; empty if that fails."""
    managers = (
        each for each in _attributes(value) if _name_of(type(each)).endswith("BlockManager")
    )
    lists = (each for each in _attributes(next(managers, None)) if type(each) is list)
    lengths = [_length_of(axis) for axis in reversed(next(lists, [])[:2])]
    return " x ".join(map(str, lengths)) if None not in lengths else ""


def _length_of(index: Any, depth: int = 2) -> int | None:
    """Returns the length of an index's range, or of its array, which may lie deeper in it."""
    attributes = [*_attributes(index)]
    for each in attributes:
        if type(each) is range:
            return len(each)
        if _is_array(type(each)):
            shape: tuple[int, ...] = type(each).shape.__get__(each)
            return shape[0] if len(shape) == 1 else None
    arrays = (each for each in attributes if depth and _name_of(type(each)).endswith("Array"))
    return next((_length_of(each, depth - 1) for each in arrays), None)


def _attributes(value: Any) -> Iterator[Any]:
    """Yields some objects to which an object refers, also through its dictionary."""
    found = gc.get_referents(value)[:_ATTRIBUTES_MOST]
    yield from found
    for each in found:
        if type(each) is dict:
            yield from itertools.islice(each.values(), _ATTRIBUTES_MOST)


def _is_array(kind: type) -> bool:
    """Returns whether a type is numpy's own array, which no cell can have changed."""
    return _name_of(kind) == "ndarray" and not _flags_of(kind) & _HEAP_TYPE


def _measured(value: Any, most: int) -> tuple[int, list[int], bool]:
    """Returns the bytes of an object with its content, and numbers that change with the content.

    At most `most` objects are looked at, breadth first; the last value is True if these are all. A
    number is taken after each of `_STEPS`, so that measurements with different limits can be
    compared.
    """
    size, trace, traces, seen, queue = 0, 0, list[int](), set[int](), [value]
    for count, each in enumerate(queue):  # the queue grows in this loop
        if count in _STEPS:
            traces.append(trace)
        if count == most:
            return size, traces, False
        kind = type(each)
        if id(each) not in seen:
            seen.add(id(each))
            size += _size(each, kind)
            trace = hash((trace, _mark(each, kind, max(_BYTES_LEAST, _BYTES_MOST // (count + 1)))))
            if kind not in _apart and not issubclass(kind, type):
                queue += itertools.islice(held_by(each, kind), most + 1 - len(queue))
    return size, [*traces, trace], True


def _size(value: Any, kind: type) -> int:
    if _is_array(kind):
        return int(kind.nbytes.__get__(value))  # type: ignore[attr-defined]
    if _flags_of(kind) & _HEAP_TYPE:  # a type of a cell may have its own `__sizeof__`
        return object.__sizeof__(value)
    return sys.getsizeof(value, 0)


def _mark(value: Any, kind: type, most: int) -> Any:
    """Returns a mark of a value without the objects in it: other content has another mark.

    At most `most` bytes of a text or an array count, half of them at its end.
    """
    if kind is int:
        return value if value.bit_length() < most else value.bit_length()
    if kind in _numbers:
        return repr(value)
    if kind in _texts:
        return len(value), value[: most // 2], value[-(most // 2) :]
    if kind in _containers:
        return len(value)
    if _is_array(kind):
        return _array_mark(value, most // 2)
    return id(value)


def _array_mark(value: Any, most: int) -> Any:
    try:
        data = memoryview(value).cast("B")
    except (TypeError, ValueError, BufferError):  # such as a slice with steps, or of objects
        return id(value)
    return len(data), zlib.crc32(data[:most]), zlib.crc32(data[-most:])


def held_by(value: Any, kind: type) -> Any:
    """Returns the objects that an object of a type holds, as an iterable."""
    if kind is dict:
        return itertools.chain.from_iterable(value.items())
    if kind in _containers:
        return value
    if kind in _numbers or kind in _texts or _is_array(kind):
        return ()
    return gc.get_referents(value)
