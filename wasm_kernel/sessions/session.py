"""`Session`: an open session's folders and lock, and the hooks of its sandbox."""

from __future__ import annotations

import errno
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

from wasm_kernel import events
from wasm_kernel.engine.cache import INSTALLED, default_folder
from wasm_kernel.errors import SessionInUse, describe
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.hiding import FolderAncestry, Guards, OverlapError, check
from wasm_kernel.folders.locks import PresenceLock
from wasm_kernel.folders.places import notes
from wasm_kernel.folders.private import Owner, discard, is_seen_whole, lies_in_session
from wasm_kernel.guests.base import runtimes_folder
from wasm_kernel.linux.confinement import KeptPaths
from wasm_kernel.linux.folders import Folder, NotRegular, making_folder, open_named
from wasm_kernel.policy import ExecutionPolicy, Mount
from wasm_kernel.sessions import entries, ids, metadata
from wasm_kernel.sessions.last_use import LastUse
from wasm_kernel.sessions.open_sandboxes import OPEN_SANDBOXES, OpenSandbox
from wasm_kernel.sessions.root import SessionsRoot, WorkspaceError
from wasm_kernel.sessions.staging import SessionExists, staged, write_metadata

_OWNER_ONLY = 0o700
_IN_WORKSPACE = (
    "workspace_root can't lie in the workspace of a session: its cells could then reach the "
    "others. Nothing was opened. Choose another folder."
)
_SEEN = (
    "A sandbox is open on a folder that this one lies in, so its cells may see it. "
    "Nothing was opened. Close that sandbox first, or choose another session id."
)
_UNBLOCK = "Remove that from the session's private folder."
_WRITABLE = "Set workspace_root to a folder that you can write to."
DELETED = (
    "Another program has deleted or moved this session's folder: its variables and files are gone. "
    "Nothing was run. Create another session."
)
"""The error of a session whose folder is gone."""
_ATTEMPTS = 1000  # to open a session that others delete; then something else is wrong


