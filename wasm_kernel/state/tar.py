"""Tar archives that keep holes, and can be read safely if a stranger made them.

A sparse file is written in GNU tar's format 1.0 (tar(5) of GNU tar, "Sparse Formats"), which
the standard library's reader and every GNU tar understand. Reading is bounded: in the size of one
header, and in the uncompressed size of the archive.
"""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import os
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, BinaryIO

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.files import data_ranges
from wasm_kernel.state.index import DAMAGED

LEVEL = 1  # memory is large, and the lowest level already makes it much smaller
_CHUNK = 4 * 1024 * 1024
_BLOCK = 512
_DISK_BLOCK = 4096
NAME_MOST = 4096
"""The most bytes of a path; no guest can name a longer one."""

_HEADER_MOST = 128 * 1024  # one part of a header
_HEADERS_MOST = 2 * 1024 * 1024  # all headers of one member
_LENGTH_MOST = 8  # digits of a record's length, and a blank
_DIGITS = bytes(49 if 48 <= one <= 57 else 0 for one in range(256))
_NUMBER = b"1" * 300  # longer than a name may be
_FOLLOWS = dict.fromkeys((tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE), "words")
_FOLLOWS |= dict.fromkeys((tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK), "name")
_RANGES_MOST = 50_000  # the map of these ranges still fits into the headers
_PERMISSIONS = 0o777
_GZIP = 31  # what zlib calls the format of gzip, with its largest window
_STEPS = 100_000
_STEPS_EACH = 64  # for each member: in a tree's order it takes three, a link some dozens


class ArchiveError(WasmKernelError, ValueError):
    """An archive that is not a session's, or that can't be trusted; nothing was imported."""


class ArchiveWriter:
    """Writes an archive; used by one thread."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        # a `GzipFile` that is given up after a failure would still write to the target
        self._zip = zlib.compressobj(LEVEL, wbits=_GZIP)

    def text(self, name: str, content: bytes) -> None:
        """Adds a file with this content."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), 0o600
        self._add(info, [content])

    def folder(self, name: str, status: os.stat_result) -> None:
        """Adds a folder."""
        self._add(_info(name, status, tarfile.DIRTYPE))

    def link(self, name: str, target: str, status: os.stat_result) -> None:
        """Adds a link with its target unchanged."""
        info = _info(name, status, tarfile.SYMTYPE)
        info.linkname = target
        self._add(info)

    def file(self, name: str, descriptor: int) -> None:
        """Adds an open file, its holes as holes, with the size that it has at the call."""
        status = os.fstat(descriptor)
        info = _info(name, status, tarfile.REGTYPE)
        ranges = _joined(list(data_ranges(descriptor, status.st_size)))
        info.size, head = sum(end - start for start, end in ranges), b""
        if info.size < status.st_size:
            head = _map([*ranges, (status.st_size, status.st_size)])
            fields = {"major": "1", "minor": "0", "name": name, "realsize": str(status.st_size)}
            info.pax_headers = {f"GNU.sparse.{key}": value for key, value in fields.items()}
            folder, _, base = name.rpartition("/")
            info.name = f"{folder}/GNUSparseFile.0/{base}"
            info.size += len(head)
        self._add(info, itertools.chain([head], _read(descriptor, ranges)))

    def _add(self, info: tarfile.TarInfo, content: Iterable[bytes] = ()) -> None:
        self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        for piece in content:
            self._write(piece)
        self._write(bytes(-info.size % _BLOCK))

    def _write(self, data: bytes) -> None:
        self._target.write(self._zip.compress(data))

    def close(self) -> None:
        """Writes the archive's end and the last compressed bytes."""
        self._write(bytes(2 * _BLOCK))
        self._target.write(self._zip.flush())


