"""The guest's open descriptors: files, folders, and devices such as its standard output."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from wasm_kernel.engine import abi
from wasm_kernel.linux.files import open_file_identity
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.preopens import (
    FIRST_DESCRIPTOR,
    Parts,
    Preopen,
    Preopens,
    Refused,
)
from wasm_kernel.wasi_files.quota import Key, OpenFileSize, Quota, key_of

if TYPE_CHECKING:
    from wasm_kernel.wasi_files.path_walk import GuestPath

_ANOTHER = "another"  # an identity that no file has


class Device(Protocol):
    """Something that the guest writes to that is neither a file nor a folder."""

    @property
    def wanted(self) -> bool:
        """Returns whether anybody wants what is written; else it stays in the guest."""

    def write(self, data: bytes) -> None:
        """Takes bytes from the guest."""


class OpenFile(Struct, frozen=True):
    """A record of an open file, which can be written down.

    `guest` is the guest path of the preopened folder it lies in, `path` its path below that. A file
    that has lost its last name belongs to the workspace, by its unlinked name (`FileHistory`). The
    rest are the arguments of `path_open`. `identity` names the file itself, and is empty if that
    does not matter. A `path` of None stands for a file that was lost before.
    """

    fd: int
    guest: str
    path: str | None
    offset: int
    flags: int
    rights: int
    inheriting: int
    fdflags: int
    identity: str = ""


class OpenDescriptor(Struct, eq=False):
    """A descriptor of the guest: where it lies, and how it was opened (`flags`, `rights`,
    `inheriting` and `fdflags` of `path_open`).

    Attributes:
        preopen: The folder of the guest's that it lies in.
        parts: The names that lead there below that folder. They are a label: what is done with an
            open file is done through `fd`.
        fd: The host's descriptor, -1 for a file that could not be opened again.
        key: What tells the file from others; None for a preopened folder.
        identity: What tells it even from later ones (`linux/files.py`).
        size: Its length, if that counts.
        gone: Whether it has lost its name.
        unlinked: What it is called if it has lost its last name (`FileHistory`).
        in_lower: Whether `fd` lies in an overlay's lower folder, in which nothing may be changed.
    """

    preopen: Preopen
    parts: Parts
    fd: int
    flags: int = 0
    rights: int = 0
    inheriting: int = 0
    fdflags: int = 0
    identity: str = ""
    key: Key | None = None
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
        """Returns whether it is a folder of an overlay; `parts` lead to it then, not `fd` alone."""
        return self.is_folder and self.preopen.beneath is not None

    def identify(self) -> str:
        """Returns the file's identity; empty if nobody replaces files there.

        A file that has no name any more gets an identity that no file has.
        """
        if self.gone:
            return _ANOTHER
        told_apart = self.preopen.tells_files_apart and self.parts and not self.is_merged
        if not self.identity and told_apart and self.fd >= 0:
            self.identity = open_file_identity(self.fd)
        return self.identity


class OpenFiles:
    """The descriptors of one guest, `most` besides the preopened folders. Close it.

    Only the guest's thread uses it. The quota knows the lengths of open files, `changes` those with
    several names.
    """

    def __init__(
        self,
        preopens: Preopens,
        most: int,
        quota: Quota,
        changes: FileChanges,
        devices: Mapping[int, Device],
    ) -> None:
        fixed = enumerate(preopens.fixed, FIRST_DESCRIPTOR)
        self._by_number = {
            number: OpenDescriptor(preopen, (), preopen.folder.fd, is_folder=True)
            for number, preopen in fixed
        }
        self._fixed = len(self._by_number)
        self._most = most
        self._quota = quota
        self._changes = changes
        self.devices = devices

    @property
    def is_full(self) -> bool:
        """Returns whether the guest may open no more."""
        return len(self._by_number) - self._fixed >= self._most

    def has_room_at(self, number: int) -> bool:
        """Returns whether a file can be opened under a number, which is free, at all."""
        return not self.is_fixed(number) and number not in self._by_number and not self.is_full

    def register(self, opened: OpenDescriptor, status: os.stat_result) -> None:
        """Notes what is known of a file that is open from now on."""
        opened.key = key_of(status)
        if opened.preopen.counted:
            opened.size = self._quota.opened(status)
        if status.st_nlink > 1:
            self._changes.linked(opened.key)

    def get(self, fd: int) -> OpenDescriptor | None:
        """Returns what a descriptor stands for; None if it is not open."""
        return self._by_number.get(fd)

    def file(self, fd: int) -> OpenDescriptor:
        """Returns an open file; refuses streams, folders and what is not open."""
        opened = self._by_number.get(fd)
        if opened is None or opened.is_folder:
            raise Refused(abi.EBADF)
        return opened

    def add(self, opened: OpenDescriptor) -> int:
        """Adds what was opened, under the lowest free number, as POSIX wants it."""
        number = FIRST_DESCRIPTOR + self._fixed
        while number in self._by_number:
            number += 1
        self._by_number[number] = opened
        return number

    def put(self, number: int, opened: OpenDescriptor) -> None:
        """Adds what was opened under this very number, which must be free."""
        self._by_number[number] = opened

    def take(self, number: int) -> OpenDescriptor | None:
        """Frees a number and returns what it stood for, which is open still."""
        return self._by_number.pop(number, None)

    def is_fixed(self, fd: int) -> bool:
        """Returns whether it is a stream or a preopened folder, which stay open."""
        return fd < FIRST_DESCRIPTOR + self._fixed

    def opened(self) -> dict[int, OpenDescriptor]:
        """Returns what the guest opened itself, by descriptor."""
        return {fd: o for fd, o in self._by_number.items() if not self.is_fixed(fd)}

    def descriptors_at(
        self, place: GuestPath, status: os.stat_result | None
    ) -> list[OpenDescriptor]:
        """Returns the descriptors of what stands at a place, which has this status."""
        key = None if status is None else key_of(status)
        return [opened for opened in self._at(place) if opened.key == key]

    def _at(self, place: GuestPath) -> Iterator[OpenDescriptor]:
        """Yields the descriptors of a place and of what lies below it."""
        depth = len(place.parts)
        for opened in self._by_number.values():
            below = bool(opened.parts) and opened.parts[:depth] == place.parts
            same = opened.preopen.folder is place.preopen.folder  # also of an overlay on it
            if depth and below and not opened.gone and same:
                yield opened

    def lost_name(
        self, place: GuestPath, status: os.stat_result | None, unlinked: str = ""
    ) -> None:
        """Notes that what stood at a place has lost this name; `unlinked` is its new one."""
        for opened in self.descriptors_at(place, status):
            opened.gone, opened.unlinked = True, unlinked

    def has_unlinked(self, unlinked: str) -> bool:
        """Returns whether a file without a name is open."""
        return any(opened.unlinked == unlinked for opened in self._by_number.values())

    def moved(self, old: GuestPath, new: GuestPath) -> None:
        """Notes that what stood at a place, or below it, stands elsewhere now.

        A folder of an overlay's lower layer stays where it is: its descriptor must never be taken
        for that of the folder which hid it, in which the guest may write.
        """
        for opened in [each for each in self._at(old) if not each.in_lower]:
            opened.preopen = new.preopen
            opened.parts = new.parts + opened.parts[len(old.parts) :]

    def close(self) -> None:
        """Closes what the guest opened itself. Safe to call twice."""
        for number, opened in self.opened().items():
            del self._by_number[number]
            if opened.fd >= 0:
                os.close(opened.fd)