class Session(LastUse):
    """A session that is open in this process, and can't be deleted or pruned as long as it is.

    It is also the hooks of its sandbox: it notes each cell in the metadata and makes sessions for
    forks. The sandbox's thread calls it; any thread may call `closed`.

    Attributes:
        id: The session's id. If the caller's id is a link to a session in the same root, it is the
            id of that session.
        workspace: The session's own folder, which the guest sees as `/app`, below the caller's path
            of the root.
        folders: All folders of the session, open. A sandbox in this process closes them.
        made: True if the session was made by this call.
    """

    def __init__(
        self,
        root: SessionsRoot,
        session_id: str,
        logger: SandboxLogger | None = None,
        *,
        new: bool = False,
        known: bool = False,
        mounts: Sequence[Mount] = (),
        about: Mapping[str, str] = {},
    ) -> None:
        """Opens a session; makes it if it does not exist, accessible to its owner alone.

        With a `new` id, no event says that a session was retrieved. A session that is `known` is
        not made again if it was deleted. A new session gets the fields `about` in its metadata.

        Raises:
            OverlapError: a cell could reach folders that it must not.
            PolicyError: a mount overlaps another folder.
            SessionIdError: `session_id` is not a session id.
            SessionInUse: another process is deleting it.
            WorkspaceError: the folder can't be made, something else is in its place, or it was
                deleted.
            PrivateFolderError: there is no place for its private folder.
        """
        self.id = ids.checked(session_id)
        self.made = False
        self.logger = SandboxLogger.of(logger)
        self._guard = threading.Lock()
        self._closed = False
        self._parent: Session | None = None
        self._lived_in = False
        self._was_there = known
        self._unwritten = ""
        self._about = about
        self.root = root
        guards = root.check(self.id, mounts)
        try:
            with making_folder(root.path, _OWNER_ONLY):
                if lies_in_session(root.path):
                    raise OverlapError(_IN_WORKSPACE)
                self.id = root.target_of(self.id)
                self.workspace = root.named / self.id
                self.folders = self._open_folders(guards)
        except OSError as problem:
            is_blocked = isinstance(problem, NotRegular)
            raise WorkspaceError(
                f"The folder of session {self.id} can't be opened ({describe(problem)}). "
                f"Nothing was changed. {_UNBLOCK if is_blocked else _WRITABLE}"
            ) from problem
        if self.made:
            self._log(events.SESSION_CREATED, workspace_path=self.folders.real)
            if self._unwritten:
                self._warn(events.METADATA_FAILED, self._unwritten)
        else:
            with suppress(OSError):
                entries.remove_left_drafts(self.folders.workspace.fd)
        if not new:
            self._log(events.SESSION_RETRIEVED, workspace_path=self.folders.real)

    def _open_folders(self, guards: Guards) -> SandboxFolders:
        """Opens the session's folders; tries again if others delete the session on the way."""
        with open_named(self.root.named) as root:
            for left in reversed(range(_ATTEMPTS)):
                try:
                    if (folders := self._once(root, guards)) is not None:
                        return folders
                except FileNotFoundError:
                    if not left:
                        raise
        raise OSError(errno.ESTALE, "it is deleted all the time")

    def _once(self, root: Folder, guards: Guards) -> SandboxFolders | None:
        self.made = self._make(root)
        privates = self.root.privates
        with root.enter(self.id) as workspace:
            check("The session's folder", FolderAncestry.of(workspace.fd), guards)
            if not self.made:
                self._check_unseen(workspace)
            with ExitStack() as held:
                found = privates.open(self.id, workspace)
                held.callback(found.close)
                presence = PresenceLock(found)
                held.callback(presence.release)
                if not (root.has(self.id, workspace.fd) and found.in_place):
                    if found.made and found.in_place:
                        discard(found.path)  # its workspace was gone by then
                    return None
                found.made = found.made or self.made
                own, path, real = workspace.enter(), self.workspace, self.root.path / self.id
                held.pop_all()
            return SandboxFolders(path, real, own, found, privates.named, presence=presence)

    def _make(self, root: Folder) -> bool:
        """Makes the session's folder; returns False if it exists.

        The folder gets its name when its private folder and its metadata exist. Until then, no
        guest sees it, and the next removal deletes it if this process is killed.
        """
        if not _is_free(root, self.id):
            return False
        if self._was_there:
            raise WorkspaceError(DELETED)
        try:
            with staged(root, self.id, self.root.privates) as (_, workspace, private):
                private.close()
                self._unwritten = ""
                try:
                    write_metadata(workspace, self.id, self._about)
                except OSError as problem:
                    self._unwritten = describe(problem)
        except SessionExists:
            _is_free(root, self.id)
            return False
        return True

    def _check_unseen(self, workspace: Folder) -> None:
        """Raises `SessionInUse` if a guest outside of sessions sees the session's existing folder.

        A guest on the root itself sees no session with a UUID or metadata. Those above it don't see
        the root, but may have opened a folder that becomes a session only now.
        """
        root = self.root.path
        is_hidden = ids.uuid_in(self.id) or workspace.status(metadata.NAME) is not None
        found = self.root.privates.find(self.id, workspace)
        with found or nullcontext():
            owner = None if found is None else Owner.of(found)
        above = () if owner is not None and owner.session else root.parents
        if is_seen_whole((*above, *(() if is_hidden else (root,)))):
            raise SessionInUse(_SEEN)

    # -- the hooks of its sandbox

    def opened(self, sandbox: OpenSandbox) -> None:
        """Registers the session's sandbox."""
        self._lived_in = True
        OPEN_SANDBOXES.add(self.folders.real, sandbox, self.folders.is_only)
        if self._parent is not None:
            self._parent._log(events.SESSION_FORKED, fork_id=self.id)
            self._parent = None

    def new_session(self) -> Session:
        """Makes a session beside this one, for a fork."""
        # real paths: this process may be in another folder by now
        root = SessionsRoot(self.root.path, self.root.privates.named)
        about = root.lineage_below(self.id).fields
        session = Session(root, ids.new(), self.logger, new=True, about=about)
        session._parent = self
        return session

    def entered(self) -> None:
        """Notes that a `with` block of the sandbox begins."""
        OPEN_SANDBOXES.entered(self.folders.real)

    def left(self) -> bool:
        """Notes that a `with` block ends; returns whether the sandbox must be closed now."""
        return OPEN_SANDBOXES.left(self.folders.real)

    def closed(self) -> None:
        """Closes the session in this process. Safe to call twice."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
        self.leave()
        OPEN_SANDBOXES.remove(self.folders.real)

    def leave(self) -> None:
        """Releases the lock; closes the folders if no sandbox used them. Safe to call twice."""
        self.folders.leave()
        if not self._lived_in:
            self.folders.close()

    @property
    def was_used(self) -> bool:
        """True unless the metadata shows that no cell ever ended in it."""
        found = metadata.read(self.folders.workspace, self.id)
        return found is None or found.updated_at > found.created_at


def _is_free(root: Folder, name: str) -> bool:
    """Returns whether there is no session's folder of that name."""
    # links are not followed: a planted one would lead the guest out of its root
    there = root.status(name)
    if there is not None and not stat.S_ISDIR(there.st_mode):
        raise WorkspaceError(
            f"The session's folder holds something else named {name}. "
            "Nothing was changed. Move it away, or choose another session id."
        )
    return there is None


def session_paths(folders: SandboxFolders, policy: ExecutionPolicy) -> KeptPaths:
    """Returns the paths that a process with one session still uses once it is confined.

    They are the session's own folders, the policy's mounts, and the files of every guest.
    """
    own = (folders.real, folders.private.path)
    writable = [*own, *(mount.host for mount in policy.mounts if mount.writable)]
    read_only = [mount.host for mount in policy.mounts if not mount.writable]
    cached = default_folder()
    with suppress(OSError):  # filling the cache fails later, with a better error
        cached.mkdir(mode=0o700, parents=True, exist_ok=True)  # only existing folders can be kept
    installed = [INSTALLED] if INSTALLED.is_dir() else []
    return KeptPaths(
        writable=tuple(writable),
        readable=(cached, *installed, runtimes_folder(), *_noted_places(), *read_only),
    )


def _noted_places() -> Iterator[Path]:
    """Yields the folders of notes on private folders and sessions, which may lie in mounts."""
    for folder in notes():
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield folder
