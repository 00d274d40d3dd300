"""Walking one path of the guest to the place it leads to.

The host walks every path itself, one plain name at a time and by descriptor: each folder is opened
below the one before, no link is followed by the system, and the text of each link is walked in its
place. The call then acts on one name in the folder in which the walk ended. So the check and the
act are one, even if another process swaps files in between.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from enum import Enum

from wasm_kernel.engine import abi
from wasm_kernel.linux.folders import Closing, link_text
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.wasi_files.bookkeeping import Bookkeeping, NameInFolder, status_at
from wasm_kernel.wasi_files.listing import FolderEntry, read_folder
from wasm_kernel.wasi_files.preopens import GuestOSError, Parts, Preopen, is_hidden_folder

_HOPS = 40  # the number of links that Linux follows


Follow = Enum("Follow", "ALWAYS BEFORE_SLASH NEVER")
"""Tells whether a link at the end of a path is followed: always, before a slash, or never."""


class Outside(GuestOSError):
    """A path leaves its preopened folder.

    `path` is the rest of the way, as a path below the guest's `/`. It is None after links, where
    the walk might never end, and after an open folder, which may have been moved.
    """

    def __init__(self, path: str | None = None) -> None:
        super().__init__(errno.EPERM)
        self.path = path


class HiddenName(GuestOSError):
    """A path leads to, or through, a name that does not exist for the guest."""

    def __init__(self) -> None:
        super().__init__(errno.ENOENT)


class GuestPath(NameInFolder, Closing):
    """The place that a path argument leads to, with every link resolved. Close it.

    `name` is `.` for the folder itself; `is_folder` is true if the path ends with a slash, as only
    folders' may.

    An operation that changes the file at a place first calls `lift`, `make_way` or another of the
    methods below, which do nothing here: they prepare a place in an overlay (`OverlayPath`). There,
    `preopen` is the layer that has the file, and `overlay` the folder that the guest sees.
    `beneath` is the status of the lower layer's file, None if it has none; `in_lower` is true if
    only that layer has one.
    """

    def __init__(self, walk: PathWalk, name: str, parts: Parts, *, is_folder: bool) -> None:
        super().__init__(walk.preopen, walk.fd, name, parts)
        self._walk = walk
        self.overlay = walk.preopen
        self.is_folder = is_folder
        self.beneath: os.stat_result | None = None
        self.in_lower = False

    def status(self) -> os.stat_result | None:
        """Returns the status of the file there, links not followed; None if there is none.

        Raises `GuestOSError` if the path asks for a folder, and it is not one.
        """
        try:
            return self.required_status()
        except GuestOSError:
            raise
        except (OSError, ValueError):
            return None

    def required_status(self) -> os.stat_result:
        """Returns the same as `status`; raises `OSError` if there is no file."""
        found = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        if self.is_folder and not stat.S_ISDIR(found.st_mode):
            raise GuestOSError(errno.ENOTDIR)
        return found

    def make_way(self, books: Bookkeeping) -> None:
        """Makes the folders that lead to a new file."""

    def lift(self, books: Bookkeeping, *, content: bool = True) -> None:
        """Copies the file to the upper layer if only the lower one has it.

        Without `content` the copy of a file is empty.
        """

    def lift_to_open(self, books: Bookkeeping, how: int, rights: int) -> None:
        """Does `lift` or `make_way` if an opening with these WASI arguments may change the file."""

    def check_movable(self, found: os.stat_result) -> None:
        """Raises `GuestOSError` if the file, which has this status, can't be moved away."""

    def lift_to_move(self, books: Bookkeeping) -> None:
        """Does `lift`, and hides the lower layer's file, before the name is gone."""

    def give_way(
        self, books: Bookkeeping, moved: os.stat_result, replaced: os.stat_result | None
    ) -> os.stat_result | None:
        """Does `make_way` for a file that is moved here and may replace another.

        Returns the status of the file that the system call will replace.
        """
        return replaced

    def hide_lower(self, books: Bookkeeping, found: os.stat_result, *, folder: bool) -> bool:
        """Hides the lower layer's file, before the name is removed.

        Returns whether that was the only file, so that nothing is left to remove.
        """
        return False

    def close(self) -> None:
        """Closes the folder. Safe to call twice."""
        self._walk.close()


