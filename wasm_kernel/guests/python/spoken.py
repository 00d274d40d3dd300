"""The magics that travel: their words, and cells that hold nothing but them. Pure.

The guest hands the words of such a magic on as they are. A cell that does nothing else needs no
guest at all: the host reads it and does what it says, whatever an earlier cell did to the
interpreter. It is also no cell that an undo would count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from wasm_kernel.errors import TravelError
from wasm_kernel.guests.protocol import Travel
from wasm_kernel.record import record

_MAGIC = re.compile(r"%(undo|redo|restore|checkpoints?|history_tree)(?:[ \t]+(\S.*))?")
_LINE = re.compile(r"[^\r\n]+")
_GUESTS = re.compile(r"[${]|\?\Z|\\\Z")  # variables to expand, a question, a line that goes on
_FILES = re.compile(r"(?:^|\s)--files(?!\S)")
_TEXT_MOST = 100_000  # characters of a cell that is read while the guest waits
_CELLS_MOST = 2**31
_DIGITS = 9


@record
class Wish:
    """A journey as its words name it: so many cells, or a name, and whether files go along."""

    cells: int = 1
    name: str = ""
    files: bool = False


def only_travels(code: str) -> list[Travel] | None:
    """The magics of a cell that does nothing but travel, name states, or list them; else None.

    A magic with variables in its words is for the guest to expand, and a question for it to answer.
    """
    found = []
    for line in _lines(code) if len(code) <= _TEXT_MOST else ():
        match = _MAGIC.fullmatch(line)
        if match is None or _GUESTS.search(line):
            return None
        found.append(Travel(cast("Any", match[1]), match[2] or ""))
    return found or None


def _lines(code: str) -> Iterator[str]:
    """The lines that say something, one by one: most cells are known by their first."""
    for found in _LINE.finditer(code):
        line = found[0].strip()
        if line and not line.startswith("#"):
            yield line


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
