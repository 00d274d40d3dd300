"""What a sandbox's owner can do with its memory from outside: name a state, and go back to one.

A cell does the same with `%checkpoint`, `%undo`, `%redo` and `%restore`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import field
from typing import TypeVar

from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.record import record
from wasm_kernel.state import told
from wasm_kernel.state.file_restore import RestoredFiles
from wasm_kernel.state.travel import Journey, checked_name, journey_of, stay

T = TypeVar("T")


@record
class Checkpoint:
    """A state that memory can be brought back to.

    Attributes:
        name: Its name, empty where nobody gave it one.
        cell: The execution count of the cell it stands after, 0 for the beginning.
        label: That cell's first line.
        time: When it was taken, in seconds since 1970.
        bytes: What it takes, in bytes.
        here: Whether memory stands at it now.
        id: Its number in the history.
        parent: The number of the state that its cell began at, 0 for the beginning. Going back and
            running other cells makes branches.
    """

    name: str
    cell: int
    label: str
    time: float
    bytes: int
    here: bool
    id: int
    parent: int


@record
class Travelled:
    """What came of going back, or of coming back from there.

    Attributes:
        cells: The first lines of the cells whose effects are gone, or are there again, oldest
            first.
        files_back: Paths of files in the workspace that are there again, or hold what they held.
        files_removed: Paths of files that had not been there.
        files_missed: Paths of files that could not be brought back, and why.
    """

    cells: tuple[str, ...] = ()
    files_back: tuple[str, ...] = ()
    files_removed: tuple[str, ...] = ()
    files_missed: Mapping[str, str] = field(default_factory=dict)


class Travelling(abc.ABC):
    """A sandbox whose memory can be brought back. Each call waits until the guest is free."""

    _runner: GuestRunner

    @abc.abstractmethod
    def _later(self, job: Callable[[], T]) -> Future[T]:
        """Run a job on the guest's thread, once the guest is there and no cell runs."""

    def _between_cells(self, job: Callable[[], T]) -> T:
        return self._later(job).result()

    def checkpoint(self, name: str) -> None:
        """Name the state that memory is in now; it is kept as long as the session.

        Raises:
            TravelError: the name is none.
        """
        self._between_cells(lambda: self._runner.timeline.name(checked_name(name)))

    def checkpoints(self) -> list[Checkpoint]:
        """The states that memory can be brought back to, oldest first."""
        rows = self._between_cells(self._runner.timeline.rows)
        return [Checkpoint(**row) for row in rows]

    def undo(self, cells: int = 1, *, files: bool = False) -> Travelled:
        """Take back what the last cells did to variables.

        Args:
            cells: How many.
            files: Whether the files in the workspace are to be as they were, too.

        Raises:
            TravelError: there are not so many; nothing was changed.
        """
        return self._go("undo", cells, "", files)

    def redo(self, *, files: bool = False) -> Travelled:
        """Take back the last undo or restore, as long as no cell ran since.

        Args:
            files: Whether the files in the workspace are to be as they were before it, too.

        Raises:
            TravelError: there is nothing to redo.
        """
        return self._go("redo", 1, "", files)

    def restore(self, where: str | int, *, files: bool = False) -> Travelled:
        """Bring variables back as they were at a named checkpoint, or after a cell's number.

        Args:
            where: The name or the number.
            files: Whether the files in the workspace are to be as they were, too.

        Raises:
            TravelError: there is no such state; nothing was changed.
        """
        return self._go("restore", 1, str(where), files)

    def rollback(self, *, files: bool = False) -> Travelled:
        """Bring variables back as they were after the last cell, in a new guest.

        Args:
            files: Whether the files in the workspace are to be as they were, too: those that a cell
                that failed, or somebody else, has changed since.
        """

        def back() -> Journey:
            past = self._runner.timeline.past
            return stay(past) if files else Journey(past.head, (), past.undone)

        return self._between_cells(lambda: self._travel(back()))

    def _go(self, how: str, cells: int, name: str, files: bool) -> Travelled:
        def travel() -> Travelled:
            past = self._runner.timeline.past
            return self._travel(journey_of(past, how, cells, name, files=files))

        return self._between_cells(travel)

    def _travel(self, journey: Journey) -> Travelled:
        timeline = self._runner.timeline
        if journey.files is not None:
            timeline.files.check(journey.files)
        timeline.hold(journey)
        brought = self._runner.travel(journey) or RestoredFiles()
        return Travelled(
            tuple(commit.label for commit in journey.cells),
            tuple(brought.back),
            tuple(brought.removed),
            told.reasons(brought),
        )
