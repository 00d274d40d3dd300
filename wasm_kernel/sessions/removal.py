"""Deleting a session's folder: first it is renamed, so that it is gone at once for all others.

The rename, to a name that is not a session id, happens under the lock that keeps all users out. A
folder that then has the session's name is another, new session. After that the files are deleted
one by one. If one can't be deleted, the session gets its id back, and the next removal tries again.
A removal that is killed is finished by the next one.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress

from wasm_kernel.folders.hiding import ASIDE
from wasm_kernel.folders.locks import exclusively
from wasm_kernel.folders.private import PrivateFolder, PrivateFolders, discard, removing
from wasm_kernel.linux import trees
from wasm_kernel.linux.files import take_name
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.locks import try_lock, wait_lock
from wasm_kernel.sessions import metadata
from wasm_kernel.sessions.metadata import MetadataCorrupted

_ATTEMPTS = 100  # to make a folder while other removals may delete it
_WAIT_SECONDS = 1.0  # for another process that still reads the metadata
_LEFT = re.compile(rf"{re.escape(ASIDE)}([A-Za-z0-9-]+)-[0-9a-f]{{8}}")


def aside_name(name: str) -> str:
    """Returns a name for a folder that is not a session any more, or not yet.

    The caller must hold the folder's lock: removals delete unlocked folders with such names.
    """
    return f"{ASIDE}{name}-{os.urandom(4).hex()}"


def new_aside(root: Folder, name: str) -> tuple[str, Folder]:
    """Makes a folder that will become a session; returns its name until then, and the folder.

    It is locked until it is closed: close it when it has the session's name. A removal that sees it
    before it is locked deletes it as a leftover; then another one is made.
    """
    for _ in range(_ATTEMPTS):
        aside = aside_name(name)
        os.mkdir(aside, 0o700, dir_fd=root.fd)
        try:
            made = root.enter(aside)
        except FileNotFoundError:
            continue
        try:
            if try_lock(made.fd) and root.has(aside, made.fd):
                return aside, made
        except BaseException:
            made.close()
            os.rmdir(aside, dir_fd=root.fd)
            raise
        made.close()
    raise OSError(errno.EAGAIN, "it is deleted all the time")


def remove_aside(root: Folder, aside: str, folder: Folder) -> None:
    """Removes a folder that `new_aside` made; skips files that can't be removed."""
    with suppress(OSError):
        trees.remove_contents(folder.fd)
        os.rmdir(aside, dir_fd=root.fd)


def remove(
    root: Folder,
    name: str,
    privates: PrivateFolders,
    confirm: Callable[[Folder, Folder], None] | None = None,
) -> None:
    """Deletes the folder and the private folder of a session that is not in use.

    `confirm` is called with both folders, under the session's lock and before anything is deleted;
    an exception of it keeps the session. Without `confirm`, a folder that its owner can't enter is
    made accessible.

    Raises:
        FileNotFoundError: there is no such folder, or another one took its place, which is not
            touched.
        SessionInUse: a process uses the session; nothing was deleted.
        PrivateFolderError: there is no place for the lock that keeps others out.
        OSError: it is not a folder, or a file in it can't be deleted. The rest keeps the session's
            id.
    """
    with ExitStack() as held:
        workspace = held.enter_context(root.enter(name, force=confirm is None))
        found = _private_of(root, name, workspace, privates)
        held.enter_context(found)
        with exclusively(found):
            try:
                if not root.has(name, workspace.fd):
                    raise _gone(name)
                if confirm is not None:
                    confirm(workspace, found)
                aside = _set_aside(root, name, workspace)
            except BaseException:
                if found.made:  # it was made only for the lock
                    with suppress(OSError):
                        discard(found.path)
                raise
            if aside == name:
                _delete(root, name, workspace)
            held.enter_context(removing(found.path))
        if aside != name:
            try:
                _delete(root, aside, workspace)
            except OSError:
                take_name(root.fd, aside, name)
                raise


def _private_of(
    root: Folder, name: str, workspace: Folder, privates: PrivateFolders
) -> PrivateFolder:
    """Opens the session's private folder, which has the lock; makes it if there is none."""
    found = privates.find(name, workspace)
    if found is not None:
        return found
    if not root.has(name, workspace.fd):
        raise _gone(name)
    return privates.open(name, workspace)


def _gone(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "Somebody else has deleted this session", name)


def _set_aside(root: Folder, name: str, workspace: Folder) -> str:
    """Gives a session's folder a name that is not a session's; returns the folder's name then."""
    aside = aside_name(name)
    try:
        os.rename(name, aside, src_dir_fd=root.fd, dst_dir_fd=root.fd)
    except OSError as problem:
        if problem.errno not in (errno.EXDEV, errno.EBUSY):
            raise
        return name  # a folder of a container's own layers, or a mounted one, can't be renamed
    if not root.has(aside, workspace.fd):  # a process without the lock moved it
        take_name(root.fd, aside, name)
        raise _gone(name)
    return aside


def finish_removals(root: Folder) -> dict[str, OSError]:
    """Finishes earlier removals that were killed.

    Returns the errors of sessions that can't be deleted, by their ids. Such a session has its id
    back, unless there is another one of that id by now; then it stays aside for the next time.
    """
    with os.scandir(root.fd) as listing:
        left = [found for entry in listing if (found := _LEFT.fullmatch(entry.name))]
    problems: dict[str, OSError] = {}
    for aside, name in ((found[0], found[1]) for found in left):
        try:
            with root.enter(aside, force=True) as folder:
                try:
                    _delete(root, aside, folder, 0)
                except OSError:
                    if _is_session(folder, name):
                        take_name(root.fd, aside, name)
                    raise
        except FileNotFoundError:
            continue  # another process deleted it
        except OSError as problem:
            problems[name] = problem
    return problems


def _is_session(folder: Folder, name: str) -> bool:
    """Returns whether a folder was that session's, and not an unfinished new one."""
    try:
        return metadata.read(folder, name) is not None
    except (OSError, MetadataCorrupted):
        return False


def _delete(root: Folder, name: str, folder: Folder, seconds: float = _WAIT_SECONDS) -> None:
    if not wait_lock(folder.fd, seconds):
        return  # another process deletes it just now
    if not root.has(name, folder.fd):
        return  # another process has deleted it, or it has become a new session
    trees.remove_contents(
        folder.fd, hidden=lambda _, name, depth: depth == 0 and name == metadata.NAME
    )
    # the metadata is deleted last: a session that can't be deleted keeps it
    trees.remove_contents(folder.fd)
    if root.has(name, folder.fd):
        with suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=root.fd)
