"""A folder tree, copied, removed or summed up, even if a stranger filled it.

No link is followed and no pipe opened; a tree may be deeper than the longest path allows. A copy
keeps links (also hard ones between the files copied), holes, permissions and times.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from wasm_kernel.linux import walks
from wasm_kernel.linux.files import FileCopier
from wasm_kernel.linux.folders import NEW, READ, Folder, Inode, closing_fd, inode_of, open_folder
from wasm_kernel.linux.task import QUIET, Task
from wasm_kernel.linux.walks import HiddenTest, Lookup

_OWNER = 0o700
_LINKED_DEEPEST = 500  # folders that the walk to each further name of a file opens
_PERMISSIONS = 0o777
_LISTED = os.R_OK | os.X_OK


def copy_tree(
    source: int, target: int, hidden: Callable[[str], bool], task: Task = QUIET
) -> dict[str, str]:
    """Copies all but the `hidden` names of an open folder into another, which has none of them.

    Returns why entries can't be copied, by their paths in the tree. After an error, the target
    holds a part.
    """
    left_out: dict[str, str] = {}
    with Lookup(target) as there:
        copying = _Copying(target, there, FileCopier(task))
        for entry in walks.entries(
            source, hidden=lambda _, name, depth: not depth and hidden(name)
        ):
            path = "/".join([*entry.path, entry.name])
            try:
                copying.copy(entry, path)
            except _Unreadable as problem:
                left_out[path] = problem.why
            except FileNotFoundError:
                continue  # another process removed it
    return left_out


def remove_tree(folder: Path) -> None:
    """Removes a folder with everything in it; nothing happens if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        with Folder(open_folder(folder, force=True)) as here:
            remove_contents(here.fd)
        folder.rmdir()


def remove_contents(folder: int, *, hidden: HiddenTest | None = None) -> None:
    """Deletes everything below a folder, also in folders without their owner's permissions.

    Links themselves are deleted, never their targets. `hidden` entries stay.
    """
    for entry in walks.entries(folder, force=True, hidden=hidden):
        remove = os.rmdir if entry.is_folder else os.unlink
        try:
            remove(entry.name, dir_fd=entry.folder)
        except FileNotFoundError:
            continue  # another process was faster


class _Copying:
    """A running copy, with a lookup in its target."""

    def __init__(self, target: int, there: Lookup, copier: FileCopier) -> None:
        self._target, self._there, self._copier = target, there, copier
        self._twins: dict[Inode, str] = {}  # the paths of files with several names

    def copy(self, entry: walks.WalkEntry, path: str) -> None:
        """Copies one entry; a folder comes after all that it holds."""
        with _reading():
            found = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
        above, name = self._there.parent(path, make=True)
        match stat.S_IFMT(found.st_mode):
            case stat.S_IFDIR:
                if not os.access(entry.name, _LISTED, dir_fd=entry.folder, effective_ids=True):
                    raise _Unreadable(os.strerror(errno.EACCES))
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, _OWNER, dir_fd=above)
                with closing_fd(open_folder(name, above)) as made:
                    _dress(made, found)
            case stat.S_IFREG if (twin := self._twins.get(inode_of(found))) is not None:
                with Lookup(self._target) as way:
                    folder, first = way.parent(twin)
                    os.link(first, name, src_dir_fd=folder, dst_dir_fd=above)
            case stat.S_IFREG:
                if found.st_nlink > 1 and len(entry.path) > _LINKED_DEEPEST:
                    raise _Unreadable("it has several names, and lies too deep to keep them")
                self._file(entry, path, above)
            case stat.S_IFLNK:
                with _reading():
                    leads_to = os.readlink(entry.name, dir_fd=entry.folder)
                os.symlink(leads_to, name, dir_fd=above)
            case stat.S_IFIFO:
                os.mkfifo(name, found.st_mode & _PERMISSIONS, dir_fd=above)
            case _:
                raise _Unreadable("it is neither a file nor a folder")

    def _file(self, entry: walks.WalkEntry, path: str, above: int) -> None:
        with _reading():
            opened = os.open(entry.name, READ, dir_fd=entry.folder)
        with closing_fd(opened) as source:
            found = os.fstat(source)
            if not stat.S_ISREG(found.st_mode):
                raise _Unreadable("it is not a file any more")
            with closing_fd(os.open(entry.name, NEW, 0o600, dir_fd=above)) as target:
                self._copier.copy(source, target, found.st_size)
                _dress(target, found)
        if found.st_nlink > 1:
            self._twins[inode_of(found)] = path


class _Unreadable(Exception):
    """An entry can't be copied; `why` says why."""

    def __init__(self, why: str) -> None:
        self.why = why


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise _Unreadable(os.strerror(problem.errno or 0)) from problem


def _dress(fd: int, like: os.stat_result) -> None:
    os.fchmod(fd, like.st_mode & _PERMISSIONS)
    os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))


class TreeSummary(Struct):
    """A summary of a folder's contents.

    `names` maps the paths of its files and links to device and inode number, `folders` are the
    paths of the folders in it, `count` is the number of all these and the folder itself, `size` is
    the bytes of its files, `longest` the bytes of the longest path.
    """

    names: dict[str, tuple[int, int]] = {}
    folders: list[str] = []
    count: int = 1
    size: int = 0
    longest: int = 0


def summarize(entries: Iterable[walks.WalkEntry], hidden: HiddenTest) -> TreeSummary:
    """Sums up the entries of an open folder at all depths, which `walks.entries` yields.

    Raises `PermissionError` if one is a `hidden` folder, which may not be moved.
    """
    found = TreeSummary()
    for entry in entries:
        path = "/".join([*entry.path, entry.name])
        found.count += 1
        found.longest = max(found.longest, len(os.fsencode(path)))
        if entry.is_folder:
            if hidden(entry.folder, entry.name, len(entry.path)):
                raise PermissionError(errno.EACCES, "it holds a folder that is not the guest's")
            found.folders.append(path)
            continue
        if (status := entry.status) is not None:
            found.names[path] = inode_of(status)
            found.size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return found
