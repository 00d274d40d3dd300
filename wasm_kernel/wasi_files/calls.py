"""`WasiFiles`: the WASI calls of a guest on its files, which are `FileOperations`.

wasmtime gets no folder at all: the guest reaches the disk only through these calls. Each reads its
arguments in the guest's memory, calls one operation, and writes the answer there.

Source of the layouts: WASI's `filestat`, `fdstat` and `prestat`, as its witx files have them.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Mapping

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import GuestMemory, Handler, Import, OutOfBounds
from wasm_kernel.engine.instance import Instance
from wasm_kernel.engine.streams import NAMES, OutputStreams
from wasm_kernel.wasi_files.context import PathAt
from wasm_kernel.wasi_files.listing import Listing, Listings
from wasm_kernel.wasi_files.open_files import OpenDescriptor
from wasm_kernel.wasi_files.operations import FileOperations
from wasm_kernel.wasi_files.path_walk import Follow
from wasm_kernel.wasi_files.preopens import FIRST_DESCRIPTOR, GuestOSError

PRINTED_BYTES = 1024 * 1024  # copied out of the guest at once
_CALLS = sorted(abi.SHAPES.keys() - {"clock_time_get", "poll_oneoff"})
_ADVICE_MOST = 5
_STATUS = struct.Struct("<QQB7xQQQQQ")
_DESCRIPTION = struct.Struct("<BxH4xQQ")
_PREOPENED = struct.Struct("<B3xI")
_TYPES = {stat.S_IFREG: abi.FILE_TYPE, stat.S_IFDIR: abi.FOLDER_TYPE, stat.S_IFLNK: abi.LINK_TYPE}


class WasiFiles:
    """The file calls of one instance: a `HostFunctions`. Only the guest's thread uses it.

    What the guest prints goes to `streams`. With `sorts`, folders are listed by name; a folder is
    then read as a whole.
    """

    imports: Mapping[Import, str] = {(abi.WASI, name): abi.SHAPES[name] for name in _CALLS}

    _memory: GuestMemory

    def __init__(
        self, files: FileOperations, streams: OutputStreams, *, sorts: bool = False
    ) -> None:
        self._files = files
        self._open_files = files.open_files
        self._streams = streams
        self._sorts = sorts
        self._listings = Listings()

    def bind(self, guest: Instance) -> Mapping[Import, Handler]:
        """Returns the handlers for a guest: operations, and methods that have the calls' names."""
        self._memory, files = guest.memory, self._files
        direct: Mapping[str, Callable[..., None]] = {
            "fd_datasync": files.sync,
            "fd_fdstat_set_flags": files.set_flags,
            "fd_filestat_set_size": files.set_size,
            "fd_filestat_set_times": files.set_times_of_open,
            "fd_renumber": files.renumber,
            "fd_sync": files.sync,
            "path_create_directory": self._on_path(files.make_folder),
            "path_remove_directory": self._on_path(files.remove_folder),
            "path_unlink_file": self._on_path(files.remove),
        }
        own = {name: getattr(self, f"_{name}") for name in _CALLS if name not in direct}
        return {(abi.WASI, name): _guarded(call) for name, call in {**own, **direct}.items()}

    def _on_path(self, operation: Callable[[PathAt], None]) -> Callable[[int, int, int], None]:
        return lambda fd, path, length: operation(self._path(fd, path, length))

    # -- arguments and answers

    def _text(self, at: int, length: int) -> str:
        """Reads a path, or the text of a new link."""
        if length > abi.PATH_MAX:
            raise GuestOSError(errno.ENAMETOOLONG)
        try:
            text = self._memory.read(at, length).decode("utf-8")
        except UnicodeDecodeError:
            raise GuestOSError(errno.EILSEQ) from None
        if "\0" in text:
            raise GuestOSError(errno.EINVAL)
        return text

    def _path(self, fd: int, at: int, length: int) -> PathAt:
        return fd, self._text(at, length)

    def _buffers(self, table: int, count: int) -> list[memoryview]:
        view = self._memory.view
        return [view(at, length) for at, length in self._memory.buffers(table, count)]

    def _write_status(self, at: int, found: os.stat_result) -> None:
        """Writes a file's status as `filestat`; the guest sees times before 1970 as 1970."""
        kind = _TYPES.get(stat.S_IFMT(found.st_mode), abi.UNKNOWN_TYPE)
        times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
        what = (found.st_dev, found.st_ino, kind, found.st_nlink, found.st_size)
        self._memory.write(at, _STATUS.pack(*what, *(max(0, time) for time in times)))

    # -- open files

    def _fd_read(self, fd: int, table: int, count: int, out: int) -> None:
        at_end = fd == 0  # the guest's standard input is at its end
        done = 0 if at_end else self._files.read(fd, self._buffers(table, count))
        self._memory.write_word(out, done)

    def _fd_pread(self, fd: int, table: int, count: int, start: int, out: int) -> None:
        done = self._files.read_at(fd, self._buffers(table, count), start)
        self._memory.write_word(out, done)

    def _fd_write(self, fd: int, table: int, count: int, out: int) -> None:
        if fd in NAMES:
            done = self._print(NAMES[fd], table, count)
        else:
            done = self._files.write(fd, self._buffers(table, count))
        self._memory.write_word(out, done)

    def _fd_pwrite(self, fd: int, table: int, count: int, start: int, out: int) -> None:
        done = self._files.write_at(fd, self._buffers(table, count), start)
        self._memory.write_word(out, done)

    def _print(self, name: str, table: int, count: int) -> int:
        """Hands all bytes to a stream, or those before the cell had to stop; returns their number.

        The bytes are copied in steps, while the stream wants them.
        """
        total = 0
        for at, length in self._memory.buffers(table, count):
            for start in range(0, length, PRINTED_BYTES):
                if not self._streams.wants(name):
                    break
                if start and self._files.should_stop():
                    return total + start
                size = min(PRINTED_BYTES, length - start)
                self._streams.feed(name, self._memory.read(at + start, size))
            total += length
        return total

    def _fd_seek(self, fd: int, offset: int, whence: int, out: int) -> None:
        if fd < FIRST_DESCRIPTOR:
            raise GuestOSError(errno.ESPIPE)
        signed = offset - (1 << 64) if offset >> 63 else offset
        self._memory.write(out, self._files.seek(fd, signed, whence).to_bytes(8, "little"))

    def _fd_tell(self, fd: int, out: int) -> None:
        self._fd_seek(fd, 0, os.SEEK_CUR, out)

    def _fd_advise(self, fd: int, _offset: int, _length: int, advice: int) -> None:
        self._open_files.file(fd)
        if advice > _ADVICE_MOST:
            raise GuestOSError(errno.EINVAL)

    def _fd_allocate(self, fd: int, _offset: int, _length: int) -> None:
        self._open_files.file(fd)
        raise GuestOSError(errno.ENOTSUP)

    def _fd_filestat_get(self, fd: int, out: int) -> None:
        if fd < FIRST_DESCRIPTOR:
            self._memory.write(out, bytes(_STATUS.size))
        else:
            self._write_status(out, self._files.status_of_open(fd))

    def _fd_fdstat_get(self, fd: int, out: int) -> None:
        if fd < FIRST_DESCRIPTOR:
            right = abi.RIGHT_WRITE if fd else abi.RIGHT_READ
            description = (abi.UNKNOWN_TYPE, 0, right, right)
        elif (opened := self._open_files.get(fd)).is_folder:
            description = (abi.FOLDER_TYPE, 0, *abi.FOLDER_RIGHTS)
        else:
            rights = _rights(opened)
            description = (abi.FILE_TYPE, opened.fdflags, rights, rights)
        self._memory.write(out, _DESCRIPTION.pack(*description))

    def _fd_close(self, fd: int) -> None:
        if fd >= FIRST_DESCRIPTOR:  # the guest's streams stay: the next cell needs them
            self._files.close_file(fd)

    # -- folders

    def _fd_prestat_get(self, fd: int, out: int) -> None:
        self._memory.write(out, _PREOPENED.pack(0, len(self._preopened(fd))))

    def _fd_prestat_dir_name(self, fd: int, at: int, room: int) -> None:
        name = self._preopened(fd)
        if room < len(name):
            raise GuestOSError(errno.ENAMETOOLONG)
        self._memory.write(at, name)

    def _preopened(self, fd: int) -> bytes:
        if not self._open_files.is_fixed(fd):
            raise GuestOSError(errno.EBADF)
        return self._open_files.get(fd).preopen.guest.encode()

    def _fd_readdir(self, fd: int, buffer: int, room: int, cookie: int, out: int) -> None:
        opened, entries = self._open_files.get(fd), self._files.entries(fd)
        host_fd = opened.fd

        def begin() -> Listing:
            found = sorted(entries, key=lambda each: each.name) if self._sorts else entries
            return Listing(os.fstat(host_fd).st_ino, found)

        part = self._listings.part(opened, cookie, room, begin)
        self._memory.write(buffer, part)
        self._memory.write_word(out, len(part))

    # -- paths

    def _path_open(self, fd: int, flags: int, path: int, length: int, how: int, *more: int) -> None:
        rights, _, fdflags, out = more
        at, follow = self._path(fd, path, length), bool(flags & abi.LOOKUP_FOLLOW)
        opened = self._files.open(at, how, rights, fdflags=fdflags, follow=follow)
        self._memory.write_word(out, opened)

    def _path_filestat_get(self, fd: int, flags: int, path: int, length: int, out: int) -> None:
        found = self._files.status(self._path(fd, path, length), _following(flags))
        self._write_status(out, found)

    def _path_filestat_set_times(
        self, fd: int, flags: int, path: int, length: int, *times: int
    ) -> None:
        self._files.set_times(self._path(fd, path, length), _following(flags), *times)

    def _path_readlink(self, fd: int, path: int, length: int, *answer: int) -> None:
        buffer, room, out = answer
        text = os.fsencode(self._files.read_link(self._path(fd, path, length)))[:room]
        self._memory.write(buffer, text)
        self._memory.write_word(out, len(text))

    def _path_rename(self, fd: int, path: int, length: int, *target: int) -> None:
        self._files.rename(self._path(fd, path, length), self._path(*target))

    def _path_link(self, fd: int, flags: int, path: int, length: int, *target: int) -> None:
        if flags & abi.LOOKUP_FOLLOW:
            raise GuestOSError(errno.EINVAL)
        self._files.link(self._path(fd, path, length), self._path(*target))

    def _path_symlink(self, text: int, size: int, fd: int, path: int, length: int) -> None:
        self._files.make_link(self._text(text, size), self._path(fd, path, length))


def _following(flags: int) -> Follow:
    return Follow.ALWAYS if flags & abi.LOOKUP_FOLLOW else Follow.BEFORE_SLASH


def _rights(opened: OpenDescriptor) -> int:
    rights = abi.FILE_RIGHTS
    if not opened.rights & abi.RIGHT_WRITE:
        return rights & ~abi.RIGHT_WRITE
    reads = opened.rights & (abi.RIGHT_READ | abi.RIGHT_READDIR)
    return rights if reads else rights & ~(abi.RIGHT_READ | abi.RIGHT_READDIR)


def _guarded(handler: Callable[..., None]) -> Handler:
    """Returns a handler that answers with the error number of a call that fails, else 0."""

    def guarded(*args: int) -> int:
        try:
            handler(*args)
        except OSError as problem:
            return abi.errno_of(problem)
        except OutOfBounds:
            return abi.EFAULT
        except (OverflowError, ValueError):
            return abi.EINVAL  # a number or a name that system calls don't take
        return abi.SUCCESS

    return guarded
