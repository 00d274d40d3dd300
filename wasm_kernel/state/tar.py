"""Tar archives that keep holes, and that can be read if a stranger made them.

A sparse file is written in GNU tar's format 1.0 (tar(5) of GNU tar, "Sparse Formats"), which
the standard library's reader and every GNU tar understand. Reading is bounded: in what one header
may take, and in how much comes out of all the compression.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, BinaryIO

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.files import data_ranges
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.state.index import DAMAGED

LEVEL = 1  # memory is large, and what can be squeezed out easily is most of it
_CHUNK = 4 * 1024 * 1024
_BLOCK = 512
_DISK_BLOCK = 4096
NAME_MOST = 4096
"""The most bytes of a path; no guest can name a longer one."""

_HEADER_MOST = 128 * 1024  # one part of a header
_HEADERS_MOST = 2 * 1024 * 1024  # all that is said of a member
_LENGTH_MOST = 8  # digits of a record's length, and a blank
_DIGITS = bytes(49 if 48 <= one <= 57 else 0 for one in range(256))
_NUMBER = b"1" * 300  # longer than a name may be
_FOLLOWS = {
    tarfile.XHDTYPE: "words",
    tarfile.SOLARIS_XHDTYPE: "words",
    tarfile.GNUTYPE_LONGNAME: "name",
    tarfile.GNUTYPE_LONGLINK: "name",
}
_STRETCHES_MOST = 50_000  # so many fit into that
_PERMISSIONS = 0o777
_STEPS = 100_000
_STEPS_EACH = 64  # for each member: a tree's order takes three, a link's way some dozens


class ArchiveError(WasmKernelError, ValueError):
    """This is no archive of a session, or not one that can be trusted; nothing was imported."""


class ArchiveWriter:
    """An archive that is being written; one thread's own."""

    def __init__(self, target: IO[bytes]) -> None:
        self._zip = gzip.GzipFile(fileobj=target, mode="wb", compresslevel=LEVEL, mtime=0)
        self._tar = tarfile.TarFile(fileobj=self._zip, mode="w", format=tarfile.PAX_FORMAT)

    def text(self, name: str, content: bytes) -> None:
        """Adds a file with this content."""
        info = tarfile.TarInfo(name)
        info.size = len(content)
        info.mode = 0o600
        self._tar.addfile(info, io.BytesIO(content))

    def folder(self, name: str, status: os.stat_result) -> None:
        """Adds a folder."""
        info = _info(name, status)
        info.type = tarfile.DIRTYPE
        self._tar.addfile(info)

    def link(self, name: str, target: str, status: os.stat_result) -> None:
        """Adds a link, as it is."""
        info = _info(name, status)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(info)

    def file(self, name: str, descriptor: int) -> None:
        """Adds an open file, its holes as holes; as long as it was when this began.

        Raises:
            OSError: it can't be read, or the archive not be written.
        """
        status = os.fstat(descriptor)
        info = _info(name, status)
        found = _fewer(list(data_ranges(descriptor, status.st_size)))
        held = sum(end - start for start, end in found)
        head = b""
        if held < status.st_size:
            found.append((status.st_size, status.st_size))
            head = _map(found)
            info.pax_headers = _sparse(name, status.st_size)
            folder, _, base = name.rpartition("/")
            info.name = f"{folder}/GNUSparseFile.0/{base}"
        info.size = len(head) + held
        source: Any = _Stretches(descriptor, head, found)
        self._tar.addfile(info, source)

    def close(self) -> None:
        """Writes what is left."""
        self._tar.close()
        self._zip.close()


def _info(name: str, status: os.stat_result) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = stat.S_IMODE(status.st_mode) & _PERMISSIONS
    info.mtime = status.st_mtime_ns / 1e9
    return info


def _sparse(name: str, size: int) -> dict[str, str]:
    fields = {"major": "1", "minor": "0", "name": name, "realsize": str(size)}
    return {f"GNU.sparse.{key}": value for key, value in fields.items()}


