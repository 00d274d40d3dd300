"""Deleting a session's folder: for everybody else as a whole and at once, then piece by piece.

Under the lock that keeps all users out, the folder gets a name that is not a session id; a folder
that then has the session's name is another, new session. If a piece can't be deleted, the session
gets its id back, and the next removal tries again. Deleting the pieces can take long and be cut
short; the next removal finishes it.
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

_ATTEMPTS = 100  # to be faster than a removal that deletes what it finds
_WAIT_SECONDS = 1.0  # for another process that still reads the metadata
_LEFT = re.compile(rf"{re.escape(ASIDE)}([A-Za-z0-9-]+)-[0-9a-f]{{8}}")


def aside_name(name: str) -> str:
    """Returns a name for a folder that is not a session any more, or not yet.

    Its user holds the folder's lock: others delete unlocked folders with such names.
    """
    return f"{ASIDE}{name}-{os.urandom(4).hex()}"


def new_aside(root: Folder, name: str) -> tuple[str, Folder]:
    """Makes a folder that is to become a session; returns its name until then, and the folder.

    It is locked until it is closed: close it when it has the session's name. A removal that sees it
    before it is locked takes it for a rest, and deletes it; then another one is made.
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
    """Removes a folder that `new_aside` made, as far as it can be."""
    with suppress(OSError):
        trees.remove_contents(folder.fd)
        os.rmdir(aside, dir_fd=root.fd)


def remove(
    root: Folder,
    name: str,
    privates: PrivateFolders,
    confirm: Callable[[Folder, Folder], None] | None = None,
) -> None:
    """Deletes a session's folder that nobody uses, and its private folder.

    `confirm` is called with both when nobody can use the session any more and nothing has been
    deleted yet; what it raises keeps the session. Without it, a folder that its owner closed to
    himself is opened.

    Raises:
        FileNotFoundError: there is no such folder, or another one took its place meanwhile, which
            is not touched.
        SessionInUse: somebody uses the session; nothing was deleted.
        PrivateFolderError: there is no place for the lock that keeps others out.
        OSError: it is not a folder, or something in it can't be deleted. The rest keeps the
            session's id.
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
                if found.made:  # nothing was there to keep others out
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
    """The session's private folder, which holds the lock; it is made only for one without."""
    found = privates.find(name, workspace)
    if found is not None:
        return found
    if not root.has(name, workspace.fd):
        raise _gone(name)
    return privates.open(name, workspace)


def _gone(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "Somebody else has deleted this session", name)


def _set_aside(root: Folder, name: str, workspace: Folder) -> str:
    """Gives a session's folder a name that is not a session's; returns its name then."""
    aside = aside_name(name)
    try:
        os.rename(name, aside, src_dir_fd=root.fd, dst_dir_fd=root.fd)
    except OSError as problem:
        if problem.errno not in (errno.EXDEV, errno.EBUSY):
            raise
        return name  # a folder of a container's own layers, or a mounted one, keeps its name
    if not root.has(aside, workspace.fd):  # it was moved by somebody who takes no lock
        take_name(root.fd, aside, name)
        raise _gone(name)
    return aside


def finish_removals(root: Folder) -> dict[str, OSError]:
    """Deletes what earlier removals left behind when they were cut short.

    Returns what kept a session from being deleted, by its id. It has its id back, unless there is
    another one of that id by now; then it stays aside for the next time.
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
            continue  # somebody else was faster
        except OSError as problem:
            problems[name] = problem
    return problems


def _is_session(folder: Folder, name: str) -> bool:
    """Returns whether a folder was that session's, and not one that was still being made."""
    try:
        return metadata.read(folder, name) is not None
    except (OSError, MetadataCorrupted):
        return False


def _delete(root: Folder, name: str, folder: Folder, seconds: float = _WAIT_SECONDS) -> None:
    if not wait_lock(folder.fd, seconds):
        return  # somebody else deletes it just now
    if not root.has(name, folder.fd):
        return  # somebody else has deleted it, or it was being made and is a session by now
    trees.remove_contents(
        folder.fd, hidden=lambda _, name, depth: depth == 0 and name == metadata.NAME
    )
    # the metadata is deleted last: a session that can't be deleted keeps it
    trees.remove_contents(folder.fd)
    if root.has(name, folder.fd):
        with suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=root.fd)
