"""A session's stored states, for tests that inspect and damage them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from tests.private import private_of
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.index import Commit, Index, IndexEnd, Record, read_index
from wasm_kernel.state.stored import StoredState


def state_of(workspace: Path) -> Path:
    """The folder of a session's states."""
    return private_of(workspace) / "state"


def commits_in(state: Path) -> dict[int, Commit]:
    """The commits on disk by their numbers; none if they can't be read."""
    try:
        with Folder.open(state) as folder:
            return dict(StoredState.read(folder).tree.commits)
    except (OSError, HistoryError):
        return {}


def names_in(state: Path) -> set[str]:
    """The names of the checkpoints on disk."""
    with Folder.open(state) as folder:
        return set(StoredState.read(folder).tree.names)


def content_of(state: Path, one: int) -> Path:
    """The file with the pages of a commit."""
    path = state / "contents" / commits_in(state)[one].content
    path.chmod(0o600)
    return path


def flip(path: Path, at: int = -100) -> None:
    """Changes one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def rewritten(
    state: Path, change: Callable[[Record], Record | None], *, image: str | None = None
) -> None:
    """Rewrites the index with its own salt, validly: every record changed, or removed."""
    with Folder.open(state) as folder:
        reading = read_index(folder)
        records = [change(record) for record in reading.entries if record is not None]
        whole = [record for record in records if record not in (None, IndexEnd())]
        with contextlib.closing(Index(folder, image or reading.image)) as index:
            index.rewrite([*whole, IndexEnd()])
