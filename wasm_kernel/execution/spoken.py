"""The words behind the commands that travel in a session's history. Pure."""

from __future__ import annotations

import re
from typing import Any, cast

from msgspec import Struct

from wasm_kernel.errors import TravelError
from wasm_kernel.guests.base import ParsedCell
from wasm_kernel.guests.protocol import Travel

TRAVELS = frozenset({"undo", "redo", "restore", "checkpoint", "checkpoints", "history_tree"})
"""The commands that need no guest: a cell of nothing else is done by the host alone.

So they work whatever an earlier cell did to the interpreter. Such a cell is also none that an undo
would count.
"""

_FILES = re.compile(r"(?:^|\s)--files(?!\S)")
_CELLS_MOST = 2**31
_DIGITS = 9


class Wish(Struct, frozen=True):
    """A journey as its words name it: so many cells, or a name, and whether files go along."""

    cells: int = 1
    name: str = ""
    files: bool = False


def only_travels(cell: ParsedCell) -> list[Travel] | None:
    """Returns what a cell asks for that does nothing but travel; None for any other cell."""
    found = cell.only_commands(TRAVELS)
    return None if found is None else [Travel(cast("Any", one.name), one.line) for one in found]


def wish_of(travel: Travel) -> Wish:
    """What the words behind `%undo`, `%redo` or `%restore` say.

    Raises:
        TravelError: they say nothing that can be done; the text is for the cell's author.
    """
    words, count = _FILES.subn("", travel.line)
    words, files = words.strip(), count > 0
    if travel.how == "undo":
        return Wish(cells=_number(words), files=files)
    if travel.how == "redo" and words:
        raise TravelError("%redo takes nothing but --files")
    if travel.how == "restore" and not (words or files):
        raise TravelError("%restore takes a checkpoint's name or a cell's number")
    return Wish(name=words, files=files)


def _number(words: str) -> int:
    if words and not words.isdecimal():
        raise TravelError("%undo takes the number of cells to undo, such as: %undo 2")
    return int(words or 1) if len(words) <= _DIGITS else _CELLS_MOST