def _fewer(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns stretches, joined with their neighbours if there are too many."""
    step = -(-len(found) // _STRETCHES_MOST) or 1
    return [
        (some[0][0], some[-1][1])
        for at in range(0, len(found), step)
        if (some := found[at : at + step])
    ]


def _map(found: list[tuple[int, int]]) -> bytes:
    numbers = [len(found), *(number for start, end in found for number in (start, end - start))]
    text = "".join(f"{number}\n" for number in numbers).encode()
    return text + bytes(-len(text) % _BLOCK)


class _Stretches:
    """Reads a head, and then the stretches of a file that hold data; cut short, it gives zeros."""

    def __init__(self, descriptor: int, head: bytes, found: list[tuple[int, int]]) -> None:
        self._pieces = self._read(descriptor, head, found)
        self._left = memoryview(b"")

    @staticmethod
    def _read(descriptor: int, head: bytes, found: list[tuple[int, int]]) -> Iterator[bytes]:
        yield head
        for start, end in found:
            for at in range(start, end, _CHUNK):
                wanted = min(_CHUNK, end - at)
                yield os.pread(descriptor, wanted, at).ljust(wanted, b"\0")

    def read(self, size: int) -> bytes:
        """Returns so many bytes, fewer at the end."""
        taken = bytearray()
        while len(taken) < size:
            if not self._left:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._left = memoryview(piece)
            wanted = size - len(taken)
            taken += self._left[:wanted]
            self._left = self._left[wanted:]
        return bytes(taken)


class Room:
    """The bytes that an archive may still become on disk.

    Args:
        most: How many in all.
    """

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def take(self, size: int) -> None:
        """Counts what is going to be written, in whole blocks of the disk.

        Raises:
            ArchiveError: it is more than what is left.
        """
        self._left -= -(-size // _DISK_BLOCK) * _DISK_BLOCK
        if self._left < 0:
            raise ArchiveError(f"The archive holds more than {self._most:,} bytes.")


class _Bounded(io.RawIOBase):
    """What the compression holds, up to a limit, never too much at once, and only forwards.

    The standard library's reader takes a header's word for everything: it reads what is said to be
    there at once, and searches it with expressions that take the square of its length. So all that
    it reads of headers is bounded, and the words of an extended one are checked here first.
    """

    def __init__(self, source: IO[bytes], most: int) -> None:
        self._source = source
        self._most = most
        self.begin_header()

    def begin_header(self) -> None:
        """Notes that a header is read next."""
        self._headers: int | None = _HEADERS_MOST  # bytes that may still be read; None in content
        self._expected = "header"

    def begin_content(self) -> None:
        """Notes that a member's content is read next."""
        self._headers = None

    def read(self, size: int = -1) -> bytes:
        most = _CHUNK if self._headers is None else min(_HEADER_MOST, self._headers)
        if not 0 <= size <= most:
            raise ArchiveError("The archive holds a header that is too large.")
        data = self._source.read(size)
        if self._source.tell() > self._most:
            raise ArchiveError(f"The archive holds more than {self._most:,} bytes.")
        if self._headers is not None:
            self._headers -= size
            self._check_header(data)
        return data

    def _check_header(self, data: bytes) -> None:
        if self._expected == "words":
            _check_words(data)
        if self._expected != "header":
            self._expected = "header" if self._expected in {"words", "name"} else "map"
        elif len(data) == _BLOCK:
            kind = data[156:157]
            if kind == tarfile.XGLTYPE:
                raise ArchiveError("The archive holds a header for all of its members.")
            self._expected = _FOLLOWS.get(kind, "map")

    def drain(self) -> None:
        """Reads what is left, which is nothing but zeros; the compression's own checksum is last.

        Raises:
            ArchiveError: there is more.
        """
        self.begin_content()
        while data := self.read(_CHUNK):
            if data.count(0) != len(data):
                raise ArchiveError("The archive is damaged: it goes on after its end.")

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or offset > self._most:
            raise ArchiveError(f"The archive holds more than {self._most:,} bytes.")
        if offset < self._source.tell():
            raise ArchiveError("The archive is damaged: one of its parts lies within another.")
        return self._source.seek(offset)

    def tell(self) -> int:
        return self._source.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def _check_words(data: bytes) -> None:
    """Checks that an extended header consists of its records, and that no number in it is endless.

    Raises:
        ArchiveError: it does not.
    """
    at = 0
    while at < len(data) and data[at]:
        blank = data.find(b" ", at, at + _LENGTH_MOST)
        digits = data[at:blank] if blank > 0 else b""
        end = at + int(digits) if digits.isdigit() else 0
        if not blank < end <= len(data) or data.find(b"=", blank, end) < 0:
            raise ArchiveError("The archive is damaged: a header of it can't be read.")
        at = end
    if _NUMBER in data.translate(_DIGITS):
        raise ArchiveError("The archive holds a number that is too long.")


Member = tuple[tarfile.TarInfo, IO[bytes] | None]


@contextmanager
def members(source: BinaryIO, most: int) -> Iterator[Iterator[Member]]:
    """The members of an archive in their order, each with its content if it is a file.

    Args:
        source: The archive; compressed by gzip or not.
        most: The most bytes that may come out of it.

    Raises:
        ArchiveError: it is none, is damaged, or is too large.
    """
    try:
        compressed = source.read(2) == b"\x1f\x8b"
        source.seek(0)
        plain: Any = gzip.GzipFile(fileobj=source, mode="rb") if compressed else source
        bounded: Any = _Bounded(plain, most)
        with tarfile.open(fileobj=bounded, mode="r:") as tar:
            yield _each(tar, bounded)
    except ArchiveError:
        raise
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, *DAMAGED) as problem:
        raise ArchiveError("This is no archive of a session, or it is damaged.") from problem


