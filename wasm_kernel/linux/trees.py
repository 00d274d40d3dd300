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
from wasm_kernel.linux.folders import NEW, READ, Folder, closing_fd, inode_of, open_folder
from wasm_kernel.linux.task import QUIET, Task
from wasm_kernel.linux.walks import FolderWalk, HiddenTest

_OWNER = 0o700
_LINKED_DEEPEST = 500  # folders that the walk to each further name of a file opens
_PERMISSIONS = 0o777


def copy_tree(
    source: Path | int,
    target: Path | int,
    hidden: Callable[[str], bool],
    task: Task = QUIET,
) -> dict[str, str]:
    """Copies all but the `hidden` names of a folder into another, which has none of them.

    Returns why entries can't be copied, by their paths in the tree. After an error, the target
    holds a part.
    """
    with FolderWalk(source) as here, FolderWalk(target) as there:
        copying = _Copying(here, there, target, FileCopier(task))
        copying.run([name for name in here.names() if not hidden(name)])
        return copying.left_out


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
    """A running copy, with a walk in the source and one in the target."""

    def __init__(
        self, here: FolderWalk, there: FolderWalk, target: Path | int, copier: FileCopier
    ) -> None:
        self._here = here
        self._there = there
        self._target = target
        self._copier = copier
        self._twins: dict[tuple[int, int], tuple[str, ...]] = {}
        self._entered: list[os.stat_result] = []
        self.left_out: dict[str, str] = {}

    def run(self, names: list[str]) -> None:
        todo = [iter(names)]
        while todo:
            name = next(todo[-1], None)
            if name is None:
                todo.pop()
                if todo:
                    self._leave()
            elif self._copy(name):
                todo.append(iter(self._here.names()))

    def _copy(self, name: str) -> bool:
        """Copies one entry; True if it is a folder, which both walks then have entered."""
        try:
            with _reading():
                found = os.stat(name, dir_fd=self._here.fd, follow_symlinks=False)
            match stat.S_IFMT(found.st_mode):
                case stat.S_IFDIR:
                    self._enter(name, found)
                    return True
                case stat.S_IFREG:
                    self._file(name, found)
                case stat.S_IFLNK:
                    with _reading():
                        leads_to = os.readlink(name, dir_fd=self._here.fd)
                    os.symlink(leads_to, name, dir_fd=self._there.fd)
                case stat.S_IFIFO:
                    os.mkfifo(name, found.st_mode & _PERMISSIONS, dir_fd=self._there.fd)
                case _:
                    raise _Unreadable("it is neither a file nor a folder")
        except _Unreadable as problem:
            self.left_out["/".join([*self._here.path, name])] = problem.why
        except FileNotFoundError:
            pass  # another process removed it
        return False

    def _enter(self, name: str, found: os.stat_result) -> None:
        with _reading():
            self._here.enter(name)
        os.mkdir(name, _OWNER, dir_fd=self._there.fd)
        self._there.enter(name)
        self._entered.append(found)

    def _leave(self) -> None:
        self._here.leave()
        _dress(self._there.fd, self._entered.pop())
        self._there.leave()

    def _file(self, name: str, found: os.stat_result) -> None:
        twin = self._twins.get(inode_of(found))
        if twin is not None:
            self._link_to(twin, name)
            return
        if found.st_nlink > 1 and self._here.depth > _LINKED_DEEPEST:
            raise _Unreadable("it has several names, and lies too deep to keep them")
        with _reading():
            opened = os.open(name, READ, dir_fd=self._here.fd)
        with closing_fd(opened) as source:
            found = os.fstat(source)
            if not stat.S_ISREG(found.st_mode):
                raise _Unreadable("it is not a file any more")
            with closing_fd(os.open(name, NEW, 0o600, dir_fd=self._there.fd)) as target:
                self._copier.copy(source, target, found.st_size)
                _dress(target, found)
        if found.st_nlink > 1:
            self._twins[inode_of(found)] = (*self._there.path, name)

    def _link_to(self, twin: tuple[str, ...], name: str) -> None:
        with FolderWalk(self._target) as way:
            for part in twin[:-1]:
                way.enter(part)
            os.link(twin[-1], name, src_dir_fd=way.fd, dst_dir_fd=self._there.fd)


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


def summarize(entries: Iterable[walks.Entry], hidden: HiddenTest) -> TreeSummary:
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
        try:
            status = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
        except FileNotFoundError:
            continue  # another process was faster
        found.names[path] = inode_of(status)
        found.size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return found