def _info(name: str, status: os.stat_result, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = stat.S_IMODE(status.st_mode) & _PERMISSIONS
    info.mtime = status.st_mtime_ns / 1e9
    return info


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns ranges, joined with their neighbours if there are too many."""
    step = -(-len(ranges) // _RANGES_MOST) or 1
    some = (ranges[at : at + step] for at in range(0, len(ranges), step))
    return [(each[0][0], each[-1][1]) for each in some]


def _map(ranges: list[tuple[int, int]]) -> bytes:
    """Returns the beginning of a sparse file in an archive: the map of its data."""
    numbers = [len(ranges), *(number for start, end in ranges for number in (start, end - start))]
    text = "".join(f"{number}\n" for number in numbers).encode()
    return text + bytes(-len(text) % _BLOCK)


def _read(descriptor: int, ranges: list[tuple[int, int]]) -> Iterator[bytes]:
    """Yields the bytes of a file's ranges; zeros if it was cut off during the export."""
    for start, end in ranges:
        for at in range(start, end, _CHUNK):
            wanted = min(_CHUNK, end - at)
            yield os.pread(descriptor, wanted, at).ljust(wanted, b"\0")


class ArchiveBudget:
    """The cost that an archive may still have: bytes on disk, and steps from folder to folder.

    A path in it may have thousands of folders, and there may be a million paths. So the walk to a
    member starts in the last member's folder, which suits an archive in a tree's order, and the
    steps of all walks are limited.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = self._bytes = most_bytes
        self._steps = _STEPS

    def add_member(self) -> None:
        """Allows one more member its share of the steps."""
        self._steps += _STEPS_EACH

    def take_step(self) -> None:
        """Counts a step from one folder to the next; `ArchiveError` if there were too many."""
        self._steps -= 1
        if self._steps < 0:
            raise ArchiveError(
                "The archive's folders and links lead back and forth for too long to follow."
            )

    def take_bytes(self, size: int = 1) -> None:
        """Counts `size` bytes before they are written, in whole blocks of the disk.

        Raises `ArchiveError` if they are more than what is left.
        """
        self._bytes -= -(-size // _DISK_BLOCK) * _DISK_BLOCK
        if self._bytes < 0:
            raise ArchiveError(f"The archive holds more than {self._most_bytes:,} bytes.")


class _Bounded(io.RawIOBase):
    """The uncompressed bytes of an archive: read only forwards, with limits in all and at once.

    The standard library's reader trusts a header's sizes: it reads a part of any size at once, and
    searches it with expressions that take the square of its length. So its reads of headers are
    bounded, and the records of an extended header are checked here first.
    """

    def __init__(self, source: IO[bytes], most: int) -> None:
        self._source = source
        self._most = most
        self._last = b""  # the last block of a header
        self.begin_header()

    def begin_header(self) -> None:
        self._headers: int | None = _HEADERS_MOST  # bytes that may still be read; None in content
        self._expected = "header"

    def begin_content(self) -> None:
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
            self._last = data
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
        """Reads the rest, so that the compression's checksum at its end is checked, too.

        Raises `ArchiveError` if anything but zeros follows. That includes the last header block, as
        the standard library's reader ends at a header that it can't read.
        """
        data = self._last
        self.begin_content()
        while data:
            if data.count(0) != len(data):
                raise ArchiveError("The archive is damaged: it goes on after its end.")
            data = self.read(_CHUNK)

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
    """Checks that an extended header consists of whole records, and has no endless number."""
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
    """Opens an archive; yields its members in order, each with its content if it is a file.

    The archive may be compressed by gzip. Raises `ArchiveError` if it has more than `most`
    uncompressed bytes, or if it is damaged.
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
        raise ArchiveError("This is not an archive of a session, or it is damaged.") from problem


def _each(tar: tarfile.TarFile, source: _Bounded) -> Iterator[Member]:
    reader: Any = tar
    while (info := tar.next()) is not None:
        reader.members = []  # the reader would keep all members in memory
        if info.size < 0:
            raise ArchiveError("The archive holds a file of negative length.")
        source.begin_content()
        yield info, tar.extractfile(info) if info.isreg() else None
        source.begin_header()
    source.drain()


def unpack(
    info: tarfile.TarInfo, content: IO[bytes], descriptor: int, budget: ArchiveBudget | None = None
) -> None:
    """Writes a member's content into an empty file, holes as holes.

    A budget counts the written bytes. Raises `ArchiveError` if the member's parts do not fit.
    """
    found: Any = getattr(info, "sparse", None)
    last = 0
    for start, size in [(0, info.size)] if found is None else found:
        if start < last or size < 0 or start + size > info.size:
            raise ArchiveError("The archive holds a file whose parts do not fit into it.")
        last = start + size
        if budget is not None:
            budget.take_bytes(size)
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
