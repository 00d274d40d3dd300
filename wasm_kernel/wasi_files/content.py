"""The calls on what an open file holds: read, write, seek, cut.

A write that has room for a part of itself writes that part, as on a full disk. One call moves at
most `MOST_BYTES`, so that an interrupt or a time-out is never kept waiting for long; programs ask
for the rest, as POSIX wants them to.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable

from wasm_kernel.engine import abi
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call, Shadow
from wasm_kernel.wasi_files.changes import Changes
from wasm_kernel.wasi_files.file_history import FileHistory
from wasm_kernel.wasi_files.open_files import Opened, Table
from wasm_kernel.wasi_files.quota import Full, Quota
from wasm_kernel.wasi_files.refused import Refused

MOST_BYTES = 64 * 1024 * 1024
_STREAMS = 3
_ADVICE_MOST = 5
_FLAGS = abi.FD_APPEND | abi.FD_NONBLOCK
_ACCESSED, _ACCESSED_NOW, _CHANGED, _CHANGED_NOW = 1, 2, 4, 8  # WASI's `fstflags`


class Content:
    """The calls of one guest. Only the guest's thread uses it."""

    def __init__(
        self, table: Table, reach: Reach, changes: Changes, *, quota: Quota, history: FileHistory
    ) -> None:
        self._table = table
        self._reach = reach
        self._changes = changes
        self._quota = quota
        self._history = history

    def shadows(self) -> dict[str, Shadow]:
        """The calls, by WASI's name."""
        return {
            "fd_read": self._read,
            "fd_pread": self._read_at,
            "fd_write": self._write,
            "fd_pwrite": self._write_at,
            "fd_seek": self._seek,
            "fd_tell": self._tell,
            "fd_filestat_set_size": self._set_size,
            "fd_filestat_set_times": self._set_times,
            "fd_fdstat_set_flags": self._set_flags,
            "fd_advise": self._advise,
            "fd_allocate": self._allocate,
            "fd_sync": self._sync,
            "fd_datasync": self._sync,
        }

    def emptied(self, opened: Opened) -> None:
        """A file was cut to nothing when it was opened."""
        self._changed(opened, 0)

    def _read(self, call: Call) -> int:
        fd, table, count, out = call.args
        if fd == 0:  # the guest's standard input is at its end
            self._reach.write_word(out, 0)
            return abi.SUCCESS
        opened = self._table.file(fd)
        self._reach.write_word(out, os.readv(opened.fd, self._buffers(table, count, MOST_BYTES)))
        return abi.SUCCESS

    def _read_at(self, call: Call) -> int:
        fd, table, count, start, out = call.args
        opened = self._table.file(fd)
        buffers = self._buffers(table, count, MOST_BYTES)
        self._reach.write_word(out, os.preadv(opened.fd, buffers, start))
        return abi.SUCCESS

    def _write(self, call: Call) -> int:
        fd, table, count, out = call.args
        opened = self._table.file(fd)
        at_end = opened.held is None or opened.fdflags & abi.FD_APPEND
        start = None if at_end else os.lseek(opened.fd, 0, os.SEEK_CUR)
        return self._put(opened, (table, count), start, out, lambda b: os.writev(opened.fd, b))

    def _write_at(self, call: Call) -> int:
        fd, table, count, start, out = call.args
        opened = self._table.file(fd)
        at_end = opened.fdflags & abi.FD_APPEND  # even then, on Linux

        def put(buffers: list[memoryview]) -> int:
            return os.pwritev(opened.fd, buffers, start)

        return self._put(opened, (table, count), None if at_end else start, out, put)

    def _put(
        self,
        opened: Opened,
        where: tuple[int, int],
        start: int | None,
        out: int,
        put: Callable[[list[memoryview]], int],
    ) -> int:
        """Write at `start`, or at the end, as much as there is room for."""
        held = opened.held
        size = held.size if held is not None else 0
        start = size if start is None else start
        buffers = self._buffers(*where, MOST_BYTES)
        length = sum(map(len, buffers))
        if held is not None and start + length > size and length:
            room = self._quota.room(start + length - size)
            length -= max(0, start + length - size - room)
            if length <= 0:
                raise Full
            buffers = self._buffers(*where, length)
        self._keep(opened)
        written = put(buffers)
        if written:
            self._changed(opened, max(size, start + written))
        self._reach.write_word(out, written)
        return abi.SUCCESS

    def _buffers(self, table: int, count: int, most: int) -> list[memoryview]:
        """The guest's buffers, as many bytes of them as wanted."""
        found = []
        for at, length in self._reach.buffers(table, count):
            view = self._reach.view(at, length)[:most]
            most -= len(view)
            found.append(view)
        return found

    def _seek(self, call: Call) -> int:
        fd, offset, whence, out = call.args
        if fd < _STREAMS:
            return abi.ESPIPE
        opened = self._table.file(fd)
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            return abi.EINVAL
        signed = offset - (1 << 64) if offset >> 63 else offset
        at = os.lseek(opened.fd, signed, whence)
        self._reach.write(out, at.to_bytes(8, "little"))
        return abi.SUCCESS

    def _tell(self, call: Call) -> int:
        fd, out = call.args
        if fd < _STREAMS:
            return abi.ESPIPE
        at = os.lseek(self._table.file(fd).fd, 0, os.SEEK_CUR)
        self._reach.write(out, at.to_bytes(8, "little"))
        return abi.SUCCESS

    def _set_size(self, call: Call) -> int:
        fd, size = call.args
        opened = self._table.file(fd)
        more = size - opened.held.size if opened.held is not None else 0
        if more > 0 and self._quota.room(more) < more:
            raise Full
        self._keep(opened)
        os.ftruncate(opened.fd, size)
        self._changed(opened, size)
        return abi.SUCCESS

    def _set_times(self, call: Call) -> int:
        fd, accessed, changed, flags = call.args
        opened = self._table.get(fd)
        if opened is None or opened.fd < 0:
            return abi.EBADF
        if not opened.preopen.writable:
            return abi.EPERM
        os.utime(opened.fd, ns=times_of(os.fstat(opened.fd), accessed, changed, flags))
        return abi.SUCCESS

    def _set_flags(self, call: Call) -> int:
        fd, flags = call.args
        opened = self._table.file(fd)
        if flags & ~_FLAGS:
            return abi.EINVAL
        fcntl.fcntl(opened.fd, fcntl.F_SETFL, os.O_APPEND if flags & abi.FD_APPEND else 0)
        opened.fdflags = flags
        return abi.SUCCESS

    def _advise(self, call: Call) -> int:
        self._table.file(call.args[0])
        return abi.SUCCESS if call.args[3] <= _ADVICE_MOST else abi.EINVAL

    def _allocate(self, call: Call) -> int:
        self._table.file(call.args[0])
        return abi.ENOTSUP

    def _sync(self, call: Call) -> int:
        os.fdatasync(self._table.file(call.args[0]).fd)
        return abi.SUCCESS

    def _keep(self, opened: Opened) -> None:
        """A file is about to change."""
        if opened.key is not None:
            self._history.before_write(opened.loose or opened.path, opened.key, opened.fd)

    def _changed(self, opened: Opened, size: int) -> None:
        """A file's content changed, and it is so long now."""
        if opened.held is not None:
            self._quota.resized(opened.held, size)
        if opened.key is not None:
            self._changes.wrote(opened.path, opened.key)


def times_of(found: os.stat_result, accessed: int, changed: int, flags: int) -> tuple[int, int]:
    """The times that a file is to have, in nanoseconds: last access and last change.

    Args:
        found: The file's status; what the flags leave out stays.
        accessed: The time of access that the guest asks for.
        changed: The time of change that it asks for.
        flags: WASI's `fstflags`.

    Raises:
        Refused: the flags contradict each other.
    """
    both = (_ACCESSED | _ACCESSED_NOW, _CHANGED | _CHANGED_NOW)
    if any(flags & pair == pair for pair in both):
        raise Refused(abi.EINVAL)
    now = time.time_ns()
    if not flags & _ACCESSED:
        accessed = now if flags & _ACCESSED_NOW else found.st_atime_ns
    if not flags & _CHANGED:
        changed = now if flags & _CHANGED_NOW else found.st_mtime_ns
    return accessed, changed
