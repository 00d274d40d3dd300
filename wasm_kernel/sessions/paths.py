"""Paths in a session's workspace, and links in the sessions' folder: how they are resolved.

A path is walked by descriptors: each folder is opened relative to the one before it, by its name
alone and with links refused (`O_NOFOLLOW`); each link is read and its target walked in its place.
So no step can lead out of the workspace, whatever is swapped meanwhile, and it is known that a path
stays inside before anything at its end is opened.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.sessions import ids, metadata
from wasm_kernel.wasi_files.preopens import is_hidden_name

WORKSPACE_ROOT = Path("workspace")
"""The sessions' folder, unless another one is named."""

LINKS_MOST = 40  # as many as Linux follows
_SHOWN_CHARACTERS = 200
_ABSOLUTE = "Absolute paths are not allowed in a session workspace"
_ESCAPES = "Path escapes session workspace"
_RESERVED = "This name is reserved for the session itself"
_NO_LINK = {errno.EINVAL, errno.ENOENT}
_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class SessionPathError(WasmKernelError, ValueError):
    """A path that file operations refuse; `path` is the path as it was given."""

    def __init__(self, why: str, path: str) -> None:
        super().__init__(f"{why}: {printable(path)}. Nothing was read or changed.")
        self.path = path


def printable(path: str) -> str:
    """A path as a message can show it: escaped where it does not print, and cut to a length."""
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
        elif not found and is_hidden_name(name):
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
    link is followed if it names the workspace's own real path. A name with backslashes is
    taken as it is; if there is no such file or folder, the backslashes separate names.

    Args:
        workspace: The session's folder, or a descriptor of it; then absolute links lead out.
        parts: The names along the path, as `parts_of` has them.
        path: The path as it was given, for errors.
        follow: Follows a link at the end, too.
        each: Called at each step; what it raises ends the walk.

    Raises:
        SessionPathError: the path leaves the workspace, names a drive, or leads to or through a
            reserved name.
        OSError: a folder on the way can't be looked at, or links lead in circles.
    """
    todo = list(reversed(parts))
    with FolderWalk(workspace) as way:
        walk = _Resolving(workspace, way, path)
        if parts and _begins_elsewhere(parts[0].replace("\\", "/")) and not walk.holds(parts[0]):
            raise SessionPathError(_ABSOLUTE, path)
        while todo:
            name = todo.pop()
            each()
            todo += reversed(walk.step(name, last=not todo, follow=follow))
        return walk.parts


class _Resolving:
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
        """Returns whether something has that name in the folder that the walk has reached."""
        if self._beyond:
            return False
        try:
            os.stat(name, dir_fd=self._way.fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def step(self, part: str, *, last: bool, follow: bool) -> list[str]:
        """Takes one step; returns the names to walk in its place if it was not a plain name."""
        if part == "..":
            self._back()
            return []
        if "\\" in part and not self.holds(part):
            return _names(part.replace("\\", "/"))
        if not self._beyond and not self._way.depth and is_hidden_name(part):
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
def open_path(
    workspace: Path | int, folders: Sequence[str], *, make: bool = False, mode: int = 0o777
) -> Iterator[FolderWalk]:
    """Opens a folder below `workspace`, by names alone; no link is followed.

    Args:
        workspace: The session's folder, or a descriptor of it.
        folders: The names on the way, as `resolve` found them.
        make: Makes folders that are missing. If the block fails, they are removed again if they are
            empty.
        mode: Their permissions, as far as the umask lets.

    Raises:
        OSError: something on the way is not a folder any more, or can't be opened or made.
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


# -- links in the sessions' folder: other names of sessions in it
#
# A link that is named by a UUID is followed if it stays inside the sessions' folder and leads to a
# session directly in it. The session's id, its lock and its private folder are those of the
# target. Other links are not sessions: the guest of a sandbox whose workspace is the sessions'
# folder can make links there, though none named by a UUID, and could give somebody another one's
# session. The link is walked by `resolve`, which never leaves the sessions' folder; the session is
# then opened by its own name, without following any link.


def target_of(root: Path, session_id: str) -> str:
    """Returns the id of the session that an id names: another one if it is a link to that.

    Args:
        root: The real path of the sessions' folder, which may not be there.
        session_id: An id that was checked.
    """
    try:
        with Folder.open(root) as folder:
            return _target_in(folder, root, session_id)
    except OSError:
        return session_id


def aliases_in(root: Path) -> dict[str, list[str]]:
    """Returns the links that lead to sessions, by the sessions' ids."""
    found: dict[str, list[str]] = {}
    with Folder.open(root) as folder, os.scandir(folder.fd) as listing:
        for name in sorted(entry.name for entry in listing if entry.is_symlink()):
            if ids.is_id(name) and (target := _target_in(folder, root, name)) != name:
                found.setdefault(target, []).append(name)
    return found


def remove_links(root: int, names: list[str]) -> None:
    """Removes links whose session was deleted; a name that is not a link any more is left."""
    for name in names:
        try:
            os.readlink(name, dir_fd=root)
            os.unlink(name, dir_fd=root)
        except OSError:
            continue


def _target_in(folder: Folder, root: Path, name: str) -> str:
    here = folder.status(name) if ids.uuid_in(name) else None
    if here is None or not stat.S_ISLNK(here.st_mode):
        return name
    try:
        names = resolve(root, [name], name)
    except (OSError, SessionPathError):
        return name  # it leads out of the root, or in a circle
    target = names[0] if len(names) == 1 else ""
    return target if ids.is_id(target) and _is_session(folder, target) else name


def _is_session(root: Folder, name: str) -> bool:
    """Returns whether there is a session's folder of that name."""
    there = root.status(name)
    if there is None or not stat.S_ISDIR(there.st_mode):
        return False
    if ids.uuid_in(name):
        return True
    try:
        with root.enter(name) as folder:
            return folder.status(metadata.NAME) is not None
    except OSError:
        return False
