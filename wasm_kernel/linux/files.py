"""A file's content, copied as cheaply as the file system can: cloned, or copied inside the kernel.

Holes stay holes. Sources: ioctl_ficlone(2), copy_file_range(2), and `SEEK_DATA` in lseek(2).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

Stopped = Callable[[], bool]
"""Whether the copy is not wanted any more; asked before each file and every 64 MiB."""

_FICLONE = 0x40049409
_BLOCK = 4 * 1024 * 1024
_STEP = 64 * 1024 * 1024  # what the kernel copies before it is asked whether to go on
_CANNOT = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM}
# ENOENT: also while another file takes the name. Opening says whether there is one.
_NO_LINK = {*_CANNOT, errno.EMLINK, errno.EACCES, errno.ENOENT}
_NO_DATA = errno.ENXIO
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class CopyStopped(Exception):
    """Whoever wanted the copy wants it no more; a part of it is there."""


class Content:
    """Copies content between two file systems, and learns what they can. One thread's own.

    Args:
        stopped: Says when to stop; never by default.
    """

    def __init__(self, stopped: Stopped = lambda: False) -> None:
        self._stopped = stopped
        self._clones = sys.platform == "linux"
        self._ranges = hasattr(os, "copy_file_range")

    def copy(self, source: int, target: int, size: int) -> None:
        """Make an empty file's content that of another, `size` bytes of it.

        Raises:
            OSError: one can't be read, or the other not be written.
            CopyStopped: it is not wanted any more.
        """
        if self._stopped():
            raise CopyStopped
        if size == 0 or self.clone(source, target):
            return
        os.ftruncate(target, size)
        for start, end in stretches(source, size):
            self._copy_stretch(source, target, start, end)

    def clone(self, source: int, target: int) -> bool:
        """Make an empty file a clone of another; False where the file system can't.

        Raises:
            OSError: it could, and there is no room.
        """
        if not self._clones:
            return False
        import fcntl

        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as problem:
            if problem.errno not in _CANNOT:
                raise
            self._clones = False
        return self._clones

    def _copy_stretch(self, source: int, target: int, start: int, end: int) -> None:
        at = start
        while at < end:
            done = self._copy_some(source, target, at, end - at)
            if done == 0:
                return  # the file became shorter meanwhile
            at += done
            if at < end and self._stopped():
                raise CopyStopped

    def _copy_some(self, source: int, target: int, at: int, length: int) -> int:
        if self._ranges:
            try:
                return os.copy_file_range(source, target, min(length, _STEP), at, at)
            except OSError as problem:
                if problem.errno not in _CANNOT:
                    raise
                self._ranges = False
        return os.pwrite(target, os.pread(source, min(length, _BLOCK), at), at)


def clones(folder: Path) -> bool:
    """Whether the file system of a folder clones files.

    Raises:
        OSError: nothing can be written there.
    """
    with (
        tempfile.TemporaryFile(dir=folder) as one,
        tempfile.TemporaryFile(dir=folder) as other,
    ):
        one.write(bytes(4096))
        one.flush()
        return Content().clone(one.fileno(), other.fileno())


def share(folder: int, name: str, target: Path | str, there: int | None = None) -> None:
    """Give a file that is never written again a second name, or copy it where that can't be.

    Another file may take its name meanwhile: it is given whole, as it was before or is after that.

    Args:
        folder: A descriptor of the folder that it is in.
        name: Its name there; a link is not followed.
        target: Its other name.
        there: A descriptor of the folder that the other name is in.

    Raises:
        OSError: neither can be done, or it is not a regular file.
    """
    try:
        os.link(name, target, src_dir_fd=folder, dst_dir_fd=there, follow_symlinks=False)
    except OSError as problem:
        if problem.errno not in _NO_LINK:
            raise
        with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as old:
            _check_regular(os.fstat(old.fileno()))
            with os.fdopen(os.open(target, _NEW, 0o600, dir_fd=there), "wb") as new:
                Content().copy(old.fileno(), new.fileno(), os.fstat(old.fileno()).st_size)
        return
    try:
        _check_regular(os.stat(target, dir_fd=there, follow_symlinks=False))
    except OSError:
        os.unlink(target, dir_fd=there)
        raise


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def stretches(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Start and end of the parts of a file that hold data."""
    if not hasattr(os, "SEEK_DATA"):
        yield 0, size
        return
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError as problem:
            if problem.errno == _NO_DATA:
                return  # only a hole is left
            raise
        at = min(os.lseek(source, start, os.SEEK_HOLE), size)
        if start < at:
            yield start, at
