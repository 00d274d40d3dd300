"""The files of a session from outside: list, read, write, delete.

Every operation takes a path relative to the session's workspace and goes through
`_validate_session_path`, which says what the path means once all links are followed. The operation
then opens that place by descriptors, name by name with links refused. So what lies at the end was
reached without a link, and a link that is swapped in between check and use ends the attempt; the
path is then looked at anew, a few times, and given up. A call that is refused changes nothing.

Errors name the path as it was given, never one of the host. The session's own names
(`.metadata.json`, in every spelling of `wasi_files/names.py`) are no files here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from wasm_kernel import events
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import SandboxLogger, heard_by
from wasm_kernel.folders.overlap import check_opening
from wasm_kernel.folders.places import PrivateFolders
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import making_folder, real_path
from wasm_kernel.sessions import entry, ids, removal
from wasm_kernel.sessions.aliases import target_of
from wasm_kernel.sessions.globbing import Pattern
from wasm_kernel.sessions.listing import files
from wasm_kernel.sessions.paths import SessionPathError, entered, lexical, parts_of, resolve
from wasm_kernel.sessions.session import Session
from wasm_kernel.wasi_files.names import is_hidden

T = TypeVar("T")
WORKSPACE_ROOT = Path("workspace")
READ_BYTES = 1024 * 1024 * 1024
"""The most that `read_session_file` returns by default, in bytes."""

_ATTEMPTS = 8
_NAMED_CHARACTERS = 500
_SWAPPED = {errno.ELOOP, errno.ENOTDIR, errno.ESTALE}


def list_session_files(
    session_id: str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    pattern: str | None = None,
    *,
    logger: SandboxLogger | None = None,
    private_root: Path | str | None = None,
) -> list[str]:
    """The files of a session, as sorted paths relative to its workspace, with `/` between names.

    Files in folders are listed, the folders themselves are not. A link is listed where it leads to
    a file of the session, and never walked; pipes, sockets and devices are left out, and so is what
    lies in more than 2,000 folders.

    Args:
        session_id: The session.
        workspace_root: The folder that holds the sessions' folders.
        pattern: A glob: `*`, `?` and `[...]` within a name, `**` across folders. By default
            everything.
        logger: Hears of it; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        SessionIdError: `session_id` is none (a `ValueError`).
        SessionPathError: the pattern is absolute or holds `..` (a `ValueError`).
        FileNotFoundError: there is no such session.
        OSError: the files can't be listed.
    """
    workspace, told = folder_of(session_id, workspace_root, private_root), heard_by(logger)
    wanted = None if pattern is None else Pattern(pattern)
    found = _again(pattern or "**", lambda: sorted(files(workspace, wanted)))
    told.log_event(events.FILE_LIST, session_id=session_id, pattern=pattern, count=len(found))
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
    """The content of a file of a session.

    Args:
        session_id: The session.
        relative_path: The file's path in the workspace.
        workspace_root: The folder that holds the sessions' folders.
        max_bytes: A larger file is refused: a guest can make a file of terabytes in no time.
        logger: Hears of it; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        SessionIdError: `session_id` is none (a `ValueError`).
        SessionPathError: the path escapes the workspace, is absolute or reserved (a `ValueError`).
        FileNotFoundError: there is no such file, or no such session.
        IsADirectoryError: it is a folder.
        OSError: it is no regular file, is larger than `max_bytes`, or can't be read.
    """
    told = heard_by(logger)
    data = _at(
        session_id,
        relative_path,
        workspace_root,
        lambda folder, name: entry.read(folder, name, max_bytes),
        private_root,
    )
    _log(told, events.FILE_READ, session_id, relative_path, len(data))
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
    """Write a file of a session, as a whole: nobody ever sees a part of it.

    Folders that are missing are made, and so is a session that does not exist. A file that is
    replaced keeps its permissions; a guest that has it open goes on with the old one.

    Args:
        session_id: The session.
        relative_path: The file's path in the workspace. A link is followed where it stays inside.
        data: The content; text is written as UTF-8.
        workspace_root: The folder that holds the sessions' folders.
        overwrite: Whether a file that is there already is replaced.
        logger: Hears of it; silent by default.
        private_root: The folder that holds private folders, for a session that begins; one of the
            user's by default.

    Raises:
        SessionIdError: `session_id` is none (a `ValueError`).
        SessionPathError: the path escapes the workspace, is absolute or reserved (a `ValueError`).
        FileExistsError: there is something already, and `overwrite` is False.
        IsADirectoryError: there is a folder.
        PermissionError: the file is read-only, or the folder can't be written to.
        OSError: it can't be written; what was there before is still there.
    """
    content, told = _content(data), heard_by(logger)
    workspace = _place_of(session_id, workspace_root, private_root)
    parts_of(relative_path)

    def write() -> None:
        resolved = _validate_session_path(session_id, relative_path, workspace_root)
        *folders, name = resolved.relative_to(workspace).parts or (".",)
        with walks.opened_folder(workspace) as root, entered(workspace, folders, make=True) as way:
            entry.replace(root, way.fd, name, content, overwrite=overwrite)

    if workspace.is_dir():
        _again(relative_path, write)
    else:
        if not lexical(relative_path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), relative_path)
        with _begun(Path(workspace_root), workspace.name, told, private_root):
            _again(relative_path, write)
    _log(told, events.FILE_WRITE, session_id, relative_path, len(content))


def _content(data: bytes | str) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"data is bytes or text, not {type(data).__name__}. Nothing was written.")


@contextmanager
def _begun(
    root: Path, session_id: str, logger: SandboxLogger, private_root: Path | str | None
) -> Iterator[None]:
    """A session that a first file is written to. If that fails, nothing of it is left.

    Raises:
        SessionInUse: another process is deleting it.
        WorkspaceError: the folder can't be made, or something else is in its place.
    """
    with making_folder(real_path(root), 0o700):
        session = Session(root, session_id, logger, private_root=private_root)
        try:
            yield
        except BaseException:
            session.leave()
            with suppress(OSError, WasmKernelError), walks.opened_folder(session.root) as folder:
                if session.made:
                    removal.remove(folder, session_id, PrivateFolders(session.root, private_root))
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
    """Delete a file or a folder of a session.

    A link that stays inside the workspace is deleted itself, not what it leads to. A folder is
    deleted with the links in it, wherever they lead.

    Args:
        session_id: The session.
        relative_path: The path in the workspace.
        workspace_root: The folder that holds the sessions' folders.
        recursive: Whether a folder is deleted with everything in it.
        logger: Hears of it; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        SessionIdError: `session_id` is none (a `ValueError`).
        SessionPathError: the path escapes the workspace, is absolute or reserved, or is the
            workspace itself (a `ValueError`).
        FileNotFoundError: there is nothing of that name, or no such session.
        OSError: the folder is not empty and `recursive` is False; or it can't be deleted, and a
            part of it may be gone.
    """
    told = heard_by(logger)

    def delete(folder: int, name: str) -> None:
        if name == ".":
            raise SessionPathError(
                "The workspace itself is deleted with its session", relative_path
            )
        entry.delete(folder, name, recursive=recursive)

    _at(session_id, relative_path, workspace_root, delete, private_root, follow=False)
    _log(told, events.FILE_DELETE, session_id, relative_path)


def _validate_session_path(session_id: str, relative_path: str, workspace_root: Path | str) -> Path:
    """What a path in a session means: the real place in the workspace, all links followed.

    What is missing is taken by its name, so that the place may not be there. To use it safely, open
    it with `paths.entered`, which follows no link that was put there since.

    Args:
        session_id: The session.
        relative_path: A path relative to its workspace. Backslashes separate names, too, unless
            there is something whose name holds them.
        workspace_root: The folder that holds the sessions' folders.

    Raises:
        SessionIdError: `session_id` is none (a `ValueError`); nothing was looked at.
        SessionPathError: the path is empty, absolute, names a drive or holds a NUL; it escapes the
            workspace, by `..` or through a link; or it leads to or through one of the session's own
            names, in any spelling (a `ValueError`).
        FileNotFoundError: there is no such session, and the path would be valid in one.
        OSError: a folder on the way can't be looked at, or links lead in circles.
    """
    ids.checked(session_id)
    parts = parts_of(relative_path)
    workspace = _folder_for(session_id, relative_path, workspace_root)
    try:
        return workspace.joinpath(*resolve(workspace, parts, relative_path))
    except OSError as problem:
        raise _told(problem, relative_path) from None


def folder_of(
    session_id: str, workspace_root: Path | str, private_root: Path | str | None = None
) -> Path:
    """The session's folder; links above it are the host's own, and are followed.

    A link to a session in the same root is that session.

    Raises:
        SessionIdError: `session_id` is none.
        OverlapError: the root and `private_root` overlap.
        FileNotFoundError: there is no such folder.
    """
    workspace = _place_of(session_id, workspace_root, private_root)
    if workspace.is_symlink() or not workspace.is_dir():
        raise FileNotFoundError(errno.ENOENT, "There is no such session", session_id)
    return workspace


def _place_of(session_id: str, workspace_root: Path | str, private_root: Path | str | None) -> Path:
    name = ids.checked(session_id)
    root = real_path(workspace_root)
    if private_root is not None:  # what lies in the user's own folder is no session's
        check_opening(root / name, root, (), private_root)
    return root / target_of(root, name)


def _folder_for(
    session_id: str,
    path: str,
    workspace_root: Path | str,
    private_root: Path | str | None = None,
) -> Path:
    """The session's folder, for an operation on a path in it.

    Raises:
        SessionIdError: `session_id` is none.
        SessionPathError: there is no such folder, and the path would be refused in any.
        FileNotFoundError: there is no such folder; the error names the path.
    """
    try:
        return folder_of(session_id, workspace_root, private_root)
    except FileNotFoundError:
        lexical(path)
        words = f"There is no session {session_id}, and so no such file"
        raise _told(FileNotFoundError(errno.ENOENT, words), path) from None


def _at(
    session_id: str,
    path: str,
    workspace_root: Path | str,
    act: Callable[[int, str], T],
    private_root: Path | str | None,
    *,
    follow: bool = True,
) -> T:
    """What `act` gives for the folder, as a descriptor, and the name that a path leads to.

    Args:
        session_id: The session.
        path: The path in its workspace.
        workspace_root: The folder that holds the sessions' folders.
        act: Acts on a name in a folder. It is called again where something was swapped meanwhile.
        private_root: The folder that holds private folders, if one is named.
        follow: Whether a link at the end of the path is followed. It is validated in any case.
    """
    parts = parts_of(path)
    workspace = _folder_for(session_id, path, workspace_root, private_root)

    def try_once() -> T:
        resolved = _validate_session_path(session_id, path, workspace_root)
        if not follow:
            resolved = workspace.joinpath(*resolve(workspace, parts, path, follow=False))
        *folders, name = resolved.relative_to(workspace).parts or (".",)
        if is_hidden((*folders, name)[0]):  # a folder above was swapped for a link to here
            raise SessionPathError("This name is reserved for the session itself", path)
        with entered(workspace, folders) as way:
            return act(way.fd, name)

    return _again(path, try_once)


def _again(path: str, work: Callable[[], T]) -> T:
    """What `work` gives; it is tried again where a link or another folder was put in its way.

    Raises:
        OSError: as `work` does, but naming `path` and no other.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            return work()
        except OSError as problem:
            if problem.errno not in _SWAPPED or not left:
                raise _told(problem, path) from None
    raise AssertionError


def _told(problem: OSError, path: str) -> OSError:
    """An error of the same kind that names `path`, as it was given, and nothing of the host."""
    path = path if len(path) <= _NAMED_CHARACTERS else f"{path[:_NAMED_CHARACTERS]}…"
    number = problem.errno or errno.EIO
    return OSError(number, problem.strerror or os.strerror(number), path)


def _log(
    logger: SandboxLogger, event: str, session_id: str, path: str, size: int | None = None
) -> None:
    logger.log_event(event, session_id=session_id, path=path, size_bytes=size)
