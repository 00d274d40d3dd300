"""The size of the guest's own folders, `/app` and `/tmp`, and its limit.

The folders are counted before the first call that would make them grow, so a cell that writes
nothing pays nothing. From then on the guest's own calls are counted. Changes by others (the host,
another kernel) are found by counting again: in each turn before the first growth, if that is quick,
and before the first refusal.

A file counts with its length, holes included: once, however many names it has, and while it is open
even without a name. Each file, folder and link counts as one file. The host's own names do not
count.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Inode, inode_of
from wasm_kernel.wasi_files.preopens import GuestOSError, Preopen, visible

_SHARE = 50  # counting again may take this part of the time: a fiftieth
_QUICK = 0.002  # seconds; so quick a count is allowed in each turn


class Full(GuestOSError):
    """The refusal of a call for which no space is left."""

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC)


class OpenFileSize(Struct, eq=False):
    """The length of an open file, the number of its descriptors, and whether it is nameless."""

    key: Inode
    size: int
    descriptors: int = 0
    nameless: bool = False


class Quota:
    """The use of one guest's folders. Only the guest's thread uses it; `now` is in seconds."""

    def __init__(
        self,
        folders: Sequence[Preopen],
        most_bytes: int,
        most_files: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = folders
        self.most_bytes = most_bytes
        self.most_files = most_files
        self._now = now
        self._held: dict[Inode, OpenFileSize] = {}
        self.used_bytes = self.used_files = 0
        self.refused = False
        self._known = self._checked = self._confirmed = False
        self._measured_at = self._took = 0.0

    def begin_turn(self) -> None:
        """Begins a turn: nothing was refused in it, and the folders are counted again."""
        self.refused = self._checked = self._confirmed = False

    @property
    def limit_met(self) -> str:
        """The name of the limit that this turn has met; empty if it met none."""
        if not self.refused:
            return ""
        return "workspace_files" if self.used_files >= self.most_files else "workspace_bytes"

    def space(self) -> tuple[int, int]:
        """Returns the limit of bytes, and the number in use."""
        self._check()
        return self.most_bytes, self.used_bytes

    def reserve(self, files: int, size: int = 0) -> None:
        """Raises `Full` unless this many files and bytes more fit; `added` counts them later."""
        self._check()
        if not self._fits(files, size) and self._may_measure():
            self._measure()
        if not self._fits(files, size):
            self.refused = True
            raise Full

    def available(self, wanted: int) -> int:
        """Returns the number of the `wanted` bytes that still fit."""
        self._check()
        if not self._fits(0, wanted) and self._may_measure():
            self._measure()
        if self._fits(0, wanted):
            return wanted
        self.refused = True
        return max(0, self.most_bytes - self.used_bytes)

    def added(self, files: int, size: int = 0) -> None:
        """Adds new files and bytes; negative numbers for removed ones."""
        self.used_files += files
        self.used_bytes += size

    def resized(self, held: OpenFileSize, size: int) -> None:
        """Notes the new length of an open file."""
        self.used_bytes += size - held.size
        held.size = size

    def opened(self, status: os.stat_result) -> OpenFileSize | None:
        """Notes that the guest opened a file; returns None if it does not count."""
        if not stat.S_ISREG(status.st_mode):
            return None
        key = inode_of(status)
        held = self._held.setdefault(key, OpenFileSize(key, status.st_size))
        self.resized(held, status.st_size)
        held.descriptors += 1
        return held

    def closed(self, held: OpenFileSize) -> None:
        """Notes that one of a file's descriptors is closed."""
        held.descriptors -= 1
        if not held.descriptors:
            del self._held[held.key]
            if held.nameless:
                self.used_bytes -= held.size

    def removed(self, status: os.stat_result) -> None:
        """Notes that a file with this status has lost a name."""
        self.used_files -= 1
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return
        if (held := self._held.get(inode_of(status))) is None:
            self.used_bytes -= status.st_size
        else:
            held.nameless = True

    def _fits(self, files: int, size: int) -> bool:
        if files and self.used_files + files > self.most_files:
            return False
        return not size or self.used_bytes + size <= self.most_bytes

    def _check(self) -> None:
        """Counts the folders before the first growth of a turn, if that is quick enough."""
        if not self._checked:
            self._checked = True
            if not self._known or self._is_cheap():
                self._measure()

    def _may_measure(self) -> bool:
        return not self._confirmed or self._now() - self._measured_at > _SHARE * self._took

    def _is_cheap(self) -> bool:
        return self._took < _QUICK or self._now() - self._measured_at > _SHARE * self._took

    def _measure(self) -> None:
        begun = self._now()
        self.used_files = 0
        self.used_bytes = sum(held.size for held in self._held.values() if held.nameless)
        linked: set[Inode] = set()
        for folder in self._folders:
            with contextlib.suppress(OSError):  # a folder was moved: the files seen so far count
                self._measure_folder(folder, linked)
        self._known = self._confirmed = True
        self._measured_at = self._now()
        self._took = self._measured_at - begun

    def _measure_folder(self, folder: Preopen, linked: set[Inode]) -> None:
        """Counts a folder; stops at twice the limit of files and more."""
        for entry in visible(folder):
            self.used_files += 1
            if self.used_files > 2 * self.most_files + 1000:
                self.used_bytes = max(self.used_bytes, self.most_bytes)
                return
            if not entry.is_folder:
                self._count(entry, linked)

    def _count(self, entry: walks.WalkEntry, linked: set[Inode]) -> None:
        try:
            status = entry.status
        except OSError:  # its disk fails: the other files still count
            return
        if status is None or not stat.S_ISREG(status.st_mode):
            return
        if status.st_nlink > 1:
            if inode_of(status) in linked:
                return
            linked.add(inode_of(status))
        self.used_bytes += status.st_size
        if (held := self._held.get(inode_of(status))) is not None:
            held.size = status.st_size
