"""Folders that contain each other: refused before anything is made.

A guest that reaches the private folders, or the cache of compiled code, owns this user's account.
So no workspace, root of sessions or mount is one of those, contains one or lies in one. Folders are
told from each other by what the system calls them, not by their paths: links and bind mounts give
one folder many.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from wasm_kernel.engine.cache import default_folder
from wasm_kernel.errors import PolicyError, WasmKernelError
from wasm_kernel.folders.places import named, places
from wasm_kernel.folders.private import Owner
from wasm_kernel.folders.state_folder import known_roots, remembered, state_folder
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Folder, PlantedLinkError, open_named
from wasm_kernel.policy import Mount

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
    """A folder was named that contains, or lies in, one that no cell may reach."""


class Spot(Struct, frozen=True):
    """The place that a folder lies in, or would lie in if it was made.

    Attributes:
        chain: The folders that are there, from the top of the file system down.
        rest: The names below them that are missing.
    """

    chain: tuple[tuple[int, int], ...]
    rest: tuple[str, ...] = ()

    @classmethod
    def of(cls, fd: int) -> Spot:
        """Returns the spot of an open folder."""
        chain: list[tuple[int, int]] = []
        here = os.open(".", _LOOK, dir_fd=fd)
        try:
            while True:
                found = os.fstat(here)
                if chain and chain[-1] == (found.st_dev, found.st_ino):
                    return cls(tuple(reversed(chain)))
                chain.append((found.st_dev, found.st_ino))
                above = os.open("..", _LOOK, dir_fd=here)
                os.close(here)
                here = above
        finally:
            os.close(here)

    @classmethod
    def at(cls, path: Path) -> Spot:
        """Returns the spot of a path, whose links are followed.

        Raises:
            OSError: it can't be told.
        """
        real = path.expanduser().resolve()
        for there in (real, *real.parents):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                fd = os.open(there, _LOOK)
                try:
                    return cls(cls.of(fd).chain, real.relative_to(there).parts)
                finally:
                    os.close(fd)
        raise FileNotFoundError(real)

    def holds(self, other: Spot) -> bool:
        """Returns whether another folder is this one, or lies in it."""
        if not self.rest:
            return self.chain[-1] in other.chain
        same = self.chain[-1] == other.chain[-1]
        return same and other.rest[: len(self.rest)] == self.rest

    def overlaps(self, other: Spot) -> bool:
        """Returns whether one of the two folders is the other or lies in it."""
        return self.holds(other) or other.holds(self)


def guarded(private_root: Path | str | None = None) -> list[tuple[str, Spot]]:
    """Returns the folders that no guest may reach, each with words for what it is for."""
    paths = [(_CACHE, default_folder())]
    state = state_folder()
    if state is not None:
        paths.append((_PRIVATE, state))
    if private_root is not None:
        paths.append((_PRIVATE, named(private_root)))
    paths += [(_PRIVATE, path) for path in remembered()]
    found = []
    for words, path in paths:
        with contextlib.suppress(OSError, RuntimeError):
            found.append((words, Spot.at(path)))
    return found


def check(what: str, spot: Spot, guards: Iterable[tuple[str, Spot]]) -> None:
    """Checks that a folder does not lead a guest to where it must not be.

    Args:
        what: What the folder is for, as the beginning of a sentence.
        spot: Where it lies.
        guards: The folders that no guest may reach.

    Raises:
        OverlapError: it is.
    """
    for kept, other in guards:
        if spot.overlaps(other):
            raise OverlapError(_WORDS.format(what=what, kept=kept))


def check_mounts(
    mounts: Sequence[tuple[Mount, Folder]],
    own: Iterable[tuple[str, Spot]],
    guards: Iterable[tuple[str, Spot]],
) -> None:
    """See that mounts lead nowhere but to themselves.

    Args:
        mounts: The mounts, open.
        own: The workspace and the root of the sessions, with words for each.
        guards: The folders that no guest may reach.

    Raises:
        PolicyError: one overlaps another, or a folder that is not its own.
    """
    others = [*own, *((f"the folder for {words}", spot) for words, spot in guards)]
    roots = list(_roots()) if mounts else []
    for mount, folder in mounts:
        spot = Spot.of(folder.fd)
        if any(root.holds(spot) for root in roots):
            raise PolicyError("mounts", _ROOT_WORDS.format(guest=mount.guest))
        for words, other in others:
            if spot.overlaps(other):
                raise PolicyError("mounts", _MOUNT_WORDS.format(guest=mount.guest, other=words))
        others.append((f"the mount {mount.guest}", spot))


def _roots() -> Iterator[Spot]:
    """The roots of sessions on this machine that are there."""
    for path in known_roots():
        with contextlib.suppress(OSError, RuntimeError):
            spot = Spot.at(path)
            if not spot.rest:
                yield spot


def check_opening(
    workspace: Path,
    root: Path | None,
    mounts: Sequence[Mount],
    private_root: Path | str | None,
) -> None:
    """See that a workspace may be opened, before anything is made for it.

    Args:
        workspace: The workspace; it need not be there.
        root: The root of the sessions, if it is one's.
        mounts: What the guest is to see besides.
        private_root: The folder for private folders, if one is named.

    Raises:
        OverlapError: the workspace or the root may not be one.
        PolicyError: a mount may not be.
    """
    guards, own = guarded(private_root), list[tuple[str, Spot]]()
    places = [] if root is None else [("workspace_root", root)]
    for words, path in (*places, ("the workspace", workspace)):
        with contextlib.suppress(OSError, RuntimeError):  # whoever opens it says what is wrong
            spot = Spot.at(path)
            check(words if path is root else "The workspace", spot, guards)
            own.append((words, spot))
    with contextlib.ExitStack() as held:
        opened = []
        for mount in mounts:
            with contextlib.suppress(OSError, PlantedLinkError):  # as above
                opened.append((mount, held.enter_context(open_named(mount.host))))
        check_mounts(opened, own, guards)


def workspaces_above(path: Path) -> Iterator[Path]:
    """The folders on the way to a real path, itself too, that have a private folder."""
    keys = {}
    for above in (path, *path.parents):
        with contextlib.suppress(OSError), Folder.open(above) as folder:
            mark = FileMark.of(folder.fd)
            keys[Owner(str(above.parent), above.name, mark, mark, mark).key] = above
    for place in places():
        with contextlib.closing(place):
            for key, above in keys.items():
                if place.folder.status(key) is not None:
                    yield above
