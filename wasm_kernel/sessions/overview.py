"""An overview of the sessions in a folder; no session is opened, locked or changed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from wasm_kernel.errors import HistoryError
from wasm_kernel.folders.folders import STATE
from wasm_kernel.folders.locks import is_used
from wasm_kernel.folders.private import PrivateFolder, PrivateFolders
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Folder, open_named, real_path
from wasm_kernel.sessions import ids, metadata
from wasm_kernel.sessions.metadata import MetadataCorrupted
from wasm_kernel.state.stored import StoredState
from wasm_kernel.state.tree import Tree
from wasm_kernel.wasi_files.preopens import is_hidden_name


@dataclass(frozen=True)
class Overview:
    """A session as it lies on disk.

    Attributes:
        session_id: Its id.
        workspace: Its folder.
        created_at: When it was made; None if its metadata does not say.
        updated_at: When a cell last ended in it, successful or not; None as above.
        files: How many files it holds.
        file_bytes: Their length.
        history_states: How many states of its memory are kept.
        history_bytes: What they take on disk.
        checkpoints: The names of states.
        in_use: A kernel or another process has it open.
    """

    session_id: str
    workspace: Path
    created_at: datetime | None
    updated_at: datetime | None
    files: int
    file_bytes: int
    history_states: int
    history_bytes: int
    checkpoints: tuple[str, ...]
    in_use: bool


def sessions_in(root: Path, private_root: Path | str | None = None) -> list[Overview]:
    """Returns the sessions in a folder, the last used first; none if there is no such folder.

    A folder is a session's if it has metadata or a private folder, or is named by a UUID. A link to
    one is not listed.
    """
    try:
        with open_named(root) as top, os.scandir(top.fd) as listing:
            names = sorted(e.name for e in listing if e.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    privates = PrivateFolders(real_path(root), private_root)
    found = [session for name in names if (session := _seen(privates, name)) is not None]
    return sorted(found, key=_last_used, reverse=True)


def _last_used(session: Overview) -> float:
    return session.updated_at.timestamp() if session.updated_at is not None else 0.0


def session_in(root: Path, session_id: str, private_root: Path | str | None = None) -> Overview:
    """Returns the overview of one session.

    Raises:
        SessionIdError: `session_id` is not a session id.
        FileNotFoundError: there is no such session.
    """
    name = ids.target_of(real_path(root), ids.checked(session_id))
    found = _seen(PrivateFolders(real_path(root), private_root), name, named=True)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "There is no such session", name)
    return found


def _seen(privates: PrivateFolders, name: str, *, named: bool = False) -> Overview | None:
    """The overview of one folder; None if it is not a session's, or can't be read."""
    try:
        ids.checked(name)
        with Folder.open(privates.root) as root, root.enter(name) as folder, ExitStack() as held:
            found = privates.find(name, folder)
            if found is not None:
                held.enter_context(found)
            marked = found is not None or folder.status(metadata.NAME) is not None
            if not (named or marked or ids.uuid_in(name)):
                return None
            return _overview(privates.root / name, name, folder, found)
    except (ids.SessionIdError, OSError):
        return None


def _overview(
    workspace: Path, name: str, folder: Folder, private: PrivateFolder | None
) -> Overview:
    try:
        known = metadata.read(folder, name)
    except MetadataCorrupted:
        known = None
    sizes = list(_file_sizes(folder))
    stored = None if private is None else _stored(private)
    tree = Tree() if stored is None else stored.tree
    commits = tree.commits.values()
    return Overview(
        name,
        workspace,
        known.created_at if known else None,
        known.updated_at if known else None,
        len(sizes),
        sum(sizes),
        len(commits),
        sum({commit.content: commit.page_bytes for commit in commits}.values()),
        tuple(sorted(tree.names)),
        private is not None and is_used(private),
    )


def _stored(private: Folder) -> StoredState | None:
    """Returns the state as the session's index has it; None if that can't be read."""
    try:
        with private.enter(STATE) as state:
            return StoredState.read(state)
    except (OSError, HistoryError):
        return None


def _file_sizes(folder: Folder) -> Iterator[int]:
    for found in walks.entries(folder.fd):
        if found.is_folder or is_hidden_name(found.top):
            continue
        try:
            status = os.stat(found.name, dir_fd=found.folder, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield status.st_size
