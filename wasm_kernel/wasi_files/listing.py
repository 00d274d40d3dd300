"""`fd_readdir`: a folder's content, as the host reads it.

The host reads a folder once, when the guest begins to, and hands that out, without the hidden
names.

Source of the layout: WASI's `dirent`, 24 bytes (next u64, inode u64, name length u32, type u8, and
three of nothing), then the name; the last one in a buffer may be cut off, and is asked for again.
"""

from __future__ import annotations

import os
import struct
from array import array

from wasm_kernel.engine import abi
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call
from wasm_kernel.wasi_files.preopens import Hidden, is_hidden_folder

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MOST_BYTES = 16 * 1024 * 1024
_HEADER = struct.Struct("<QQIB3x")


class Listing:
    """A folder's entries, one after another, and where each begins."""

    def __init__(self, data: bytes, starts: array[int]) -> None:
        self.data = data
        self.starts = starts

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return len(self.data) + self.starts.itemsize * len(self.starts)

    def serve(self, reach: Reach, call: Call) -> int:
        """Answer the guest's `fd_readdir`; WASI's error number."""
        _, buffer, room, cookie, out = call.args
        at = self.starts[cookie] if cookie < len(self.starts) else len(self.data)
        part = self.data[at : at + room]
        reach.write(buffer, part)
        reach.write_word(out, len(part))
        return abi.SUCCESS


class Listings:
    """The listings that are under way, by the descriptor that the guest reads them through.

    They take at most `MOST_BYTES` of the host's memory, or one of them does. The oldest go first;
    whoever reads on in one that went gets the folder as it is then, from the same entry on.
    """

    def __init__(self) -> None:
        self._kept: dict[object, Listing] = {}

    def get(self, opened: object) -> Listing | None:
        """The listing of a descriptor; None if there is none any more."""
        return self._kept.get(opened)

    def keep(self, opened: object, listing: Listing) -> None:
        """The guest begins to read a folder."""
        self._kept.pop(opened, None)
        self._kept[opened] = listing
        total = sum(each.size for each in self._kept.values())
        for oldest in list(self._kept)[:-1]:
            if total <= MOST_BYTES:
                break
            total -= self._kept.pop(oldest).size

    def forget(self, opened: object) -> None:
        """The descriptor is closed."""
        self._kept.pop(opened, None)


def listing_of(fd: int, hidden: Hidden, depth: int) -> Listing:
    """What lies in an open folder now.

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
        data.extend(_HEADER.pack(len(starts), inode, len(name), kind))
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
