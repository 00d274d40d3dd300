"""The entries of a folder, as `fd_readdir` hands it out.

The host reads a folder once, when the guest begins to, and hands that out, without the hidden
names.

Source of the layout: WASI's `dirent`, 24 bytes (next u64, inode u64, name length u32, type u8, and
three of nothing), then the name; the last one in a buffer may be cut off, and is asked for again.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterable, Iterator

from msgspec import Struct

from wasm_kernel.engine import abi
from wasm_kernel.wasi_files.preopens import Hidden, is_hidden_folder

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MOST_BYTES = 16 * 1024 * 1024
_ENTRY = struct.Struct("<QQIB3x")


class FolderEntry(Struct, frozen=True):
    """A name in a folder, with what it stands for: a number of the file, and WASI's type."""

    name: str
    inode: int
    kind: int


def read_folder(fd: int, hidden: Hidden, depth: int) -> Iterator[FolderEntry]:
    """Yields what lies in an open folder now.

    Args:
        fd: The folder's descriptor.
        hidden: What does not exist for the guest.
        depth: How many folders lie between the guest's preopened folder and the names here.

    Raises:
        OSError: it can't be read.
    """
    folder = os.open(".", _FOLDER, dir_fd=fd)
    by_kind = hidden.hides_folders
    try:
        with os.scandir(folder) as found:
            for entry in found:
                kind = _kind(entry)
                if hidden.hides_name(depth, entry.name):
                    continue
                may_hide = by_kind and kind == abi.FOLDER_TYPE
                if may_hide and is_hidden_folder(hidden, folder, entry.name, depth):
                    continue
                yield FolderEntry(entry.name, entry.inode(), kind)
    finally:
        os.close(folder)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return abi.LINK_TYPE
    if entry.is_dir(follow_symlinks=False):
        return abi.FOLDER_TYPE
    return abi.FILE_TYPE if entry.is_file(follow_symlinks=False) else abi.UNKNOWN_TYPE


class Listing:
    """The entries of a folder, one after another, and the offset at which each begins."""

    def __init__(self, data: bytes, starts: array[int]) -> None:
        self.data = data
        self.starts = starts

    @classmethod
    def of(cls, inode: int, entries: Iterable[FolderEntry]) -> Listing:
        """Returns the listing of a folder that has this number and these entries."""
        data = bytearray()
        starts = array("Q")
        # what lies above is not the guest's to know
        dots = (FolderEntry(name, inode, abi.FOLDER_TYPE) for name in (".", ".."))
        for entry in (*dots, *entries):
            starts.append(len(data))
            name = os.fsencode(entry.name)
            data.extend(_ENTRY.pack(len(starts), entry.inode, len(name), entry.kind))
            data.extend(name)
        return cls(bytes(data), starts)

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
