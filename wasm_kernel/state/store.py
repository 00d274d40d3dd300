"""Contents of files as they were, by number: referred to, cloned or copied.

A file whose name goes away is kept by another name, which costs nothing. One that stays where it
is, and is about to be changed in place, is cloned if the file system can, and copied otherwise.
A content may have a name in the workspace, too, as long as nobody writes to it there: `shared`.

What lies in the workspace is named by an open folder and a name in it, and is taken only if it is
still the file that was looked at.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import zlib
from collections.abc import Iterator

from wasm_kernel.linux import trees
from wasm_kernel.linux.files import FileCopier, open_file_identity
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.loose import link_the_very
from wasm_kernel.state.was import File

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
_BLOCK, _SMALL = 1024 * 1024, 64 * 1024
_PERMISSIONS = 0o7777
_PUT = ".put"

Key = tuple[int, int]
"""What tells a file from another: its device and its number there."""


class TooLarge(Exception):
    """A content is larger than may be copied."""


class Changed(Exception):
    """A content is not as it was kept."""


class Store:
    """The contents in one folder. The guest's thread owns it; close it.

    Args:
        private: The private folder; None if nothing is kept.
        name: The name of the contents' folder there.
        copy_bytes: The largest file that is copied if it can't be cloned.
        workspace: The workspace, whose guest can't see what is written aside at its top.
    """

    def __init__(
        self, private: Folder | None, name: str, copy_bytes: int, workspace: Folder | None
    ) -> None:
        self._workspace = workspace
        self._private = private
        self._name = name
        self._found: Folder | None = None
        self.copy_bytes = copy_bytes
        self._content = FileCopier()
        self._last = 0
        self.shared: dict[Key, int] = {}

    @property
    def _folder(self) -> Folder:
        if self._found is None:
            raise FileNotFoundError(errno.ENOENT, "no files are kept")
        return self._found

    def open(self, needed: dict[int, File]) -> list[int]:
        """Find the contents; those that nobody needs are removed.

        Returns:
            The needed ones that are not there.

        Raises:
            OSError: the folder can't be opened or made.
        """
        if self._found is None and self._private is not None:
            self._found = self._private.enter(self._name, make=True)
        there: set[int] = set()
        for name in self._folder.names():
            number = int(name) if name.isdecimal() else 0
            if number in needed:
                there.add(number)
                self._note(number)
            elif number or name.startswith("."):
                with contextlib.suppress(OSError):  # a folder in its place is left alone
                    self._folder.remove(name)
        self._last = max(there, default=0)
        return [number for number in needed if number not in there]

    def _note(self, number: int) -> None:
        found = self._folder.status(str(number))
        if found is not None and found.st_nlink > 1:
            self.shared[found.st_dev, found.st_ino] = number

    def refer(self, folder: int, name: str, found: os.stat_result) -> File:
        """Keep a file by a name of ours; it must not be written to while it has others.

        Args:
            folder: A descriptor of the folder that it is in.
            name: Its name there.
            found: Its status.

        Raises:
            OSError: the file system can't do that, or it is another file by now; copy it.
        """
        number = self._next()
        link_the_very(folder, name, found, self._folder, str(number))
        self.shared[found.st_dev, found.st_ino] = number
        return self._file(number, found)

    def copy(self, source: int) -> File:
        """Keep a clone or a copy of an open file.

        Args:
            source: Its descriptor, open for reading.

        Raises:
            OSError: it can't be read, or there is no room.
            TooLarge: it would have to be copied, and is larger than may be.
        """
        found = os.fstat(source)
        number = self._next()
        checksum = self._copy(source, found, str(number))
        return self._file(number, found, open_file_identity(source), checksum)

    def _file(
        self, number: int, found: os.stat_result, name: str = "", checksum: int | None = None
    ) -> File:
        if not name:
            with self._reading(number) as kept:
                name = open_file_identity(kept)
        mode = found.st_mode & _PERMISSIONS
        return File(number, found.st_size, found.st_mtime_ns, mode, name, checksum)

    @contextlib.contextmanager
    def _reading(self, number: int) -> Iterator[int]:
        source = self._folder.open_regular(str(number))
        try:
            yield source
        finally:
            os.close(source)

    def part(self, number: int) -> None:
        """A shared content is about to be written to elsewhere: it gets a file of its own.

        Raises:
            OSError, TooLarge: it can't; it must be lost.
        """
        aside = f".{number}"
        self._folder.remove(aside)
        with self._reading(number) as source:
            self._copy(source, os.fstat(source), aside)
        self._folder.rename(aside, str(number))

    def _copy(
        self, source: int, found: os.stat_result, name: str, *, always: bool = False
    ) -> int | None:
        """Copy a file to where none is, `always` or if it is not too large; its checksum, if that
        does not take long to get.
        """
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        target = self._folder.open_regular(name, _NEW)
        try:
            checksum = self._fill(target, source, found.st_size, always=always)
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
            return checksum
        except BaseException:
            self._folder.remove(name)
            raise
        finally:
            os.close(target)

    def _fill(self, target: int, source: int, size: int, *, always: bool) -> int | None:
        if size <= min(_SMALL, self.copy_bytes):
            data = os.pread(source, size, 0)
            if os.write(target, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return zlib.crc32(data)
        if self._content.clone(source, target):
            return None
        if size > self.copy_bytes and not always:
            raise TooLarge
        self._content.copy(source, target, size)
        return checksum_of(target, size)

    def _next(self) -> int:
        self._last += 1
        return self._last

    def check(self, was: File) -> None:
        """See that a content is as it was kept.

        Raises:
            Changed: it is not.
            OSError: it can't be read.
        """
        with self._reading(was.kept) as source:
            found = os.fstat(source)
            if (found.st_size, found.st_mtime_ns) != (was.size, was.mtime):
                raise Changed
            known = was.checksum is not None and was.size <= self.copy_bytes
            if known and checksum_of(source, was.size) != was.checksum:
                raise Changed

    def put(self, was: File, name: str, folder: int) -> None:
        """Give a content a name in a folder, in the place of whatever file has it now.

        It is a copy, or the content itself if that would be too much to copy.

        Raises:
            OSError: it can't be; what has the name now has it still.
        """
        here = self._folder
        here.remove(_PUT)
        try:
            with self._reading(was.kept) as source:
                found = os.fstat(source)
                try:
                    # another session may have it too, and nobody may write to what is kept there
                    self._copy(source, found, _PUT, always=found.st_nlink > 1)
                except TooLarge:
                    link_the_very(here.fd, str(was.kept), found, here, _PUT)
                    self.shared[found.st_dev, found.st_ino] = was.kept
                else:
                    with contextlib.suppress(OSError):
                        os.chmod(_PUT, was.mode, dir_fd=here.fd)
            self._move_over(folder, name)
        finally:
            here.remove(_PUT)

    def put_link(self, text: str, name: str, folder: int) -> None:
        """Give a folder a symbolic link, in the place of whatever file has its name now.

        Raises:
            OSError: it can't be; what has the name now has it still.
        """
        here = self._folder
        here.remove(_PUT)
        os.symlink(text, _PUT, dir_fd=here.fd)
        try:
            self._move_over(folder, name)
        finally:
            here.remove(_PUT)

    def _move_over(self, folder: int, name: str) -> None:
        """Moves what was put aside to another folder, over whatever file has the name there.

        It is there as a whole or not at all; between two file systems it is copied aside first.
        """
        try:
            os.rename(_PUT, name, src_dir_fd=self._folder.fd, dst_dir_fd=folder)
            return
        except OSError as problem:
            if problem.errno != errno.EXDEV or self._workspace is None:
                raise
        top, aside = self._workspace, f".metadata.json~{os.getpid()}"
        try:
            top.remove(aside)
            _copy_to(self._folder.fd, _PUT, top.fd, aside)
            os.rename(aside, name, src_dir_fd=top.fd, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                top.remove(aside)
            raise

    def is_at(self, was: File, found: os.stat_result) -> bool:
        """Whether what was found is a content itself."""
        return self.shared.get((found.st_dev, found.st_ino)) == was.kept

    def has_a_name_elsewhere(self, number: int) -> bool:
        """Whether a content lies in the workspace, too, so that it takes no room here."""
        found = self._folder.status(str(number))
        return found is not None and found.st_nlink > 1

    def remove(self, number: int) -> None:
        """A content is not needed any more; whether it can be removed does not matter."""
        self.shared = {key: one for key, one in self.shared.items() if one != number}
        with contextlib.suppress(OSError):
            self._folder.remove(str(number))

    def clear(self) -> None:
        """Remove everything."""
        self.shared.clear()
        self.close()
        if self._private is not None:
            with contextlib.suppress(OSError):
                with self._private.enter(self._name) as folder:
                    trees.remove_contents(folder.fd)
                os.rmdir(self._name, dir_fd=self._private.fd)

    def close(self) -> None:
        """Closes the folder. Safe to call twice."""
        if self._found is not None:
            self._found.close()
            self._found = None


def _copy_to(folder: int, name: str, other: int, new: str) -> None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=folder), new, dir_fd=other)
        return
    source = os.open(name, _READ, dir_fd=folder)
    try:
        target = os.open(new, _NEW | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=other)
        try:
            FileCopier().copy(source, target, found.st_size)
            os.fchmod(target, stat.S_IMODE(found.st_mode))
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(target)
    finally:
        os.close(source)


def checksum_of(descriptor: int, size: int) -> int:
    """The CRC-32 of an open file's first bytes.

    Raises:
        OSError: it can't be read.
    """
    checksum = 0
    for at in range(0, size, _BLOCK):
        checksum = zlib.crc32(os.pread(descriptor, min(_BLOCK, size - at), at), checksum)
    return checksum
