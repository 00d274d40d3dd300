"""The guest's open descriptors of files and folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from msgspec import Struct

from wasm_kernel.linux.files import open_file_identity
from wasm_kernel.linux.folders import Inode, inode_of
from wasm_kernel.wasi_files.bookkeeping import NameInFolder
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.preopens import FIRST_DESCRIPTOR, GuestOSError, Parts, Preopen, Preopens
from wasm_kernel.wasi_files.quota import OpenFileSize, Quota


class OpenFile(Struct, frozen=True):
    """A record of an open file, for saving.

    `guest` is the guest path of its preopened folder, `path` its path below that. A file that has
    lost its last name belongs to the workspace, under its unlinked name (`FileHistory`). `identity`
    tells the file from others (`linux/files.py`), and is empty if that does not matter. `offset` is
    the position. The rest are arguments of `path_open`. A `path` of None stands for a file that was
    already lost.
    """

    fd: int
    guest: str
    path: str | None
    offset: int
    flags: int
    rights: int
    fdflags: int
    identity: str = ""


class OpenDescriptor(Struct, eq=False, weakref=True):
    """A descriptor of the guest: its file, and the arguments of `path_open` that opened it
    (`flags`, `rights` and `fdflags`).

    Attributes:
        preopen: The guest's folder that the file lies in.
        parts: The names that lead there below that folder. They are a label only: calls on an open
            file go through `fd`.
        fd: The host's descriptor, -1 for a file that could not be opened again.
        key: Tells the file from others; None for a preopened folder.
        identity: Tells it even from later files (`linux/files.py`).
        size: Its length, if it counts against the quota.
        gone: Whether it has lost its name.
        unlinked: Its unlinked name if it has lost its last name (`FileHistory`).
        in_lower: Whether `fd` lies in an overlay's lower folder, in which nothing may be changed.
    """

    preopen: Preopen
    parts: Parts
    fd: int
    flags: int = 0
    rights: int = 0
    fdflags: int = 0
    identity: str = ""
    key: Inode | None = None
    size: OpenFileSize | None = None
    gone: bool = False
    unlinked: str = ""
    is_folder: bool = False
    in_lower: bool = False

    @property
    def path(self) -> str | None:
        """The workspace path of a tracked file, or None."""
        if not self.preopen.tracked or self.gone:
            return None
        return "/".join(self.parts)

    @property
    def is_merged(self) -> bool:
        """Returns whether the descriptor is a folder of an overlay: `fd` is one of its layers."""
        return self.is_folder and self.preopen.beneath is not None

    @property
    def is_hidden_now(self) -> bool:
        """Returns whether an open folder has become one that does not exist for the guest."""
        hidden = self.preopen.hidden
        if not (self.parts and hidden.hides_folders):
            return False
        return hidden.hides_folder(self.fd, len(self.parts) - 1)

    def identify(self) -> str:
        """Returns the file's identity; empty if files in its folder are never replaced.

        A file without a name gets an identity that no file has.
        """
        if self.gone:
            return "another"  # an identity that no file has
        told_apart = self.preopen.tells_files_apart and self.parts and not self.is_merged
        if not self.identity and told_apart and self.fd >= 0:
            self.identity = open_file_identity(self.fd)
        return self.identity


class OpenFiles:
    """The descriptors of one guest, at most `most` besides the preopened folders. Close it.

    Only the guest's thread uses it. It tells `quota` the lengths of open files, and `changes` which
    files have several names.
    """

    def __init__(self, preopens: Preopens, most: int, quota: Quota, changes: FileChanges) -> None:
        fixed = enumerate(preopens.fixed, FIRST_DESCRIPTOR)
        self._by_number = {
            number: OpenDescriptor(preopen, (), preopen.folder.fd, is_folder=True)
            for number, preopen in fixed
        }
        self._fixed = len(self._by_number)
        self._most = most
        self._quota = quota
        self._changes = changes

    @property
    def is_full(self) -> bool:
        """Returns whether the guest has reached its limit of open files."""
        return len(self._by_number) - self._fixed >= self._most

    def has_room_at(self, number: int) -> bool:
        """Returns whether a file can be opened under this number."""
        return not self.is_fixed(number) and number not in self._by_number and not self.is_full

    def register(self, opened: OpenDescriptor, status: os.stat_result) -> None:
        """Notes the key, length and names of a newly opened file."""
        opened.key = inode_of(status)
        if opened.preopen.counted:
            opened.size = self._quota.opened(status)
        if status.st_nlink > 1:
            self._changes.linked(opened.key)

    def get(self, fd: int) -> OpenDescriptor:
        """Returns an open descriptor. Raises `GuestOSError` for streams and closed descriptors."""
        if (opened := self._by_number.get(fd)) is None:
            raise GuestOSError(errno.EBADF)
        return opened

    def file(self, fd: int) -> OpenDescriptor:
        """Returns an open file; raises `GuestOSError` as `get`, and for folders."""
        opened = self._by_number.get(fd)
        if opened is None or opened.is_folder:
            raise GuestOSError(errno.EBADF)
        return opened

    def add(self, opened: OpenDescriptor) -> int:
        """Adds a descriptor under the lowest free number, as POSIX requires; returns the number."""
        number = FIRST_DESCRIPTOR + self._fixed
        while number in self._by_number:
            number += 1
        self._by_number[number] = opened
        return number

    def put(self, number: int, opened: OpenDescriptor) -> None:
        """Adds a descriptor under a number; the caller releases its earlier descriptor."""
        self._by_number[number] = opened

    def own(self, number: int) -> OpenDescriptor:
        """Returns a descriptor that the guest opened itself; else raises `GuestOSError`."""
        if self.is_fixed(number):
            raise GuestOSError(errno.EBADF)
        return self.get(number)

    def pop(self, number: int) -> OpenDescriptor:
        """Frees a number that `own` knows, and returns its descriptor, still open."""
        opened = self.own(number)
        del self._by_number[number]
        return opened

    def is_fixed(self, fd: int) -> bool:
        """Returns whether a descriptor is a stream or a preopened folder, which stay open."""
        return fd < FIRST_DESCRIPTOR + self._fixed

    def own_descriptors(self) -> dict[int, OpenDescriptor]:
        """Returns the descriptors that the guest opened itself, by number."""
        return {fd: o for fd, o in self._by_number.items() if not self.is_fixed(fd)}

    def descriptors_at(self, place: NameInFolder, status: os.stat_result) -> list[OpenDescriptor]:
        """Returns the descriptors of the file at a place, which has this status."""
        return [opened for opened in self._at(place) if opened.key == inode_of(status)]

    def _at(self, place: NameInFolder) -> Iterator[OpenDescriptor]:
        """Yields the descriptors of a place and of all below it."""
        depth = len(place.parts)
        for opened in self._by_number.values():
            below = bool(opened.parts) and opened.parts[:depth] == place.parts
            same = opened.preopen.folder is place.preopen.folder  # also of an overlay on it
            if depth and below and not opened.gone and same:
                yield opened

    def has_unlinked(self, unlinked: str) -> bool:
        """Returns whether a file without a name is open."""
        return any(opened.unlinked == unlinked for opened in self._by_number.values())

    def moved(self, old: NameInFolder, new: NameInFolder) -> None:
        """Updates the open files at a place, and below it, after a rename.

        A lower layer's folder keeps its place: the guest may not write through its descriptor.
        """
        for opened in [each for each in self._at(old) if not each.in_lower]:
            opened.preopen = new.preopen
            opened.parts = new.parts + opened.parts[len(old.parts) :]

    def close(self) -> None:
        """Closes the descriptors that the guest opened itself. Safe to call twice."""
        for number, opened in self.own_descriptors().items():
            del self._by_number[number]
            if opened.fd >= 0:
                os.close(opened.fd)
