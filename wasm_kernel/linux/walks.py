"""Everything in a folder, from the host: named, measured, deleted; never through a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wasm_kernel.linux.descent import Descent, open_folder

HiddenEntry = Callable[[int, str, int], bool]


DEEPEST = 2000
"""Longer paths are not made: those of a deep tree together have the square of its size."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a folder, good until the next entry is asked for.

    Attributes:
        here: Where the walk stands: in the folder that it is in.
        name: Its own name.
        is_folder: Whether it is a folder; a link to one is none.
    """

    here: Descent
    name: str
    is_folder: bool

    @property
    def folder(self) -> int:
        """A descriptor of the folder that it is in."""
        return self.here.fd

    @property
    def way(self) -> tuple[str, ...]:
        """The names of the folders that lead there; made when asked for, as it may be long."""
        return self.here.way

    @property
    def top(self) -> str:
        """The first name of its path."""
        return self.here.top or self.name

    @property
    def is_deep(self) -> bool:
        """Whether its path is too long to be told."""
        return self.here.depth > DEEPEST


@contextmanager
def opened(
    folder: str | os.PathLike[str], parent: int | None = None, *, force: bool = False
) -> Iterator[int]:
    """A descriptor of a folder, for as long as the block lasts; as `descent.open_folder`.

    Raises:
        OSError: it can't be opened, or is a link or no folder.
    """
    descriptor = open_folder(folder, parent, force=force)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def entries(
    folder: int, *, force: bool = False, hidden: HiddenEntry | None = None
) -> Iterator[Entry]:
    """Everything below a folder; what is in a folder comes before the folder itself.

    Args:
        folder: The folder's descriptor; it stays the caller's.
        hidden: Says what is passed over, by a descriptor of the folder it is in, its name there,
            and how many folders lie between that folder and the walk's beginning.
        force: Whether folders that their owner closed to himself are opened. Otherwise what they
            hold is left out.

    Raises:
        OSError: a folder can't be opened, or was moved while it was walked.
    """
    with Descent(folder) as here:
        folders, files = _listed(here.fd, 0, hidden)
        ways = [folders]
        yield from (Entry(here, name, False) for name in files)
        while True:
            if ways[-1]:
                name = ways[-1].pop()
                try:
                    inside = _entered(here, name, force=force)
                except NotADirectoryError:  # somebody put something else in its place
                    yield Entry(here, name, False)
                    continue
                if not inside:
                    yield Entry(here, name, True)
                    continue
                folders, files = _listed(here.fd, here.depth, hidden)
                ways.append(folders)
                yield from (Entry(here, name, False) for name in files)
            elif here.depth:
                name = here.leave()
                ways.pop()
                yield Entry(here, name, True)
            else:
                return


def _listed(folder: int, depth: int, hidden: HiddenEntry | None) -> tuple[list[str], list[str]]:
    """The folders in a folder, and what else is in it."""
    with os.scandir(folder) as listing:
        found = [
            (entry.name, entry.is_dir(follow_symlinks=False))
            for entry in listing
            if hidden is None or not hidden(folder, entry.name, depth)
        ]
    folders = [name for name, is_folder in found if is_folder]
    return folders, [name for name, is_folder in found if not is_folder]


def _entered(here: Descent, name: str, *, force: bool) -> bool:
    """Go down into a folder; False where it is closed, or gone by now."""
    try:
        here.enter(name, force=force)
    except (PermissionError, FileNotFoundError):
        if force and not _is_gone(here.fd, name):
            raise
        return False
    if os.access(".", os.R_OK | os.X_OK, dir_fd=here.fd, effective_ids=True):
        return True
    here.leave()
    return False


def _is_gone(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return True
    return False


def size_of(folder: int, *, force: bool = False) -> int:
    """The bytes of all regular files below a folder, by their length.

    A file with several names in the tree counts once, as it takes its room once; a sparse file
    counts as long as it says it is. Folders and links themselves count nothing.
    """
    total = 0
    seen: set[tuple[int, int]] = set()
    for entry in entries(folder, force=force):
        if entry.is_folder:
            continue
        try:
            status = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
        except FileNotFoundError:
            continue  # somebody was faster
        if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in seen:
            continue
        if status.st_nlink > 1:
            seen.add((status.st_dev, status.st_ino))
        total += status.st_size
    return total


def empty(folder: int, *, hidden: HiddenEntry | None = None) -> None:
    """Delete everything below a folder, also in folders that their owner closed to himself.

    Links themselves are deleted, never what they lead to.

    Args:
        folder: The folder's descriptor.
        hidden: Says what is left there, as for `entries`.

    Raises:
        OSError: something can't be deleted; what comes before it is gone.
    """
    for entry in entries(folder, force=True, hidden=hidden):
        remove = os.rmdir if entry.is_folder else os.unlink
        try:
            remove(entry.name, dir_fd=entry.folder)
        except FileNotFoundError:
            continue  # somebody was faster
