"""Shows the types and values of expressions.

It runs natively and in the guest, so it imports nothing of ours.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_FEW = 8  # values at the beginning and at the end; a sum stands for the others


def shown(text: str, names: dict[str, Any]) -> tuple[str, str]:
    """Returns the type and the values of an expression, or its error."""
    try:
        value = eval(text, names)
        return _kind(value), _values(value)
    except Exception as problem:
        return "error", f"{type(problem).__name__}: {problem}"


def _kind(value: Any) -> str:
    """The types that a notebook could show, such as `int64` or `Series int64`."""
    name = type(value).__name__
    if name in ("tuple", "list"):
        return f"{name}({', '.join(map(_kind, value[:_FEW]))})"
    if name == "DataFrame":
        return f"DataFrame {[str(each) for each in value.dtypes]} {value.index.dtype}"
    if hasattr(value, "dtype") and hasattr(value, "index") and not callable(value.index):
        return f"{name} {value.dtype} {value.index.dtype}"
    return f"{name} {value.dtype}" if hasattr(value, "dtype") else name


def _values(value: Any) -> str:
    name = type(value).__name__
    if isinstance(value, type):
        return value.__name__
    if name in ("tuple", "list"):
        return f"({', '.join(map(_values, value[:_FEW]))}) {len(value)}"
    if name == "dict":
        return ", ".join(f"{_values(key)}: {_values(held)}" for key, held in value.items())
    if name in ("DataFrame", "Series") or hasattr(value, "to_numpy"):
        index = "" if not hasattr(value, "index") else f" at {_values(value.index.to_numpy())}"
        return _values(value.to_numpy()) + index
    if hasattr(value, "toarray"):
        return _values(value.toarray())
    if hasattr(value, "tolist") and hasattr(value, "shape") and value.shape != ():
        return _array(value)
    return _number(value)


def _array(array: Any) -> str:
    numbers = array.ravel().tolist()
    while numbers and isinstance(numbers[0], list):  # a matrix
        numbers = numbers[0]
    some = numbers if len(numbers) <= 2 * _FEW else [*numbers[:_FEW], *numbers[-_FEW:]]
    try:
        rest = f" sum {_number(sum(numbers))}" if len(numbers) > 2 * _FEW else ""
    except TypeError:
        rest = ""
    return f"{array.shape} {', '.join(map(_number, some))}{rest}"


def _number(value: Any) -> str:
    """One value, without the last digits of a float."""
    if hasattr(value, "dtype") and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return f"{value:.8g}".replace("-0", "0") if value == 0 else f"{value:.8g}"
    if isinstance(value, complex):
        return f"{value:.8g}"
    return str(value)


def shown_all(expressions: list[str], *cells: str) -> list[tuple[str, str]]:
    """Shows expressions in names that cells define."""
    names: dict[str, Any] = {}
    for cell in cells:
        exec(cell, names)
    return [shown(text, names) for text in expressions]


if __name__ == "__main__":
    expressions, cells = json.load(sys.stdin)
    json.dump(shown_all(expressions, *cells), sys.stdout)
