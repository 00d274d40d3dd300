"""The disk space of sessions, measured again only after a change.

Blocks on disk count, not lengths of files: a sparse file counts less than its length.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from msgspec import Struct

from wasm_kernel.folders.folders import FETCHED, KEPT, STATE, UNLINKED
from wasm_kernel.folders.locks import HOLDER, is_used
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.index import NAME as INDEX

HISTORY = (STATE, KEPT, UNLINKED, FETCHED)
"""The folders of a private folder that may be removed: variables, earlier versions of files,
fetched packages. `state` goes first, as the others are useless without it."""

ENTRIES_MOST = 200_000
"""The most names of a tree that are counted; a larger tree counts with this number."""

_BLOCK = 512  # what `st_blocks` counts, on every file system
_PRIVATE_MOST = 1_000  # names at the top of a private folder, which a session's process can make


class DiskUse(Struct, frozen=True):
    """The disk space of one session, in bytes.

    `stamp` is the result of `stamp_of` before the measuring. `history` may be removed while the
    session is not in use; `files` is the rest: the workspace, `/tmp`, packages. `names` is the
    number of all files, folders and links.
    """

    stamp: tuple[int, ...]
    history: int
    files: int
    in_use: bool = False
    names: int = 0

    @property
    def total(self) -> int:
        """All disk space of the session."""
        return self.history + self.files

    @classmethod
    def measured(cls, workspace: Folder, private: Folder) -> DiskUse:
        """Measures a session, without files that can't be read."""
        stamp, in_use, walk = stamp_of(private), is_used(private), _Measuring()
        files = walk.add(workspace)
        history = 0
        for name in private.names(_PRIVATE_MOST):
            with suppress(OSError), private.enter(name) as folder:
                if name in HISTORY:
                    history += walk.add(folder)
                else:
                    files += walk.add(folder)
        return cls(stamp, history, files, in_use, walk.names)

    def holds(self, private: Folder) -> bool:
        """Returns whether the figures still hold, as the session was not used since."""
        return not (self.in_use or self.stamp != stamp_of(private) or is_used(private))


class _Measuring:
    """The measuring of one session. A file with several names counts once."""

    def __init__(self) -> None:
        self.names = 0
        self._seen: set[tuple[int, int]] = set()

    def add(self, folder: Folder) -> int:
        """Returns the bytes of a folder's content."""
        total = 0
        with suppress(OSError):  # a folder that was moved just now
            for entry in walks.entries(folder.fd, most=ENTRIES_MOST):
                self.names += 1
                with suppress(FileNotFoundError):
                    found = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
                    total += self._counted(found, folder=entry.is_folder)
        return total

    def _counted(self, found: os.stat_result, *, folder: bool) -> int:
        taken = found.st_blocks * _BLOCK
        if folder or found.st_nlink < 2:
            return taken
        mark = (found.st_dev, found.st_ino)
        if mark in self._seen:
            return 0
        self._seen.add(mark)
        return taken


def stamp_of(private: Folder) -> tuple[int, ...]:
    """Returns a stamp that changes when a cell ends in a session, or a process opens or leaves it.

    Its first and third numbers are times in nanoseconds.
    """
    holder = private.status(HOLDER)
    index = None
    with suppress(OSError), private.enter(STATE) as state:
        index = state.status(INDEX)
    stamp: tuple[int, ...] = ()
    for each in (holder, index):
        stamp += (0, 0) if each is None else (each.st_mtime_ns, each.st_size)
    return stamp


def idle_seconds(stamp: tuple[int, ...]) -> float:
    """Returns the seconds since the session of a stamp was used; 0 for a time in the future."""
    return max(0.0, time.time() - max(stamp[::2], default=0) / 1e9)
