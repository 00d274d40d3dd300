"""The interface by which the file calls tell of changes to whoever keeps earlier versions of files.

`state` derives from `FileHistory`, which keeps nothing.
"""

from __future__ import annotations

import errno
import os
from enum import Enum

from wasm_kernel.wasi_files.quota import Key


class Change(Enum):
    """A change that is about to happen to a file: a write, another name, or losing its name."""

    WRITE = "write"
    MOVE = "move"
    END = "end"


class FileHistory:
    """Keeps what paths held before they change; by itself nothing. Only the guest's thread uses it.

    A path is relative to the workspace; None stands for one outside of it, of which nothing is
    kept. Nothing but `open_unlinked` raises.

    A file that loses its last name while the guest has it open is an unlinked file. It gets a name
    in private state, so that memory that speaks of it finds it again; see `is_unlinked_name`.
    """

    @property
    def keeps(self) -> bool:
        """True if anything is kept at all."""
        return False

    def before_change(
        self,
        path: str | None,
        folder: int,
        name: str,
        found: os.stat_result | None,
        change: Change,
    ) -> bool:
        """Keeps what stands at `name` in `folder` before a change; returns whether it was not known
        yet.

        `found` is its status, links not followed; None for nothing. If nothing was there and the
        change fails, call `after_removal`.
        """
        return False

    def before_creation(self, path: str | None) -> bool:
        """Notes that an empty path is about to hold something; returns as `before_change`."""
        return False

    def before_write(self, path: str | None, key: Key, fd: int) -> None:
        """Keeps an open file's content before it is written to or cut.

        `path` may be its unlinked name; `fd` need not be open for reading.
        """

    def after_removal(self, path: str | None) -> None:
        """Notes that a path holds nothing now; what came and went since a commit is forgotten."""

    def keep_unlinked(self, folder: int, name: str, found: os.stat_result) -> str:
        """Keeps a file that is about to lose its last name.

        Returns its unlinked name, by which it is known from now on; empty if it can't be kept.
        """
        return ""

    def drop_unlinked(self, name: str) -> None:
        """Lets an unlinked file go that nobody has open any more, unless a commit knows it."""

    def open_unlinked(self, name: str, flags: int) -> int:
        """Opens an unlinked file as `os.open` does; the caller closes the descriptor."""
        raise FileNotFoundError(errno.ENOENT, "no files are kept")

    def same_file(self, one: str, other: str) -> bool:
        """Returns whether two identities (`linux/files.py`) name one file to the guest."""
        return one == other


def is_unlinked_name(path: str) -> bool:
    """Returns whether a path is an unlinked file's name: a slash and a number, as no other is."""
    return path.startswith("/") and path[1:].isdecimal()


NO_FILE_HISTORY = FileHistory()
