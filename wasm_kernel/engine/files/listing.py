"""`fd_readdir`: a folder's content, as the host reads it.

wasmtime reads the whole folder again, with a look at every file in it, whenever the guest fills its
buffer of 4 KiB: 10,000 files would take ten seconds. It also leaves three bytes of each entry as
they were in the host's memory. So the host reads a folder once, when the guest begins to, and hands
that out, without the hidden names.

Source of the layout: WASI's `dirent`, 24 bytes (next u64, inode u64, name length u32, type u8, and
three of nothing), then the name; the last one in a buffer may be cut off, and is asked for again.
"""

from __future__ import annotations

import os
import struct

from wasm_kernel.engine import abi
from wasm_kernel.engine.files.inode import guest_inode
from wasm_kernel.engine.files.names import is_hidden
from wasm_kernel.engine.files.quota import Key, key_of
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call

_HEADER = struct.Struct("<QQIB3x")
_PADDING = slice(21, 24)
_UNKNOWN, _FOLDER_KIND, _FILE, _LINK = 0, 3, 4, 7
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class Listing:
    """A folder's entries, one after another, and where each begins."""

    def __init__(self, data: bytes, starts: list[int]) -> None:
        self.data = data
        self.starts = starts

    def serve(self, reach: Reach, call: Call) -> int:
        """Answer the guest's `fd_readdir`; WASI's error number."""
        _, buffer, room, cookie, out = call.args
        at = self.starts[cookie] if cookie < len(self.starts) else len(self.data)
        part = self.data[at : at + room]
        reach.write(buffer, part)
        reach.write_word(out, len(part))
        return abi.SUCCESS


def listing_of(path: str, key: Key | None, *, hiding: bool) -> Listing | None:
    """What lies in a folder now; None where it can't be read, or is not there any more.

    Args:
        path: The host's path.
        key: Which folder it must be, where that is known.
        hiding: Whether it is the workspace's root, whose hidden names are left out.
    """
    try:
        folder = os.open(path, _FOLDER) if os.scandir in os.supports_fd else path
    except OSError:
        return None
    try:
        status = os.stat(folder)  # noqa: PTH116 - a descriptor where there can be one
        return _read(folder, status, hiding) if key in (None, key_of(status)) else None
    except OSError:
        return None
    finally:
        if isinstance(folder, int):
            os.close(folder)


def _read(folder: int | str, status: os.stat_result, hiding: bool) -> Listing:
    own = guest_inode(status.st_dev, status.st_ino)
    data = bytearray()
    starts: list[int] = []

    def add(name: bytes, inode: int, kind: int) -> None:
        starts.append(len(data))
        data.extend(_HEADER.pack(len(starts), inode, len(name), kind))
        data.extend(name)

    add(b".", own, _FOLDER_KIND)
    add(b"..", own, _FOLDER_KIND)  # wasmtime has it so: what lies above is not the guest's to know
    with os.scandir(folder) as found:
        for entry in found:
            if not (hiding and is_hidden(entry.name)):
                inode = guest_inode(status.st_dev, entry.inode())
                add(os.fsencode(entry.name), inode, _kind(entry))
    return Listing(bytes(data), starts)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return _LINK
    if entry.is_dir(follow_symlinks=False):
        return _FOLDER_KIND
    return _FILE if entry.is_file(follow_symlinks=False) else _UNKNOWN


def forwarded(reach: Reach, call: Call) -> int:
    """Let wasmtime answer `fd_readdir`, and clear what it left of the host's memory."""
    answer = call.forward()
    if answer != abi.SUCCESS:
        return answer
    _, buffer, _, _, out = call.args
    used = reach.read_word(out)
    reach.write(buffer, cleared(reach.read(buffer, used)))
    return answer


def cleared(data: bytes) -> bytes:
    """Entries with nothing in their three bytes of nothing; the last one may be cut off."""
    clean, at = bytearray(data), 0
    while at + _PADDING.start < len(clean):
        end = min(at + _PADDING.stop, len(clean))
        clean[at + _PADDING.start : end] = bytes(end - at - _PADDING.start)
        at += _HEADER.size + int.from_bytes(clean[at + 16 : at + 20], "little")
    return bytes(clean)
