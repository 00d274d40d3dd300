"""The calls that only look: at files and links, at what lies in a folder, at open descriptors.

The host reads a folder once, when the guest begins to, and hands that out, without the hidden
names.

Source of the layouts: WASI's `dirent`, 24 bytes (next u64, inode u64, name length u32, type u8, and
three of nothing), then the name; the last one in a buffer may be cut off, and is asked for again.
`filestat`, `fdstat` and `prestat` are as its witx files have them.
"""

from __future__ import annotations

import os
import stat
import struct
from array import array
from collections.abc import Mapping

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import Handler
from wasm_kernel.wasi_files.open_files import FileCalls, OpenDescriptor
from wasm_kernel.wasi_files.paths import Follow, following, is_hidden_now
from wasm_kernel.wasi_files.preopens import (
    FIRST_DESCRIPTOR,
    Hidden,
    Preopen,
    is_hidden_folder,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MOST_BYTES = 16 * 1024 * 1024
_ENTRY = struct.Struct("<QQIB3x")
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
        listing = self.listings.get(opened) if cookie else None
        if listing is None:
            listing = read_listing(opened.fd, opened.preopen.hidden, len(opened.parts))
            self.listings.keep(opened, listing)
        part = listing.part(cookie, room)
        self.memory.write(buffer, part)
        self.memory.write_word(out, len(part))
        return abi.SUCCESS

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
        self.memory.write(out, _packed(os.fstat(opened.fd)))
        return abi.SUCCESS

    def _stat(self, fd: int, flags: int, path: int, length: int, out: int) -> int:
        with self.paths.find(fd, path, length, following(flags)) as place:
            found = place.required_status()
        self.memory.write(out, _packed(found))
        return abi.SUCCESS

    def _read_link(self, fd: int, path: int, length: int, buffer: int, room: int, out: int) -> int:
        with self.paths.find(fd, path, length, Follow.BEFORE_SLASH) as place:
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


def _rights(opened: OpenDescriptor) -> int:
    rights = abi.FILE_RIGHTS
    if not opened.rights & abi.RIGHT_WRITE:
        return rights & ~abi.RIGHT_WRITE
    reads = opened.rights & (abi.RIGHT_READ | abi.RIGHT_READDIR)
    return rights if reads else rights & ~(abi.RIGHT_READ | abi.RIGHT_READDIR)


def _packed(found: os.stat_result) -> bytes:
    """Returns a file's status as WASI's `filestat`; times before 1970 are 1970 to the guest."""
    kind = _TYPES.get(stat.S_IFMT(found.st_mode), abi.UNKNOWN_TYPE)
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    what = (found.st_dev, found.st_ino, kind, found.st_nlink, found.st_size)
    return _STATUS.pack(*what, *(max(0, time) for time in times))


class Listing:
    """The entries of a folder, one after another, and the offset at which each begins."""

    def __init__(self, data: bytes, starts: array[int]) -> None:
        self.data = data
        self.starts = starts

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return len(self.data) + self.starts.itemsize * len(self.starts)

    def part(self, cookie: int, room: int) -> bytes:
        """Returns what fits into so many bytes, from an entry on."""
        at = self.starts[cookie] if cookie < len(self.starts) else len(self.data)
        return self.data[at : at + room]


class Listings:
    """The listings that are under way, by the descriptor that the guest reads them through.

    They take at most `MOST_BYTES` of the host's memory, or one of them does. The oldest go first;
    whoever reads on in one that went gets the folder as it is then, from the same entry on.
    """

    def __init__(self) -> None:
        self._kept: dict[object, Listing] = {}

    def get(self, opened: object) -> Listing | None:
        """Returns the listing of a descriptor; None if there is none any more."""
        return self._kept.get(opened)

    def keep(self, opened: object, listing: Listing) -> None:
        """Keeps the listing of a folder that the guest begins to read."""
        self._kept.pop(opened, None)
        self._kept[opened] = listing
        total = sum(each.size for each in self._kept.values())
        for oldest in list(self._kept)[:-1]:
            if total <= MOST_BYTES:
                break
            total -= self._kept.pop(oldest).size

    def forget(self, opened: object) -> None:
        """Forgets the listing of a descriptor that is closed."""
        self._kept.pop(opened, None)


def read_listing(fd: int, hidden: Hidden, depth: int) -> Listing:
    """Reads what lies in an open folder now.

    Args:
        fd: The folder's descriptor.
        hidden: What does not exist for the guest.
        depth: How many folders lie between the guest's preopened folder and the names here.

    Raises:
        OSError: it can't be read.
    """
    folder = os.open(".", _FOLDER, dir_fd=fd)
    try:
        return _read(folder, hidden, depth)
    finally:
        os.close(folder)


def _read(folder: int, hidden: Hidden, depth: int) -> Listing:
    own = os.fstat(folder).st_ino
    data = bytearray()
    starts = array("Q")

    def add(name: bytes, inode: int, kind: int) -> None:
        starts.append(len(data))
        data.extend(_ENTRY.pack(len(starts), inode, len(name), kind))
        data.extend(name)

    add(b".", own, abi.FOLDER_TYPE)
    add(b"..", own, abi.FOLDER_TYPE)  # what lies above is not the guest's to know
    by_kind = hidden.hides_folders
    with os.scandir(folder) as found:
        for entry in found:
            kind = _kind(entry)
            if hidden.hides_name(depth, entry.name):
                continue
            may_hide = by_kind and kind == abi.FOLDER_TYPE
            if may_hide and is_hidden_folder(hidden, folder, entry.name, depth):
                continue
            add(os.fsencode(entry.name), entry.inode(), kind)
    return Listing(bytes(data), starts)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return abi.LINK_TYPE
    if entry.is_dir(follow_symlinks=False):
        return abi.FOLDER_TYPE
    return abi.FILE_TYPE if entry.is_file(follow_symlinks=False) else abi.UNKNOWN_TYPE
