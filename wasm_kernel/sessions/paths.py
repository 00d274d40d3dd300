"""Paths in a session's workspace: parsing them, and walking to their files.

A path is walked by descriptors: each folder is opened relative to the one before it, by its name
alone and with links refused (`O_NOFOLLOW`); each link is read, and its target is walked in its
place. So no step can lead out of the workspace, even if folders are swapped during the walk. The
operation at the end of a path uses the last name in the folder that the walk has reached: nothing
is resolved twice.
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
from wasm_kernel.wasi_files.preopens import is_hidden_name

WORKSPACE_ROOT = Path("workspace")
"""The default folder of sessions."""

LINKS_MOST = 40  # as many as Linux follows
_SHOWN_CHARACTERS = 200
_ABSOLUTE = "Absolute paths are not allowed in a session workspace (a.csv names /app/a.csv)"
_ESCAPES = "Path escapes session workspace"
_NO_LINK = {errno.EINVAL, errno.ENOENT}


class SessionPathError(WasmKernelError, ValueError):
    """The error of a path that file operations refuse; `path` is the caller's path."""

    def __init__(self, why: str, path: str) -> None:
        super().__init__(f"{why}: {printable(path)}. Nothing was read or changed.")
        self.path = path


def printable(path: str) -> str:
    """Returns a path for a message: quoted, with unprintable characters escaped, and shortened."""
    return repr(path[:_SHOWN_CHARACTERS])


def split_path(path: str) -> list[str]:
    """Returns the names along a path, split at its slashes; `..` is kept.

    A name may have backslashes: the walk finds out whether they separate names. Raises
    `SessionPathError` if the path is empty, absolute, or holds a NUL.
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


def normalize(path: str) -> list[str]:
    """Returns the names along a path, split at its slashes and backslashes.

    Raises `SessionPathError` like `split_path`, and if the path names a drive.
    """
    split_path(path)
    plain = path.replace("\\", "/")
    if _begins_elsewhere(plain):
        raise SessionPathError(_ABSOLUTE, path)
    return _names(plain)


def resolve_names(path: str) -> tuple[str, ...]:
    """Returns the names along a path in a session that has no folder yet, with `..` resolved.

    Raises `SessionPathError` like `normalize`, and for paths that lead out or are reserved.
    """
    return tuple(_Resolving(-1, None, path).run(normalize(path)))


def _names(plain: str) -> list[str]:
    return [part for part in plain.split("/") if part not in ("", ".")]


def _begins_elsewhere(plain: str) -> bool:
    return plain.startswith("/") or re.match(r"[A-Za-z]:", plain) is not None


def resolve(
    workspace: Path | int,
    parts: Sequence[str],
    path: str,
    *,
    each: Callable[[], None] = lambda: None,
) -> tuple[str, ...]:
    """Resolves a path below `workspace`: returns the names along the path without links.

    As in `os.path.realpath`, missing names are kept. An absolute link may begin with the
    workspace's own real path, unless the workspace is a descriptor. A name with backslashes is one
    name if it exists; otherwise its backslashes separate names. `path` is for error texts; an
    exception of `each`, which is called at each step, ends the walk.

    Raises:
        SessionPathError: the path leaves the workspace, names a drive, or is reserved.
        OSError: a folder on the way can't be looked at, or links lead in circles.
    """
    with FolderWalk(workspace) as walk:
        beyond = _Resolving(workspace, walk, path).run(parts, each=each)
        return (*walk.path, *beyond)


@contextmanager
def locate(
    workspace: Path | int,
    parts: Sequence[str],
    path: str,
    *,
    follow: bool = True,
    make: bool = False,
    each: Callable[[], None] = lambda: None,
) -> Iterator[tuple[FolderWalk, str]]:
    """Yields a walk to the folder that a path's target lies in, and the target's name there.

    The name is `.` for the workspace itself. It is not a link at this time, unless `follow` is
    False; it need not exist. With `make`, missing folders are made; if the block fails, they are
    removed again if they are empty. Arguments and errors are those of `resolve`.
    """
    with FolderWalk(workspace) as walk:
        *folders, name = _Resolving(workspace, walk, path).run(parts, follow=follow, each=each) or [
            ""
        ]
        made = 0
        try:
            for folder in folders:
                try:
                    walk.enter(folder)
                except FileNotFoundError:
                    if not make:
                        raise
                    try:
                        os.mkdir(folder, dir_fd=walk.fd)
                        is_ours = True
                    except FileExistsError:  # another process made it, and may need its parents
                        is_ours = False
                    walk.enter(folder)
                    made = made + 1 if is_ours else 0
            yield walk, name or (walk.leave() if walk.depth else ".")
        except BaseException:
            with suppress(OSError):
                for _ in range(made):
                    os.rmdir(walk.leave(), dir_fd=walk.fd)
            raise


class _Resolving:
    """A walk along a path: the folders that exist, and the names beyond the last of them."""

    def __init__(self, workspace: Path | int, walk: FolderWalk | None, path: str) -> None:
        self._root = "" if isinstance(workspace, int) else str(workspace)
        self._walk = walk
        self._path = path
        self._beyond: list[str] = []
        self._links = 0

    def run(
        self, parts: Sequence[str], *, follow: bool = True, each: Callable[[], None] = lambda: None
    ) -> list[str]:
        """Walks to the last existing folder of a path; returns the names beyond it."""
        if parts and _begins_elsewhere(parts[0].replace("\\", "/")) and not self._holds(parts[0]):
            raise SessionPathError(_ABSOLUTE, self._path)
        todo = list(reversed(parts))
        while todo:
            name = todo.pop()
            each()
            todo += reversed(self._step(name, last=not todo, follow=follow))
        return self._beyond

    def _holds(self, name: str) -> bool:
        """Returns whether something has that name in the folder that the walk has reached."""
        if self._beyond or self._walk is None:
            return False
        try:
            os.stat(name, dir_fd=self._walk.fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _step(self, part: str, *, last: bool, follow: bool) -> list[str]:
        """Takes one step; returns the names to walk instead if the part is not a plain name."""
        if part == "..":
            self._back()
            return []
        if "\\" in part and not self._holds(part):
            return _names(part.replace("\\", "/"))
        if not self._beyond:
            if not self._depth and is_hidden_name(part):
                raise SessionPathError("This name is reserved for the session itself", self._path)
            target = self._target(part) if last and follow else None if last else self._enter(part)
            if target is not None:
                return self._followed(target) if target else []
        self._beyond.append(part)
        return []

    @property
    def _depth(self) -> int:
        return 0 if self._walk is None else self._walk.depth

    def _back(self) -> None:
        if self._beyond:
            self._beyond.pop()
        elif self._walk is not None and self._walk.depth:
            self._walk.leave()
        else:
            raise SessionPathError(_ESCAPES, self._path)

    def _enter(self, name: str) -> str | None:
        """Goes down into a folder; returns as `FolderWalk.step` does."""
        try:
            return None if self._walk is None else self._walk.step(name)
        except NotADirectoryError:
            return None

    def _target(self, name: str) -> str | None:
        try:
            return None if self._walk is None else os.readlink(name, dir_fd=self._walk.fd)
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
            while self._depth:
                self._back()
            target = target[len(self._root) :]
        return _names(target)
