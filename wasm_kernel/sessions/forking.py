"""`%fork`: another session that begins where the running cell ends.

Memory can't be kept in the midst of a cell. So the cell is told the new session's id at once, and
the fork is made when it is over. The kernel's process is confined to its own session: the broker
makes the new one, beside it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from wasm_kernel import events
from wasm_kernel.errors import ForkError, WasmKernelError, describe
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.private import PrivateFolders
from wasm_kernel.guests.base import (
    ActionContext,
    CommandContext,
    CommandHandler,
    CommandLine,
    CommandRefused,
)
from wasm_kernel.linux.folders import Folder, real_path
from wasm_kernel.linux.task import Task
from wasm_kernel.sessions import ids

if TYPE_CHECKING:
    from wasm_kernel.execution.sandbox import BaseSandbox
    from wasm_kernel.sessions.session import Session

FORK = "fork"
_TAKEN = "there is a session of that id already"
_SAID = (
    "Session {id} begins with the variables and files that this cell leaves.\n"
    "Open it as a kernel with --WasmKernel.session_id={id}\n"
    "or from Python with get_session_sandbox({id!r}, workspace_root=...), which takes the folder "
    "in WasmKernel.workspace_root.\n"
)
_NOT_MADE = "[wasm-kernel] Session {id} was not made: {why}\n"
_LOST = "the cell did not come to its end."


class ForkSession(Struct, frozen=True):
    """A session is to be forked, which waits with everything on disk.

    Attributes:
        session_id: The id of the new session.
        reseed: Whether the guest there is to draw other random numbers.
    """

    session_id: str
    reseed: bool


class Forked(Struct, frozen=True):
    """The session was made.

    Attributes:
        notice: What the cell's author must be told, such as which files were left out.
        metadata_problem: Why its metadata could not be written; empty if it was.
    """

    notice: str = ""
    metadata_problem: str = ""


def fork_session(
    root: Path, parent: str, private_root: Path | str | None = None
) -> Callable[[ForkSession, Task], Forked]:
    """Returns the handler of `ForkSession`.

    Whoever asks can have copies made of one session, and of nothing else.

    Args:
        root: The sessions' folder.
        parent: The id of the session that is forked.
        private_root: The folder that holds private folders; one of the user's by default.
    """
    ids.checked(parent)

    def fork(request: ForkSession, task: Task) -> Forked:
        """Makes a session. It is made whole, or nothing of it is left.

        Raises:
            WasmKernelError: it can't be made, or is not wanted any more.
        """
        from wasm_kernel.state import texts
        from wasm_kernel.state.fork import fork_stored

        name, place = ids.checked(request.session_id), real_path(root)
        if os.path.lexists(place / name):
            raise ForkError(_TAKEN)
        try:
            with (
                contextlib.closing(_folders_of(place, parent, private_root)) as own,
                _new_session(place, name, private_root) as made,
            ):
                left_out = fork_stored(own, made.folders, reseed=request.reseed, task=task)
        except OSError as problem:
            raise ForkError(describe(problem)) from problem
        return Forked(texts.left_out(left_out) if left_out else "", made.metadata_problem)

    return fork


class _NewSession:
    """The folders of a session that is being made, and what went wrong with its metadata."""

    def __init__(self, folders: SandboxFolders) -> None:
        self.folders = folders
        self.metadata_problem = ""


@contextlib.contextmanager
def _new_session(root: Path, name: str, private_root: Path | str | None) -> Iterator[_NewSession]:
    """A session that gets its name when the block has come to its end.

    Raises:
        ForkError: there is a session of that name by now.
        OSError: it can't be made.
    """
    from wasm_kernel.sessions.staging import inscribe, settle, staged

    with staged(root) as (top, staging):
        made = _NewSession(staging.folders(name, private_root))
        yield made
        try:
            inscribe(staging.workspace.fd, name)
        except OSError as problem:
            made.metadata_problem = problem.strerror or str(problem)
        if not settle(top.fd, staging.aside, name):
            raise ForkError(_TAKEN)


def _folders_of(root: Path, session_id: str, private_root: Path | str | None) -> SandboxFolders:
    """The folders of the session that is forked; its process can't lead them elsewhere."""
    with Folder.open(root) as top:
        workspace, real = top.enter(session_id), root / session_id
    try:
        found = PrivateFolders(root, private_root).open(session_id, workspace)
        return SandboxFolders(real, real, workspace, found, private_root)
    except BaseException:
        workspace.close()
        raise


def fork_command(sandbox: BaseSandbox, session: Session) -> CommandHandler:
    """Returns what `%fork [--deterministic]` does.

    It gives the new session's id, and words for the cell's author.

    Args:
        sandbox: The sandbox of the cells.
        session: Its session.
    """

    def fork(line: CommandLine, context: CommandContext) -> Mapping[str, str]:
        words = line.line.split()
        if words not in ([], ["--deterministic"]):
            raise CommandRefused(
                "%fork takes no words but --deterministic, which keeps the state of generators of "
                "random numbers."
            )
        sandbox.check_fork()
        action = ForkAction(sandbox, session, deterministic=bool(words))
        context.after_cell(action)
        return {"id": action.id, "said": _SAID.format(id=action.id)}

    return fork


class ForkAction:
    """A fork that is made when the cell is over. The guest's thread owns it.

    Attributes:
        id: The new session's id.
    """

    def __init__(self, sandbox: BaseSandbox, session: Session, *, deterministic: bool) -> None:
        self._sandbox = sandbox
        self._session = session
        self._deterministic = deterministic
        self.id = ids.new()

    def run(self, context: ActionContext) -> None:
        """As `AfterCellAction` has it; the cell's author is told what went wrong."""
        try:
            request = ForkSession(self.id, reseed=not self._deterministic)
            with self._sandbox.frozen():
                made = context.broker.call(request, Forked, context)
        except WasmKernelError as problem:
            context.say(_NOT_MADE.format(id=self.id, why=problem), "stderr")
            return
        context.say(made.notice, "stderr")
        self._log(made)

    def _log(self, made: Forked) -> None:
        logger, place = self._session.logger, self._session.root / self.id
        if made.metadata_problem:
            logger.log_event(
                events.METADATA_FAILED, session_id=self.id, error=made.metadata_problem
            )
        logger.log_event(events.SESSION_CREATED, session_id=self.id, workspace_path=place)
        self._session.forked(self.id)

    def cell_lost(self, context: ActionContext) -> None:
        """As `AfterCellAction` has it: there is no end of the cell to begin at."""
        context.say(_NOT_MADE.format(id=self.id, why=_LOST), "stderr")
