"""`SessionsRoot`: a folder of sessions, and the links in it that are other names of them.

A link that is named by a UUID is followed if it stays inside the sessions' folder and leads to a
session directly in it. The session's id, its lock and its private folder are those of the target.
Other links are not sessions: the guest of a sandbox whose workspace is the sessions' folder can
make links there, though none named by a UUID, and could lead a user into another user's session.
The link is walked by `resolve`, which never leaves the sessions' folder; the session is then opened
by its own name, without following any link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.hiding import Guards, check_opening
from wasm_kernel.folders.locks import has_users, is_used
from wasm_kernel.folders.private import OpenPrivate, PrivateFolder, PrivateFolders
from wasm_kernel.linux.folders import Folder, real_path
from wasm_kernel.policy import Mount, user_path
from wasm_kernel.sessions import ids, metadata
from wasm_kernel.sessions.metadata import Lineage
from wasm_kernel.sessions.paths import SessionPathError, resolve


class WorkspaceError(WasmKernelError):
    """The error of a session's folder that can't be made, opened or deleted."""


class SessionsRoot:
    """A folder of sessions, which need not exist. Any thread may use it.

    `named` is the caller's path, `path` is the real one. `private_root` is the absolute path of the
    folder for private folders, if the caller gave one. Raises `PlantedLinkError` if a path of the
    caller is relative and leads through a link, `ValueError` for an empty text.
    """

    def __init__(self, named: Path | str, private_root: Path | str | None = None) -> None:
        if named == "":  # often a variable that is not set; it would be the current folder
            raise ValueError("workspace_root is an empty text; name a folder, such as '.'")
        self.named = user_path(named)
        self.path = real_path(self.named)
        self.privates = PrivateFolders(self.path, private_root)
        self.private_root = self.privates.named

    def check(self, session_id: str, mounts: Sequence[Mount] = ()) -> Guards:
        """Checks that a session may be opened here, as `check_opening` does."""
        return check_opening(self.path / session_id, self.path, mounts, self.private_root)

    def place_of(self, session_id: str) -> Path:
        """Returns the path of a session's folder, which may not exist or not be a folder.

        Raises `SessionIdError`, or `OverlapError` if this folder and `private_root` overlap.
        """
        name = ids.checked(session_id)
        if self.private_root is not None:  # the default one holds no sessions
            self.check(name)
        return self.path / self.target_of(name)

    def find(self, session_id: str) -> Path:
        """Returns the path of a session's existing folder; otherwise `FileNotFoundError`."""
        workspace = self.place_of(session_id)
        if workspace.is_symlink() or not workspace.is_dir():
            raise FileNotFoundError(errno.ENOENT, "There is no such session", session_id)
        return workspace

    def folders_of(self, name: str, workspace: Folder) -> SandboxFolders | None:
        """Opens the folders of an existing session; None if it has no private folder.

        The workspace is opened once more.
        """
        if (found := self.privates.find(name, workspace)) is None:
            return None
        real = self.path / name
        return SandboxFolders(real, real, workspace.enter(), found, self.private_root)

    @contextmanager
    def visit(self, session_id: str) -> Iterator[tuple[Folder, PrivateFolder | None]]:
        """Opens a session's folder and its private folder, None if it has none; locks nothing.

        Raises `OSError` if there is no such session.
        """
        with Folder.open(self.path) as top, top.enter(session_id) as workspace:
            private = self.privates.find(session_id, workspace)
            with nullcontext() if private is None else private:
                yield workspace, private

    def private_of(self, session_id: str) -> OpenPrivate:
        """Returns a function that opens a session's private folder, for other processes."""

        @contextmanager
        def open_it() -> Iterator[tuple[Folder, Path]]:
            with self.visit(session_id) as (_, private):
                if private is None:
                    raise FileNotFoundError
                yield private, private.path

        return open_it

    def is_used(self, session_id: str) -> bool:
        """Returns whether a session is in use now; False if it does not exist."""
        with suppress(OSError), self.private_of(session_id)() as (private, _):
            return is_used(private)
        return False

    def has_users(self, session_id: str) -> bool:
        """Returns whether a session has users now, as `locks.has_users`; False if it is gone."""
        with suppress(OSError), self.private_of(session_id)() as (private, _):
            return has_users(private)
        return False

    def lineage_below(self, session_id: str) -> Lineage:
        """Returns the lineage of forks of a session, which need not exist yet."""
        first = session_id
        with suppress(OSError, metadata.MetadataCorrupted), self.visit(session_id) as (own, _):
            known = metadata.read(own, session_id)
            if known is not None and known.lineage is not None:
                first = known.lineage.first
        return Lineage(session_id, first)

    # -- links

    def target_of(self, session_id: str) -> str:
        """Returns the id of the session that an id names, which differs if the id is a link."""
        try:
            with Folder.open(self.path) as folder:
                return self._target_in(folder, session_id)
        except OSError:
            return session_id

    def aliases(self) -> dict[str, list[str]]:
        """Returns the links that lead to sessions, by the sessions' ids."""
        found: dict[str, list[str]] = {}
        with Folder.open(self.path) as folder, os.scandir(folder.fd) as listing:
            for name in sorted(entry.name for entry in listing if entry.is_symlink()):
                if ids.is_id(name) and (target := self._target_in(folder, name)) != name:
                    found.setdefault(target, []).append(name)
        return found

    def _target_in(self, folder: Folder, name: str) -> str:
        here = folder.status(name) if ids.uuid_in(name) else None
        if here is None or not stat.S_ISLNK(here.st_mode):
            return name
        try:
            names = resolve(self.path, [name], name)
        except (OSError, SessionPathError):
            return name  # it leads out of the root, or in a circle
        target = names[0] if len(names) == 1 else ""
        return target if ids.is_id(target) and _is_session(folder, target) else name


def remove_links(root: Folder, names: Sequence[str]) -> None:
    """Removes links whose session was deleted; a name that is not a link any more is left."""
    for name in names:
        with suppress(OSError):
            os.readlink(name, dir_fd=root.fd)
            os.unlink(name, dir_fd=root.fd)


def _is_session(root: Folder, name: str) -> bool:
    there = root.status(name)
    if there is None or not stat.S_ISDIR(there.st_mode):
        return False
    if ids.uuid_in(name):
        return True
    try:
        with root.enter(name) as folder:
            return folder.status(metadata.NAME) is not None
    except OSError:
        return False
