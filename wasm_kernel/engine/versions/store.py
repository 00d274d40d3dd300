"""Contents of files as they were, by number: referred to, cloned or copied.

A file whose name goes away is kept by another name, which costs nothing. One that stays where it
is, and is about to be changed in place, is cloned where the file system can, and copied otherwise.
A content may have a name in the workspace, too, as long as nobody writes to it there: `shared`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import zlib
from pathlib import Path

from wasm_kernel.engine.folders import tree
from wasm_kernel.engine.folders.content import Content
from wasm_kernel.engine.folders.identity import identity
from wasm_kernel.engine.versions.was import File

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK, _SMALL = 1024 * 1024, 64 * 1024
_PERMISSIONS = 0o7777

Key = tuple[int, int]
"""What tells a file from another: its device and its number there."""


class TooLarge(Exception):
    """A content is larger than may be copied."""


class Changed(Exception):
    """A content is not as it was kept."""


class Store:
    """The contents in one folder. The guest's thread owns it."""

    def __init__(self, folder: Path, copy_bytes: int) -> None:
        self._folder = folder
        self.copy_bytes = copy_bytes
        self._content = Content()
        self._last = 0
        self.shared: dict[Key, int] = {}

    def open(self, needed: dict[int, File]) -> list[int]:
        """Find the contents; those that nobody needs are removed.

        Returns:
            The needed ones that are not there.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        there: set[int] = set()
        for path in self._folder.iterdir():
            number = int(path.name) if path.name.isdecimal() else 0
            if number in needed:
                there.add(number)
                self._note(number)
            elif number or path.name.startswith("."):
                path.unlink(missing_ok=True)
        self._last = max(there, default=0)
        return [number for number in needed if number not in there]

    def _note(self, number: int) -> None:
        found = self.path(number).lstat()
        if found.st_nlink > 1:
            self.shared[found.st_dev, found.st_ino] = number

    def path(self, number: int) -> Path:
        """Where a content lies."""
        return self._folder / str(number)

    def refer(self, path: Path, found: os.stat_result) -> File:
        """Keep a file by a name of ours; it must not be written to while it has others.

        Raises:
            OSError: the file system can't do that; copy it.
        """
        number = self._next()
        os.link(path, self.path(number), follow_symlinks=False)
        self.shared[found.st_dev, found.st_ino] = number
        return _file(number, found, identity(str(path)))

    def copy(self, path: Path) -> File:
        """Keep a clone or a copy of a file.

        Raises:
            OSError: it can't be read, or there is no room.
            TooLarge: it would have to be copied, and is larger than may be.
        """
        source = os.open(path, _READ)
        try:
            found = os.fstat(source)
            number = self._next()
            checksum = self._copy(source, found, self.path(number))
        finally:
            os.close(source)
        return _file(number, found, identity(str(path)), checksum)

    def part(self, number: int) -> None:
        """A shared content is about to be written to elsewhere: it gets a file of its own.

        Raises:
            OSError, TooLarge: it can't; it must be lost.
        """
        path, aside = self.path(number), self._folder / f".{number}"
        aside.unlink(missing_ok=True)
        source = os.open(path, _READ)
        try:
            self._copy(source, os.fstat(source), aside)
        finally:
            os.close(source)
        aside.replace(path)

    def _copy(self, source: int, found: os.stat_result, path: Path) -> int | None:
        """Copy a file to where none is; its checksum, if it does not take long to get."""
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        target = os.open(path, _WRITE, 0o600)
        try:
            checksum = self._fill(target, source, found.st_size)
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
            return checksum
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(target)

    def _fill(self, target: int, source: int, size: int) -> int | None:
        if size <= min(_SMALL, self.copy_bytes):
            data = os.pread(source, size, 0)
            if os.write(target, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return zlib.crc32(data)
        if self._content.clone(source, target):
            return None
        if size > self.copy_bytes:
            raise TooLarge
        self._content.copy(source, target, size)
        return _sum(target, size)

    def _next(self) -> int:
        self._last += 1
        return self._last

    def check(self, was: File) -> None:
        """See that a content is as it was kept.

        Raises:
            Changed: it is not.
            OSError: it can't be read.
        """
        found = self.path(was.kept).lstat()
        same = stat.S_ISREG(found.st_mode) and found.st_size == was.size
        if not same or found.st_mtime_ns != was.mtime:
            raise Changed
        known = was.checksum is not None and was.size <= self.copy_bytes
        if known and checksum_of(self.path(was.kept), was.size) != was.checksum:
            raise Changed

    def put(self, was: File, name: str, folder: int) -> None:
        """Give a content a name in a folder, in the place of whatever file has it now.

        It is a copy, or the content itself where that would be too much to copy.

        Raises:
            OSError: it can't be; what has the name now has it still.
        """
        aside = self._folder / ".put"
        aside.unlink(missing_ok=True)
        source = os.open(self.path(was.kept), _READ)
        try:
            found = os.fstat(source)
            try:
                self._copy(source, found, aside)
            except TooLarge:
                os.link(self.path(was.kept), aside)
                self.shared[found.st_dev, found.st_ino] = was.kept
            else:
                aside.chmod(was.mode)
            os.rename(aside, name, dst_dir_fd=folder)
        finally:
            os.close(source)
            aside.unlink(missing_ok=True)

    def is_at(self, was: File, found: os.stat_result) -> bool:
        """Whether what was found is a content itself."""
        return self.shared.get((found.st_dev, found.st_ino)) == was.kept

    def has_a_name_elsewhere(self, number: int) -> bool:
        """Whether a content lies in the workspace, too, so that it takes no room here."""
        try:
            return self.path(number).lstat().st_nlink > 1
        except OSError:
            return False

    def remove(self, number: int) -> None:
        """A content is not needed any more; whether it can be removed does not matter."""
        self.shared = {key: one for key, one in self.shared.items() if one != number}
        with contextlib.suppress(OSError):
            self.path(number).unlink()

    def clear(self) -> None:
        """Remove everything."""
        self.shared.clear()
        with contextlib.suppress(OSError):
            tree.remove(self._folder)


def _file(number: int, found: os.stat_result, identity: str, checksum: int | None = None) -> File:
    mode = found.st_mode & _PERMISSIONS
    return File(number, found.st_size, found.st_mtime_ns, mode, identity, checksum)


def checksum_of(path: Path, size: int) -> int:
    """The CRC-32 of a file's first bytes.

    Raises:
        OSError: it can't be read.
    """
    descriptor = os.open(path, _READ)
    try:
        return _sum(descriptor, size)
    finally:
        os.close(descriptor)


def _sum(descriptor: int, size: int) -> int:
    checksum = 0
    for at in range(0, size, _BLOCK):
        checksum = zlib.crc32(os.pread(descriptor, min(_BLOCK, size - at), at), checksum)
    return checksum
