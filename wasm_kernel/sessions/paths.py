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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from wasm_kernel.engine.files.names import is_hidden
from wasm_kernel.engine.folders.descent import Descent
from wasm_kernel.errors import WasmKernelError

LINKS_MOST = 40  # as many as Linux follows
_SHOWN_CHARACTERS = 200
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
    """The names along a path; backslashes separate them, too. `..` is left in its place.

    Raises:
        SessionPathError: the path is empty, absolute, names a drive, or holds a NUL.
    """
    if not isinstance(path, str):
        raise TypeError(f"a path in a session is text, not {type(path).__name__}")
    plain = path.replace("\\", "/")
    if "\0" in plain:
        raise SessionPathError("A path can't hold a NUL character", path)
    if plain.startswith("/") or re.match(r"[A-Za-z]:", plain):
        raise SessionPathError("Absolute paths are not allowed in a session workspace", path)
    parts = [part for part in plain.split("/") if part not in ("", ".")]
    if not plain:
        raise SessionPathError("A path needs a name", path)
    return parts


def resolve(workspace: Path, parts: Sequence[str], path: str) -> tuple[str, ...]:
    """The names that lead to what a path means, below `workspace` and with no link among them.

    Links are followed, also at the end. As in `os.path.realpath`, what is missing is taken by its
    name. An absolute link is followed where it names the workspace's own real path.

    Args:
        workspace: The session's folder.
        parts: The names along the path, as `parts_of` has them.
        path: The path as it was given, for errors.

    Raises:
        SessionPathError: the path leaves the workspace, or leads to or through a reserved name.
        OSError: a folder on the way can't be looked at, or links lead in circles.
    """
    todo = list(reversed(parts))
    with Descent(workspace) as way:
        walk = _Walk(workspace, way, path)
        while todo:
            todo += reversed(walk.step(todo.pop(), last=not todo))
        return walk.parts


class _Walk:
    """A walk along a path: the folders that exist, and the names beyond the last of them."""

    def __init__(self, workspace: Path, way: Descent, path: str) -> None:
        self._root = str(workspace)
        self._way = way
        self._path = path
        self._beyond: list[str] = []
        self._links = 0

    @property
    def parts(self) -> tuple[str, ...]:
        return (*self._way.way, *self._beyond)

    def step(self, part: str, *, last: bool) -> list[str]:
        """Take one step; what is to be walked in its place, where it was a link."""
        if part == "..":
            self._back()
            return []
        if not self.parts and is_hidden(part):
            raise SessionPathError("This name is reserved for the session itself", self._path)
        if self._beyond:
            self._beyond.append(part)
            return []
        target = self._target(part)
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
        elif self._way.way:
            self._way.leave()
        else:
            raise SessionPathError("Path escapes session workspace", self._path)

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
            inside = f"{target.rstrip('/')}/".startswith(f"{self._root}/")
            if not inside:
                raise SessionPathError("Path escapes session workspace through a link", self._path)
            while self._way.way:
                self._way.leave()
            target = target[len(self._root) :]
        return [part for part in target.split("/") if part not in ("", ".")]


@contextmanager
def entered(
    workspace: Path | int, folders: Sequence[str], *, make: bool = False, mode: int = 0o777
) -> Iterator[Descent]:
    """Stand in a folder below `workspace`, going by names alone; no link is followed.

    Args:
        workspace: The session's folder, or a descriptor of it.
        folders: The names on the way, as `resolve` found them.
        make: Whether folders that are missing are made.
        mode: Their permissions, as far as the umask lets.

    Raises:
        OSError: something on the way is no folder any more, or can't be opened or made.
    """
    with Descent(workspace) as way:
        for name in folders:
            try:
                way.enter(name)
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(name, mode, dir_fd=way.fd)
                way.enter(name)
        yield way
