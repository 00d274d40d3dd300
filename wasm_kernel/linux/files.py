"""Files: copying contents cheaply, changing names in one step, and telling a file from another
that took its name.
Sources: ioctl_ficlone(2), copy_file_range(2), `SEEK_DATA` in lseek(2), renameat2(2), statx(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

from wasm_kernel.linux import libc
from wasm_kernel.linux.folders import NEW, READ, closing_fd
from wasm_kernel.linux.libc import INT, TEXT, UNSIGNED
from wasm_kernel.linux.task import QUIET, Cancelled, Task
from wasm_kernel.linux.walks import Lookup

_FICLONE = 0x40049409
_BLOCK = 4 * 1024 * 1024
FREE_BYTES = 256 * 1024 * 1024
"""Bytes of a disk that only existing sessions may use: no new session is made in them."""
STEP = 64 * 1024 * 1024  # bytes that one call copies, between two checks for cancelling
_CANNOT = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM}
# ENOENT also comes while another file takes the name; opening shows whether there is a file.
_NO_LINK = {*_CANNOT, errno.EMLINK, errno.EACCES, errno.ENOENT}

_library_rename = libc.function("renameat2", INT, TEXT, INT, TEXT, UNSIGNED)
_statx = libc.function("statx", INT, TEXT, INT, UNSIGNED, TEXT)
_NOREPLACE, _EXCHANGE = 1, 2  # RENAME_NOREPLACE, RENAME_EXCHANGE

_AT_FDCWD, _NO_FOLLOW, _EMPTY_PATH, _WANTED = -100, 0x100, 0x1000, 0x900  # number and birth
_BORN = 0x800
_ANSWER = 256
_NEVER = "0.000000000"  # in file systems that were made as images
_GET_GENERATION = 0x80087601
_BOOT = "/proc/sys/kernel/random/boot_id"


def is_full(folder: Path | int) -> bool:
    """Returns whether the disk of a folder has less than `FREE_BYTES` left."""
    there = os.statvfs(folder)
    return there.f_bavail * there.f_frsize < FREE_BYTES


class FileCopier:
    """Copies contents between two file systems, and remembers what they support.

    Only one thread may use it. It checks before each file and every 64 MiB whether the task was
    cancelled.
    """

    def __init__(self, task: Task = QUIET) -> None:
        self._task = task
        self._clones = self._copies_ranges = True

    def copy(self, source: int, target: int, size: int) -> None:
        """Copies `size` bytes of a file into an empty one. Holes stay holes."""
        self._check_wanted()
        if size == 0 or self.clone(source, target):
            return
        os.ftruncate(target, size)
        for start, end in data_ranges(source, size):
            self._copy_range(source, target, start, end)

    def _check_wanted(self) -> None:
        if self._task.cancelled:
            raise Cancelled

    def clone(self, source: int, target: int) -> bool:
        """Makes an empty file a clone of another; False if the file system can't."""
        if not self._clones:
            return False
        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as problem:
            if problem.errno not in _CANNOT:
                raise
            self._clones = False
        return self._clones

    def _copy_range(self, source: int, target: int, start: int, end: int) -> None:
        at = start
        while at < end:
            done = self._copy_some(source, target, at, end - at)
            if done == 0:
                return  # the file became shorter
            at += done
            if at < end:
                self._check_wanted()

    def _copy_some(self, source: int, target: int, at: int, length: int) -> int:
        if self._copies_ranges:
            try:
                return os.copy_file_range(source, target, min(length, STEP), at, at)
            except OSError as problem:
                if problem.errno not in _CANNOT:
                    raise
                self._copies_ranges = False
        return os.pwrite(target, os.pread(source, min(length, _BLOCK), at), at)


def can_clone(folder: Path) -> bool:
    """Returns whether the file system of a folder clones files."""
    from tempfile import TemporaryFile

    with TemporaryFile(dir=folder) as one, TemporaryFile(dir=folder) as other:
        one.write(bytes(4096))
        one.flush()
        return FileCopier().clone(one.fileno(), other.fileno())


