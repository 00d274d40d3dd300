"""Travelling in a session's history: where an undo, a redo or a restore leads. Pure.

A cell asks for it in its own turn, and goes there when the turn is over: what the asking cell did
to memory is gone with the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import TravelError
from wasm_kernel.state.folding import lineage
from wasm_kernel.state.index import Commit

_NAME = re.compile(r"[\w][\w .+-]{0,63}")
NAMES_MOST = 1000
_UNDONE_MOST = 1000
_CELL = re.compile(r"(?:In ?)?\[?(\d{1,10})\]?")


class Past(Struct, frozen=True):
    """What is known of a history when somebody asks to travel.

    Attributes:
        commits: Every commit, by its number.
        head: The number of the one that memory stands at, 0 before the first.
        names: Named checkpoints.
        undone: Commits that were left by an undo, the latest last.
    """

    commits: Mapping[int, Commit]
    head: int
    names: Mapping[str, int]
    undone: tuple[int, ...] = ()

    def after(self, journey: Journey) -> Past:
        """The same when a journey has been made."""
        return replace(self, head=journey.to, undone=journey.undone)


class Journey(Struct, frozen=True):
    """Where memory is to stand, and the cells whose effects come or go with it, oldest first.

    What ran between two cells, such as a widget's callback, comes and goes with the first of them.
    `how` is the wish's name: `undo`, `redo`, `restore`; or nobody's wish, a `rollback`. `files` is
    the commit whose files are to be brought back; None to leave them as they are.
    """

    to: int
    cells: tuple[Commit, ...]
    undone: tuple[int, ...] = ()
    how: str = "rollback"
    files: int | None = None


def is_name(name: str) -> bool:
    """Returns whether this can name a checkpoint."""
    return _NAME.fullmatch(name) is not None


def checked_name(name: str) -> str:
    """`name`, where it can name a checkpoint.

    Raises:
        TravelError: it can't.
    """
    if not is_name(name):
        raise TravelError(
            "A checkpoint's name has 1 to 64 letters, digits, spaces, dots, plus or minus signs; "
            f"{name[:80]!r} was not used."
        )
    return name


def undo(past: Past, cells: int) -> Journey:
    """Before the last so many cells; what ran uncounted after the first of them goes with it.

    Raises:
        TravelError: there are not so many that can be undone.
    """
    if cells < 1:
        raise TravelError("%undo takes the number of cells to undo, at least 1.")
    left: list[Commit] = []
    at = past.head
    while at and len(left) < cells:
        commit = past.commits[at]
        if commit.parent == 0 or commit.cells > 1:
            break  # the beginning, or what older cells were folded into
        if commit.cells:
            left.append(commit)
        at = commit.parent
    if len(left) < cells:
        raise TravelError(f"Only {len(left)} cells can be undone here; nothing was changed.")
    return Journey(at, tuple(reversed(left)), _left(past))


def _left(past: Past) -> tuple[int, ...]:
    """What can be redone when memory has left the head."""
    return (*past.undone, past.head)[-_UNDONE_MOST:]


def redo(past: Past) -> Journey:
    """Where the last undo came from.

    Raises:
        TravelError: nothing was undone, or a cell ran since.
    """
    if not past.undone or past.undone[-1] not in past.commits:
        raise TravelError("There is nothing to redo: %redo works until the next cell after %undo.")
    to = past.undone[-1]
    before = {one.id for one in lineage(past.commits, past.head)}
    back = [one for one in lineage(past.commits, to) if one.id not in before and one.cells]
    return Journey(to, tuple(reversed(back)), past.undone[:-1])


def restore(past: Past, where: str) -> Journey:
    """A named checkpoint, or the state after a cell, by its number.

    Raises:
        TravelError: there is no such checkpoint or cell any more.
    """
    if where in past.names:
        return Journey(past.names[where], (), _left(past))
    number = _CELL.fullmatch(where.strip())
    if number is not None:
        found = [c for c in past.commits.values() if c.cell == int(number[1]) and c.cell]
        if found:
            latest = max(found, key=lambda c: (c.cells > 0, c.id))
            return Journey(latest.id, (), _left(past))
    known = ", ".join(sorted(past.names)) or "none"
    raise TravelError(
        f"There is no checkpoint and no kept cell {where[:80]!r}. Named checkpoints: {known}."
    )


def journey_of(past: Past, how: str, cells: int, name: str, *, files: bool = False) -> Journey:
    """The journey that a wish names: `undo`, `redo` or `restore`, with `files` or without.

    To restore files without naming a state is to have them as they were after the last cell that
    left one.

    Raises:
        TravelError: it leads nowhere.
    """
    if how == "undo":
        journey = undo(past, cells)
    elif how == "redo":
        journey = redo(past)
    elif files and not name:
        return replace(stay(past), how=how)
    else:
        journey = restore(past, name)
    return replace(journey, how=how, files=journey.to if files else None)


def stay(past: Past) -> Journey:
    """Nowhere else; but files as they were after the last cell that left a state."""
    at = past.head
    while at and not past.commits[at].cells:
        at = past.commits[at].parent
    return Journey(past.head, (), past.undone, files=at or past.head)


def listed(past: Past) -> list[dict[str, Any]]:
    """The states that can be gone back to, oldest first, one with several names several times.

    States that no cell left are listed where they have a name, or where memory stands at them; the
    others are passed over as parents, too.
    """
    names: dict[int, list[str]] = {}
    for name, one in past.names.items():
        names.setdefault(one, []).append(name)
    shown = {c.id for c in past.commits.values() if c.cells or c.id in names} | {past.head}
    rows = []
    above = {0: 0}  # by commit, itself or the nearest one above it that is shown
    for commit in sorted(past.commits.values(), key=lambda c: c.id):
        above[commit.id] = commit.id if commit.id in shown else above[commit.parent]
        state = {
            "id": commit.id,
            "parent": above[commit.parent],
            "cell": commit.cell,
            "label": commit.label,
            "time": commit.time,
            "bytes": commit.page_bytes,
            "here": commit.id == past.head,
        }
        if commit.id in shown:
            rows += [{**state, "name": name} for name in names.get(commit.id, [""])]
    return rows
