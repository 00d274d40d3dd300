"""`%fork`: another session that begins where the running cell ends.

Memory can't be committed while a cell runs. So the cell gets the new session's id at once, and the
fork is made when the cell is over. The guest's process is confined to its own session: the broker
makes the new one beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from wasm_kernel import events
from wasm_kernel.errors import ForkError, WasmKernelError, describe
from wasm_kernel.events import SandboxLogger
from wasm_kernel.guests.base import (
    ActionContext,
    CommandContext,
    CommandHandler,
    CommandLine,
    CommandRefused,
)
from wasm_kernel.linux.folders import Folder, plain_name
from wasm_kernel.linux.task import Cancelled, Task
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.metadata import Lineage
from wasm_kernel.sessions.root import SessionsRoot

if TYPE_CHECKING:
    from wasm_kernel.execution.session_guest import SessionGuest

FORK = "fork"
_TAKEN = "there is a session of that id already"
_UNBOUND = "its notebook can't be given to it: {why} `wasm-kernel sessions bind {id}` can"
_SAID = (
    "Session {id} begins with the variables and files that this cell leaves.\n"
    "In a terminal, make a notebook that opens it{cells}, or open a console on it:\n"
    "  wasm-kernel sessions bind {id} fork-{id:.8}.ipynb\n"
    "  wasm-kernel sessions open {id}\n"
    "A program opens it with get_session_sandbox({id!r}, workspace_root=...). The folder is the "
    "one in WasmKernel.workspace_root; if that is not set, `wasm-kernel doctor` names it.\n"
)
_CELLS = " (it gets this notebook's cells, as they were saved last)"
_NOT_MADE = "[wasm-kernel] Session {id} was not made: {why}\n"


class ForkSession(Struct, frozen=True):
    """A request to fork a session, which waits with everything on disk.

    `session_id` is the fork's id; with `reseed`, the fork's guest draws other random numbers. If
    `notebook` is the name of a file beside the parent's notebook, the fork belongs to that
    notebook. Only a front end gives a name: it is removed from a worker's request.
    """

    session_id: str
    reseed: bool
    notebook: str = ""


class ForkSessionReply(Struct, frozen=True):
    """The reply to `ForkSession`: a notice for the cell's author, such as files left out."""

    notice: str = ""


def fork_session(
    root: SessionsRoot,
    lineage: Lineage,
    policy: ExecutionPolicy | None = None,
    folder: Callable[[], Path | None] = lambda: None,
) -> Callable[[ForkSession, Task], ForkSessionReply]:
    """Returns the handler of `ForkSession`.

    It makes copies only of the session that is the parent in `lineage`. All forks of the family
    together have the limits of one session under the policy; with None they have no limits.
    `folder` returns the folder in which the parent's notebook lies, if it is known.
    """
    parent = ids.checked(lineage.parent)

    def fork(request: ForkSession, task: Task) -> ForkSessionReply:
        """Makes the whole session, or nothing."""
        from wasm_kernel.sessions.family import ForkLimits, room_for_fork
        from wasm_kernel.sessions.staging import SessionExists, new_session
        from wasm_kernel.state import texts
        from wasm_kernel.state.fork import INTERRUPTED, fork_stored
        from wasm_kernel.state.history import NOT_SAVED

        name = ids.checked(request.session_id)
        if os.path.lexists(root.path / name):
            raise ForkError(_TAKEN)
        beside = folder() if request.notebook else None
        if request.notebook and beside is None:
            raise ForkError("the kernel does not know in which folder its notebook lies")
        try:
            with Folder.open(root.path) as top, top.enter(parent) as here, ExitStack() as held:
                if (own := root.folders_of(parent, here)) is None:
                    raise ForkError(NOT_SAVED)
                held.callback(own.close)
                if policy is not None:
                    limits = ForkLimits.of(policy)
                    held.enter_context(room_for_fork(root, own, lineage.first, limits, task))
                made = held.enter_context(new_session(root, name, lineage.fields))
                left_out = fork_stored(own, made, reseed=request.reseed, task=task)
        except Cancelled as problem:
            raise ForkError(INTERRUPTED) from problem
        except SessionExists:
            raise ForkError(_TAKEN) from None
        except OSError as problem:
            raise ForkError(describe(problem)) from problem
        if beside is not None:
            _bind(root, name, beside / plain_name(request.notebook))
        return ForkSessionReply(texts.left_out(left_out) if left_out else "")

    return fork


def _bind(root: SessionsRoot, session: str, notebook: Path) -> None:
    """Binds a notebook to a fork; raises `ForkError`."""
    from wasm_kernel.sessions.notebooks import bind

    try:
        bind(root, session, notebook)
    except (OSError, WasmKernelError) as problem:
        raise ForkError(_UNBOUND.format(why=describe(problem), id=session)) from problem


def log_fork(logger: SandboxLogger, root: SessionsRoot, parent: str, fork: str) -> None:
    """Logs that a session was made, as a fork of another one."""
    place = root.path / fork
    logger.log_event(events.SESSION_CREATED, session_id=fork, workspace_path=place)
    logger.log_event(events.SESSION_FORKED, session_id=parent, fork_id=fork)


def fork_command(guest: SessionGuest, *, of_notebook: bool = False) -> CommandHandler:
    """Returns the handler of `%fork`, which returns the new session's id and a text for the author.

    `of_notebook` is True if the session belongs to a notebook whose file is known.
    """

    def fork(line: CommandLine, context: CommandContext) -> Mapping[str, str]:
        words = line.line.split()
        if words not in ([], ["--deterministic"]):
            raise CommandRefused(
                "%fork takes no words but --deterministic, which keeps the state of generators of "
                "random numbers."
            )
        guest.check_fork()
        action = ForkAction(guest, deterministic=bool(words))
        context.after_cell(action)
        said = _SAID.format(id=action.id, cells=_CELLS if of_notebook else "")
        return {"id": action.id, "said": said}

    return fork


class ForkAction:
    """A fork, with a new session's id, made when the cell is over. The guest's thread owns it."""

    def __init__(self, guest: SessionGuest, *, deterministic: bool) -> None:
        self._guest = guest
        self._deterministic = deterministic
        self.id = ids.new()

    def run(self, context: ActionContext) -> None:
        """Makes the fork; tells the cell's author about an error."""
        try:
            request = ForkSession(self.id, reseed=not self._deterministic)
            with self._guest.frozen():
                made = context.broker.call(request, ForkSessionReply, context)
        except WasmKernelError as problem:
            context.say(_NOT_MADE.format(id=self.id, why=problem), "stderr")
            return
        context.say(made.notice, "stderr")

    def cell_lost(self, context: ActionContext) -> None:
        """Makes no fork, as the cell did not come to its end."""
        context.say(_NOT_MADE.format(id=self.id, why="the cell did not come to its end."), "stderr")
