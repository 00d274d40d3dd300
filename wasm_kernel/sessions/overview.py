"""An overview of the sessions in a folder; no session is opened, locked or changed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from wasm_kernel.errors import HistoryError
from wasm_kernel.folders.folders import STATE
from wasm_kernel.folders.locks import Holder
from wasm_kernel.folders.private import PrivateFolder
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Folder, open_named
from wasm_kernel.sessions import ids, metadata
from wasm_kernel.sessions.disk_use import ENTRIES_MOST, DiskUse
from wasm_kernel.sessions.metadata import MetadataCorrupted
from wasm_kernel.sessions.notebooks import Binding, notebooks_of
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.upkeep import Upkeep, gone_notebooks
from wasm_kernel.state.stored import StoredState
from wasm_kernel.state.tree import Tree
from wasm_kernel.wasi_files.preopens import is_hidden_name


@dataclass(frozen=True)
class Overview:
    """A session's facts on disk.

    Attributes:
        created_at: When it was made; None if its metadata does not say.
        updated_at: When a cell last ended in it, successful or not; None as above.
        files: How many files it holds; `file_bytes` is their total length.
        history_states: How many states of its memory are kept.
        history_bytes: The disk space of these states and of earlier versions of files.
        disk_bytes: The disk space of the whole session.
        checkpoints: The names of states.
        in_use: True if a kernel or another process has it open.
        evicted: Why its history was removed: `room` or `age`; empty if it was not.
        notebook: The last known path of its notebook, or of the executed one that a batch has
            written; None if there is none.
        is_orphaned: True if its notebook is gone.
        deleted_at: When its files will be deleted, as its notebook is gone; None if never.
        image: The base image that its variables were saved over; empty if there are none.
        forked_from: The session that it was forked off; empty if it is not a fork.
        forked_first_from: The first session of that line.
        parent_notebook: The notebook of one of the two; None if none is known.
        has_more_files: True if it has more files than are counted here and in `disk_bytes`.
    """

    session_id: str
    workspace: Path
    created_at: datetime | None
    updated_at: datetime | None
    files: int
    file_bytes: int
    history_states: int
    history_bytes: int
    disk_bytes: int
    checkpoints: tuple[str, ...]
    in_use: bool
    evicted: str = ""
    notebook: Path | None = None
    is_orphaned: bool = False
    deleted_at: datetime | None = None
    image: str = ""
    has_more_files: bool = False
    forked_from: str = ""
    forked_first_from: str = ""
    parent_notebook: Path | None = None


def sessions_in(root: SessionsRoot) -> list[Overview]:
    """Returns the sessions in a folder, the last used first; none if there is no such folder.

    Folders count if they have metadata, a private folder, or a UUID's name; links do not.
    """
    found = [session for name in _names(root) if (session := _seen(root, name)) is not None]
    return sorted(_with_notebooks(root, found), key=_last_used, reverse=True)


def _names(root: SessionsRoot) -> list[str]:
    """Returns the names of the folders that may be sessions."""
    try:
        with open_named(root.named) as top, os.scandir(top.fd) as listing:
            return sorted(e.name for e in listing if e.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def ids_named(root: SessionsRoot, text: str) -> list[str]:
    """Returns the ids of the sessions that a user may mean by a text.

    The text is an id, the beginning of one, or the name or path of a notebook.
    """
    names = [name for name in _names(root) if ids.is_id(name)]
    if ids.is_id(text) and root.target_of(text) in names:
        return [text]
    begun = [name for name in names if text and name.startswith(text) and _is_session(root, name)]
    books, path = notebooks_of(root), os.path.realpath(text)
    named = [
        name
        for name in names
        if (file := _notebook_of(root, name, books)) and (text == file.name or path == str(file))
    ]
    return sorted({*begun, *named})


def _is_session(root: SessionsRoot, name: str) -> bool:
    with suppress(OSError), root.visit(name) as (folder, _):
        return folder.status(metadata.NAME) is not None or bool(ids.uuid_in(name))
    return False


def _notebook_of(
    root: SessionsRoot, name: str, books: Mapping[str, Sequence[Binding]]
) -> Path | None:
    if name in books:
        return books[name][0].file
    with suppress(OSError), root.visit(name) as (folder, _):
        known = _metadata(folder, name)
        return Path(known.notebook) if known is not None and known.notebook else None
    return None


def _with_notebooks(root: SessionsRoot, sessions: Sequence[Overview]) -> Iterator[Overview]:
    """Yields the sessions with the facts about their notebooks."""
    notebooks, gone = notebooks_of(root), gone_notebooks(root)
    deletions = Upkeep(root, most_bytes=0, days=0).deletions()
    for session in sessions:
        name = session.session_id
        notebook, parent = session.notebook, None
        if known := notebooks.get(name):
            notebook = known[0].file
        for each in (session.forked_first_from, session.forked_from):
            if each in notebooks:
                parent = notebooks[each][0].file
        at = datetime.fromtimestamp(deletions[name], UTC) if name in deletions else None
        yield replace(
            session,
            notebook=notebook,
            parent_notebook=parent,
            is_orphaned=name in gone,
            deleted_at=at,
        )


def _last_used(session: Overview) -> float:
    return session.updated_at.timestamp() if session.updated_at is not None else 0.0


def session_in(root: SessionsRoot, session_id: str) -> Overview:
    """Returns the overview of one session, or raises `SessionIdError` or `FileNotFoundError`."""
    name = root.target_of(ids.checked(session_id))
    if (found := _seen(root, name, named=True)) is None:
        raise FileNotFoundError(errno.ENOENT, "There is no such session", name)
    return next(_with_notebooks(root, [found]))


def kept_cells(root: SessionsRoot, session_id: str) -> frozenset[int]:
    """Returns the numbers of the cells whose states a session keeps; none if it has no history."""
    with suppress(OSError), root.private_of(session_id)() as (private, _):
        stored = _stored(private)
        commits = {} if stored is None else stored.tree.commits
        return frozenset(commit.cell for commit in commits.values())
    return frozenset()


def ended_whole(root: SessionsRoot, session_id: str) -> bool:
    """Returns whether a session's last process ended with all of its variables on disk."""
    with suppress(OSError), root.private_of(session_id)() as (private, _):
        return not Holder.of(private).alive
    return False


