"""`Bookkeeping`: the checks before a change of a guest's files, and the notes after it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.file_history import FileHistory
from wasm_kernel.wasi_files.preopens import GuestOSError, Parts, Preopen
from wasm_kernel.wasi_files.quota import Quota

T = TypeVar("T")

_BETWEEN_LOOKS = 256  # entries of a folder


@dataclass(eq=False)
class NameInFolder:
    """A name in an open folder; `parts` are the names that lead there below the preopen."""

    preopen: Preopen
    folder: int
    name: str
    parts: Parts

    @property
    def path(self) -> str | None:
        """The workspace path, or None if changes are not recorded there."""
        return "/".join(self.parts) if self.preopen.tracked else None


@dataclass(eq=False)
class Bookkeeping:
    """The quota, the changes of a turn, and the history of a guest's files.

    `changes` and `history` outlive it. Only the guest's thread uses it.
    """

    changes: FileChanges
    quota: Quota
    history: FileHistory
    should_stop: Callable[[], bool]

    def check_time(self) -> None:
        """Raises `GuestOSError` if an interrupt is asked for, or the cell's time is over."""
        if self.should_stop():
            raise GuestOSError(errno.EINTR)

    def until_stopped(self, entries: Iterable[T]) -> Iterator[T]:
        """Yields the entries of a folder; in a large one, calls `check_time` now and then."""
        for index, entry in enumerate(entries):
            if index % _BETWEEN_LOOKS == _BETWEEN_LOOKS - 1:
                self.check_time()
            yield entry

    def make(
        self, place: NameInFolder, act: Callable[[], T], size: int = 0, *, is_free: bool = False
    ) -> T:
        """Makes a new file at a place by `act`, if there is room for it; notes and counts it.

        It is not noted if `act` fails, or if there was a file before. With `is_free`, the caller
        knows that there was none.
        """
        self.reserve(place, 1, size)
        is_free = is_free or status_at(place.folder, place.name) is None
        is_noted = is_free and self.history.before_creation(place.path)
        try:
            made = act()
        except OSError:
            if is_noted:
                self.history.after_removal(place.path)
            raise
        self.added(place, 1, size)
        return made

    def reserve(self, place: NameInFolder, files: int, size: int = 0) -> None:
        """Raises `Full` unless this many files and bytes more fit in a place's folder."""
        if place.preopen.counted:
            self.quota.reserve(files, size)

    def added(self, place: NameInFolder, files: int, size: int = 0) -> None:
        """Counts new files and bytes of a place's folder; negative numbers for removed ones."""
        if place.preopen.counted:
            self.quota.added(files, size)

    def vanished(self, path: str | None) -> None:
        """Notes that a path has no file; one that came and went in one cell is forgotten."""
        self.changes.vanished(path)
        self.history.after_removal(path)


def status_at(folder: int, name: str) -> os.stat_result | None:
    """Returns the status of a name in an open folder; None if there is none."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None
