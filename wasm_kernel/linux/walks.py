"""Walks through a tree of folders, step by step: no link is followed, no path grows too long.

Only the deepest few folders are kept open, so that a tree may be deeper than this process's limit
of open files; on the way back the others are opened again, and must still be the same folders.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Self

from msgspec import Struct

from wasm_kernel.linux.folders import (
    FOLDER,
    SEARCHED,
    Closing,
    Folder,
    inode_of,
    is_plain_name,
    link_text,
    open_folder,
)

HiddenTest = Callable[[int, str, int], bool]
"""Returns whether a walk skips an entry: gets its folder's descriptor, its name there, and the
number of folders between that folder and the walk's beginning."""

DEEPEST = 2000
"""Longer paths are not built: the paths of a deep tree grow with the square of its depth."""

_KEPT = 16
_BLOCK = 512  # the unit of `st_blocks`, on every file system


class FolderWalk(Closing):
    """A position in a tree of folders, moved step by step; close it. Only one thread may use it."""

    def __init__(self, root: Path | int, *, to_list: bool = True) -> None:
        """Begins in a folder; a descriptor stays the caller's.

        Folders opened `to_list` need the right to read them; otherwise the right to search is
        enough.
        """
        place, parent = (".", root) if isinstance(root, int) else (root, None)
        self._how = FOLDER if to_list else SEARCHED
        self._open = [os.open(place, self._how, dir_fd=parent)]
        self._marks: dict[int, tuple[int, int]] = {}  # identities of folders that are not kept open
        self._names: list[str] = []

    @property
    def fd(self) -> int:
        """A descriptor of the folder that the walk stands in."""
        return self._open[-1]

    @property
    def root(self) -> int:
        """A descriptor of the folder that the walk began in."""
        return self._open[0]

    @property
    def path(self) -> tuple[str, ...]:
        """The names that led here from the root."""
        return tuple(self._names)

    @property
    def depth(self) -> int:
        """The number of folders between the root and the walk's position."""
        return len(self._names)

    @property
    def top(self) -> str:
        """The first name of the path; empty at the root."""
        return self._names[0] if self._names else ""

    def enter(self, name: str, *, force: bool = False) -> None:
        """Goes down into a folder; after an `OSError`, the walk stays where it was.

        With `force`, a folder without its owner's permissions gets them, for good.
        """
        if force:
            fd = open_folder(name, self.fd, force=True)
        else:
            fd = os.open(name, self._how, dir_fd=self.fd)
        self._open.append(fd)
        self._names.append(name)
        far = len(self._open) - 1 - _KEPT
        if far > 0 and self._open[far] >= 0:
            self._marks[far] = inode_of(os.fstat(self._open[far]))
            os.close(self._open[far])
            self._open[far] = -1

    def step(self, name: str) -> str | None:
        """Goes down into a folder; returns an empty text if it succeeded.

        Returns the text of a link in its place, or None if it is missing.
        """
        try:
            self.enter(name)
        except FileNotFoundError:
            return None
        except OSError as problem:
            is_link = problem.errno in (errno.ENOTDIR, errno.ELOOP)
            target = link_text(self.fd, name) if is_link else ""
            if not target:
                raise
            return target
        return ""

    def leave(self) -> str:
        """Goes back up; returns the name of the folder that was left.

        Raises `OSError` if another process moved a folder that leads to the one above.
        """
        if self._open[-2] < 0:
            self._open[-2] = self._parent()
        os.close(self._open.pop())
        return self._names.pop()

    def _parent(self) -> int:
        """Returns the folder above, even if another process moved the one the walk stands in."""
        mark = self._marks[len(self._open) - 2]
        fd = os.open("..", self._how, dir_fd=self.fd)
        if inode_of(os.fstat(fd)) == mark:
            return fd
        os.close(fd)
        with FolderWalk(self.root, to_list=self._how == FOLDER) as again:
            for name in self._names[:-1]:
                again.enter(name)
            if inode_of(os.fstat(again.fd)) != mark:
                raise OSError(errno.ESTALE, "a folder was moved during the walk")
            return os.dup(again.fd)

    def close(self) -> None:
        """Closes every folder of the walk. Safe to call twice."""
        while self._open:
            fd = self._open.pop()
            if fd >= 0:
                os.close(fd)


