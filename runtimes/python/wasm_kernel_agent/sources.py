"""The source of a class that a cell defined, for `C??` and `inspect.getsource`.

Python finds the file of a class through its module, and the module of a notebook has none.
"""

from __future__ import annotations

import inspect
import linecache
from typing import Any

_CELL = "<ipython-input-"


def install() -> None:
    """Let `inspect` find the cells of classes."""
    original = inspect.getfile

    def getfile(object: Any) -> str:  # noqa: A002 - as inspect calls it
        try:
            return original(object)
        except (OSError, TypeError):
            cell = cell_of(object) if inspect.isclass(object) else None
            if cell is None:
                raise
            return cell

    places: Any = inspect
    places.getfile = getfile


def cell_of(kind: type) -> str | None:
    """The name of the cell that defines the class; None where it is not known."""
    if kind.__module__ != "__main__":
        return None
    for value in vars(kind).values():
        code = getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)
        if code is not None and code.co_qualname.startswith(f"{kind.__qualname__}."):
            return str(code.co_filename)
    return _by_its_line(kind)


def _by_its_line(kind: type) -> str | None:
    """The latest cell that says `class NAME` where the class begins."""
    number = vars(kind).get("__firstlineno__")
    if not isinstance(number, int):
        return None
    for name in reversed([each for each in linecache.cache if each.startswith(_CELL)]):
        begin = linecache.getlines(name)[number - 1 : number + 9]  # decorators come first
        if any(line.strip().startswith(f"class {kind.__name__}") for line in begin):
            return name
    return None
