"""The files of a session from outside: list, read, write, delete.

Every operation takes a path relative to the session's workspace. The path is walked by descriptors
(`paths.py`), and the operation uses one plain name in the folder at its end. If another process
swaps something on the way, the operation is tried a few more times. A refused call changes nothing.

Errors name the caller's path, never one of the host. The session's own names (`.metadata.json`, in
every spelling of `wasi_files/preopens.py`) are not files here.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from wasm_kernel import events
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Folder, making_folder
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.sessions import entries, ids
from wasm_kernel.sessions.paths import (
    WORKSPACE_ROOT,
    SessionPathError,
    locate,
    normalize,
    resolve,
    resolve_names,
    split_path,
)
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session
from wasm_kernel.wasi_files.preopens import is_cover, is_hidden_name

T = TypeVar("T")
READ_BYTES = 1024 * 1024 * 1024
"""The most that `read_session_file` returns by default, in bytes."""

_ATTEMPTS = 8
_NAMED_CHARACTERS = 500
_LINK_STEPS = 1_000_000  # takes some seconds
_SWAPPED = {errno.ELOOP, errno.ENOTDIR, errno.ESTALE}


def list_session_files(
    session_id: str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    pattern: str | None = None,
    *,
    logger: SandboxLogger | None = None,
    private_root: Path | str | None = None,
) -> list[str]:
    """Returns the files of a session: sorted paths relative to its workspace, split by `/`.

    Folders themselves are not listed. A link is listed if it leads to a file of the session, but
    never walked; links are left out once following links has taken a million steps. Pipes, sockets
    and devices are left out, and so are files that are deeper than 2,000 folders.

    Args:
        session_id: The session.
        workspace_root: The folder that holds the sessions' folders.
        pattern: A glob: `*`, `?` and `[...]` within a name, `**` across folders. All files by
            default.
        logger: Gets the events; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        SessionIdError: `session_id` is not a session id (a `ValueError`).
        SessionPathError: the pattern is absolute or holds `..` (a `ValueError`).
        FileNotFoundError: there is no such session.
        OSError: the files can't be listed.
    """
    ids.checked(session_id)
    workspace = SessionsRoot(workspace_root, private_root).find(session_id)
    log = SandboxLogger.of(logger)
    wanted = None if pattern is None else Pattern(pattern)
    found = _again(session_id, lambda: sorted(files_in(workspace, wanted)))
    log.log_event(events.FILE_LIST, session_id=session_id, pattern=pattern, count=len(found))
    return found


def read_session_file(
    session_id: str,
    relative_path: str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    *,
    max_bytes: int = READ_BYTES,
    logger: SandboxLogger | None = None,
    private_root: Path | str | None = None,
) -> bytes:
    """Returns the content of a file of a session.

    Args:
        session_id: The session.
        relative_path: The file's path in the workspace.
        workspace_root: The folder that holds the sessions' folders.
        max_bytes: The limit: a guest can quickly make a file of terabytes.
        logger: Gets the events; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        SessionIdError: `session_id` is not a session id (a `ValueError`).
        SessionPathError: the path escapes the workspace, is absolute or reserved (a `ValueError`).
        FileNotFoundError: there is no such file, or no such session.
        IsADirectoryError: it is a folder.
        OSError: it is not a regular file, is larger than `max_bytes`, or can't be read.
    """
    ids.checked(session_id)
    log, root = SandboxLogger.of(logger), SessionsRoot(workspace_root, private_root)

    def read(walk: FolderWalk, name: str) -> bytes:
        return entries.read(walk.fd, name, max_bytes)

    data = _at(root, session_id, relative_path, read)
    _log(log, events.FILE_READ, session_id, relative_path, len(data))
    return data


def write_session_file(
    session_id: str,
    relative_path: str,
    data: bytes | str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    overwrite: bool = True,
    *,
    logger: SandboxLogger | None = None,
    private_root: Path | str | None = None,
) -> None:
    """Writes a file of a session as a whole: readers never see a part of it.

    Missing folders are made, and so is a session that does not exist. A replaced file keeps its
    permissions; a guest that has it open goes on with the old one.

    Args:
        session_id: The session.
        relative_path: The file's path in the workspace. A link is followed if it stays inside.
        data: The content; text is written as UTF-8.
        workspace_root: The folder that holds the sessions' folders.
        overwrite: Replaces an existing file.
        logger: Gets the events; silent by default.
        private_root: The folder that holds private folders, for a session that begins; one of the
            user's by default.

    Raises:
        SessionIdError: `session_id` is not a session id (a `ValueError`).
        SessionPathError: the path escapes the workspace, is absolute or reserved (a `ValueError`).
        FileExistsError: the path exists already, and `overwrite` is False.
        IsADirectoryError: the path is a folder.
        PermissionError: the file is read-only, or the folder can't be written to.
        OSError: it can't be written; the old file is still there.
    """
    content, log = _content(data), SandboxLogger.of(logger)

    def write(walk: FolderWalk, name: str) -> None:
        entries.replace(walk.root, walk.fd, name, content, overwrite=overwrite)

    ids.checked(session_id)
    root = SessionsRoot(workspace_root, private_root)
    workspace = root.place_of(session_id)
    split_path(relative_path)
    with ExitStack() as begun:
        if not (workspace.is_symlink() or workspace.is_dir()):
            if not resolve_names(relative_path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), relative_path)
            begun.enter_context(_begun(root, workspace.name, log))
        _at(root, session_id, relative_path, write, make=True)
    _log(log, events.FILE_WRITE, session_id, relative_path, len(content))


def _content(data: bytes | str) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"data is bytes or text, not {type(data).__name__}. Nothing was written.")


@contextmanager
def _begun(root: SessionsRoot, session_id: str, logger: SandboxLogger) -> Iterator[None]:
    """Makes a session for its first file. If the block fails, the session is removed again.

    Raises `SessionInUse` if another process is deleting it, `WorkspaceError` if it can't be made.
    """
    with making_folder(root.path, 0o700):
        session = Session(root, session_id, logger)
        try:
            yield
        except BaseException:
            from wasm_kernel.sessions.removal import ASKED, Deleter

            session.leave()
            with suppress(OSError, WasmKernelError), Folder.open(root.path) as folder:
                if session.made:
                    Deleter(root, folder).delete(session_id, ASKED)
                    logger.log_event(events.SESSION_DELETED, session_id=session_id)
            raise
        session.leave()


def delete_session_path(
    session_id: str,
    relative_path: str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    recursive: bool = False,
    *,
    logger: SandboxLogger | None = None,
    private_root: Path | str | None = None,
) -> None:
    """Deletes a file or a folder of a session.

    A link that stays inside the workspace is deleted itself, not its target. A folder is deleted
    with all links in it, but without their targets.

    Args:
        session_id: The session.
        relative_path: The path in the workspace.
        workspace_root: The folder that holds the sessions' folders.
        recursive: Deletes a folder with everything in it.
        logger: Gets the events; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        SessionIdError: `session_id` is not a session id (a `ValueError`).
        SessionPathError: the path escapes the workspace, is absolute or reserved, or is the
            workspace itself (a `ValueError`).
        FileNotFoundError: there is no such path, or no such session.
        OSError: the folder is not empty and `recursive` is False; or it can't be deleted, and a
            part of it may be gone.
    """
    ids.checked(session_id)
    log, root = SandboxLogger.of(logger), SessionsRoot(workspace_root, private_root)

    def delete(walk: FolderWalk, name: str) -> None:
        if name == ".":
            raise SessionPathError(
                "The workspace itself is deleted with its session", relative_path
            )
        entries.delete(walk.fd, name, recursive=recursive)

    _validate_session_path(session_id, relative_path, workspace_root)  # also a link's target
    _at(root, session_id, relative_path, delete, follow=False)
    _log(log, events.FILE_DELETE, session_id, relative_path)


class SessionFiles(Struct, frozen=True):
    """The files of one session; the methods are the functions of this module for it."""

    session_id: str
    root: Path | str
    private: Path | str | None

    def list(self, pattern: str | None = None) -> list[str]:
        """Returns paths, as `list_session_files`."""
        return list_session_files(self.session_id, self.root, pattern, private_root=self.private)

    def read(self, path: str, *, max_bytes: int = READ_BYTES) -> bytes:
        """Returns a file's content, as `read_session_file`."""
        return read_session_file(
            self.session_id, path, self.root, max_bytes=max_bytes, private_root=self.private
        )

    def write(self, path: str, data: bytes | str, *, overwrite: bool = True) -> None:
        """Writes a file, as `write_session_file`."""
        write_session_file(
            self.session_id, path, data, self.root, overwrite, private_root=self.private
        )

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Deletes a file or folder, as `delete_session_path`."""
        delete_session_path(self.session_id, path, self.root, recursive, private_root=self.private)


def _validate_session_path(session_id: str, relative_path: str, workspace_root: Path | str) -> Path:
    """Returns the real path of a path in a session's workspace, which need not exist.

    Backslashes separate names, unless a name with backslashes exists. No operation may open a file
    by the result, as another process may put a link there.

    Raises:
        SessionPathError, OSError: as `resolve`.
        SessionIdError, FileNotFoundError: there is no such session.
    """
    ids.checked(session_id)
    parts = split_path(relative_path)
    workspace = _folder_for(SessionsRoot(workspace_root), session_id, relative_path)
    try:
        return workspace.joinpath(*resolve(workspace, parts, relative_path))
    except OSError as problem:
        raise _named_error(problem, relative_path) from None


def _folder_for(root: SessionsRoot, session_id: str, path: str) -> Path:
    """Returns the session's folder, for an operation on a path in it.

    Without a folder, raises `SessionPathError` if the path would be refused in any session,
    otherwise `FileNotFoundError`, which names the path.
    """
    try:
        return root.find(session_id)
    except FileNotFoundError:
        resolve_names(path)
        words = f"There is no session {session_id}, and so no such file"
        raise _named_error(FileNotFoundError(errno.ENOENT, words), path) from None


def _at(
    root: SessionsRoot,
    session_id: str,
    path: str,
    act: Callable[[FolderWalk, str], T],
    *,
    follow: bool = True,
    make: bool = False,
) -> T:
    """Calls `act` with the walk and the name that `locate` yields for a path; returns its result.

    Calls `act` again if something on the way was swapped.
    """
    parts = split_path(path)
    workspace = _folder_for(root, session_id, path)

    def try_once() -> T:
        with locate(workspace, parts, path, follow=follow, make=make) as (walk, name):
            return act(walk, name)

    return _again(path, try_once)


def _again(path: str, work: Callable[[], T]) -> T:
    """Returns the result of `work`; calls it again if another process has changed the path.

    An `OSError` names only `path`.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            return work()
        except OSError as problem:
            if problem.errno not in _SWAPPED or not left:
                raise _named_error(problem, path) from None
    raise AssertionError


