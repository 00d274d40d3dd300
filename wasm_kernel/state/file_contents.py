"""Files in the session's private folder: earlier contents of files, and unlinked files.

A file that loses its name is kept under another name, which costs nothing. A file that is about to
be changed in place is cloned if the file system can, and copied otherwise. A content may also have
a name in the workspace as long as the file there is not written to: it is `shared`.

A file in the workspace is given by an open folder and a name in it. It is taken only if it is still
the file that was looked at.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import zlib
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

from wasm_kernel.linux.files import FileCopier, open_file_identity
from wasm_kernel.linux.folders import Folder, Inode, closing_fd, inode_of, undoing
from wasm_kernel.linux.trees import remove_contents
from wasm_kernel.state.file_journal import KeptFile

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
_BLOCK, _SMALL = 1024 * 1024, 64 * 1024
_PERMISSIONS = 0o7777


class ContentTooLarge(Exception):
    """The error of a content that is too large to be copied."""


class ContentChanged(Exception):
    """The error of a content that changed after it was kept."""


class _NumberedFiles:
    """Files named by numbers in a private folder. The guest's thread owns it; close it."""

    def __init__(self, private: Folder, name: str) -> None:
        self._private = private
        self._name = name
        self._opened: Folder | None = None
        self._last = 0

    def _folder(self, *, make: bool = False) -> Folder:
        """Returns the folder; `OSError` if something else is in its place."""
        if self._opened is None:
            self._opened = self._private.enter(self._name, make=make)
        return self._opened

    def _numbers(self) -> list[int]:
        """Returns the numbers of the files, in no order; none if there is no folder."""
        try:
            return [int(name) for name in self._folder().names() if name.isdecimal()]
        except OSError:
            return []

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class FileContents(_NumberedFiles):
    """Earlier contents of files, by number, in the folder `name` of the private folder.

    Temporary files at the top of the workspace are hidden from its guest. Files of more than
    `copy_bytes` are cloned or not kept. `shared` are numbers of contents that also have a name in
    the workspace.
    """

    def __init__(self, private: Folder, name: str, workspace: Folder, copy_bytes: int) -> None:
        super().__init__(private, name)
        self._workspace = workspace
        self.copy_bytes = copy_bytes
        self._copier = FileCopier()
        self.shared: dict[Inode, int] = {}

    def prepare(self, needed: Collection[int]) -> list[int]:
        """Removes contents that are not needed; returns the needed ones that are missing."""
        folder = self._folder(make=True)
        there: set[int] = set()
        for name in folder.names():
            number = int(name) if name.isdecimal() else 0
            if number in needed:
                there.add(number)
                status = folder.status(name)
                if status is not None and status.st_nlink > 1:
                    self.shared[inode_of(status)] = number
            elif number or name.startswith("."):
                with contextlib.suppress(OSError):  # a folder in its place is left alone
                    folder.remove(name)
        self._last = max(there, default=0)
        return [number for number in needed if number not in there]

    def has_later(self, number: int) -> bool:
        """Returns whether more than one content here is newer than the newest known one.

        One newer content is not a sign of loss: a killed process may have kept it without a record.
        """
        return sum(other > number for other in self._numbers()) > 1

    def keep_by_link(self, folder: int, name: str, found: os.stat_result) -> KeptFile:
        """Keeps a file under a name of ours; it must not be written to while it has other names.

        Raises `OSError` if the file system has no links, or if the file is not `found` any more;
        then copy it.
        """
        number = self._next()
        link_same_file(folder, name, found, self._folder(), str(number))
        self.shared[inode_of(found)] = number
        with self._reading(number) as kept:
            return _kept_file(number, found, kept)

    def keep_by_copy(self, source: int) -> KeptFile:
        """Keeps a clone or a copy of an open file; raises `ContentTooLarge`."""
        found, number = os.fstat(source), self._next()
        checksum = self._copy(source, self._folder(), str(number))
        return _kept_file(number, found, source, checksum)

    def give(self, number: int, target: Folder) -> bool:
        """Clones or copies a content to another session's folder; False if it can't be given."""
        try:
            with self._reading(number) as source:
                self._copy(source, target, str(number))
        except (OSError, ContentTooLarge):
            return False
        return True

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _reading(self, number: int) -> AbstractContextManager[int]:
        return closing_fd(self._folder().open_regular(str(number)))

    def unshare(self, number: int) -> None:
        """Gives a shared content a file of its own, as the workspace's is about to be written to.

        If that fails (`OSError`, `ContentTooLarge`), the content must be dropped.
        """
        folder, aside = self._folder(), f".{number}"
        folder.remove(aside)
        with self._reading(number) as source:
            self._copy(source, folder, aside)
        folder.rename(aside, str(number))

    def _copy(self, source: int, folder: Folder, name: str, *, always: bool = False) -> int | None:
        """Copies a file, `always` or if not too large; returns its checksum; None if cloned."""
        found = os.fstat(source)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        made = folder.open_regular(name, _NEW)
        with closing_fd(made) as target, undoing(lambda: folder.remove(name)):
            checksum = self._fill(target, source, found.st_size, always=always)
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
            return checksum

    def _fill(self, target: int, source: int, size: int, *, always: bool) -> int | None:
        if size <= min(_SMALL, self.copy_bytes):
            data = os.pread(source, size, 0)
            if os.write(target, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return zlib.crc32(data)
        if self._copier.clone(source, target):
            return None
        if size > self.copy_bytes and not always:
            raise ContentTooLarge
        self._copier.copy(source, target, size)
        return checksum_of(target, size)

    def check(self, was: KeptFile) -> None:
        """Raises `ContentChanged` if a content changed after it was kept."""
        with self._reading(was.kept) as source:
            found = os.fstat(source)
            if (found.st_size, found.st_mtime_ns) != (was.size, was.mtime):
                raise ContentChanged
            known = was.checksum is not None and was.size <= self.copy_bytes
            if known and checksum_of(source, was.size) != was.checksum:
                raise ContentChanged

    def put(self, was: KeptFile, name: str, folder: int) -> None:
        """Puts a content into a folder under a name, in place of any file with that name.

        It is a copy, or the content itself if that is too large to copy.
        """

        def make(here: Folder, aside: str) -> None:
            with self._reading(was.kept) as source:
                found = os.fstat(source)
                # a kept file that also has a name in a workspace must not be written to
                always = found.st_nlink > 1 or here is self._workspace
                try:
                    self._copy(source, here, aside, always=always)
                except ContentTooLarge:
                    link_same_file(self._folder().fd, str(was.kept), found, here, aside)
                    self.shared[inode_of(found)] = was.kept
                    return
            with contextlib.suppress(OSError), closing_fd(here.open_regular(aside)) as fd:
                os.fchmod(fd, was.mode)

        self._put(make, name, folder)

    def put_link(self, text: str, name: str, folder: int) -> None:
        """Makes a symbolic link in a folder, in place of any file with that name."""
        self._put(lambda here, aside: os.symlink(text, aside, dir_fd=here.fd), name, folder)

    def _put(self, make: Callable[[Folder, str], None], name: str, folder: int) -> None:
        """Puts a file in a folder, over any file with that name: as a whole or not at all.

        It is made in the private folder first, or in the workspace if that is another file system.
        """
        workspace = (self._workspace, f".metadata.json~{os.getpid()}")
        for here, aside in ((self._folder(), ".put"), workspace):
            here.remove(aside)
            try:
                make(here, aside)
                os.rename(aside, name, src_dir_fd=here.fd, dst_dir_fd=folder)
                return
            except OSError as problem:
                if problem.errno != errno.EXDEV or here is self._workspace:
                    raise
            finally:
                here.remove(aside)

    def has_a_name_elsewhere(self, number: int) -> bool:
        """Returns whether a content also lies in the workspace, so that it takes no extra room."""
        found = self._folder().status(str(number))
        return found is not None and found.st_nlink > 1

    def remove(self, number: int) -> None:
        """Removes a content that is not needed any more, if it can be removed."""
        with contextlib.suppress(OSError):
            if (found := self._folder().status(str(number))) is not None:
                self.shared.pop(inode_of(found), None)
            self._folder().remove(str(number))

    def clear(self) -> None:
        """Removes everything."""
        self.shared.clear()
        self.close()
        with contextlib.suppress(OSError):
            with self._private.enter(self._name) as folder:
                remove_contents(folder.fd)
            os.rmdir(self._name, dir_fd=self._private.fd)


class UnlinkedFiles(_NumberedFiles):
    """Files that lost their last name while the guest had them open: temporary files, mostly.

    Such a file gets a name in private state, so that a new guest or another process can open it
    again for memory that refers to it. It is known by an unlinked name (`FileHistory`). No commit
    refers to the `fresh` files yet.
    """

    def __init__(self, private: Folder, name: str) -> None:
        super().__init__(private, name)
        self.fresh: set[str] = set()

    def keep(self, folder: int, name: str, found: os.stat_result) -> str:
        """Keeps a file that is about to lose its name.

        Returns its unlinked name, by which it is known from now on; empty if it can't be kept.
        """
        try:
            here = self._folder(make=True)
            self._last = (self._last or max(self._numbers(), default=0)) + 1
            link_same_file(folder, name, found, here, str(self._last))
        except OSError:
            return ""
        unlinked = f"/{self._last}"
        self.fresh.add(unlinked)
        return unlinked

    def at(self, unlinked: str) -> tuple[Folder, str]:
        """Returns the folder that a file is in, and its name there."""
        return self._folder(), unlinked[1:]

    def remove(self, unlinked: str) -> None:
        """Removes a file that is not needed any more."""
        self.fresh.discard(unlinked)
        with contextlib.suppress(OSError):
            self._folder().remove(unlinked[1:])

    def unneeded(self, needed: Collection[str]) -> list[str]:
        """Returns the files that are not needed."""
        return [f"/{number}" for number in self._numbers() if f"/{number}" not in needed]

    def excess(self, opened: Collection[str], most_bytes: int) -> list[str]:
        """Returns the oldest files, but no open ones; the rest take at most `most_bytes`."""
        excess, left = [], most_bytes
        for unlinked in (f"/{number}" for number in sorted(self._numbers(), reverse=True)):
            if unlinked in opened or unlinked in self.fresh:
                continue
            status = self._folder().status(unlinked[1:])
            left -= status.st_size if status is not None else 0
            if left < 0:
                excess.append(unlinked)
        return excess


def link_same_file(folder: int, name: str, found: os.stat_result, target: Folder, new: str) -> None:
    """Gives a file a further name, if it is still the file that was looked at; else `OSError`."""
    os.link(name, new, src_dir_fd=folder, dst_dir_fd=target.fd, follow_symlinks=False)
    linked = target.status(new)
    if linked is None or not os.path.samestat(linked, found):
        target.remove(new)
        raise OSError(errno.ESTALE, "another file took its name")


def _kept_file(
    number: int, found: os.stat_result, fd: int, checksum: int | None = None
) -> KeptFile:
    mode, identity = found.st_mode & _PERMISSIONS, open_file_identity(fd)
    return KeptFile(number, found.st_size, found.st_mtime_ns, mode, identity, checksum)


def checksum_of(descriptor: int, size: int) -> int:
    """Returns the CRC-32 of an open file's first bytes."""
    checksum = 0
    for at in range(0, size, _BLOCK):
        checksum = zlib.crc32(os.pread(descriptor, min(_BLOCK, size - at), at), checksum)
    return checksum