class Layer(Closing):
    """A folder, and how far a walk has gone down in it; close it.

    It opens nothing before the first step, so that a path of one name needs no folder opened.
    """

    def __init__(self, preopen: Preopen, fd: int | None = None) -> None:
        self.preopen = preopen
        self.missing = 0  # folders on the way that another layer has and this one lacks
        self.hides_folders = preopen.hidden.hides_folders
        self._start = preopen.folder.fd if fd is None else fd
        self._walk: FolderWalk | None = None

    @property
    def deepest(self) -> int:
        """A descriptor of the deepest folder on the way that this layer has."""
        return self._start if self._walk is None else self._walk.fd

    @property
    def here(self) -> int | None:
        """A descriptor of the folder that the walk stands in; None if this layer lacks it."""
        return None if self.missing else self.deepest

    def enter(self, name: str, depth: int) -> str | None:
        """Goes down into a folder; returns an empty text if it succeeded.

        Returns the text of a link in its place, or None if it is missing. Raises `HiddenName` if
        the folder does not exist for the guest.
        """
        if self.missing:
            return None
        walk = self._open()
        target = walk.step(name)
        hides = target == "" and self.hides_folders
        if hides and self.preopen.hidden.hides_folder(walk.fd, depth):
            walk.leave()
            raise HiddenName
        return target

    def _open(self) -> FolderWalk:
        if self._walk is None:
            self._walk = FolderWalk(self._start, to_list=False)
        return self._walk

    def fill(self, name: str) -> None:
        """Goes down into a folder that this layer lacked before."""
        self._open().enter(name)
        self.missing -= 1

    def leave(self) -> None:
        """Goes back up."""
        if self.missing:
            self.missing -= 1
        elif self._walk is not None:
            self._walk.leave()

    def status(self, name: str) -> os.stat_result | None:
        """Returns the status of an entry here, links not followed; None if there is none."""
        return None if self.missing else status_at(self.deepest, name)

    def close(self) -> None:
        """Closes the folders on the way. Safe to call twice."""
        if self._walk is not None:
            self._walk.close()


class PathWalk(Closing):
    """A walk along one path from an open folder, `fd` or else the preopen; close it.

    `parts` are the names that lead to `fd`.
    """

    def __init__(self, preopen: Preopen, fd: int | None = None, parts: Parts = ()) -> None:
        self.preopen = preopen
        self._upper = Layer(preopen, fd)
        self._layers = [self._upper]
        self._way = list(parts)
        self._base = len(parts)
        self._hops = 0

    @property
    def fd(self) -> int:
        """A descriptor of the folder that the walk stands in; -1 if the upper layer lacks it."""
        return -1 if self._upper.missing else self._upper.deepest

    @property
    def parts(self) -> Parts:
        """The names that led here."""
        return tuple(self._way)

    def close(self) -> None:
        """Closes the walk's folders. Safe to call twice."""
        for layer in self._layers:
            layer.close()

    def entries(self, check_time: Callable[[], None]) -> Iterator[FolderEntry]:
        """Yields the entries of the folder that the walk stands in."""
        return read_folder(self.fd, self.preopen.hidden, len(self._way))

    def to(self, path: str, *, follow: Follow) -> GuestPath:
        """Walks a path to its last name."""
        is_folder = path.endswith(("/", "/."))
        follows = follow is Follow.ALWAYS or (is_folder and follow is Follow.BEFORE_SLASH)
        if path.startswith("/"):
            raise Outside
        todo = _names(path)
        while todo:
            name = todo.pop()
            if name == "..":
                if len(self._way) == self._base:
                    raise Outside(self._above(todo, is_folder=is_folder))
                self._way.pop()
                for layer in self._layers:
                    layer.leave()
                continue
            if self._hides(len(self._way), name):
                raise HiddenName
            if todo:
                target = self._enter(name)
            else:
                target = self._link(name) if follows else ""
                if not target:
                    return self._place(name, is_folder=is_folder)
            if target:
                todo += self._followed(target)
        return self._place(".", is_folder=is_folder)

    def _hides(self, depth: int, name: str) -> bool:
        return self.preopen.hidden.hides_name(depth, name)

    def _place(self, name: str, *, is_folder: bool) -> GuestPath:
        below, hidden = name != "." and self._upper.hides_folders, self.preopen.hidden
        if below and is_hidden_folder(hidden, self.fd, name, len(self._way)):
            raise HiddenName
        return GuestPath(self, name, self._parts_of(name), is_folder=is_folder)

    def _parts_of(self, name: str) -> Parts:
        parts = self.parts if name == "." else (*self._way, name)
        if sum(map(len, parts)) + len(parts) >= abi.PATH_MAX // 4:
            check_length(parts)
        return parts

    def _enter(self, name: str) -> str:
        """Goes down into a folder; returns the text of a link in its place, or an empty one."""
        if (target := self._upper.enter(name, len(self._way))) is None:
            raise FileNotFoundError(errno.ENOENT, "the folder is not there")
        if not target:
            self._way.append(name)
        return target

    def _link(self, name: str) -> str:
        """Returns the text of a link; an empty one if it is not a link."""
        return link_text(self.fd, name)

    def _followed(self, target: str) -> list[str]:
        self._hops += 1
        if self._hops > _HOPS:
            raise GuestOSError(errno.ELOOP)
        if target.startswith("/"):
            raise Outside
        return _names(target)

    def _above(self, left: list[str], *, is_folder: bool) -> str | None:
        """Returns a path out of the preopen (`..`), as from the guest's root; None in links."""
        if self._base or self._hops:
            return None
        above = self.preopen.guest.split("/")[1:-1]
        while left and left[-1] == "..":
            left.pop()
            above = above[:-1]
        return ("/".join([*above, *reversed(left)]) or ".") + "/" * is_folder


def _names(path: str) -> list[str]:
    """Returns the names in a path, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def check_length(parts: Parts, more: int = 0) -> None:
    """Raises `GuestOSError` for a path that is too long for the host's tools."""
    if len(os.fsencode("/".join(parts))) + more >= abi.PATH_MAX:
        raise GuestOSError(errno.ENAMETOOLONG)