def _each(tar: tarfile.TarFile, source: _Bounded) -> Iterator[Member]:
    reader: Any = tar
    while (info := tar.next()) is not None:
        reader.members = []  # it would keep them all
        if info.size < 0:
            raise ArchiveError("The archive holds a file that is shorter than nothing.")
        source.begin_content()
        yield info, _content(tar, info)
        source.begin_header()
    source.drain()


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes] | None:
    return tar.extractfile(info) if info.isreg() else None


def unpack(
    info: tarfile.TarInfo, content: IO[bytes], descriptor: int, room: Room | None = None
) -> None:
    """Writes a member's content into an empty file, holes as holes.

    Args:
        info: The member.
        content: Its content.
        descriptor: The file.
        room: Counts what is written; None if that was counted already.

    Raises:
        ArchiveError: its stretches are not inside of it, or there is no room for them.
        OSError: it can't be written.
    """
    found: Any = getattr(info, "sparse", None)
    last = 0
    for start, size in [(0, info.size)] if found is None else found:
        if start < last or size < 0 or start + size > info.size:
            raise ArchiveError("The archive holds a file whose parts do not fit into it.")
        last = start + size
        if room is not None:
            room.take(size)
        content.seek(start)
        at, end = start, start + size
        while at < end:
            piece = content.read(min(_CHUNK, end - at))
            if not piece:
                raise ArchiveError("The archive is cut off.")
            at += os.pwrite(descriptor, piece, at)
    try:
        os.ftruncate(descriptor, info.size)
    except OSError as problem:
        if problem.errno not in {errno.EFBIG, errno.EINVAL}:
            raise
        raise ArchiveError("The archive holds a file that is too long for this disk.") from problem


class UnpackedTree:
    """The folders that an archive is unpacked to: entered from member to member; close it.

    A name in an archive may be as deep as a path may be long, and there may be a million of them.
    So the way to a member goes on from where the last one was put, as in an archive that was made
    in a tree's order, and all ways together have an end.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._walks: dict[int, FolderWalk] = {}
        self._steps = _STEPS

    def add_steps(self) -> None:
        """Allows one more member its share of the steps."""
        self._steps += _STEPS_EACH

    def step(self) -> None:
        """Counts a step from one folder to the next.

        Raises:
            ArchiveError: there were too many.
        """
        self._steps -= 1
        if self._steps < 0:
            raise ArchiveError(
                "The archive's folders and links lead to and fro, which takes too long to follow."
            )

    def enter(self, root: int, names: Sequence[str]) -> int:
        """Returns a descriptor of a folder, good until the next is entered.

        Args:
            root: A descriptor of the folder that the way begins at.
            names: The names that lead there. Folders that are missing are made.

        Raises:
            ArchiveError: it takes too many steps, or there is no room for a folder.
            OSError: something else is in a folder's place, or one can't be made.
        """
        walk = self._walks.get(root)
        if walk is None:
            walk = self._walks[root] = FolderWalk(root)
        pairs = enumerate(zip(walk.path, names, strict=False))
        shared = next((at for at, (one, other) in pairs if one != other), None)
        if shared is None:
            shared = min(walk.depth, len(names))
        while walk.depth > shared:
            self.step()
            walk.leave()
        for name in names[shared:]:
            self.step()
            try:
                walk.enter(name)
            except FileNotFoundError:
                self._room.take(1)
                os.mkdir(name, dir_fd=walk.fd)
                walk.enter(name)
        return walk.fd

    def close(self) -> None:
        """Closes the folders. Safe to call twice."""
        for walk in self._walks.values():
            walk.close()
