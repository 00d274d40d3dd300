"""The places that hold private folders, and the user's state folder, which is the first of them.

The state folder also holds notes: of the places outside of it, so that private folders there are
found again, and of the roots of sessions, so that no guest is shown one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.files import boot_id
from wasm_kernel.linux.folders import Folder, real_path

LOOK_SECONDS = 0.005
"""Seconds for which a guest's file calls may miss a new note."""

NOWHERE = (
    "There is no place for the private state of this workspace ({why}). Nothing was opened. Name a "
    "folder of your own with private_root, outside of every workspace."
)
_NAME = "wasm-kernel"
_PRIVATE = "private"
_SETTLE_SECONDS = 4 * LOOK_SECONDS
_PATH_BYTES = 16 * 1024
_OWN, _OTHERS, _OTHERS_WRITE = 0o700, 0o077, 0o022


class PrivateFolderError(WasmKernelError):
    """The error if there is no place for private state; nothing was opened."""


class Place(Folder):
    """A folder at a real path that holds private folders, this user's alone; close it."""

    def __init__(self, path: Path, fd: int) -> None:
        super().__init__(fd)
        self.path = path


def _own(path: Path, folder: Folder, forbidden: int) -> Place | None:
    """Returns an open folder as a place; None, with it closed, if others may change it.

    `forbidden` are the mode bits that it may not have.
    """
    found = os.fstat(folder.fd)
    if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & forbidden:
        return Place(path, folder.fd)
    folder.close()
    return None


def state_folder() -> Path | None:
    """Returns the user's state folder, `wasm-kernel` in XDG_STATE_HOME; None without a home."""
    named = os.environ.get("XDG_STATE_HOME", "")
    if named.startswith("/"):
        return Path(named, _NAME)
    try:
        return Path.home() / ".local" / "state" / _NAME
    except RuntimeError:
        return None


def state_subfolder(name: str = _PRIVATE, *, make: bool = False) -> Place | None:
    """Returns a subfolder of the state folder, by default that for private folders.

    Returns None if it is missing, or other users may change it.
    """
    if (path := state_folder()) is None:
        return None
    try:
        if make:
            path.parent.mkdir(mode=_OWN, parents=True, exist_ok=True)
        above = path.parent.resolve()
        with Folder.open(above) as home, home.enter(path.name, make=make) as own:
            if (place := _own(path, own.enter(), _OTHERS_WRITE)) is None:
                return None
            with place:
                return _own(above / path.name / name, own.enter(name, make=make), _OTHERS)
    except (OSError, RuntimeError):
        return None


UPKEEP, WARNS = "upkeep", ".warns"
"""The subfolder of the state folder for records on sessions' disk use, and the suffix of files in
it that hold warnings for the next kernel's start."""


def upkeep_name(root: Path) -> str:
    """Returns the names, without suffixes, of the upkeep files of the root at a real path."""
    return hashlib.blake2b(os.fsencode(root), digest_size=12).hexdigest()


def has_warnings() -> bool:
    """Returns whether there is a file with warnings."""
    if (place := state_subfolder(UPKEEP)) is None:
        return False
    with place:
        return any(name.endswith(WARNS) for name in place.names())


class Notes:
    """Notes of paths in the state folder: a file for each.

    A file's name is the digest of its path, and the device that the path was on (`_on_device`).
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._read: dict[str, Path] = {}  # by file name, the digest of the content

    @property
    def folder(self) -> Path | None:
        """The folder that holds the notes; its time of change tells of a new note.

        A confined worker may read it, and no other part of the state folder but its own.
        """
        state = state_folder()
        return None if state is None else state / self._name

    def paths(self) -> list[Path]:
        """Returns the noted paths, from a folder that no other user can write to."""
        if (known := state_subfolder(self._name)) is None:
            return []
        with known:
            return self.paths_in(known)

    def paths_in(self, folder: Folder) -> list[Path]:
        """Returns the paths noted in an open folder."""
        for name in (names := folder.names()):
            if name not in self._read and not name.startswith("."):
                with contextlib.suppress(OSError, ValueError):
                    self._read[name] = Path(folder.read(name, _PATH_BYTES).decode())
        found = [self._read[name] for name in sorted(names) if name in self._read]
        return [path for path in found if path.is_absolute()]

    def add(self, path: Path) -> None:
        """Notes a path, if the notes can be written."""
        if (known := state_subfolder(self._name, make=True)) is None:
            return
        text = os.fsencode(path)
        with known, contextlib.suppress(OSError):
            name = hashlib.blake2b(text, digest_size=12).hexdigest() + _on_device(path)
            if known.status(name) is None:
                with known.replacing(name) as file:
                    file.write(text)
                time.sleep(_SETTLE_SECONDS)

    def forget_gone(self) -> None:
        """Forgets the paths that are gone for certain.

        The nearest folder above such a path is on the device that the path was on. A disk that is
        not mounted now leaves its mount point, which is on another device.
        """
        if (known := state_subfolder(self._name)) is None:
            return
        with known:
            for name in known.names():
                with contextlib.suppress(OSError, ValueError):
                    path = Path(known.read(name, _PATH_BYTES).decode())
                    if not path.is_dir() and name.endswith(_on_device(_nearest(path))):
                        known.remove(name)


def _on_device(path: Path) -> str:
    """Returns the suffix of a note: a folder's device, and the boot for which its number counts."""
    return f".{path.stat().st_dev:x}.{boot_id()}"


