"""A fork on paper: all that another process must know to make one from what is on disk.

A kernel's process is confined to its own session's folder. So it says what is to be made, and
somebody who may write beside that folder makes it, taking every word as a stranger's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import msgspec

from wasm_kernel.errors import ForkError, HistoryError
from wasm_kernel.folders.folders import STATE, SandboxFolders
from wasm_kernel.folders.locks import note_forked
from wasm_kernel.linux.task import QUIET, Cancelled, Task
from wasm_kernel.record import record
from wasm_kernel.state import told
from wasm_kernel.state.copying import (
    OpenThere,
    copy_earlier,
    copy_files,
    names_in,
)
from wasm_kernel.state.index import Origin
from wasm_kernel.state.stored import Position, fork_state

if TYPE_CHECKING:
    from wasm_kernel.state.timeline import Timeline

NOT_SAVED = "the variables of this session are not saved to disk"


@record
class Plan:
    """A fork that is to be made.

    Attributes:
        mark: Where it stands in its history, and what states there are called.
        reseed: Whether it draws other random numbers.
        inventory: The files that were open at any commit.
    """

    mark: Position
    reseed: bool
    inventory: tuple[OpenThere, ...]

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        mark = msgspec.to_builtins(self.mark)
        files = [[file.written, file.known, file.guest, file.path] for file in self.inventory]
        return {"mark": mark, "reseed": self.reseed, "inventory": files}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """From a JSON object, whoever wrote it.

        Raises:
            ForkError: it is no plan.
        """
        try:
            where = msgspec.convert(raw["mark"], Position)
            files = []
            for written, known, guest, path in raw["inventory"]:
                files.append(OpenThere(str(written), str(known), str(guest), str(path)))
            return cls(where, bool(raw["reseed"]), tuple(files))
        except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError) as problem:
            raise ForkError("the plan of it can't be read") from problem


@contextlib.contextmanager
def planned(timeline: Timeline, *, reseed: bool) -> Iterator[Plan]:
    """How a fork is made of what is on disk, while a block lasts in which nothing of it goes.

    Raises:
        ForkError: not everything is on disk.
    """
    history = timeline.history
    if history.waiting or not history.on_disk:
        raise ForkError(NOT_SAVED)
    with history.still() as mark:
        yield Plan(mark, reseed, timeline.inventory())


def carry_out(
    plan: Plan, folders: SandboxFolders, other: SandboxFolders, task: Task = QUIET
) -> dict[str, str]:
    """Make the fork: the session's process waits, and has everything on disk.

    Args:
        plan: What to make.
        folders: The session's folders.
        other: Those of the new workspace, which is empty.
        task: Says when the fork is not wanted any more.

    Returns:
        Files that could not be copied, by path, and why.

    Raises:
        ForkError: it can't be made; discard the folders.
    """
    try:
        left_out = copy_files(folders, other, task)
        names = names_in(other, folders, plan.inventory)
        copy_earlier(folders, other, plan.mark.after, names)
        origin = Origin(plan.mark.after, plan.reseed, names)
        with folders.private.enter(STATE) as own, other.private.enter(STATE, make=True) as state:
            fork_state(own, state, plan.mark, origin)
        note_forked(other.private)
    except Cancelled as problem:
        raise ForkError("it was interrupted") from problem
    except (OSError, HistoryError) as problem:
        raise ForkError(told.why(problem)) from problem
    return left_out
