"""The folders that no guest may reach: private ones, the cache of compiled code, other sessions.

A guest that reaches the private folders, or the cache, owns this user's account. So no workspace,
root of sessions or mount may be one of those, contain one or lie in one: that is refused before
anything is made. Folders are told apart by device and inode number, not by their paths: links and
bind mounts give one folder many paths.

Such folders that appear in a guest's folder later are hidden. The default workspace is also the
default root of the sessions, so its guest sees no session's folder, and can't make one that would
be taken for a session's. A root of sessions that lies in another session's workspace, or in a
mount, does not exist for the guest there.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from wasm_kernel.engine.cache import default_folder
from wasm_kernel.errors import PolicyError, WasmKernelError
from wasm_kernel.folders.places import ELSEWHERE, LOOK_SECONDS, ROOTS, named, notes, state_folder
from wasm_kernel.linux.folders import Folder, PlantedLinkError, closing_fd, inode_of, open_named
from wasm_kernel.policy import Mount
from wasm_kernel.wasi_files.preopens import (
    METADATA,
    Hidden,
    MetadataHidden,
    folded_name,
    is_hidden_name,
)

ASIDE = ".wasm_kernel-removed-"
"""The beginning of the name of a session's folder that is being made or deleted."""

_UUID_LENGTH = 36
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TICK_NS = 100_000_000  # times of folders have steps, which are long on some file systems
_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_PRIVATE, _CACHE = "private state, such as the variables of sessions", "the cache of compiled code"
_WORDS = (
    "{what} can't be a folder that is, contains or lies in the one for {kept}: a cell could then "
    "reach it. Nothing was opened. Choose another folder."
)
_ROOT_WORDS = (
    "{guest} can't be a root of sessions, or a folder in one: a cell would see the sessions of "
    "others. Mount another folder"
)
_MOUNT_WORDS = "{guest} can't be a folder that is, contains or lies in {other}"


class OverlapError(WasmKernelError, ValueError):
    """The user named a folder that is, contains or lies in one that no cell may reach."""


class FolderAncestry(Struct, frozen=True):
    """A folder, which may be missing, with all folders above it.

    `chain` has the device and inode numbers of the existing folders, from the top of the file
    system down; `rest` has the missing names.
    """

    chain: tuple[tuple[int, int], ...]
    rest: tuple[str, ...] = ()

    @classmethod
    def of(cls, fd: int) -> FolderAncestry:
        """Returns the ancestry of an open folder."""
        chain: list[tuple[int, int]] = []
        here = os.open(".", _LOOK, dir_fd=fd)
        try:
            while True:
                found = inode_of(os.fstat(here))
                if chain and chain[-1] == found:
                    return cls(tuple(reversed(chain)))
                chain.append(found)
                above = os.open("..", _LOOK, dir_fd=here)
                os.close(here)
                here = above
        finally:
            os.close(here)

    @classmethod
    def at(cls, path: Path) -> FolderAncestry:
        """Returns the ancestry of a path; follows links."""
        path = path.expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return cls._of_folder(path)
        real = path.resolve()
        for there in real.parents:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return cls(cls._of_folder(there).chain, real.relative_to(there).parts)
        raise FileNotFoundError(real)

    @classmethod
    def _of_folder(cls, path: Path) -> FolderAncestry:
        with closing_fd(os.open(path, _LOOK)) as fd:
            return cls.of(fd)

    def holds(self, other: FolderAncestry) -> bool:
        """Returns whether another folder is this one, or lies in it."""
        if not self.rest:
            return self.chain[-1] in other.chain
        same = self.chain[-1] == other.chain[-1]
        return same and other.rest[: len(self.rest)] == self.rest

    def overlaps(self, other: FolderAncestry) -> bool:
        """Returns whether one of the two folders is the other or lies in it."""
        return self.holds(other) or other.holds(self)


Guards = list[tuple[str, FolderAncestry]]
"""The folders that no guest may reach, each with words for its purpose."""


def guarded(private_root: Path | str | None = None) -> Guards:
    """Returns the folders that no guest may reach, each with words for its purpose."""
    paths = [(_CACHE, default_folder())]
    private = [state_folder(), *ELSEWHERE.paths()]
    if private_root is not None:
        private.append(named(private_root))
    paths += [(_PRIVATE, path) for path in private if path is not None]
    return [(words, ancestry) for words, path in paths if (ancestry := _ancestry_at(path))]


def _ancestry_at(path: Path) -> FolderAncestry | None:
    """Returns the ancestry of a path; None if the path can't be read."""
    try:
        return FolderAncestry.at(path)
    except (OSError, RuntimeError):
        return None


def check(
    what: str, ancestry: FolderAncestry, guards: Iterable[tuple[str, FolderAncestry]]
) -> None:
    """Raises `OverlapError` if a guest in a folder could reach one of `guards`.

    The error's sentence begins with `what`, words for the folder.
    """
    for kept, other in guards:
        if ancestry.overlaps(other):
            raise OverlapError(_WORDS.format(what=what, kept=kept))


