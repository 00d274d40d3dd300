"""Walking a session's folder from the host: never through a link, however deep it is.

Everything is opened relative to the folder it is in, by its name alone and without following links,
so that nothing that is swapped in meanwhile leads elsewhere. Going down and up takes one descriptor
at a time and no recursion: a tree of any depth is walked, also where its paths are longer than the
system takes.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = stat.S_IRWXU


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a folder.

    Attributes:
        folder: A descriptor of the folder, good until the next entry is asked for.
        parts: The names of the folders on the way, from the walk's beginning.
        name: Its own name.
        is_folder: Whether it is a folder; a link to one is none.
    """

    folder: int
    parts: tuple[str, ...]
    name: str
    is_folder: bool


@dataclass(slots=True)
class _Level:
    """A folder on the way down: who it is, its name, and the folders in it yet to be walked."""

    identity: tuple[int, int]
    name: str
    folders: list[str] = field(default_factory=list)


@contextmanager
def opened(folder: str | os.PathLike[str], parent: int | None = None) -> Iterator[int]:
    """A descriptor of a folder.

    Raises:
        OSError: it can't be opened, or is a link or no folder.
    """
    descriptor = os.open(folder, FOLDER, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def entries(folder: int, *, force: bool = False) -> Iterator[Entry]:
    """Everything below a folder; what is in a folder comes before the folder itself.

    Args:
        folder: The folder's descriptor; it stays the caller's.
        force: Whether folders that their owner may not list or change are made so that he may.
            Otherwise what they hold is left out.

    Raises:
        OSError: a folder can't be opened, or was moved while it was walked.
    """
    here = os.open(".", FOLDER, dir_fd=folder)
    trail = [_Level(_identity(here), "")]
    parts: tuple[str, ...] = ()
    try:
        yield from _files(here, parts, trail[-1])
        while True:
            if trail[-1].folders:
                name = trail[-1].folders.pop()
                below = _entered(here, name, force=force)
                if below is None:
                    yield Entry(here, parts, name, True)
                    continue
                os.close(here)
                here, parts = below, (*parts, name)
                trail.append(_Level(_identity(here), name))
                yield from _files(here, parts, trail[-1])
            elif len(trail) > 1:
                left = trail.pop()
                here, parts = _climbed(here, trail[-1].identity), parts[:-1]
                yield Entry(here, parts, left.name, True)
            else:
                return
    finally:
        os.close(here)


def _files(here: int, parts: tuple[str, ...], level: _Level) -> Iterator[Entry]:
    with os.scandir(here) as listing:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    level.folders = [name for name, is_folder in found if is_folder]
    for name, is_folder in found:
        if not is_folder:
            yield Entry(here, parts, name, False)


def _entered(here: int, name: str, *, force: bool) -> int | None:
    """A descriptor of the folder `name`; None where it may not be listed."""
    try:
        below = os.open(name, FOLDER, dir_fd=here)
    except PermissionError:
        if not force:
            return None
        _permit(here, name)
        below = os.open(name, FOLDER, dir_fd=here)
    if force:
        if os.fstat(below).st_mode & _FULL != _FULL:
            os.fchmod(below, _FULL)
    elif not os.access(".", os.R_OK | os.X_OK, dir_fd=below, effective_ids=True):
        os.close(below)
        return None
    return below


def _permit(here: int, name: str) -> None:
    """Let the owner into a folder of his that he closed."""
    if sys.platform != "linux":
        os.chmod(name, _FULL, dir_fd=here, follow_symlinks=False)
        return
    # Linux can't change the mode of a name without following a link in its place
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    try:
        os.chmod(f"/proc/self/fd/{held}", _FULL)  # noqa: PTH101 - a descriptor, not a path
    finally:
        os.close(held)


def _climbed(here: int, expected: tuple[int, int]) -> int:
    above = os.open("..", FOLDER, dir_fd=here)
    if _identity(above) != expected:
        os.close(above)
        raise OSError("a folder was moved while it was read")
    os.close(here)
    return above


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def size_of(folder: int, *, force: bool = False) -> int:
    """The bytes of all regular files below a folder, by their length.

    A file with several names in the tree counts once, as it takes its room once; a sparse file
    counts as long as it says it is. Folders and links themselves count nothing.
    """
    total, seen = 0, set()
    for entry in entries(folder, force=force):
        if entry.is_folder:
            continue
        try:
            status = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
        except FileNotFoundError:
            continue  # somebody was faster
        if not stat.S_ISREG(status.st_mode):
            continue
        if status.st_nlink > 1:
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        total += status.st_size
    return total


def empty(folder: int) -> None:
    """Delete everything below a folder; links themselves, never what they lead to.

    Raises:
        OSError: something can't be deleted; what comes before it is gone.
    """
    if os.fstat(folder).st_mode & _FULL != _FULL:
        os.fchmod(folder, _FULL)
    for entry in entries(folder, force=True):
        remove = os.rmdir if entry.is_folder else os.unlink
        try:
            remove(entry.name, dir_fd=entry.folder)
        except FileNotFoundError:
            continue  # somebody was faster
