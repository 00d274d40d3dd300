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
from enum import Enum

from wasm_kernel.engine import abi
from wasm_kernel.linux.folders import Closing
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.wasi_files.preopens import Parts, Preopen, Refused, is_hidden_folder

_HOPS = 40  # the number of links that Linux follows


class Follow(Enum):
    """Tells whether a link at the end of a path is followed: always, before a slash, or never."""

    ALWAYS = "always"
    BEFORE_SLASH = "before a slash"
    NEVER = "never"


def following(flags: int) -> Follow:
    """Returns the meaning of WASI's `lookupflags`."""
    return Follow.ALWAYS if flags & abi.LOOKUP_FOLLOW else Follow.BEFORE_SLASH


class Outside(Refused):
    """A path leaves the folders of the guest."""

    errno = abi.EPERM


class HiddenName(Refused):
    """A path leads to, or through, a name that does not exist for the guest."""

    errno = abi.ENOENT


class GuestPath(Closing):
    """The place that a path argument leads to: a name in an open folder. Close it.

    `parts` are the names that lead there below the preopen, with every link resolved. `name` is `.`
    for the folder itself; `is_folder` is true if the path ends with a slash, as only folders' may.
    """

    __slots__ = ("_walk", "folder", "is_folder", "name", "parts", "preopen")

    def __init__(self, walk: PathWalk, name: str, parts: Parts, *, is_folder: bool) -> None:
        self._walk = walk
        self.preopen = walk.preopen
        self.folder = walk.fd
        self.name = name
        self.parts = parts
        self.is_folder = is_folder

    @property
    def path(self) -> str | None:
        """The workspace path, or None if changes are not recorded there."""
        return "/".join(self.parts) if self.preopen.tracked else None

    def status(self) -> os.stat_result | None:
        """Returns the status of the file there, links not followed; None if there is none.

        Raises `Refused` if the path asks for a folder, and it is not one.
        """
        try:
            return self.required_status()
        except (OSError, ValueError):
            return None

    def required_status(self) -> os.stat_result:
        """Returns the same as `status`; raises `OSError` if there is no file."""
        found = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        if self.is_folder and not stat.S_ISDIR(found.st_mode):
            raise Refused(abi.ENOTDIR)
        return found

    def close(self) -> None:
        """Closes the folder. Safe to call twice."""
        self._walk.close()


class PathWalk:
    """A walk along one path from an open folder, `fd` or else the preopen; close it.

    A path of one name needs no folder opened. `parts` are the names that lead to `fd`.
    """

    def __init__(self, preopen: Preopen, fd: int | None = None, parts: Parts = ()) -> None:
        self.preopen = preopen
        self._hides_folders = preopen.hidden.hides_folders
        self._base = parts
        self._start = preopen.folder.fd if fd is None else fd
        self._descent: FolderWalk | None = None
        self._hops = 0

    @property
    def fd(self) -> int:
        """A descriptor of the folder that the walk stands in."""
        return self._start if self._descent is None else self._descent.fd

    @property
    def parts(self) -> Parts:
        """The names that led here."""
        return self._base if self._descent is None else self._base + self._descent.path

    def close(self) -> None:
        """Closes the walk's folders. Safe to call twice."""
        if self._descent is not None:
            self._descent.close()

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
                self._up()
                continue
            depth = len(self.parts)
            if self._hides(depth, name):
                raise HiddenName
            if not todo:
                target = self._link(name) if follows else None
                if target is None:
                    return self._place(name, is_folder=is_folder)
            else:
                target = self._enter(name, depth)
            if target is not None:
                todo += self._followed(target)
        return self._place(".", is_folder=is_folder)

    def _hides(self, depth: int, name: str) -> bool:
        return self.preopen.hidden.hides_name(depth, name)

    def _place(self, name: str, *, is_folder: bool) -> GuestPath:
        hidden = self.preopen.hidden
        below = name != "." and self._hides_folders
        if below and is_hidden_folder(hidden, self.fd, name, len(self.parts)):
            raise HiddenName
        return GuestPath(self, name, self._parts_of(name), is_folder=is_folder)

    def _parts_of(self, name: str) -> Parts:
        parts = self.parts if name == "." else (*self.parts, name)
        if sum(map(len, parts)) + len(parts) >= abi.PATH_MAX // 4:
            check_length(parts)
        return parts

    def _enter(self, name: str, depth: int) -> str | None:
        """Goes down into a folder; returns the text of a link in its place."""
        if self._descent is None:
            self._descent = FolderWalk(self._start, to_list=False)
        try:
            self._descent.enter(name)
        except OSError as problem:
            if problem.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            target = self._link(name)
            if target is None:
                raise
            return target
        if self._hides_folders and self.preopen.hidden.hides_folder(self._descent.fd, depth):
            raise HiddenName
        return None

    def _link(self, name: str) -> str | None:
        """Returns the text of a link; None if it is not a link."""
        return link_text(self.fd, name)

    def _followed(self, target: str) -> list[str]:
        self._hops += 1
        if self._hops > _HOPS:
            raise Refused(abi.ELOOP)
        if target.startswith("/"):
            raise Outside
        return _names(target)

    def _up(self) -> None:
        """Goes up, not above the path's beginning: an open folder may have been moved."""
        if self._descent is None or not self._descent.path:
            raise Outside
        self._descent.leave()


def link_text(folder: int, name: str) -> str | None:
    """Returns the text of a link in an open folder; None if it is not a link."""
    try:
        return os.readlink(name, dir_fd=folder)
    except (OSError, ValueError):
        return None


def _names(path: str) -> list[str]:
    """Returns the names in a path, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def check_length(parts: Parts, more: int = 0) -> None:
    """Raises `Refused` for a path that is too long for the host's tools."""
    if len(os.fsencode("/".join(parts))) + more >= abi.PATH_MAX:
        raise Refused(abi.ENAMETOOLONG)