ELSEWHERE, ROOTS = Notes("elsewhere"), Notes("roots")
"""The places outside of the state folder that were used, and the roots of sessions."""


def notes() -> list[Path]:
    """Returns the folders that hold notes; they may not exist."""
    return [folder for each in (ELSEWHERE, ROOTS) if (folder := each.folder) is not None]


def places() -> Iterator[Place]:
    """Yields the places that hold private folders of this user; the caller closes each."""
    if (state := state_subfolder()) is not None:
        yield state
    for place in map(own_place, ELSEWHERE.paths()):
        if place is not None:
            yield place


def named(private_root: Path | str) -> Path:
    """Returns the absolute path of a folder that the user named.

    Raises `PlantedLinkError` if a relative path leads through a link, `PrivateFolderError` if the
    path is empty, or in the home of an unknown user.
    """
    try:
        path = Path(private_root).expanduser()
    except RuntimeError:
        why = f"private_root is {private_root}, and its user is not known"
        raise PrivateFolderError(NOWHERE.format(why=why)) from None
    if private_root == "":  # often a variable that is not set; it would be the current folder
        raise PrivateFolderError(NOWHERE.format(why="private_root is an empty text"))
    return path if path.is_absolute() else real_path(path)


def make_named(path: Path) -> Place:
    """Returns the place that the user named; makes it if missing.

    Raises `PrivateFolderError` if it can't be made, or other users can change it.
    """
    try:
        path.mkdir(mode=_OWN, parents=True, exist_ok=True)
    except OSError as problem:
        why = f"private_root can't be made: {os.strerror(problem.errno or 0)}"
        raise PrivateFolderError(NOWHERE.format(why=why)) from problem
    if (place := own_place(path)) is None:
        why = "private_root is not a folder of this user alone: another user can write to it"
        raise PrivateFolderError(NOWHERE.format(why=why))
    return place


def own_place(path: Path) -> Place | None:
    """Returns the place at a trusted path; None if it is missing or others may change it."""
    try:
        if not path.exists():  # quicker than `resolve`, and many noted places are gone
            return None
        real = path.resolve()
        return _own(real, Folder.open(real), _OTHERS_WRITE)
    except (OSError, RuntimeError):
        return None


def beside(root: Path) -> Path:
    """Returns the folder beside a root that may hold private folders."""
    return root.with_name(f".{root.name}.{_NAME}")


def place_beside(path: Path, *, like: Folder | None = None) -> Place | None:
    """Returns a folder beside a root; None if another user may have made it or can change it.

    With `like`, it is made if it is missing, and files must be linkable between it and `like`.
    """
    try:
        with Folder.open(path.parent) as above:
            if not _is_safe(above) or (like is not None and not can_link(above, like)):
                return None
            return _own(path, above.enter(path.name, make=like is not None), _OTHERS)
    except OSError:
        return None


def _is_safe(above: Folder) -> bool:
    """Returns whether no other user can replace this user's files in a folder."""
    found = os.fstat(above.fd)
    return found.st_uid == os.geteuid() or bool(found.st_mode & stat.S_ISVTX)


def can_link(one: Folder, other: Folder) -> bool:
    """Returns whether files can be linked between two folders: both lie in one mount."""
    same = os.fstat(one.fd).st_dev == os.fstat(other.fd).st_dev
    return same and _mount(one.fd) == _mount(other.fd)


def _mount(fd: int) -> str:
    """Returns the number of a folder's mount: no link crosses from one mount to another."""
    try:
        facts = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="utf-8")
    except OSError:
        return ""
    return next((line for line in facts.splitlines() if line.startswith("mnt_id:")), "")


def expected(root: Path) -> tuple[Path, bool]:
    """Returns the folder that private folders of new sessions of a root will lie in.

    Also returns whether files are copied to it and not linked. Makes nothing. Raises
    `PrivateFolderError` if there is no place.
    """
    state = state_folder()
    with Folder.open(_nearest(root)) as like:
        if state is not None:
            with Folder.open(_nearest(state)) as there:
                if can_link(there, like):
                    return state, False
        with Folder.open(_nearest(root.parent)) as above:
            if _is_safe(above) and can_link(above, like):
                return beside(root), False
    return (homeless() if state is None else state), True


def homeless() -> NoReturn:
    """Raises the `PrivateFolderError` for a user without a state folder."""
    raise PrivateFolderError(NOWHERE.format(why="this user has no folder for state"))


def _nearest(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.is_dir())
