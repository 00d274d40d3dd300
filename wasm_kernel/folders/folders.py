"""`SandboxFolders`: the folders of one sandbox, opened once and held for its whole life.

All work in them goes through these descriptors, even if other folders take their paths.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import HostFailed, PolicyError
from wasm_kernel.folders.hiding import (
    FolderAncestry,
    Guards,
    MetadataAndPlacesHidden,
    PlacesHidden,
    SessionFoldersHidden,
    check,
    check_mounts,
    guarded,
)
from wasm_kernel.folders.locks import PresenceLock
from wasm_kernel.folders.private import PrivateFolder, PrivateFolders, discard
from wasm_kernel.linux import trees
from wasm_kernel.linux.folders import (
    Folder,
    Inode,
    PlantedLinkError,
    making_folder,
    open_named,
    real_path,
    undoing,
)
from wasm_kernel.policy import Mount
from wasm_kernel.wasi_files.preopens import APP, Preopen

TMP = "/tmp"  # noqa: S108 - a guest path
SCRATCH, PACKAGES, SITE = "tmp", "packages", "site-packages"
STATE, FETCHED, KEPT, UNLINKED = "state", "fetched", "files", "loose"
EXCHANGES = "exchanges"
"""The folder in a private folder that holds the recorded requests of cells, with their answers."""

MISSED = "missed"
"""The file in a private folder whose time says when its workspace was first missed."""

FAR = (
    "[wasm-kernel] This workspace lies in another file system than the folder for private state, "
    "so earlier versions of its files are copied, which takes time and room. Name a folder beside "
    "the workspaces with private_root to change that.\n"
)
_THROUGH_LINK = (
    "names a folder for {guest} by a relative path that leads through a link, which the maker of "
    "the current folder may have put there; if it is yours, name the folder that it leads to by "
    "its absolute path"
)
_REPLACED = (
    "can't open {guest}: another program has put another folder in its place; close this sandbox "
    "and make another one, if that is right"
)
_GONE = "another program has moved or deleted its workspace or its private folder"
_FORGETFUL = (
    "[wasm-kernel] This file system can't tell a folder from another that takes its place, so "
    "variables end with this kernel. Files stay.\n"
)


class OpenedFolders(Struct, frozen=True):
    """The facts that another process needs to open a sandbox's folders.

    Paths are real paths; `identities` are the device and inode numbers of the two folders. If it
    `is_left`, only the worker of an ended process still used the workspace. The rest is as in
    `SandboxFolders` and `PrivateFolder`.
    """

    workspace: str
    private: str
    identities: tuple[Inode, Inode]
    private_root: str | None
    outside_sessions: bool
    needs_copies: bool
    survives_restart: bool
    is_left: bool = False


class SandboxFolders:
    """The folders of one sandbox; close it. Any thread may use it, and one closes it.

    Attributes:
        path: The workspace's path that the user knows; `real` is its real path when it was opened.
        workspace: The folder that the guest sees as `/app`; `app` is the guest's view of it, or of
            another session's workspace after `share`.
        private: The folder that no guest sees. No other user can change the folders on its path.
        scratch: The guest's `/tmp`, in the private folder, as are `packages`, which `%pip`
            installed.
        private_root: The folder for private folders that the user named, if any.
        outside_sessions: Whether the workspace belongs to no session; it may hold some.
        notices: Texts to show to the user once.
        reopened: Whether a notebook's new kernel reopened it; then a notice lists the kept
            variables and files.
        verified: The stamps of the state's contents whose digest was checked, by name. With those
            of an earlier process of this session, the next one need not read all contents.
        owned: Whether this process's kernel has the session's `OwnerLock`.
        notebook: The guest's view of the notebook's folder, with the workspace over it; None if
            the guest is not shown it.
    """

    def __init__(
        self,
        path: Path,
        real: Path,
        workspace: Folder,
        found: PrivateFolder,
        private_root: Path | str | None = None,
        *,
        outside_sessions: bool = False,
        presence: PresenceLock | None = None,
        is_left: bool = False,
    ) -> None:
        """Takes over a workspace and its private folder, which are closed with it."""
        self._presence, self._is_left = presence, is_left
        self.path, self.real = path, real
        self.workspace, self.private = workspace, found
        self.private_root = private_root
        self.outside_sessions = outside_sessions
        self._mounts: dict[Mount, Folder] = {}
        self._accepted: set[tuple[Mount, ...]] = set()
        self._expected: Mapping[str, Inode] = {}
        self._guard = threading.Lock()  # the guest's thread and callers open mounts
        with contextlib.ExitStack() as held:
            held.callback(self.private.close)
            held.callback(self.workspace.close)
            if presence is not None:
                held.callback(presence.release)
            self.scratch = held.enter_context(self.private.enter(SCRATCH, make=True))
            with contextlib.suppress(OSError):
                self.private.remove(MISSED)
            self.packages = held.enter_context(self.private.enter(PACKAGES, make=True))
            self._held = held.pop_all()
        rule = SessionFoldersHidden if outside_sessions else MetadataAndPlacesHidden
        hidden = rule(workspace)
        self.app = Preopen(workspace, APP, writable=True, tracked=True, counted=True, hidden=hidden)
        facts = {FAR: found.needs_copies, _FORGETFUL: not found.survives_restart}
        self.notices = tuple(text for text, holds in facts.items() if holds and found.made)
        self.reopened = False
        self.verified: dict[str, tuple[int, ...]] = {}
        self.owned = False
        self.notebook: Preopen | None = None

    @classmethod
    def of_workspace(
        cls, path: Path, private_root: Path | str | None = None, guards: Guards | None = None
    ) -> Self:
        """Opens a workspace outside of sessions, and makes it if it is missing.

        `guards` is the result of `check_opening`, if it was called just before. Raises
        `PlantedLinkError` if the path is relative and leads through a link, `PrivateFolderError` if
        there is no place for its private folder, `OverlapError` if a cell could reach a folder that
        it must not reach.
        """
        real = real_path(path)
        with making_folder(real), open_named(path) as workspace:
            check("The workspace", FolderAncestry.of(workspace.fd), guards or guarded(private_root))
            privates = PrivateFolders(real, private_root)
            with contextlib.ExitStack() as held:
                found = privates.open_temporary(workspace)
                held.callback(found.close)
                presence = PresenceLock(found)
                held.pop_all()
            own = workspace.enter()
            return cls(
                path, real, own, found, privates.named, outside_sessions=True, presence=presence
            )

    @classmethod
    def from_opened(cls, opened: OpenedFolders) -> Self:
        """Opens the folders that another process has open; that process holds the lock on them.

        Raises `HostFailed` if one of them was moved or deleted.
        """
        real, private = Path(opened.workspace), Path(opened.private)
        with contextlib.ExitStack() as held:
            try:
                workspace = held.enter_context(Folder.open(real))
                folder = held.enter_context(Folder.open(private))
            except FileNotFoundError:
                raise HostFailed(_GONE) from None
            if (workspace.inode, folder.inode) != opened.identities:
                raise HostFailed(_GONE)
            held.pop_all()
        copies, survives = opened.needs_copies, opened.survives_restart
        found = PrivateFolder(folder.fd, private, needs_copies=copies, survives_restart=survives)
        outside, root, left = opened.outside_sessions, opened.private_root, opened.is_left
        return cls(real, real, workspace, found, root, outside_sessions=outside, is_left=left)

    def expect(self, mounts: Mapping[str, Inode]) -> None:
        """Refuses mounts whose folders are not those that `identities_of` found.

        The mounts have real paths, so a link at such a path was put there since.
        """
        self._expected = mounts

    @property
    def opened_folders(self) -> OpenedFolders:
        """The facts with which another process opens the same folders."""
        root = self.private_root
        return OpenedFolders(
            workspace=str(self.real),
            private=str(self.private.path),
            identities=(self.workspace.inode, self.private.inode),
            private_root=None if root is None else str(root),
            outside_sessions=self.outside_sessions,
            needs_copies=self.private.needs_copies,
            survives_restart=self.private.survives_restart,
            is_left=self.is_left(),
        )

    @property
    def mount_identities(self) -> dict[str, Inode]:
        """The identities of the open mounts, as `identities_of` returns them."""
        mounts = self._mounts.items()
        return {_named(mount, real_path(mount.host)): folder.inode for mount, folder in mounts}

    @property
    def removed(self) -> bool:
        """True if the workspace was removed; it stays open, but no file can be made in it."""
        return os.fstat(self.workspace.fd).st_nlink == 0

    def open_private(self) -> contextlib.AbstractContextManager[tuple[Folder, Path]]:
        """Returns the private folder, which stays open, and its path, for broker handlers."""
        return contextlib.nullcontext((self.private, self.private.path))

    def share(self, workspace: Path) -> None:
        """Lets the guest have the files of another session, in place of its own.

        Raises `OSError` if that session's workspace can't be opened.
        """
        with Folder.open(workspace.parent) as root:
            shared = root.enter(workspace.name)
        self._held.callback(shared.close)
        self.app = replace(self.app, folder=shared, hidden=MetadataAndPlacesHidden(shared))

    def is_only(self) -> bool:
        """Returns whether no other sandbox uses the workspace, here or in another process."""
        return self._presence is not None and self._presence.is_only()

    def is_left(self) -> bool:
        """Returns whether only the worker of an ended process still uses the workspace."""
        return self._is_left if self._presence is None else self._presence.is_left()

    def leave(self) -> None:
        """Releases the lock that marks the workspace as in use. Safe to call twice."""
        if self._presence is not None:
            self._presence.release()

    def open_mounts(self, mounts: Sequence[Mount]) -> tuple[Folder, ...]:
        """Returns the folders of mounts; later calls return the same ones.

        Raises `PolicyError` if one can't be opened, or overlaps another folder.
        """
        if not mounts:
            return ()
        own = [("the workspace", FolderAncestry.of(self.workspace.fd))]
        if not self.outside_sessions:
            own.append(("workspace_root", FolderAncestry.at(self.real.parent)))
        with self._guard, contextlib.ExitStack() as opened:
            known = dict(self._mounts)
            for mount in mounts:
                if mount in known:
                    continue
                try:
                    known[mount] = folder = opened.enter_context(open_named(mount.host))
                except PlantedLinkError:
                    raise PolicyError("mounts", _THROUGH_LINK.format(guest=mount.guest)) from None
                except OSError as problem:
                    why = os.strerror(problem.errno or 0)
                    raise PolicyError("mounts", f"can't open {mount.guest}: {why}") from None
                own_identity = folder.inode
                if self._expected.get(_named(mount, mount.host), own_identity) != own_identity:
                    raise PolicyError("mounts", _REPLACED.format(guest=mount.guest))
            found = tuple(known[mount] for mount in mounts)
            # checks all of them each time: two of them may meet for the first time
            check_mounts(list(zip(mounts, found, strict=True)), own, guarded(self.private_root))
            self._mounts = known
            self._accepted.add(tuple(mounts))
            self._held.callback(opened.pop_all().close)
        return found

    def preopened(self, mounts: Sequence[Mount]) -> tuple[Preopen, ...]:
        """Returns the guest's views of the mounts, and of the notebook's folder.

        Mounts that `open_mounts` accepted once are not checked again: a restarted guest keeps them.
        Folders in them that became private since are hidden.
        """
        with self._guard:
            known = tuple(mounts) in self._accepted
            held = tuple(self._mounts[mount] for mount in mounts) if known else ()
        found = tuple(
            Preopen(folder, mount.guest, writable=mount.writable, hidden=PlacesHidden(folder))
            for mount, folder in zip(
                mounts, held if known else self.open_mounts(mounts), strict=True
            )
        )
        return found if self.notebook is None else (*found, self.notebook)

    def show_notebook(
        self, privates: PrivateFolders, secret: Path, kept: Sequence[Path] = ()
    ) -> None:
        """Shows the guest the folder that this process was started in, beneath its workspace.

        The connection file `secret` and the folders in `kept` are hidden. Raises `NotShown` if that
        folder is not for guests.
        """
        from wasm_kernel.folders.notebook import NOTEBOOK, open_here, shown

        folder = open_here()
        with undoing(folder.close):
            beneath = shown(folder, privates, secret, kept)
        self._held.callback(folder.close)
        self.notebook = replace(self.app, guest=NOTEBOOK, beneath=beneath)

    def discard(self) -> None:
        """Closes the folders, and removes the workspace and its private folder."""
        with contextlib.suppress(OSError):
            trees.remove_tree(self.real)
        discard(self.private.path)
        self.close()

    def close(self) -> None:
        """Closes the folders. Safe to call twice."""
        self._held.close()


def identities_of(mounts: Sequence[Mount]) -> dict[str, Inode]:
    """Returns the identities of mounts' folders, by names for `SandboxFolders.expect`.

    Leaves out folders that can't be opened: the sandbox will name them.
    """
    found = {}
    for mount in mounts:
        with contextlib.suppress(OSError, PlantedLinkError), open_named(mount.host) as folder:
            found[_named(mount, real_path(mount.host))] = folder.inode
    return found


def _named(mount: Mount, real: Path) -> str:
    return f"{mount.guest}\0{real}"
