"""One commit on disk: what changed in a guest's memory between two cells.

A commit is a file of its own, written aside and renamed, so it is there as a whole or not at all.
Version 1 of the format:

    8 bytes   `WKCOMMIT`
    4 bytes   format version, little-endian like every number here
    4 bytes   length of the header in bytes
    8 bytes   length of the pages in bytes
    ...       header: JSON, UTF-8 (`Commit`), and spaces up to the next multiple of 4096
    ...       pages: the content of the header's `runs`, in their order, 4096 bytes a page
    4 bytes   CRC-32 over everything before, as databases take it for their logs

`runs` are pairs of first page and number of pages; `zeros` are the same for pages that hold nothing
but zeros, which take no room. Pages that stand in neither are as in the parent commit, and in the
base image before the first.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field, fields
from functools import cached_property
from typing import Any

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux import memory
from wasm_kernel.linux.folders import Folder
from wasm_kernel.record import record
from wasm_kernel.state.pages import PAGE
from wasm_kernel.wasi_files.open_files import OpenFile

MAGIC, VERSION = b"WKCOMMIT", 1
_FIXED = struct.Struct("<8sIIQ")
_CHECKSUM = 4
_HEADER_MOST = 32 * 1024 * 1024
_OBJECTS_MOST = 1 << 17  # in a header: one, and one for each open file
_BLOCK = 4 * 1024 * 1024

Run = tuple[int, int]
Content = bytes | bytearray
"""The pages of a commit's runs, one after the other."""