def check_mounts(
    mounts: Sequence[tuple[Mount, Folder]],
    own: Iterable[tuple[str, FolderAncestry]],
    guards: Iterable[tuple[str, FolderAncestry]],
) -> None:
    """Raises `PolicyError` if a mount overlaps another folder or lies in a root of sessions.

    `own` are the workspace and the root of the sessions, with words for each.
    """
    others = [*own, *((f"the folder for {words}", ancestry) for words, ancestry in guards)]
    paths = ROOTS.paths() if mounts else []
    roots = [ancestry for path in paths if (ancestry := _ancestry_at(path)) and not ancestry.rest]
    for mount, folder in mounts:
        ancestry = FolderAncestry.of(folder.fd)
        if any(root.holds(ancestry) for root in roots):
            raise PolicyError("mounts", _ROOT_WORDS.format(guest=mount.guest))
        for words, other in others:
            if ancestry.overlaps(other):
                raise PolicyError("mounts", _MOUNT_WORDS.format(guest=mount.guest, other=words))
        others.append((f"the mount {mount.guest}", ancestry))


def check_opening(
    workspace: Path, root: Path | None, mounts: Sequence[Mount], private_root: Path | str | None
) -> Guards:
    """Checks that a workspace may be opened, before anything is made for it.

    Returns the folders that no guest may reach, as `guarded` does. Raises `OverlapError` if the
    workspace or the root overlaps one of them, `PolicyError` if a mount does.
    """
    guards, own = guarded(private_root), list[tuple[str, FolderAncestry]]()
    roots = [] if root is None else [("workspace_root", root)]
    for words, path in (*roots, ("the workspace", workspace)):
        if ancestry := _ancestry_at(path):  # otherwise, opening it will report the error
            check(words if path is root else "The workspace", ancestry, guards)
            own.append((words, ancestry))
    with contextlib.ExitStack() as held:
        opened = []
        for mount in mounts:
            with contextlib.suppress(OSError, PlantedLinkError):  # as above
                opened.append((mount, held.enter_context(open_named(mount.host))))
        check_mounts(opened, own, guards)
    return guards


# -- hiding folders that appear later


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class PlacesHidden(Hidden):
    """A rule that hides places of private folders and roots of sessions in a guest's folder.

    Most folders hold no such place, or were refused because of one. So it searches only after a new
    place was noted. Only one thread may use it.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._own = folder.inode
        self._notes = notes()
        self._looked, self._seen = -math.inf, list[int]()
        self._inside: frozenset[tuple[int, int]] = frozenset()

    @property
    def hides_folders(self) -> bool:
        """Returns whether a folder is hidden here. No place is used until all guests know it."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            changed = [_changed(path) for path in self._notes]
            if changed != self._seen:
                # a change right after this may get the same time as one before
                are_old = all(at < time.time_ns() - _TICK_NS for at in changed)
                self._seen = changed if are_old else []
                self._inside = frozenset(self._places())
        return bool(self._inside)

    def hides_folder(self, fd: int, depth: int) -> bool:
        """Returns whether an open folder is such a place."""
        return bool(self._inside) and inode_of(os.fstat(fd)) in self._inside

    def _places(self) -> Iterator[tuple[int, int]]:
        for path in self._likely():
            ancestry = _ancestry_at(path)
            if ancestry and self._own in ancestry.chain[:-1] and not ancestry.rest:
                yield ancestry.chain[-1]

    def _likely(self) -> Iterator[Path]:
        """Yields the noted places, and the roots whose paths lie here."""
        with contextlib.suppress(OSError):
            here = Path(f"/proc/self/fd/{self._folder.fd}").readlink()
            for noting, path in zip((ELSEWHERE, ROOTS), self._notes, strict=False):
                with contextlib.suppress(OSError), Folder.open(path) as folder:
                    for noted in noting.paths_in(folder):
                        if noting is ELSEWHERE or str(noted).startswith(f"{here}/"):
                            yield noted


class MetadataAndPlacesHidden(MetadataHidden, PlacesHidden):
    """The rule for a session's workspace, which also hides the host's metadata file."""


class SessionFoldersHidden(PlacesHidden):
    """The rule for a workspace outside of sessions: hides sessions' folders and their names.

    The workspace may be the root of sessions, too. Sessions' folders can't be told by their private
    folders: a confined process can't read those of others.
    """

    @property
    def hides_folders(self) -> bool:
        """Returns True: sessions' folders may appear at any time."""
        _ = super().hides_folders  # looks for new places
        return True

    def hides_name(self, depth: int, name: str) -> bool:
        """Returns whether a name is the metadata file's, or could be that of a session's folder."""
        if is_hidden_name(name):
            return True
        if name.isascii() and name[0] != "." and len(name) < _UUID_LENGTH:
            return False  # the quick way for nearly all names
        plain = folded_name(name)
        return plain.startswith(ASIDE) or (depth == 0 and re.fullmatch(_UUID, plain) is not None)

    def hides_folder(self, fd: int, depth: int) -> bool:
        """Returns whether an open folder is that of a session in this root, a place, or a root."""
        if depth == 0 and Folder(fd).status(METADATA) is not None:
            return True
        return super().hides_folder(fd, depth)