def _seen(root: SessionsRoot, name: str, *, named: bool = False) -> Overview | None:
    """Returns the overview of one folder; None if it belongs to no session, or can't be read."""
    try:
        ids.checked(name)
        with root.visit(name) as (folder, found):
            marked = found is not None or folder.status(metadata.NAME) is not None
            if not (named or marked or ids.uuid_in(name)):
                return None
            return _overview(root.path / name, name, folder, found)
    except (ids.SessionIdError, OSError):
        return None


def _overview(
    workspace: Path, name: str, folder: Folder, private: PrivateFolder | None
) -> Overview:
    known = _metadata(folder, name)
    lineage = known.lineage if known else None
    files, length, has_more = _files_in(folder)
    stored = None if private is None else _stored(private)
    tree = Tree() if stored is None else stored.tree
    use = None if private is None else DiskUse.measure(folder, private)
    return Overview(
        name,
        workspace,
        known.created_at if known else None,
        known.updated_at if known else None,
        files,
        length,
        len(tree.commits),
        0 if use is None else use.history,
        length if use is None else use.total,
        tuple(sorted(tree.names)),
        use is not None and use.in_use,
        "" if private is None else Holder.of(private).evicted,
        notebook=Path(known.notebook) if known and known.notebook else None,
        image=stored.image if stored is not None and tree.commits else "",
        has_more_files=has_more,
        forked_from=lineage.parent if lineage else "",
        forked_first_from=lineage.first if lineage else "",
    )


def _metadata(folder: Folder, name: str) -> metadata.Metadata | None:
    try:
        return metadata.read(folder, name)
    except MetadataCorrupted:
        return None


def _stored(private: Folder) -> StoredState | None:
    """Returns the state in the session's index; None if that can't be read."""
    try:
        with private.enter(STATE) as state:
            return StoredState.read(state)
    except (OSError, HistoryError):
        return None


def _files_in(folder: Folder) -> tuple[int, int, bool]:
    """Returns how many files a folder holds, their length, and whether there are more."""
    names = files = length = 0
    for found in walks.entries(folder.fd, most=ENTRIES_MOST):
        names += 1
        if found.is_folder or is_hidden_name(found.top):
            continue
        status = found.status
        if status is not None and stat.S_ISREG(status.st_mode):
            files, length = files + 1, length + status.st_size
    return files, length, names == ENTRIES_MOST
