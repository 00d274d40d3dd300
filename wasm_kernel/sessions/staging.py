"""Making a session in a folder that gets the session's name only at the end.

So there is a whole session or none, even if the process is killed on the way. The next removal
deletes the leftovers.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.hiding import ASIDE
from wasm_kernel.folders.private import PrivateFolder, PrivateFolders, discard
from wasm_kernel.linux import trees
from wasm_kernel.linux.files import take_name
from wasm_kernel.linux.folders import Folder, undoing
from wasm_kernel.linux.locks import try_lock
from wasm_kernel.sessions import ids, metadata
from wasm_kernel.sessions.root import SessionsRoot

_ATTEMPTS = 100  # to make a folder while removals may delete it
_EXISTS = (
    "There is a session {id} already. Nothing was imported. Import it under another id, or under a "
    "new one."
)


class SessionExists(WasmKernelError, FileExistsError):
    """The error of an id that another session has; nothing was imported."""


@contextmanager
def staged(
    root: Folder, name: str, privates: PrivateFolders
) -> Iterator[tuple[Path, Folder, PrivateFolder]]:
    """Yields a new session's temporary path, its folder, and its private folder.

    The session exists when the block has ended, and not if it fails. The block closes the private
    folder. Raises `SessionExists` if the session's name is taken by then.
    """
    aside, workspace = _new_aside(root, ids.new())
    with workspace, ExitStack() as undo:
        undo.callback(_remove_aside, root, aside, workspace)
        found = privates.open(name, workspace)
        undo.callback(discard, found.path)
        yield privates.root / aside, workspace, found
        if not publish(root, aside, name):
            raise SessionExists(_EXISTS.format(id=name))
        undo.pop_all()


def aside_name(name: str) -> str:
    """Returns a name for a folder that is not a session any more, or not yet.

    The caller must hold the folder's lock: removals delete unlocked folders with such names.
    """
    return f"{ASIDE}{name}-{os.urandom(4).hex()}"


def _new_aside(root: Folder, name: str) -> tuple[str, Folder]:
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
        with undoing(partial(os.rmdir, aside, dir_fd=root.fd)), undoing(made.close):
            if try_lock(made.fd) and root.has(aside, made.fd):
                return aside, made
        made.close()
    raise OSError(errno.EAGAIN, "it is deleted all the time")


def _remove_aside(root: Folder, aside: str, folder: Folder) -> None:
    """Removes a folder that `_new_aside` made; skips files that can't be removed."""
    with suppress(OSError):
        trees.remove_contents(folder.fd)
        os.rmdir(aside, dir_fd=root.fd)


@contextmanager
def new_session(
    root: SessionsRoot, name: str, about: Mapping[str, str] = {}
) -> Iterator[SandboxFolders]:
    """Yields the folders of a session that exists when the block has ended, and not if it fails."""
    path, kept = root.path / name, root.private_root
    with (
        Folder.open(root.path) as top,
        staged(top, name, root.privates) as (real, here, found),
        closing(SandboxFolders(path, real, here.enter(), found, kept)) as folders,
    ):
        yield folders
        write_metadata(here, name, about)


def write_metadata(workspace: Folder, name: str, about: Mapping[str, str]) -> None:
    """Writes the metadata of a staged session, whose folder is locked already."""
    descriptor = workspace.open_regular(metadata.NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with undoing(lambda: workspace.remove(metadata.NAME)), os.fdopen(descriptor, "wb") as file:
        file.write(metadata.Metadata.new(name, metadata.now(), about).render())


def publish(root: Folder, aside: str, name: str) -> bool:
    """Gives a staged folder the session's name; returns False if the name is taken."""
    if take_name(root.fd, aside, name):
        return True
    if root.status(name) is not None:
        return False
    root.rename(aside, name)  # the file system has no rename without replacing
    return True
