"""Walking a path argument of a call to the place it leads to.

The host walks every path itself, one plain name at a time and by descriptor: each folder is opened
below the one before, no link is followed by the system, and the text of each link is walked in its
place. What a call then does, it does to one name in the folder where the walk ended. So the check
and the act are one, whatever another process swaps meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from enum import Enum

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import GuestMemory
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.wasi_files.open_files import OpenDescriptor, OpenFiles, Parts
from wasm_kernel.wasi_files.preopens import Preopen, Preopens, Refused, is_hidden_folder

_HOPS = 40  # as many links as Linux follows


class Follow(Enum):
    """Says if a link at the end of a path is followed: always, before a slash, or never."""

    ALWAYS = "always"
    BEFORE_SLASH = "before a slash"
    NEVER = "never"


def following(flags: int) -> Follow:
    """Returns what WASI's `lookupflags` say."""
    return Follow.ALWAYS if flags & abi.LOOKUP_FOLLOW else Follow.BEFORE_SLASH


class Outside(Refused):
    """A path leaves the folders of the guest."""

    errno = abi.EPERM


class HiddenName(Refused):
    """A path leads to, or through, a name that does not exist for the guest."""

    errno = abi.ENOENT


class GuestPath:
    """The place that a path argument leads to: a name in an open folder. Close it.

    Attributes:
        preopen: The folder of the guest's that it lies in.
        folder: A descriptor of the folder that the name is in, for as long as the place is open.
        parts: The names that lead there below that folder, after every link on the way.
        name: The last name, or `.` for the folder itself.
        is_folder: Whether the path ends as only a folder's may, with a slash.
    """

    __slots__ = ("_walk", "folder", "is_folder", "name", "parts", "preopen")

    def __init__(self, walk: _Walk, name: str, parts: Parts, *, is_folder: bool) -> None:
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
        """Returns the status of what is there now, links not followed; None for nothing.

        Raises:
            Refused: the path asks for a folder, and something else is there.
        """
        try:
            return self.required_status()
        except (OSError, ValueError):
            return None

    def required_status(self) -> os.stat_result:
        """Returns the status of what is there now, links not followed.

        Raises:
            Refused: the path asks for a folder, and something else is there.
            OSError: nothing is there, or it can't be looked at.
        """
        found = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        if self.is_folder and not stat.S_ISDIR(found.st_mode):
            raise Refused(abi.ENOTDIR)
        return found

    def close(self) -> None:
        """Closes the folder. Safe to call twice."""
        self._walk.close()

    def __enter__(self) -> GuestPath:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class GuestPaths:
    """The path arguments of one guest's calls. Only the guest's thread uses it."""

    def __init__(self, preopens: Preopens, memory: GuestMemory, files: OpenFiles) -> None:
        self._preopens = preopens
        self._memory = memory
        self._files = files
        self._root = preopens.root

    def find(self, fd: int, at: int, length: int, follow: Follow = Follow.NEVER) -> GuestPath:
        """Reads a path argument, leads it to its mount, and finds out where it ends.

        Args:
            fd: The descriptor that the path begins at.
            at: The path's address in the guest's memory.
            length: Its length in bytes.
            follow: Whether a link at the end of the path is followed.

        Raises:
            Refused: there is no such path for the guest.
            OSError: a folder on the way can't be entered.
        """
        path = self.text(at, length)
        if not path:
            raise Refused(abi.ENOENT)
        if fd == self._root:
            found = self._preopens.mount_of(path)
            if found is not None:
                mount, used = found
                return resolve(mount, path[used:] or ".", follow=follow)
        opened = self._files.get(fd)
        if opened is None:
            raise Refused(abi.EBADF)
        if not opened.is_folder:
            raise Refused(abi.ENOTDIR)
        if opened.gone or opened.fd < 0 or is_hidden_now(opened):
            raise Refused(abi.ENOENT)
        return resolve(opened.preopen, path, start=opened, follow=follow)

    def text(self, at: int, length: int) -> str:
        """Reads a path, or what a link is to hold.

        Raises:
            Refused: it is not a path.
        """
        if length > abi.PATH_MAX:
            raise Refused(abi.ENAMETOOLONG)
        try:
            text = self._memory.read(at, length).decode("utf-8")
        except UnicodeDecodeError:
            raise Refused(abi.EILSEQ) from None
        if "\0" in text:
            raise Refused(abi.EINVAL)
        return text


