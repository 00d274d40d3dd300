"""`Session`: an open session's folder, and what it does for the sandbox that lives there."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wasm_kernel import events
from wasm_kernel.engine.folders import walk
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import SandboxLogger, heard_by
from wasm_kernel.sandbox.keeper import Home
from wasm_kernel.sandbox.private import PRIVATE
from wasm_kernel.sessions import drafts, ids, metadata
from wasm_kernel.sessions.live import LIVE
from wasm_kernel.sessions.metadata import MetadataCorrupted
from wasm_kernel.sessions.presence import Presence

if TYPE_CHECKING:
    from wasm_kernel.sandbox.sandbox import BaseSandbox

_OWNER_ONLY = 0o700


class WorkspaceError(WasmKernelError):
    """A session's folder could not be made or opened."""


class Session:
    """A session that is open in this process: nobody deletes or prunes it meanwhile.

    It is the keeper of its sandbox: it notes each cell in the metadata and finds homes for forks.
    The sandbox's thread calls it; `closed` may come from any.

    Attributes:
        id: The session's id.
        root: The sessions' folder.
        workspace: The session's own folder, the one that the guest sees as `/app`.
        made: Whether it was made just now.
        logger: Hears of it.
    """

    def __init__(
        self,
        root: Path,
        session_id: str,
        logger: SandboxLogger | None = None,
        *,
        new: bool = False,
    ) -> None:
        """Open a session, and make it where it is missing, for its owner alone.

        Args:
            root: The sessions' folder.
            session_id: The session's id.
            logger: Hears of it; silent by default.
            new: Whether the id was made for it, so that there is nothing to find.

        Raises:
            SessionIdError: `session_id` is none.
            SessionInUse: another process is deleting it.
            WorkspaceError: the folder can't be made, or something else is in its place.
        """
        self.id = ids.checked(session_id)
        self.made = False
        self.logger = heard_by(logger)
        self._guard = threading.Lock()
        self._closed = False
        self._homes: dict[str, Session] = {}
        self._parent: Session | None = None
        self._told = ""
        try:
            root.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
            self.root = root.resolve()
            self.workspace = self.root / self.id
            self._presence = Presence.enter(self._folders)
        except OSError as problem:
            raise WorkspaceError(
                f"The folder of session {self.id} can't be opened "
                f"({os.strerror(problem.errno or 0)}). Nothing was changed. "
                "Set workspace_root to a folder that you can write to."
            ) from problem
        if self.made:
            self._begin()
        else:
            self._tidy()
        if not new:
            self._log(events.SESSION_RETRIEVED, workspace_path=self.workspace)

    def _folders(self) -> Path:
        self.made = _own_folder(self.workspace) or self.made
        _own_folder(self.workspace / PRIVATE)
        return self.workspace / PRIVATE

    def _begin(self) -> None:
        self._log(events.SESSION_CREATED, workspace_path=self.workspace)
        try:
            metadata.create(self.workspace, self.id)
        except OSError as problem:
            self._warn(events.METADATA_FAILED, _why(problem))

    def _tidy(self) -> None:
        with suppress(OSError), walk.opened(self.workspace / PRIVATE) as private:
            drafts.sweep(private)

    # -- the keeper of its sandbox

    def opened(self, sandbox: BaseSandbox) -> None:
        """A sandbox lives here from now on."""
        LIVE.add(self.workspace, sandbox, self._presence.is_only)
        if self._parent is not None:
            self._parent.forked(self.id)
            self._parent = None
        sandbox.facts.add(self._times)

    def heard_by(self, logger: SandboxLogger) -> None:
        """Another logger hears of the session from now on."""
        self.logger = logger

    def executed(self) -> None:
        """A cell has ended, in whatever way: the metadata says so, if the session has any."""
        try:
            metadata.touch(self.workspace, self.id)
        except MetadataCorrupted as problem:
            self._warn(events.METADATA_CORRUPTED, str(problem))
        except OSError as problem:
            self._warn(events.METADATA_FAILED, _why(problem))
        else:
            self._told = ""

    def new_home(self) -> Home:
        """A new session beside this one, for a fork.

        Raises:
            WasmKernelError: it can't be made.
        """
        session = Session(self.root, ids.new(), self.logger, new=True)
        with self._guard:
            self._homes[session.id] = session
        return Home(session.workspace, session.id)

    def keeper_of(self, home: Home) -> Session:
        """The session that a fork is to live in."""
        with self._guard:
            found = self._homes.pop(home.session_id, None)
        if found is None:
            return Session(home.workspace.parent, home.session_id, self.logger)
        found._parent = self
        return found

    def forked(self, fork_id: str) -> None:
        """Another session has been forked off this one."""
        self._log(events.SESSION_FORKED, fork_id=fork_id)

    def entered(self) -> None:
        """A `with` block of the sandbox begins."""
        LIVE.entered(self.workspace)

    def left(self) -> bool:
        """A `with` block of the sandbox ends; whether the sandbox is to be closed."""
        return LIVE.left(self.workspace)

    def closed(self) -> None:
        """The session is not open here any more; idempotent."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            homes = list(self._homes.values())
        for home in homes:
            home.closed()
        self._presence.leave()
        LIVE.remove(self.workspace)

    def leave(self) -> None:
        """Be present no longer, where no sandbox ever lived here; idempotent."""
        self._presence.leave()

    # -- what it tells

    def _times(self) -> dict[str, str]:
        """When the session was made, and when a cell last ran, for people."""
        with walk.opened(self.workspace) as folder:
            found = metadata.read(folder, self.id)
        if found is None:
            return {}
        return {
            "created_at": found.created_at.isoformat(timespec="seconds"),
            "updated_at": found.updated_at.isoformat(timespec="seconds"),
        }

    def _log(self, event: str, **fields: object) -> None:
        self.logger.log_event(event, session_id=self.id, **fields)

    def _warn(self, event: str, error: str) -> None:
        """Once for as long as the same is wrong."""
        if self._told != event + error:
            self._told = event + error
            self._log(event, error=error)


def _own_folder(folder: Path) -> bool:
    """Make a folder; False where it is there."""
    try:
        folder.mkdir(mode=_OWNER_ONLY)
    except FileExistsError:
        # lstat, as a link planted here would lead the guest out of its root
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise WorkspaceError(
                f"The session's folder holds something else named {folder.name}. "
                "Nothing was changed. Move it away, or choose another session id."
            ) from None
        return False
    return True


def _why(problem: OSError) -> str:
    """A problem in words, without a path of the host."""
    return problem.strerror or str(problem)
