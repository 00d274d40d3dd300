"""`FileAccess`: the file calls for a guest that imports none, by whole files and plain values.

It uses the calls of a WASI guest, and so the same view, quota, hidden names and history. Their
arguments lie in the host's own memory instead of the guest's.
"""

from __future__ import annotations

import errno
import os
import posixpath
import struct
from collections.abc import Iterator

from msgspec import Struct

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import GuestMemory, OutOfBounds
from wasm_kernel.wasi_files.calls import WasiFiles

PIECE_BYTES = 1024 * 1024
_OUT, _TEXT, _OTHER, _DATA = 0, 128, 128 + 2 * abi.PATH_MAX, 128 + 4 * abi.PATH_MAX
_BYTES = _DATA + PIECE_BYTES
_STATUS = struct.Struct("<QQB7xQQQQQ")
_ENTRY = struct.Struct("<QQIB3x")
_READ = abi.RIGHT_READ | abi.RIGHT_READDIR


class FileStatus(Struct, frozen=True):
    """The status of a file. Its times (read, content changed, anything changed) are nanoseconds.

    The kind is `file`, `folder`, `link` or `other`; `links` is the number of its names.
    """

    kind: str
    size: int
    accessed: int
    modified: int
    changed: int
    inode: int
    links: int


_KINDS = {abi.FILE_TYPE: "file", abi.FOLDER_TYPE: "folder", abi.LINK_TYPE: "link"}


