"""What a sandbox's owner can do with its memory from outside: name a state, and go back to one.

A cell does the same with `%checkpoint`, `%undo`, `%redo` and `%restore`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from wasm_kernel.sandbox.life import Life
from wasm_kernel.sandbox.travel import Journey, checked_name, journey_of

T = TypeVar("T")


@dataclass(frozen=True)
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


class Travelling(abc.ABC):
    """A sandbox whose memory can be brought back. Each call waits until the guest is free."""

    _life: Life

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
        self._between_cells(lambda: self._life.timeline.name(checked_name(name)))

    def checkpoints(self) -> list[Checkpoint]:
        """The states that memory can be brought back to, oldest first."""
        rows = self._between_cells(self._life.timeline.rows)
        return [Checkpoint(**row) for row in rows]

    def undo(self, cells: int = 1) -> list[str]:
        """Take back what the last cells did to variables; files stay as they are.

        Returns:
            The first lines of those cells, oldest first.

        Raises:
            TravelError: there are not so many; nothing was changed.
        """
        return self._go("undo", cells, "")

    def redo(self) -> list[str]:
        """Take back the last undo, as long as no cell ran since.

        Raises:
            TravelError: there is nothing to redo.
        """
        return self._go("redo", 1, "")

    def restore(self, where: str | int) -> None:
        """Bring variables back as they were at a named checkpoint, or after a cell's number.

        Raises:
            TravelError: there is no such state; nothing was changed.
        """
        self._go("restore", 1, str(where))

    def rollback(self) -> None:
        """Bring variables back as they were after the last cell, in a new guest."""
        self._between_cells(lambda: self._life.go(Journey(self._life.timeline.past.head, ())))

    def _go(self, how: str, cells: int, name: str) -> list[str]:
        def travel() -> list[str]:
            journey = journey_of(self._life.timeline.past, how, cells, name)
            self._life.timeline.hold(journey)
            self._life.go(journey)
            return [commit.label for commit in journey.cells]

        return self._between_cells(travel)