def _named_error(problem: OSError, path: str) -> OSError:
    """Returns an error of the same kind that names the caller's path, not the host's."""
    path = path if len(path) <= _NAMED_CHARACTERS else f"{path[:_NAMED_CHARACTERS]}…"
    number = problem.errno or errno.EIO
    return OSError(number, problem.strerror or os.strerror(number), path)


def _log(
    logger: SandboxLogger, event: str, session_id: str, path: str, size: int | None = None
) -> None:
    logger.log_event(event, session_id=session_id, path=path, size_bytes=size)


# -- listing


def files_in(workspace: Path, wanted: Pattern | None) -> Iterator[str]:
    """Yields the paths of the files in a workspace that match a pattern; all if it is None."""
    left = _LINK_STEPS

    def step() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    with FolderWalk(workspace) as root:
        for found in walks.entries(root.fd):
            if found.is_folder or found.is_deep:
                continue
            if is_hidden_name(found.top) or is_cover(found.name):
                continue
            parts = (*found.path, found.name)
            if wanted is not None and not wanted.matches(parts):
                continue
            if _is_file(workspace, found.folder, parts, step):
                yield "/".join(parts)


def _is_file(
    workspace: Path, folder: int, parts: tuple[str, ...], step: Callable[[], None]
) -> bool:
    """Returns whether a name is a file of the session, or a link that leads to one."""
    try:
        mode = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode
        if not stat.S_ISLNK(mode):
            return stat.S_ISREG(mode)
        with locate(workspace, parts, "/".join(parts), each=step) as (walk, name):
            return stat.S_ISREG(os.stat(name, dir_fd=walk.fd, follow_symlinks=False).st_mode)
    except (OSError, SessionPathError):
        return False  # removed just now, or a link that leads out of the session


