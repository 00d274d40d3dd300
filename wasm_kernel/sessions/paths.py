"""Where a path in a session's workspace leads, found out by hand and without ever leaving it.

The whole way is walked by descriptors: each folder is opened relative to the one before it, by its
name alone and with links refused (`O_NOFOLLOW`); each link is read and its target walked in its
place. So no step can lead out of the workspace, whatever is swapped meanwhile, and whether a path
stays inside is known before anything at its end is opened.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.wasi_files.names import is_hidden

LINKS_MOST = 40  # as many as Linux follows
_SHOWN_CHARACTERS = 200
_ABSOLUTE = "Absolute paths are not allowed in a session workspace"
_ESCAPES = "Path escapes session workspace"
_RESERVED = "This name is reserved for the session itself"
_NO_LINK = {errno.EINVAL, errno.ENOENT}
_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class SessionPathError(WasmKernelError, ValueError):
    """A path that no file operation takes; `path` is what was given."""

    def __init__(self, why: str, path: str) -> None:
        super().__init__(f"{why}: {shown(path)}. Nothing was read or changed.")
        self.path = path


def shown(path: str) -> str:
    """A path as a message can show it: what does not print is escaped, and it is not too long."""
    return repr(path[:_SHOWN_CHARACTERS])


def parts_of(path: str) -> list[str]:
    """Returns the names along a path, split at its slashes; `..` is left in its place.

    A name may hold backslashes: `resolve` finds out whether they separate names.

    Raises:
        SessionPathError: the path is empty, absolute, or holds a NUL.
    """
    if not isinstance(path, str):
        raise TypeError(f"a path in a session is text, not {type(path).__name__}")
    if "\0" in path:
        raise SessionPathError("A path can't hold a NUL character", path)
    if path.startswith("/"):
        raise SessionPathError(_ABSOLUTE, path)
    if not path:
        raise SessionPathError("A path needs a name", path)
    return _names(path)


def normalized(path: str) -> list[str]:
    """Returns the names along a path whose backslashes separate names like its slashes.

    Raises:
        SessionPathError: as `parts_of`; or the path names a drive.
    """
    parts_of(path)
    plain = path.replace("\\", "/")
    if _begins_elsewhere(plain):
        raise SessionPathError(_ABSOLUTE, path)
    return _names(plain)


def lexical(path: str) -> tuple[str, ...]:
    """Returns the names that a path means in a session that has no folder yet.

    Raises:
        SessionPathError: as `normalized`; or the path leaves the workspace, or leads through a
            reserved name.
    """
    found: list[str] = []
    for name in normalized(path):
        if name == "..":
            if not found:
                raise SessionPathError(_ESCAPES, path)
            found.pop()
        elif not found and is_hidden(name):
            raise SessionPathError(_RESERVED, path)
        else:
            found.append(name)
    return tuple(found)


def _names(plain: str) -> list[str]:
    return [part for part in plain.split("/") if part not in ("", ".")]


def _begins_elsewhere(plain: str) -> bool:
    return plain.startswith("/") or re.match(r"[A-Za-z]:", plain) is not None


def resolve(
    workspace: Path | int,
    parts: Sequence[str],
    path: str,
    *,
    follow: bool = True,
    each: Callable[[], None] = lambda: None,
) -> tuple[str, ...]:
    """Returns the names that lead to what a path means, below `workspace`, without links.

    Links are followed. As in `os.path.realpath`, what is missing is taken by its name. An absolute
    link is followed if it names the workspace's own real path. A name with backslashes is that of
    what lies there; if there is no such thing, the backslashes separate names.

    Args:
        workspace: The session's folder, or a descriptor of it; then absolute links lead out.
        parts: The names along the path, as `parts_of` has them.
        path: The path as it was given, for errors.
        follow: Whether a link at the end is followed, too.
        each: Hears of each step; what it raises ends the walk.

    Raises:
        SessionPathError: the path leaves the workspace, names a drive, or leads to or through a
            reserved name.
        OSError: a folder on the way can't be looked at, or links lead in circles.
    """
    todo = list(reversed(parts))
    with FolderWalk(workspace) as way:
        walk = _Walk(workspace, way, path)
        if parts and _begins_elsewhere(parts[0].replace("\\", "/")) and not walk.holds(parts[0]):
            raise SessionPathError(_ABSOLUTE, path)
        while todo:
            name = todo.pop()
            each()
            todo += reversed(walk.step(name, last=not todo, follow=follow))
        return walk.parts


class _Walk:
    """A walk along a path: the folders that exist, and the names beyond the last of them."""

    def __init__(self, workspace: Path | int, way: FolderWalk, path: str) -> None:
        self._root = "" if isinstance(workspace, int) else str(workspace)
        self._way = way
        self._path = path
        self._beyond: list[str] = []
        self._links = 0

    @property
    def parts(self) -> tuple[str, ...]:
        return (*self._way.path, *self._beyond)

    def holds(self, name: str) -> bool:
        """Whether something of that name lies where the walk stands."""
        if self._beyond:
            return False
        try:
            os.stat(name, dir_fd=self._way.fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def step(self, part: str, *, last: bool, follow: bool) -> list[str]:
        """Take one step; returns what is to be walked in its place, if it was not a plain name."""
        if part == "..":
            self._back()
            return []
        if "\\" in part and not self.holds(part):
            return _names(part.replace("\\", "/"))
        if not self._beyond and not self._way.depth and is_hidden(part):
            raise SessionPathError(_RESERVED, self._path)
        if self._beyond:
            self._beyond.append(part)
            return []
        target = self._target(part) if follow or not last else None
        if target is not None:
            return self._followed(target)
        try:
            if last:
                self._beyond.append(part)
            else:
                self._way.enter(part)
        except OSError as problem:
            if problem.errno not in _NO_FOLDER:
                raise
            self._beyond.append(part)
        return []

    def _back(self) -> None:
        if self._beyond:
            self._beyond.pop()
        elif self._way.depth:
            self._way.leave()
        else:
            raise SessionPathError(_ESCAPES, self._path)

    def _target(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self._way.fd)
        except OSError as problem:
            if problem.errno not in _NO_LINK:
                raise
            return None

    def _followed(self, target: str) -> list[str]:
        self._links += 1
        if self._links > LINKS_MOST:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith("/"):
            inside = self._root and f"{target.rstrip('/')}/".startswith(f"{self._root}/")
            if not inside:
                raise SessionPathError(f"{_ESCAPES} through a link", self._path)
            while self._way.depth:
                self._way.leave()
            target = target[len(self._root) :]
        return [part for part in target.split("/") if part not in ("", ".")]


@contextmanager
def entered(
    workspace: Path | int, folders: Sequence[str], *, make: bool = False, mode: int = 0o777
) -> Iterator[FolderWalk]:
    """Stand in a folder below `workspace`, going by names alone; no link is followed.

    Args:
        workspace: The session's folder, or a descriptor of it.
        folders: The names on the way, as `resolve` found them.
        make: Whether folders that are missing are made. If the block fails, they are removed again,
            as far as they are empty.
        mode: Their permissions, as far as the umask lets.

    Raises:
        OSError: something on the way is no folder any more, or can't be opened or made.
    """
    made = 0
    with FolderWalk(workspace) as way:
        try:
            for name in folders:
                try:
                    way.enter(name)
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(name, mode, dir_fd=way.fd)
                    way.enter(name)
                    made += 1
            yield way
        except BaseException:
            with suppress(OSError):
                for _ in range(made):
                    name = way.path[-1]
                    way.leave()
                    os.rmdir(name, dir_fd=way.fd)
            raise
