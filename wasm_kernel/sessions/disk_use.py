"""The disk space of sessions, measured again only after a change.

Blocks on disk count, not lengths of files: a sparse file counts less than its length.
"""

from __future__ import annotations

import time
from contextlib import suppress

from msgspec import Struct

from wasm_kernel.folders.folders import FETCHED, KEPT, STATE, UNLINKED
from wasm_kernel.folders.locks import HOLDER, is_used
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.walks import TreeSizes
from wasm_kernel.state.index import NAME as INDEX

HISTORY = (STATE, KEPT, UNLINKED, FETCHED)
"""The folders of a private folder that may be removed: variables, earlier versions of files,
fetched packages. `state` goes first, as the others are useless without it."""

ENTRIES_MOST = 200_000
"""The most names of a tree that are counted; a larger tree counts with this number."""

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
    def measure(cls, workspace: Folder, private: Folder) -> DiskUse:
        """Measures a session, without files that can't be read."""
        stamp, in_use, sizes = stamp_of(private), is_used(private), TreeSizes()
        with suppress(OSError):  # a folder that was moved just now
            sizes.add(workspace.fd, most=ENTRIES_MOST)
        history = 0
        for name in private.names(_PRIVATE_MOST):
            before = sizes.on_disk
            with suppress(OSError), private.enter(name) as folder:
                sizes.add(folder.fd, most=ENTRIES_MOST)
            if name in HISTORY:
                history += sizes.on_disk - before
        return cls(stamp, history, sizes.on_disk - history, in_use, sizes.names)

    def holds(self, private: Folder) -> bool:
        """Returns whether the figures still hold, as the session was not used since."""
        return not (self.in_use or self.stamp != stamp_of(private) or is_used(private))


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
