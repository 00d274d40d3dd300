"""The calls that only look: at files and links, at the entries of a folder, at open descriptors.

Source of the layouts: WASI's `filestat`, `fdstat` and `prestat`, as its witx files have them.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import Handler
from wasm_kernel.wasi_files.file_calls import FileCalls
from wasm_kernel.wasi_files.listing import FolderEntry, Listing, read_folder
from wasm_kernel.wasi_files.open_files import OpenDescriptor
from wasm_kernel.wasi_files.overlay import OverlayPath
from wasm_kernel.wasi_files.path_walk import Follow, following
from wasm_kernel.wasi_files.paths import is_hidden_now, resolve
from wasm_kernel.wasi_files.preopens import FIRST_DESCRIPTOR, Preopen, Refused

_STATUS = struct.Struct("<QQB7xQQQQQ")
_DESCRIPTION = struct.Struct("<BxH4xQQ")
_PREOPENED = struct.Struct("<B3xI")
_TYPES = {
    stat.S_IFREG: abi.FILE_TYPE,
    stat.S_IFDIR: abi.FOLDER_TYPE,
    stat.S_IFLNK: abi.LINK_TYPE,
}


class LookupCalls(FileCalls, frozen=True):
    """The calls that only look."""

    def handlers(self) -> Mapping[str, Handler]:
        """Returns the handlers, by WASI's name."""
        return {
            "fd_readdir": self._list,
            "fd_fdstat_get": self._describe,
            "fd_filestat_get": self._stat_open,
            "fd_prestat_get": self._describe_preopen,
            "fd_prestat_dir_name": self._name_preopen,
            "path_filestat_get": self._stat,
            "path_readlink": self._read_link,
        }

    def _list(self, fd: int, buffer: int, room: int, cookie: int, out: int) -> int:
        opened = self.files.get(fd)
        if opened is None or not opened.is_folder:
            return abi.EBADF
        if is_hidden_now(opened):
            return abi.ENOENT
        part = self._part(opened, cookie, room)
        self.memory.write(buffer, part)
        self.memory.write_word(out, len(part))
        return abi.SUCCESS

    def _part(self, opened: OpenDescriptor, cookie: int, room: int) -> bytes:
        """Returns up to `room` bytes of a folder's listing from entry `cookie` on."""
        listing = self.listings.get(opened) if cookie else None
        try:
            part = listing.part(cookie, room) if listing is not None else None
            if part is None:
                listing = self._listing_of(opened)
                self.listings.keep(opened, listing)
                part = listing.part(cookie, room)
        except BaseException:
            self.listings.forget(opened)
            raise
        return part or b""

    def _listing_of(self, opened: OpenDescriptor) -> Listing:
        entries: Iterable[FolderEntry] = self.until_stopped(self._entries(opened))
        if self.listings.sorts:
            entries = sorted(entries, key=lambda entry: entry.name)
        return Listing(os.fstat(opened.fd).st_ino, entries)

    def _entries(self, opened: OpenDescriptor) -> Iterator[FolderEntry]:
        if opened.is_merged:
            with resolve(opened.preopen, ".", start=opened) as place:
                assert isinstance(place, OverlayPath)
                yield from place.entries(self.check_time)
            return
        yield from read_folder(opened.fd, opened.preopen.hidden, len(opened.parts))
        yield from self.paths.mounts_in(opened)

    def _describe(self, fd: int, out: int) -> int:
        if fd < FIRST_DESCRIPTOR:
            right = abi.RIGHT_WRITE if fd else abi.RIGHT_READ
            self.memory.write(out, _DESCRIPTION.pack(abi.UNKNOWN_TYPE, 0, right, right))
            return abi.SUCCESS
        opened = self.files.get(fd)
        if opened is None:
            return abi.EBADF
        if opened.is_folder:
            description = (abi.FOLDER_TYPE, 0, *abi.FOLDER_RIGHTS)
        else:
            rights = _rights(opened)
            description = (abi.FILE_TYPE, opened.fdflags, rights, rights)
        self.memory.write(out, _DESCRIPTION.pack(*description))
        return abi.SUCCESS

    def _stat_open(self, fd: int, out: int) -> int:
        if fd < FIRST_DESCRIPTOR:
            self.memory.write(out, _STATUS.pack(*[0] * 8))
            return abi.SUCCESS
        opened = self.files.get(fd)
        if opened is None:
            return abi.EBADF
        self.memory.write(out, _packed(_status_of(opened)))
        return abi.SUCCESS

    def _stat(self, fd: int, flags: int, path: int, length: int, out: int) -> int:
        with self.paths.find(fd, path, length, following(flags)) as place:
            found = place.required_status()
        self.memory.write(out, _packed(found))
        return abi.SUCCESS

    def _read_link(self, fd: int, path: int, length: int, buffer: int, room: int, out: int) -> int:
        with self.paths.find(fd, path, length, Follow.BEFORE_SLASH) as place:
            place.required_status()
            text = os.fsencode(os.readlink(place.name, dir_fd=place.folder))[:room]
        self.memory.write(buffer, text)
        self.memory.write_word(out, len(text))
        return abi.SUCCESS

    def _preopen(self, fd: int) -> Preopen | None:
        opened = self.files.get(fd)
        return opened.preopen if opened is not None and self.files.is_fixed(fd) else None

    def _describe_preopen(self, fd: int, out: int) -> int:
        preopen = self._preopen(fd)
        if preopen is None:
            return abi.EBADF
        self.memory.write(out, _PREOPENED.pack(0, len(preopen.guest.encode())))
        return abi.SUCCESS

    def _name_preopen(self, fd: int, at: int, room: int) -> int:
        preopen = self._preopen(fd)
        if preopen is None:
            return abi.EBADF
        name = preopen.guest.encode()
        if room < len(name):
            return abi.ENAMETOOLONG
        self.memory.write(at, name)
        return abi.SUCCESS


def _status_of(opened: OpenDescriptor) -> os.stat_result:
    if opened.is_merged and not opened.gone:
        with contextlib.suppress(Refused, OSError), resolve(opened.preopen, ".", start=opened) as p:
            return p.required_status()
    return os.fstat(opened.fd)


def _rights(opened: OpenDescriptor) -> int:
    rights = abi.FILE_RIGHTS
    if not opened.rights & abi.RIGHT_WRITE:
        return rights & ~abi.RIGHT_WRITE
    reads = opened.rights & (abi.RIGHT_READ | abi.RIGHT_READDIR)
    return rights if reads else rights & ~(abi.RIGHT_READ | abi.RIGHT_READDIR)


def _packed(found: os.stat_result) -> bytes:
    """Returns a file's status as WASI's `filestat`; the guest sees times before 1970 as 1970."""
    kind = _TYPES.get(stat.S_IFMT(found.st_mode), abi.UNKNOWN_TYPE)
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    what = (found.st_dev, found.st_ino, kind, found.st_nlink, found.st_size)
    return _STATUS.pack(*what, *(max(0, time) for time in times))
