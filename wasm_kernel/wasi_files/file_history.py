"""The interface through which the file calls report changes, so that earlier versions can be kept.

`FileHistory` itself keeps nothing; `state` derives from it.
"""

from __future__ import annotations

import errno
import os
from enum import Enum

from wasm_kernel.linux.folders import Inode

Change = Enum("Change", "WRITE MOVE END")
"""A change that is about to happen to a file: a write, another name, or losing its name."""


class FileHistory:
    """Keeps files before they change; this base keeps none. Only the guest's thread uses it.

    A path is relative to the workspace; None stands for a path outside of it, whose files are not
    kept. Only `open_unlinked` raises.

    A file that loses its last name while the guest has it open is an unlinked file. It gets a name
    in private state, so that it can be opened again with restored memory; see `is_unlinked_name`.
    """

    @property
    def keeps(self) -> bool:
        """True if any files are kept."""
        return False

    def before_change(
        self, path: str | None, folder: int, name: str, found: os.stat_result | None, change: Change
    ) -> bool:
        """Keeps the file `name`, with status `found`, before a change; False if it was kept.

        If there was no file (None) and the change fails, call `after_removal`.
        """
        return False

    def before_creation(self, path: str | None) -> bool:
        """Notes that a path without a file is about to get one; returns as `before_change`."""
        return False

    def before_write(self, path: str | None, key: Inode, fd: int) -> None:
        """Keeps an open file's content before it is written to or cut.

        `path` may be its unlinked name; `fd` need not be open for reading.
        """

    def after_removal(self, path: str | None) -> None:
        """Notes that a path has no file now; one that came and went since a commit is forgotten."""

    def keep_unlinked(self, folder: int, name: str, found: os.stat_result) -> str:
        """Keeps a file that is about to lose its last name.

        Returns its unlinked name, its only name from now on; empty if it can't be kept.
        """
        return ""

    def drop_unlinked(self, name: str) -> None:
        """Lets go of an unlinked file that the guest closed, unless a commit refers to it."""

    def open_unlinked(self, name: str, flags: int) -> int:
        """Opens an unlinked file as `os.open` does; the caller closes the descriptor."""
        raise FileNotFoundError(errno.ENOENT, "no files are kept")

    def same_file(self, one: str, other: str) -> bool:
        """Returns whether two identities (`linux/files.py`) name one file to the guest."""
        return one == other


def is_unlinked_name(path: str) -> bool:
    """Returns whether a path is an unlinked file's name: a slash and a number, unlike any path."""
    return path.startswith("/") and path[1:].isdecimal()


NO_FILE_HISTORY = FileHistory()
