"""The entries of a folder, and how `fd_readdir` hands them out.

The host reads a folder once, when the guest begins to read it, and hands its entries out, without
the hidden names. It reads a very long folder in pieces as the guest goes on.

Source of the layout: WASI's `dirent`, 24 bytes (next u64, inode u64, name length u32, type u8,
three unused bytes), then the name. The last entry in a buffer may be cut off; the guest then asks
for it again.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from weakref import WeakKeyDictionary

from msgspec import Struct

from wasm_kernel.engine import abi
from wasm_kernel.linux.folders import closing_fd
from wasm_kernel.wasi_files.preopens import Hidden, is_hidden_folder

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MOST_BYTES = 16 * 1024 * 1024
_ENTRY = struct.Struct("<QQIB3x")


class FolderEntry(Struct, frozen=True):
    """A name in a folder, with its file's inode number and WASI type."""

    name: str
    inode: int
    kind: int


def read_folder(fd: int, hidden: Hidden, depth: int) -> Iterator[FolderEntry]:
    """Yields the entries of an open folder, which is `depth` folders below the preopened one."""
    by_kind = hidden.hides_folders
    with closing_fd(os.open(".", _FOLDER, dir_fd=fd)) as folder, os.scandir(folder) as found:
        for entry in found:
            kind = _kind(entry)
            if hidden.hides_name(depth, entry.name):
                continue
            may_hide = by_kind and kind == abi.FOLDER_TYPE
            if may_hide and is_hidden_folder(hidden, folder, entry.name, depth):
                continue
            yield FolderEntry(entry.name, entry.inode(), kind)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return abi.LINK_TYPE
    if entry.is_dir(follow_symlinks=False):
        return abi.FOLDER_TYPE
    return abi.FILE_TYPE if entry.is_file(follow_symlinks=False) else abi.UNKNOWN_TYPE


class Listing:
    """The encoded entries of a folder, and the offset at which each begins.

    Only one piece of a long folder is kept: the next is read when the guest gets there.
    """

    def __init__(self, inode: int, entries: Iterable[FolderEntry]) -> None:
        # the guest may not learn the inode of the folder above
        dots = (FolderEntry(name, inode, abi.FOLDER_TYPE) for name in (".", ".."))
        self._entries = chain(dots, entries)
        self._data, self._starts = bytearray(), array("Q")
        self._first = 0  # the number of the first entry that is kept
        self._is_whole = False
        self._read_on()

    @property
    def size(self) -> int:
        """The bytes of memory that the listing takes."""
        return len(self._data) + self._starts.itemsize * len(self._starts)

    def part(self, cookie: int, room: int) -> bytes | None:
        """Returns up to `room` bytes from entry `cookie` on; None if that was dropped."""
        if cookie < self._first:
            return None
        room = min(room, MOST_BYTES // 2)
        while self._offset(cookie) + room > len(self._data) and not self._is_whole:
            self._let_go(cookie)
            self._read_on()
        at = self._offset(cookie)
        return bytes(self._data[at : at + room])

    def _offset(self, cookie: int) -> int:
        index = cookie - self._first
        return self._starts[index] if index < len(self._starts) else len(self._data)

    def _let_go(self, cookie: int) -> None:
        """Drops the entries before entry `cookie`."""
        at, index = self._offset(cookie), min(cookie - self._first, len(self._starts))
        del self._data[:at]
        self._starts = array("Q", (start - at for start in self._starts[index:]))
        self._first += index

    def _read_on(self) -> None:
        for entry in self._entries:
            self._starts.append(len(self._data))
            name = os.fsencode(entry.name)
            number = self._first + len(self._starts)
            self._data.extend(_ENTRY.pack(number, entry.inode, len(name), entry.kind))
            self._data.extend(name)
            if self.size >= MOST_BYTES:
                return
        self._is_whole = True


class Listings:
    """The unfinished listings, by the descriptor that the guest reads them through.

    They take at most `MOST_BYTES` of the host's memory, unless a single one takes more. The oldest
    are dropped first; if the guest reads on in a dropped one, the folder is read again, from the
    same entry on. A listing ends with its descriptor.
    """

    def __init__(self) -> None:
        self._kept = WeakKeyDictionary[object, Listing]()

    def part(self, opened: object, cookie: int, room: int, begin: Callable[[], Listing]) -> bytes:
        """Returns up to `room` bytes of a folder's listing from entry `cookie` on.

        `begin` reads the folder, if it is not being read yet; it must not refer to `opened`.
        """
        listing = self._kept.pop(opened, None)
        part = listing.part(cookie, room) if listing is not None and cookie else None
        if listing is None or part is None:
            listing = begin()
            part = listing.part(cookie, room)
            if self._kept:
                self._make_room(listing.size)
        self._kept[opened] = listing
        return part or b""

    def _make_room(self, size: int) -> None:
        total = size + sum(each.size for each in self._kept.values())
        for oldest in list(self._kept):
            if total <= MOST_BYTES:
                break
            total -= self._kept.pop(oldest).size