def link_or_copy(folder: int, name: str, target: Path | str, there: int | None = None) -> None:
    """Gives a file that is never written again a second name; copies it if it can't be linked.

    If another file takes the name during the call, the target is one of the two, complete.
    A link is not followed, and only a regular file is linked. `there` is the target's folder.
    """
    try:
        os.link(name, target, src_dir_fd=folder, dst_dir_fd=there, follow_symlinks=False)
    except OSError as problem:
        if problem.errno not in _NO_LINK:
            raise
        with os.fdopen(os.open(name, READ, dir_fd=folder), "rb") as old:
            _check_regular(os.fstat(old.fileno()))
            with os.fdopen(os.open(target, NEW, 0o600, dir_fd=there), "wb") as new:
                FileCopier().copy(old.fileno(), new.fileno(), os.fstat(old.fileno()).st_size)
        return
    try:
        _check_regular(os.stat(target, dir_fd=there, follow_symlinks=False))
    except OSError:
        os.unlink(target, dir_fd=there)
        raise


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def data_ranges(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields start and end of the parts of a file that hold data."""
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError as problem:
            if problem.errno == errno.ENXIO:
                return  # only a hole is left
            raise
        at = min(os.lseek(source, start, os.SEEK_HOLE), size)
        if start < at:
            yield start, at


def swap_names(folder: int, name: str, other_folder: int, other_name: str) -> bool:
    """Swaps two names in one step; False, with nothing done, if the file system can't."""
    return renameat2(folder, name, other_folder, other_name, _EXCHANGE)


def take_name(folder: int, name: str, new: str) -> bool:
    """Renames a file in its folder; False, with nothing done, if it can't have the new name."""
    return renameat2(folder, name, folder, new, _NOREPLACE)


def renameat2(folder: int, name: str, there: int, new: str, flags: int) -> bool:
    """Renames in one step by the system call of this name; returns False if that failed."""
    return _library_rename(folder, os.fsencode(name), there, os.fsencode(new), flags) == 0


def file_identity(name: str, folder: int = _AT_FDCWD) -> str:
    """Returns a file's identity, for a link its own; empty if there is no such file."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return ""
    return f"{found.st_ino}:{_birth(folder, os.fsencode(name), _NO_FOLLOW)}"


def open_file_identity(fd: int) -> str:
    """Returns an open file's identity; empty if the descriptor is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return ""
    return f"{found.st_ino}:{_birth(fd, b'', _EMPTY_PATH)}"


def file_identity_below(folder: int, path: str) -> str:
    """Returns the identity of a file below an open folder; empty if no file is there.

    It is empty, too, if a folder on the path is a link.
    """
    try:
        with Lookup(folder) as lookup:
            above, name = lookup.parent(path)
            return file_identity(name, above)
    except (OSError, ValueError):  # such as a link, or a name that this system can't have
        return ""


class FileMark(Struct, frozen=True):
    """A mark that tells a file or folder from all others, also from one that takes its place later.

    The system reuses an inode's `number` once its file is gone, so the mark also has the file's
    time of birth, `born`, which only statx(2) tells. If a file system keeps no time of birth,
    `born` is the inode's generation (`FS_IOC_GETVERSION`); it is empty if there is neither. A
    `device` number is valid for one boot of the machine, which `boot` names.
    """

    number: int
    born: str
    device: int
    boot: str

    @classmethod
    def of(cls, fd: int) -> FileMark:
        """Returns the mark of an open file or folder."""
        found = os.fstat(fd)
        born = _birth(fd, b"", _EMPTY_PATH)
        if born in ("", _NEVER):
            born = _generation(fd)
        return cls(found.st_ino, born, found.st_dev, boot_id())

    @classmethod
    def at(cls, path: Path) -> FileMark | None:
        """Returns the mark of the file or folder at a path; None if it can't be opened.

        A link at the end is not followed.
        """
        try:
            with closing_fd(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
                return cls.of(fd)
        except OSError:
            return None

    @property
    def survives_restart(self) -> bool:
        """True if the mark tells a file from a later one with the same inode."""
        return bool(self.born)

    def same(self, other: FileMark) -> bool:
        """Returns whether both marks may be of one file.

        Device numbers are only compared within one boot, and only for disks: overlays, network file
        systems and the like get another number each time they are mounted.
        """
        if (self.number, self.born) != (other.number, other.born):
            return False
        disks = os.major(self.device) and os.major(other.device)
        comparable = disks and self.boot and self.boot == other.boot
        return not comparable or self.device == other.device


def _birth(fd: int, path: bytes, flags: int) -> str:
    answer = ctypes.create_string_buffer(_ANSWER)
    if _statx(fd, path, flags, _WANTED, answer):
        return ""
    seconds, nanoseconds = struct.unpack_from("<qI", answer, 80)
    known = struct.unpack_from("<I", answer)[0] & _BORN
    return f"{seconds}.{nanoseconds:09d}" if known else ""


def _generation(fd: int) -> str:
    answer = bytearray(8)
    path, how = f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with closing_fd(os.open(path, how)) as readable:
            fcntl.ioctl(readable, _GET_GENERATION, answer)
    except OSError:
        return ""
    return f"generation {int.from_bytes(answer[:4], 'little')}"


@cache
def boot_id() -> str:
    """Returns the identifier of this boot of the machine; empty if it is unknown."""
    try:
        with open(_BOOT, encoding="utf-8") as file:  # noqa: PTH123 - no path is needed
            return file.read().strip()
    except OSError:
        return ""