class Lookup(Closing):
    """A way to look up many paths below one folder; close it. Only one thread may use it.

    It keeps the folders of the last path open, so paths in sorted order open each folder of the
    tree once. A folder that another process moves is not found. `before_step` (from one folder to
    the next) and `before_making` may raise to end the walk.
    """

    def __init__(
        self,
        root: int,
        before_step: Callable[[], None] = lambda: None,
        before_making: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root
        self._before_step = before_step
        self._before_making = before_making
        self._walk = FolderWalk(root, to_list=False)

    def parent(self, path: str, *, make: bool = False) -> tuple[int, str]:
        """Returns the folder of a path's last name, open until the next call, and that name.

        With `make`, missing folders are made. No link is followed. Raises `OSError` if a name is
        not plain and could lead out.
        """
        *above, name = parts = path.split("/")
        if not all(map(is_plain_name, parts)):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        here = self._walk.path
        pairs = enumerate(zip(above, here, strict=False))
        shared = next((n for n, (one, other) in pairs if one != other), min(len(above), len(here)))
        try:
            for _ in here[shared:]:
                self._before_step()
                self._walk.leave()
        except OSError:
            self._walk.close()
            self._walk = FolderWalk(self._root, to_list=False)
            raise
        for part in above[shared:]:
            self._enter(part, make=make)
        return self._walk.fd, name

    def _enter(self, name: str, *, make: bool) -> None:
        self._before_step()
        try:
            self._walk.enter(name)
        except FileNotFoundError:
            if not make:
                raise
            self._before_making()
            os.mkdir(name, dir_fd=self._walk.fd)
            self._walk.enter(name)

    def close(self) -> None:
        """Closes the folders. Safe to call twice."""
        self._walk.close()


class WalkEntry(Struct, frozen=True):
    """An entry of a folder, valid until the walk's next entry.

    `here` is the walk, in the entry's folder; a link to a folder is not a folder.
    """

    here: FolderWalk
    name: str
    is_folder: bool

    @property
    def folder(self) -> int:
        """A descriptor of the folder that the entry is in."""
        return self.here.fd

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the folders that lead to the entry; built on demand, as they may be many."""
        return self.here.path

    @property
    def status(self) -> os.stat_result | None:
        """The entry's status, that of a link itself; None if another process has removed it."""
        return Folder(self.folder).status(self.name)

    @property
    def top(self) -> str:
        """The first name of the entry's path."""
        return self.here.top or self.name

    @property
    def is_deep(self) -> bool:
        """True if the entry's path is too long to be built."""
        return self.here.depth > DEEPEST


def entries(
    folder: int, *, force: bool = False, hidden: HiddenTest | None = None, most: int | None = None
) -> Iterator[WalkEntry]:
    """Yields everything below a folder; the entries of a folder come before the folder itself.

    Args:
        folder: The folder's descriptor; it stays the caller's.
        hidden: Returns whether the walk skips an entry.
        force: Whether folders without their owner's permissions get them, and are not skipped.
        most: The number of names that are looked at in all; None for no limit.
    """
    left = repeat(None) if most is None else repeat(None, most)
    with FolderWalk(folder) as here:
        todo = [(yield from _files(here, hidden, left))]
        while True:
            if todo[-1]:
                name = todo[-1].pop()
                try:
                    inside = _try_to_enter(here, name, force=force)
                except NotADirectoryError:  # another process replaced the folder
                    yield WalkEntry(here, name, False)
                    continue
                if inside:
                    todo.append((yield from _files(here, hidden, left)))
                else:
                    yield WalkEntry(here, name, True)
            elif here.depth:
                todo.pop()
                yield WalkEntry(here, here.leave(), True)
            else:
                return


def _files(
    here: FolderWalk, hidden: HiddenTest | None, left: Iterable[None]
) -> Generator[WalkEntry, None, list[str]]:
    """Yields the entries of the walk's folder but its folders; returns the names of those."""
    with os.scandir(here.fd) as listing:
        found = [
            (entry.name, entry.is_dir(follow_symlinks=False))
            for _, entry in zip(left, listing, strict=False)
            if hidden is None or not hidden(here.fd, entry.name, here.depth)
        ]
    for name, is_folder in found:
        if not is_folder:
            yield WalkEntry(here, name, False)
    return [name for name, is_folder in found if is_folder]


def _try_to_enter(here: FolderWalk, name: str, *, force: bool) -> bool:
    """Goes down into a folder; returns False if that is not permitted, or if it is gone."""
    try:
        here.enter(name, force=force)
    except (PermissionError, FileNotFoundError):
        if force and Folder(here.fd).status(name) is not None:
            raise
        return False
    if os.access(".", os.R_OK | os.X_OK, dir_fd=here.fd, effective_ids=True):
        return True
    here.leave()
    return False


class TreeSizes:
    """The sizes of some folder trees, without the folders at their tops.

    A file with several names counts once, as it takes its space once.

    Attributes:
        names: The number of all files, folders and links.
        length: The bytes of regular files, by their length; a sparse file counts in full.
        on_disk: The bytes that everything takes on the disk.
    """

    def __init__(self) -> None:
        self.names = self.length = self.on_disk = 0
        self._seen: set[tuple[int, int]] = set()

    def add(self, folder: int, *, force: bool = False, most: int | None = None) -> Self:
        """Adds the entries below a folder; with arguments as those of `entries`."""
        for entry in entries(folder, force=force, most=most):
            self.names += 1
            if (status := entry.status) is not None:
                self._add(status)
        return self

    def _add(self, status: os.stat_result) -> None:
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            mark = inode_of(status)
            if mark in self._seen:
                return
            self._seen.add(mark)
        self.on_disk += status.st_blocks * _BLOCK
        if stat.S_ISREG(status.st_mode):
            self.length += status.st_size


def size_of(folder: int, *, force: bool = False) -> int:
    """Returns the bytes of all regular files below a folder, by their length."""
    return TreeSizes().add(folder, force=force).length