def resolve(
    preopen: Preopen,
    path: str,
    *,
    start: OpenDescriptor | None = None,
    follow: Follow = Follow.NEVER,
) -> GuestPath:
    """Finds out where a path leads, links on the way followed; the caller closes the place.

    Args:
        preopen: The folder of the guest's that it must stay in.
        path: The path.
        start: The open folder that it begins at; by default the preopened one.
        follow: Whether a link at its end is followed.

    Raises:
        Refused: there is no such path for the guest.
        OSError: a folder on the way can't be entered.
    """
    walk = _Walk(preopen, start)
    try:
        return walk.to(path, follow=follow)
    except BaseException:
        walk.close()
        raise


def is_hidden_now(opened: OpenDescriptor) -> bool:
    """Returns whether an open folder has become one that does not exist for the guest."""
    hidden = opened.preopen.hidden
    if not (opened.parts and hidden.hides_folders):
        return False
    return hidden.hides_folder(opened.fd, len(opened.parts) - 1)


class _Walk:
    """A walk along one path. A path of one name needs no folder opened."""

    def __init__(self, preopen: Preopen, start: OpenDescriptor | None) -> None:
        self.preopen = preopen
        self._hides_folders = preopen.hidden.hides_folders
        self._base: Parts = () if start is None else start.parts
        self._start = preopen.folder.fd if start is None else start.fd
        self._descent: FolderWalk | None = None
        self._hops = 0

    @property
    def fd(self) -> int:
        """The folder that the walk stands in."""
        return self._start if self._descent is None else self._descent.fd

    @property
    def _parts(self) -> Parts:
        return self._base if self._descent is None else self._base + self._descent.path

    def close(self) -> None:
        """Closes what was opened on the way. Safe to call twice."""
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
            depth = len(self._parts)
            if self.preopen.hidden.hides_name(depth, name):
                raise HiddenName
            if not todo:
                target = self._link(name) if follows else None
                if target is None:
                    if self._hides_folders and self._is_hidden(name, depth):
                        raise HiddenName
                    return self._place(name, is_folder=is_folder)
            else:
                target = self._enter(name, depth)
            if target is not None:
                todo += self._followed(target)
        return self._place(".", is_folder=is_folder)

    def _place(self, name: str, *, is_folder: bool) -> GuestPath:
        parts = self._parts if name == "." else (*self._parts, name)
        if sum(map(len, parts)) + len(parts) >= abi.PATH_MAX // 4:
            check_length(parts)
        return GuestPath(self, name, parts, is_folder=is_folder)

    def _enter(self, name: str, depth: int) -> str | None:
        """Goes down into a folder; returns a link's text if there is a link instead."""
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

    def _is_hidden(self, name: str, depth: int) -> bool:
        return is_hidden_folder(self.preopen.hidden, self.fd, name, depth)

    def _link(self, name: str) -> str | None:
        """Returns the text of a link; None for what is not a link."""
        try:
            return os.readlink(name, dir_fd=self.fd)
        except (OSError, ValueError):
            return None

    def _followed(self, target: str) -> list[str]:
        self._hops += 1
        if self._hops > _HOPS:
            raise Refused(abi.ELOOP)
        if target.startswith("/"):
            raise Outside
        return _names(target)

    def _up(self) -> None:
        """Goes up, at most to where the path began: an open folder may lie elsewhere by now."""
        if self._descent is None or not self._descent.path:
            raise Outside
        self._descent.leave()


def _names(path: str) -> list[str]:
    """Returns the names in a path, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def check_length(parts: Parts, more: int = 0) -> None:
    """Checks that no path gets so long that the host's tools could not name it.

    Args:
        parts: The names that lead to a place.
        more: Bytes that come after it.

    Raises:
        Refused: it would.
    """
    if len(os.fsencode("/".join(parts))) + more >= abi.PATH_MAX:
        raise Refused(abi.ENAMETOOLONG)