_ANY_FOLDERS = "**"


class Pattern:
    """A glob pattern, matched name by name: `*`, `?`, `[...]` within a name, `**` across folders.

    `**` matches any number of folders, or none; at the end of a pattern it matches everything
    below. Names that begin with a dot match like all others. Matching a path takes time in
    proportion to the pattern's length, if the paths of a folder come one after the other, as in a
    walk. Only one thread may use a pattern.
    """

    def __init__(self, text: str) -> None:
        parts = normalize(text)
        if not parts or ".." in parts:
            raise SessionPathError("A pattern stays inside the session workspace", text)
        if parts[-1] == _ANY_FOLDERS:
            parts.append("*")
        once = [one for one, after in pairwise([*parts, ""]) if one != after or one != _ANY_FOLDERS]
        self._names = [
            None if part == _ANY_FOLDERS else re.compile(fnmatch.translate(part)) for part in once
        ]
        self._folder: tuple[str, ...] = ()
        # One set for each folder on the way to the last path.
        self._states = [self._with_skipped({0})]

    def matches(self, path: tuple[str, ...]) -> bool:
        """Returns whether the pattern matches the whole of a path."""
        *folder, name = path
        if path[:-1] != self._folder:
            pairs = zip(folder, self._folder, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            del self._states[shared + 1 :]
            for each in folder[shared:]:
                self._states.append(self._after(self._states[-1], each))
            self._folder = path[:-1]
        return len(self._names) in self._after(self._states[-1], name)

    def _after(self, states: set[int], name: str) -> set[int]:
        found = set()
        for state in states - {len(self._names)}:
            regex = self._names[state]
            if regex is None:
                found.add(state)
            elif regex.match(name):
                found.add(state + 1)
        return self._with_skipped(found)

    def _with_skipped(self, states: set[int]) -> set[int]:
        """Returns the states, and those after each `**`, which may match no folder at all."""
        names = self._names
        at_any = {state for state in states if state < len(names) and names[state] is None}
        return states | {state + 1 for state in at_any}
