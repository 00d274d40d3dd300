"""`PendingTravel`: where the running cell wants to go in the session's history, when it is over.

Its commands build on each other: a second `%undo` in one cell begins where the first one leads, and
a checkpoint that is named after it names that state.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from wasm_kernel.errors import FrameError, TravelError
from wasm_kernel.guests.base import CommandLine
from wasm_kernel.guests.protocol import Display, Output
from wasm_kernel.state.session_state import SessionState
from wasm_kernel.state.tables import CheckpointTable, HistoryTree
from wasm_kernel.state.tree import Travel, checked_name

LISTS = frozenset({"checkpoints", "history_tree"})
TRAVELS = LISTS | {"undo", "redo", "restore", "checkpoint"}
"""The commands that need no guest: a cell of nothing else is done by the host alone.

So they work whatever an earlier cell did to the interpreter. An undo does not count such a cell.
"""

_FILES = re.compile(r"(?:^|\s)--files(?!\S)")
_CELLS_MOST = 2**31
_DIGITS = 9
_ASKED_MOST = 1_000  # in one cell: each costs the host some work, and a name a write to disk
_TOO_MANY = f"A cell can ask this {_ASKED_MOST:,} times. Nothing was changed by this one."
_NAMED = "Checkpoint {name!r}: %restore {name} comes back to the variables as they are now."
_RESTORED = "Restored: the variables are {where}."
_DONE = {"undo": "Undone", "redo": "Done again"}


class RunningCell(Protocol):
    """The turn of the cell that asks."""

    def on_text(self, name: str, text: str) -> None:
        """Prints on `stdout` or `stderr`."""

    def show(self, output: Output, size: int) -> None:
        """Shows a rich output of so many bytes; raises `FrameError` if it is over a limit."""


class TravelTarget(Struct, frozen=True):
    """The target that the words of a command name: so many cells back, or a name.

    Attributes:
        cells: How many cells to undo.
        name: A checkpoint's name, or a cell's number.
        files: Whether files go along.
    """

    cells: int = 1
    name: str = ""
    files: bool = False


class PendingTravel:
    """The travel that the running cell has asked for. The guest's thread owns it.

    Attributes:
        target: Where memory is to be afterwards; None to stay.
        here: Names for the state that the cell leaves.
        there: Names for the state that memory goes to.
    """

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self.begin(1)

    def begin(self, number: int) -> None:
        """Stays, until the cell of this number asks for something else."""
        self._number = number
        self._asked = 0
        self.target: Travel | None = None
        self.here: list[str] = []
        self.there: list[str] = []

    def plan(self, line: CommandLine) -> Mapping[str, Any]:
        """Returns the answer to a magic that travels, as `runtimes/PROTOCOL.md` has it.

        Raises:
            TravelError: it can't be done; what was planned before stays.
        """
        self._asked += 1
        if self._asked > _ASKED_MOST:
            raise TravelError(_TOO_MANY)
        if line.name in LISTS:
            return self._listed(line.name)
        if line.name == "checkpoint":
            return {"said": self._plan_name(line.line.strip() or f"In {self._number}")}
        return {"said": self._plan_travel(line)}

    def _listed(self, how: str) -> Mapping[str, Any]:
        rows = self._state.history.tree.rows()
        shown = CheckpointTable(rows) if how == "checkpoints" else HistoryTree(rows)
        return {
            "names": [row["name"] for row in rows if row["name"]],
            "shown": {"text/plain": shown.text(), "text/html": shown.html()},
        }

    def _plan_name(self, name: str) -> str:
        names = self.here if self.target is None else self.there
        self._state.check_names({*self.here, *self.there, checked_name(name)})
        if name not in names:
            names.append(name)
        return _NAMED.format(name=name)

    def _plan_travel(self, line: CommandLine) -> str:
        """Plans to go on from where the plan before it leads; returns what to say of it."""
        target = target_of(line)
        travel = self._state.plan(
            line.name, target.cells, target.name, files=target.files, after=self.target
        )
        self.target = travel
        if line.name == "restore":
            where = f"as at {target.name!r}" if target.name else "as they were before this cell"
            return _RESTORED.format(where=where)
        cells = "; ".join(f"In[{c.cell}] {c.label}" for c in travel.cells)
        return f"{_DONE[line.name]}: {cells or 'nothing that changed a variable'}"

    def run_from_text(self, lines: list[CommandLine], cell: RunningCell) -> str:
        """Plans what a cell says that does nothing but travel, and says so as the guest would.

        Returns:
            Why one was refused, with which the cell ends; empty if none was.
        """
        for line in lines:
            try:
                answer = self.plan(line)
            except TravelError as problem:
                cell.on_text("stderr", f"UsageError: {problem}\n")
                return str(problem)
            if "said" in answer:
                cell.on_text("stdout", f"{answer['said']}\n")
            if "shown" in answer:
                size = sum(map(len, answer["shown"].values()))
                with contextlib.suppress(FrameError):  # over a limit of the cell's, which is told
                    cell.show(Display(answer["shown"]), size)
        return ""

    def name_here(self, cell: RunningCell) -> None:
        """Gives the state that the cell has left the names that the cell asked for."""
        self._name(self.here, cell)

    def name_there(self, cell: RunningCell) -> None:
        """Gives the state that memory has gone to its names."""
        self._name(self.there, cell)

    def _name(self, names: list[str], cell: RunningCell) -> None:
        if names:
            try:
                self._state.name(*names)
            except TravelError as problem:  # the state is larger than the one that was asked about
                cell.on_text("stderr", f"[wasm-kernel] {problem}\n")


def target_of(line: CommandLine) -> TravelTarget:
    """Returns what the words behind `%undo`, `%redo` or `%restore` say.

    Raises:
        TravelError: they say nothing that can be done; the text is for the cell's author.
    """
    words, count = _FILES.subn("", line.line)
    words, files = words.strip(), count > 0
    if line.name == "undo":
        return TravelTarget(cells=_number(words), files=files)
    if line.name == "redo" and words:
        raise TravelError("%redo takes nothing but --files")
    if line.name == "restore" and not (words or files):
        raise TravelError("%restore takes a checkpoint's name or a cell's number")
    return TravelTarget(name=words, files=files)


def _number(words: str) -> int:
    if words and not words.isdecimal():
        raise TravelError("%undo takes the number of cells to undo, such as: %undo 2")
    return int(words or 1) if len(words) <= _DIGITS else _CELLS_MOST