DAMAGED = (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading JSON raises if somebody else wrote it."""

MEMORY_MOST = 4 << 30
ID_MOST = 1 << 31
_COUNT_MOST = ID_MOST + 1
_CLOCK_MOST = 1 << 63
_FILES_MOST = 65_536  # a policy's most
_DESCRIPTOR_LEAST, _DESCRIPTOR_MOST = 3, 1 << 17
_OFFSET_MOST = 1 << 63


@record
class Commit:
    """What is known of a commit besides its pages.

    Attributes:
        id: Its number; later commits of a session have higher ones.
        parent: The commit it follows, or 0 for the base image.
        image: The name of the base image below.
        cell: The execution count of the cell that it stands after, 0 before the first.
        count: The execution count of the next cell.
        label: The cell's first line, for people.
        time: Seconds since 1970.
        size: The size of the memory in bytes.
        cells: How many cells' effects it holds: more than one where others were folded into it,
            none where no cell ran that anybody would count, so that undoing goes past it.
        clock: The guest's monotonic clock, in nanoseconds: it must not go back.
        runs: Pages with content.
        zeros: Pages of zeros.
        files: What the guest had open.
    """

    id: int
    parent: int
    image: str
    cell: int
    count: int
    label: str
    time: float
    size: int
    cells: int = 1
    clock: int = 0
    runs: tuple[Run, ...] = ()
    zeros: tuple[Run, ...] = ()
    files: tuple[OpenFile, ...] = field(default=())

    @cached_property
    def page_bytes(self) -> int:
        """How many bytes its pages take on disk; asked of every commit after each cell."""
        return sum(pages for _, pages in self.runs) * PAGE

    def dump(self) -> bytes:
        """The header."""
        raw = {one.name: getattr(self, one.name) for one in fields(self)}
        raw["files"] = [file.as_json() for file in self.files]
        return json.dumps(raw, separators=(",", ":")).encode()

    @classmethod
    def load(cls, header: bytes) -> Commit:
        """Returns the commit of a header that `dump` wrote.

        Raises:
            HistoryError: it is damaged, or says of a commit what can't be.
        """
        try:
            raw: dict[str, Any] = json.loads(header)
            raw["files"] = tuple(OpenFile(**file) for file in raw["files"])
            for name in ("runs", "zeros"):
                raw[name] = tuple((int(first), int(pages)) for first, pages in raw[name])
            commit = cls(**raw)
            possible = commit._is_possible()
        except DAMAGED as problem:
            raise HistoryError("a commit's header is damaged") from problem
        if not possible:
            raise HistoryError("a commit says of itself what can't be")
        return commit

    def _is_possible(self) -> bool:
        """Whether every field is of its type and within its bounds."""
        counts = (self.cell, self.count, self.cells)
        return (
            is_number(self.id, 2 * ID_MOST)
            and is_number(self.parent, self.id)
            and all(is_number(count, _COUNT_MOST) for count in counts)
            and is_number(self.size, MEMORY_MOST + 1)
            and self.size % PAGE == 0
            and is_number(self.clock, _CLOCK_MOST)
            and type(self.time) in (int, float)
            and math.isfinite(self.time)
            and isinstance(self.label, str)
            and isinstance(self.image, str)
            and _are_runs((*self.runs, *self.zeros), self.size)
            and _are_files(self.files)
        )


def is_number(value: object, most: int) -> bool:
    """Whether a value is a whole number from 0 up to a bound."""
    return type(value) is int and 0 <= value < most


def _are_runs(runs: Iterable[Run], size: int) -> bool:
    """Whether runs lie inside the memory, and apart from each other."""
    at = 0
    for first, pages in sorted(runs):
        if first < at or pages < 1 or first + pages > size // PAGE:
            return False
        at = first + pages
    return True


def _are_files(files: Collection[OpenFile]) -> bool:
    """Whether so many files can be open, each under a number of its own."""
    possible = len(files) <= _FILES_MOST and all(map(_is_file, files))
    return possible and len({file.fd for file in files}) == len(files)


def _is_file(file: OpenFile) -> bool:
    flags = (file.flags, file.rights, file.inheriting, file.fdflags)
    return (
        is_number(file.fd, _DESCRIPTOR_MOST)
        and file.fd >= _DESCRIPTOR_LEAST
        and is_number(file.offset, _OFFSET_MOST)
        and all(is_number(flag, 1 << 64) for flag in flags)
        and isinstance(file.guest, str)
        and isinstance(file.path, str | None)
        and isinstance(file.identity, str)
    )


def lineage(commits: Mapping[int, Commit], one: int) -> list[Commit]:
    """A commit and those it stands on, newest first."""
    line = []
    while one:
        line.append(commits[one])
        one = commits[one].parent
    return line


def write(
    folder: Folder, name: str, commit: Commit, content: Iterable[Content | memoryview]
) -> None:
    """Puts a commit on disk, whole or not at all.

    Args:
        folder: The folder that it lies in.
        name: The name of its file.
        commit: The commit.
        content: The content of its runs, in order, in parts of any length.

    Raises:
        OSError: it can't be written; nothing is left behind.
    """
    header = commit.dump()
    header += b" " * (-(_FIXED.size + len(header)) % PAGE)
    if len(header) > _HEADER_MOST:
        raise OSError(errno.EFBIG, "its memory is in too many pieces")
    fixed, checksum = _FIXED.pack(MAGIC, VERSION, len(header), commit.page_bytes), 0
    with folder.replacing(name) as file:
        for part in itertools.chain((fixed, header), content):
            checksum = zlib.crc32(part, checksum)
            file.write(part)
        file.write(checksum.to_bytes(_CHECKSUM, "little"))


class CommitFile:
    """A commit on disk, open for reading; close it."""

    def __init__(self, folder: Folder, name: str, header_most: int = _HEADER_MOST) -> None:
        """Opens a commit's file and reads its header.

        Args:
            folder: The folder that it lies in.
            name: The file's name.
            header_most: The most bytes that its header may have.

        Raises:
            HistoryError: it is damaged.
            OSError: it can't be opened, or is not a regular file.
        """
        self._descriptor = folder.open_regular(name)
        try:
            self.commit, self._pages_at = self._read_header(header_most)
        except BaseException:
            self.close()
            raise

    def _read_header(self, most: int) -> tuple[Commit, int]:
        fixed = os.pread(self._descriptor, _FIXED.size, 0)
        if len(fixed) < _FIXED.size:
            raise HistoryError("a commit is cut off")
        magic, version, header_length, pages_length = _FIXED.unpack(fixed)
        if magic != MAGIC or header_length > most:
            raise HistoryError("a commit is damaged")
        if version != VERSION:
            raise HistoryError(f"a commit has format version {version}, this is {VERSION}")
        at = _FIXED.size + header_length
        if os.fstat(self._descriptor).st_size != at + pages_length + _CHECKSUM:
            raise HistoryError("a commit is cut off")
        header = os.pread(self._descriptor, header_length, _FIXED.size)
        if header.count(b"{") > _OBJECTS_MOST:
            raise HistoryError("a commit's header is damaged")
        commit = Commit.load(header)
        if commit.page_bytes != pages_length:
            raise HistoryError("a commit's header is damaged")
        return commit, at

    def verify(self) -> None:
        """Check the whole file against its checksum.

        Raises:
            HistoryError: a byte of it is not as it was written.
        """
        checksum, at = 0, 0
        end = os.fstat(self._descriptor).st_size - _CHECKSUM
        while at < end:
            block = os.pread(self._descriptor, min(_BLOCK, end - at), at)
            if not block:
                raise HistoryError("a commit is cut off")
            checksum = zlib.crc32(block, checksum)
            at += len(block)
        if os.pread(self._descriptor, _CHECKSUM, end) != checksum.to_bytes(_CHECKSUM, "little"):
            raise HistoryError("a commit is damaged")

    def places(self) -> Iterator[tuple[int, int, int]]:
        """First page, number of pages and position in the file of every run."""
        at = self._pages_at
        for first, pages in self.commit.runs:
            yield first, pages, at
            at += pages * PAGE

    def read_into(self, target: memoryview, at: int) -> None:
        """Fill `target` from a position in the file.

        Raises:
            HistoryError: the file ends before.
        """
        done = 0
        while done < len(target):
            got = os.preadv(self._descriptor, [target[done : done + _BLOCK]], at + done)
            if got == 0:
                raise HistoryError("a commit is cut off")
            done += got

    def read(self, at: int, target: memoryview) -> None:
        """Fill `target` from a position in the content of all runs.

        Raises:
            HistoryError: the file is cut off.
        """
        self.read_into(target, self._pages_at + at)

    def map_over(self, address: int, size: int, at: int) -> None:
        """Lay pages of the file over memory, copy-on-write, from a position in the file.

        Raises:
            OSError: the system can't.
        """
        memory.map_file(address, size, self._descriptor, at)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> CommitFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
