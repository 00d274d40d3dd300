"""The operations on the content of an open file: read, write, cut.

If there is room for a part of a write, that part is written, as on a full disk. One call moves at
most `MOST_BYTES`, so that an interrupt or a time-out never waits for long; programs call again for
the rest, as POSIX requires.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Sequence

from wasm_kernel.engine import abi
from wasm_kernel.wasi_files.context import FileContext
from wasm_kernel.wasi_files.open_files import OpenDescriptor
from wasm_kernel.wasi_files.preopens import GuestOSError
from wasm_kernel.wasi_files.quota import Full

Buffers = Sequence[memoryview]

MOST_BYTES = 64 * 1024 * 1024
_FLAGS = abi.FD_APPEND | abi.FD_NONBLOCK
_ACCESSED, _ACCESSED_NOW, _CHANGED, _CHANGED_NOW = 1, 2, 4, 8  # WASI's `fstflags`
BOTH_TIMES = _ACCESSED | _CHANGED
"""The `fstflags` that set both times to those of the call."""


class ContentOperations(FileContext):
    """The operations on an open file, by the guest's descriptor."""

    def read(self, fd: int, buffers: Buffers) -> int:
        """Reads into buffers from the file's position on; returns the number of bytes."""
        return os.readv(self.open_files.file(fd).fd, _cut(buffers, MOST_BYTES))

    def read_at(self, fd: int, buffers: Buffers, start: int) -> int:
        """Reads from an offset on; returns the number of bytes."""
        return os.preadv(self.open_files.file(fd).fd, _cut(buffers, MOST_BYTES), start)

    def write(self, fd: int, buffers: Buffers) -> int:
        """Writes at the file's position; returns the number of bytes that there is room for."""
        opened = self.open_files.file(fd)
        at_end = opened.size is None or opened.fdflags & abi.FD_APPEND
        start = None if at_end else os.lseek(opened.fd, 0, os.SEEK_CUR)
        return self._write(opened, buffers, start, lambda data: os.writev(opened.fd, data))

    def write_at(self, fd: int, buffers: Buffers, start: int) -> int:
        """Writes at an offset; returns the number of bytes that there is room for."""
        opened = self.open_files.file(fd)
        counted = None if opened.fdflags & abi.FD_APPEND else start  # Linux appends even then
        return self._write(
            opened, buffers, counted, lambda data: os.pwritev(opened.fd, data, start)
        )

    def _write(
        self,
        opened: OpenDescriptor,
        buffers: Buffers,
        start: int | None,
        put: Callable[[Buffers], int],
    ) -> int:
        """Writes at `start`, or at the end, as much as there is room for."""
        held = opened.size
        size = held.size if held is not None else 0
        start = size if start is None else start
        buffers = _cut(buffers, MOST_BYTES)
        length = sum(map(len, buffers))
        if held is not None and start + length > size and length:
            room = self.quota.available(start + length - size)
            length -= max(0, start + length - size - room)
            if length <= 0:
                raise Full
            buffers = _cut(buffers, length)
        self._keep(opened)
        written = put(buffers)
        if written:
            self._changed(opened, max(size, start + written))
        return written

    def seek(self, fd: int, offset: int, whence: int) -> int:
        """Moves the file's position; returns the new one."""
        opened = self.open_files.file(fd)
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise GuestOSError(errno.EINVAL)
        return os.lseek(opened.fd, offset, whence)

    def set_size(self, fd: int, size: int) -> None:
        """Cuts the file, or adds zeros to it."""
        opened = self.open_files.file(fd)
        more = size - opened.size.size if opened.size is not None else 0
        if more > 0 and self.quota.available(more) < more:
            raise Full
        self._keep(opened)
        os.ftruncate(opened.fd, size)
        self._changed(opened, size)

    def set_times_of_open(self, fd: int, accessed: int, changed: int, flags: int) -> None:
        """Sets the times of an open file or folder; see `times_of`."""
        opened = self.open_files.get(fd)
        if opened.fd < 0:
            raise GuestOSError(errno.EBADF)
        if not opened.preopen.writable or opened.is_merged or opened.in_lower:
            raise GuestOSError(errno.EPERM)
        os.utime(opened.fd, ns=times_of(os.fstat(opened.fd), accessed, changed, flags))

    def set_flags(self, fd: int, fdflags: int) -> None:
        """Sets WASI's `fdflags` of the file."""
        opened = self.open_files.file(fd)
        if fdflags & ~_FLAGS:
            raise GuestOSError(errno.EINVAL)
        fcntl.fcntl(opened.fd, fcntl.F_SETFL, os.O_APPEND if fdflags & abi.FD_APPEND else 0)
        opened.fdflags = fdflags

    def sync(self, fd: int) -> None:
        """Waits until the file's content is on the disk."""
        os.fdatasync(self.open_files.file(fd).fd)

    def _keep(self, opened: OpenDescriptor) -> None:
        if opened.key is not None:
            self.history.before_write(opened.unlinked or opened.path, opened.key, opened.fd)

    def _changed(self, opened: OpenDescriptor, size: int) -> None:
        """Notes that a file's content changed, and its new length."""
        if opened.size is not None:
            self.quota.resized(opened.size, size)
        if opened.key is not None:
            self.changes.wrote(opened.path, opened.key)


def _cut(buffers: Buffers, most: int) -> Buffers:
    """Returns buffers cut to `most` bytes in all."""
    if sum(map(len, buffers)) <= most:
        return buffers
    found = []
    for view in buffers:
        found.append(view[:most])
        most -= len(found[-1])
    return found


def times_of(found: os.stat_result, accessed: int, changed: int, flags: int) -> tuple[int, int]:
    """Returns a file's new times, in nanoseconds: last access and last change.

    WASI's `fstflags` say which of them change; the others stay as found.
    """
    both = (_ACCESSED | _ACCESSED_NOW, _CHANGED | _CHANGED_NOW)
    if any(flags & pair == pair for pair in both):
        raise GuestOSError(errno.EINVAL)
    now = time.time_ns()
    if not flags & _ACCESSED:
        accessed = now if flags & _ACCESSED_NOW else found.st_atime_ns
    if not flags & _CHANGED:
        changed = now if flags & _CHANGED_NOW else found.st_mtime_ns
    return accessed, changed