class FileAccess:
    """The files of one guest, by absolute paths as the guest sees them. Only its thread uses it.

    Its methods raise `OSError`, with Linux's number, if a call fails.
    """

    def __init__(self, files: WasiFiles) -> None:
        self._memory = _Scratch()
        self._calls = {
            name: handler for (_, name), handler in files.bind(_NoGuest(self._memory)).items()
        }
        self._folders = sorted(files.folders().items(), key=lambda pair: -len(pair[0]))

    def read(self, path: str, start: int, most: int) -> bytes:
        """Returns a file's bytes from offset `start` on, `most` of them at most."""
        fd = self._open(path, 0, abi.RIGHT_READ)
        try:
            return b"".join(self._pieces(fd, start, most))
        finally:
            self._calls["fd_close"](fd)

    def _pieces(self, fd: int, start: int, most: int) -> Iterator[bytes]:
        while most > 0:
            self._memory.write(_TEXT, struct.pack("<II", _DATA, min(PIECE_BYTES, most)))
            self._call("fd_pread", fd, _TEXT, 1, start, _OUT)
            length = self._memory.read_word(_OUT)
            if length == 0:
                return
            start, most = start + length, most - length
            yield self._memory.read(_DATA, length)

    def write(self, path: str, data: bytes, *, append: bool = False, new: bool = False) -> None:
        """Writes a file, or appends to it with `append`; with `new` it must not exist."""
        how = abi.O_CREAT | (abi.O_EXCL if new else 0) | (0 if append else abi.O_TRUNC)
        flags = abi.FD_APPEND if append else 0
        fd = self._open(path, how, abi.RIGHT_READ | abi.RIGHT_WRITE, flags)
        try:
            view = memoryview(data)
            while view:
                piece = bytes(view[:PIECE_BYTES])
                self._memory.write(_DATA, piece)
                self._memory.write(_TEXT, struct.pack("<II", _DATA, len(piece)))
                self._call("fd_write", fd, _TEXT, 1, _OUT)
                view = view[self._memory.read_word(_OUT) :]
        finally:
            self._calls["fd_close"](fd)

    def truncate(self, path: str, size: int) -> None:
        """Cuts a file, or adds zeros to it."""
        fd = self._open(path, 0, abi.RIGHT_READ | abi.RIGHT_WRITE)
        try:
            self._call("fd_filestat_set_size", fd, size)
        finally:
            self._calls["fd_close"](fd)

    def list(self, path: str) -> list[tuple[str, str]]:
        """Returns the names in a folder, in order, each with its kind."""
        fd = self._open(path, abi.O_DIRECTORY, _READ)
        try:
            found = [each for each in self._entries(fd) if each[0] not in (".", "..")]
        finally:
            self._calls["fd_close"](fd)
        return sorted(found)

    def _entries(self, fd: int) -> Iterator[tuple[str, str]]:
        cookie = 0
        while True:
            self._call("fd_readdir", fd, _DATA, PIECE_BYTES, cookie, _OUT)
            length = self._memory.read_word(_OUT)
            part, at = self._memory.read(_DATA, length), 0
            while at + _ENTRY.size <= length:
                following, _, size, kind = _ENTRY.unpack_from(part, at)
                name = part[at + _ENTRY.size : at + _ENTRY.size + size]
                if len(name) < size:
                    break
                yield os.fsdecode(name), _KINDS.get(kind, "other")
                cookie, at = following, at + _ENTRY.size + size
            if length < PIECE_BYTES:
                return

    def status(self, path: str, *, follow: bool = True) -> FileStatus:
        """Returns the status of a file; of a link itself if `follow` is False."""
        flags = abi.LOOKUP_FOLLOW if follow else 0
        fd, at, length = self._place(path, _TEXT)
        self._call("path_filestat_get", fd, flags, at, length, _OUT)
        return self._status()

    def _status(self) -> FileStatus:
        raw = self._memory.read(_OUT, _STATUS.size)
        _, inode, kind, links, size, accessed, modified, changed = _STATUS.unpack(raw)
        shown = _KINDS.get(kind, "other")
        return FileStatus(shown, size, accessed, modified, changed, inode, links)

    def set_times(self, path: str, accessed: int, modified: int) -> None:
        """Sets a file's times, in nanoseconds."""
        fd, at, length = self._place(path, _TEXT)
        times = (accessed, modified, 1 | 4)
        self._call("path_filestat_set_times", fd, abi.LOOKUP_FOLLOW, at, length, *times)

    def make_folder(self, path: str) -> None:
        """Makes a folder."""
        self._call("path_create_directory", *self._place(path, _TEXT))

    def remove_folder(self, path: str) -> None:
        """Removes an empty folder."""
        self._call("path_remove_directory", *self._place(path, _TEXT))

    def remove(self, path: str) -> None:
        """Removes a file or a link."""
        self._call("path_unlink_file", *self._place(path, _TEXT))

    def rename(self, path: str, target: str) -> None:
        """Renames a file or a folder; a file of the new name is replaced."""
        self._call("path_rename", *self._place(path, _TEXT), *self._place(target, _OTHER))

    def link(self, path: str, target: str) -> None:
        """Gives a file another name."""
        fd, at, length = self._place(path, _TEXT)
        self._call("path_link", fd, 0, at, length, *self._place(target, _OTHER))

    def make_link(self, text: str, path: str) -> None:
        """Makes a symbolic link that holds `text`."""
        at, length = self._put(text, _OTHER)
        self._call("path_symlink", at, length, *self._place(path, _TEXT))

    def read_link(self, path: str) -> str:
        """Returns the text of a symbolic link."""
        fd, at, length = self._place(path, _TEXT)
        self._call("path_readlink", fd, at, length, _DATA, abi.PATH_MAX, _OUT)
        return os.fsdecode(self._memory.read(_DATA, self._memory.read_word(_OUT)))

    def _open(self, path: str, how: int, rights: int, flags: int = 0) -> int:
        fd, at, length = self._place(path, _TEXT)
        follow = abi.LOOKUP_FOLLOW
        self._call("path_open", fd, follow, at, length, how, rights, abi.FILE_RIGHTS, flags, _OUT)
        return self._memory.read_word(_OUT)

    def _place(self, path: str, at: int) -> tuple[int, int, int]:
        """Returns the arguments that name a path: a folder's descriptor, an address, a length."""
        plain = posixpath.normpath(path)
        for guest, fd in self._folders:
            if plain == guest or plain.startswith(f"{guest}/"):
                rest = plain[len(guest) + 1 :] or "."
                ends_in_slash = path.endswith("/") and rest != "."
                return fd, *self._put(f"{rest}/" if ends_in_slash else rest, at)
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    def _put(self, text: str, at: int) -> tuple[int, int]:
        data = text.encode("utf-8", "surrogateescape")
        if len(data) > abi.PATH_MAX:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        self._memory.write(at, data)
        return at, len(data)

    def _call(self, name: str, *args: int) -> None:
        answer = self._calls[name](*args)
        if answer != abi.SUCCESS:
            number = abi.linux_errno(answer)
            raise OSError(number, os.strerror(number))


class _Scratch(GuestMemory):
    """A piece of the host's memory in the place of a guest's."""

    def __init__(self) -> None:
        self._bytes = bytearray(_BYTES)
        self._view = memoryview(self._bytes)

    @property
    def size(self) -> int:
        return _BYTES

    def read(self, at: int, length: int) -> bytes:
        return bytes(self.view(at, length))

    def write(self, at: int, data: bytes) -> None:
        self.view(at, len(data))[:] = data

    def view(self, at: int, length: int) -> memoryview:
        if at < 0 or length < 0 or at + length > _BYTES:
            raise OutOfBounds(f"{length} bytes at {at}")
        return self._view[at : at + length]


class _NoGuest:
    """The guest that the calls are bound to: they need its memory only."""

    def __init__(self, memory: GuestMemory) -> None:
        self.memory = memory

    def call(self, export: str, *args: int) -> int:
        raise NotImplementedError

    def count_work(self, fuel: int) -> bool:
        raise NotImplementedError
