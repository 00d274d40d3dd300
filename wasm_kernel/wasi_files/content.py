"""The calls on the content of an open file: read, write, seek, cut.

If there is room for a part of a write, that part is written, as on a full disk. One call moves at
most `MOST_BYTES`, so that an interrupt or a time-out never waits for long; programs call again for
the rest, as POSIX requires.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import Handler
from wasm_kernel.wasi_files.file_calls import FileCalls
from wasm_kernel.wasi_files.open_files import Device, OpenDescriptor
from wasm_kernel.wasi_files.preopens import FIRST_DESCRIPTOR, Refused
from wasm_kernel.wasi_files.quota import Full

MOST_BYTES = 64 * 1024 * 1024
DEVICE_BYTES = 1024 * 1024  # copied out of the guest at once
_ADVICE_MOST = 5
_FLAGS = abi.FD_APPEND | abi.FD_NONBLOCK
_ACCESSED, _ACCESSED_NOW, _CHANGED, _CHANGED_NOW = 1, 2, 4, 8  # WASI's `fstflags`


class ContentCalls(FileCalls, frozen=True):
    """The calls on the content of an open file."""

    def handlers(self) -> Mapping[str, Handler]:
        """Returns the handlers, by WASI's name."""
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

    def _read(self, fd: int, table: int, count: int, out: int) -> int:
        if fd == 0:  # the guest's standard input is at its end
            self.memory.write_word(out, 0)
            return abi.SUCCESS
        opened = self.files.file(fd)
        self.memory.write_word(out, os.readv(opened.fd, self._buffers(table, count, MOST_BYTES)))
        return abi.SUCCESS

    def _read_at(self, fd: int, table: int, count: int, start: int, out: int) -> int:
        opened = self.files.file(fd)
        buffers = self._buffers(table, count, MOST_BYTES)
        self.memory.write_word(out, os.preadv(opened.fd, buffers, start))
        return abi.SUCCESS

    def _write(self, fd: int, table: int, count: int, out: int) -> int:
        device = self.files.devices.get(fd)
        if device is not None:
            return self._write_to_device(device, table, count, out)
        opened = self.files.file(fd)
        at_end = opened.size is None or opened.fdflags & abi.FD_APPEND
        start = None if at_end else os.lseek(opened.fd, 0, os.SEEK_CUR)
        return self._put(opened, (table, count), start, out, lambda b: os.writev(opened.fd, b))

    def _write_to_device(self, device: Device, table: int, count: int, out: int) -> int:
        """Takes all the bytes, or those that it took before the cell had to stop."""
        total = 0
        for at, length in self.memory.buffers(table, count):
            taken = self._feed(device, at, length)
            total += taken
            if taken < length:
                break
        self.memory.write_word(out, total)
        return abi.SUCCESS

    def _feed(self, device: Device, at: int, length: int) -> int:
        """Copies a buffer in steps while the device wants its content; returns the bytes taken."""
        for start in range(0, length, DEVICE_BYTES):
            if not device.wanted:
                break
            if start and self.should_stop():
                return start
            device.write(self.memory.read(at + start, min(DEVICE_BYTES, length - start)))
        return length

    def _write_at(self, fd: int, table: int, count: int, start: int, out: int) -> int:
        opened = self.files.file(fd)
        at_end = opened.fdflags & abi.FD_APPEND  # Linux appends even then

        def put(buffers: list[memoryview]) -> int:
            return os.pwritev(opened.fd, buffers, start)

        return self._put(opened, (table, count), None if at_end else start, out, put)

    def _put(
        self,
        opened: OpenDescriptor,
        where: tuple[int, int],
        start: int | None,
        out: int,
        put: Callable[[list[memoryview]], int],
    ) -> int:
        """Writes at `start`, or at the end, as much as there is room for."""
        held = opened.size
        size = held.size if held is not None else 0
        start = size if start is None else start
        buffers = self._buffers(*where, MOST_BYTES)
        length = sum(map(len, buffers))
        if held is not None and start + length > size and length:
            room = self.quota.available(start + length - size)
            length -= max(0, start + length - size - room)
            if length <= 0:
                raise Full
            buffers = self._buffers(*where, length)
        self._keep(opened)
        written = put(buffers)
        if written:
            self._changed(opened, max(size, start + written))
        self.memory.write_word(out, written)
        return abi.SUCCESS

    def _buffers(self, table: int, count: int, most: int) -> list[memoryview]:
        """Returns the guest's buffers, cut to `most` bytes in all."""
        found = []
        for at, length in self.memory.buffers(table, count):
            view = self.memory.view(at, length)[:most]
            most -= len(view)
            found.append(view)
        return found

    def _seek(self, fd: int, offset: int, whence: int, out: int) -> int:
        if fd < FIRST_DESCRIPTOR:
            return abi.ESPIPE
        opened = self.files.file(fd)
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            return abi.EINVAL
        signed = offset - (1 << 64) if offset >> 63 else offset
        at = os.lseek(opened.fd, signed, whence)
        self.memory.write(out, at.to_bytes(8, "little"))
        return abi.SUCCESS

    def _tell(self, fd: int, out: int) -> int:
        if fd < FIRST_DESCRIPTOR:
            return abi.ESPIPE
        at = os.lseek(self.files.file(fd).fd, 0, os.SEEK_CUR)
        self.memory.write(out, at.to_bytes(8, "little"))
        return abi.SUCCESS

    def _set_size(self, fd: int, size: int) -> int:
        opened = self.files.file(fd)
        more = size - opened.size.size if opened.size is not None else 0
        if more > 0 and self.quota.available(more) < more:
            raise Full
        self._keep(opened)
        os.ftruncate(opened.fd, size)
        self._changed(opened, size)
        return abi.SUCCESS

    def _set_times(self, fd: int, accessed: int, changed: int, flags: int) -> int:
        opened = self.files.get(fd)
        if opened is None or opened.fd < 0:
            return abi.EBADF
        if not opened.preopen.writable or opened.is_merged or opened.in_lower:
            return abi.EPERM
        os.utime(opened.fd, ns=times_of(os.fstat(opened.fd), accessed, changed, flags))
        return abi.SUCCESS

    def _set_flags(self, fd: int, flags: int) -> int:
        opened = self.files.file(fd)
        if flags & ~_FLAGS:
            return abi.EINVAL
        fcntl.fcntl(opened.fd, fcntl.F_SETFL, os.O_APPEND if flags & abi.FD_APPEND else 0)
        opened.fdflags = flags
        return abi.SUCCESS

    def _advise(self, fd: int, _offset: int, _length: int, advice: int) -> int:
        self.files.file(fd)
        return abi.SUCCESS if advice <= _ADVICE_MOST else abi.EINVAL

    def _allocate(self, fd: int, _offset: int, _length: int) -> int:
        self.files.file(fd)
        return abi.ENOTSUP

    def _sync(self, fd: int) -> int:
        os.fdatasync(self.files.file(fd).fd)
        return abi.SUCCESS

    def _keep(self, opened: OpenDescriptor) -> None:
        if opened.key is not None:
            self.history.before_write(opened.unlinked or opened.path, opened.key, opened.fd)

    def _changed(self, opened: OpenDescriptor, size: int) -> None:
        """Notes that a file's content changed, and its new length."""
        if opened.size is not None:
            self.quota.resized(opened.size, size)
        if opened.key is not None:
            self.changes.wrote(opened.path, opened.key)


def times_of(found: os.stat_result, accessed: int, changed: int, flags: int) -> tuple[int, int]:
    """Returns a file's new times, in nanoseconds: last access and last change.

    WASI's `fstflags` say which of them change; the others stay as found.
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
