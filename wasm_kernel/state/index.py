"""The index of a session's state: one file of numbered records, which are only appended.

Every fact about the saved states is a record here: commits, dropped commits, the head, names of
states, the origin of a fork. The pages lie in files beside the index (`commits.py`). Format 2:

    {"index": 2, "image": ID, "salt": 32 hexadecimal digits}
    NUMBER DIGEST JSON
    ...

Records are numbered from 1 without gaps; the first is a `ForkOrigin`. DIGEST is BLAKE2b with 128
bits over `NUMBER JSON`, keyed by the salt, so neither a changed record nor one of another index is
believed. A last line without its end was never written as a whole, and the change that it announced
had not begun. Anything else that does not fit is damage, and never "nothing happened".
"""

# No `from __future__ import annotations`: msgspec would compile each text at every start.

import contextlib
import errno
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import DescriptorOwner, Folder, TooLong, undoing
from wasm_kernel.linux.memory import Range
from wasm_kernel.result import Ran
from wasm_kernel.state.pages import PAGE, Run, Runs
from wasm_kernel.wasi_files.open_files import OpenFile

NAME, VERSION = "index", 2
DAMAGED = (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The errors of reading untrusted JSON."""

ID_MOST = 1 << 31
"""The highest number of a commit; none gets a higher one, as it could not be read again."""


GONE = "gone"
"""The identity of a file that was not there any more; no file has it."""

MOST_BYTES = 64 * 1024 * 1024  # reading it takes ten times as much memory
RECORD_MOST_BYTES = 32 * 1024 * 1024
_OBJECTS_MOST = 1 << 17  # in a record: one for itself, and one for each open file
_HEADER_MOST = 4096
_USELESS_MOST = 100  # records
_TOO_LONG = "the record of the saved states is too long"
_SALT_BYTES = _DIGEST_BYTES = 16
_FILES_MOST = 65_536  # a policy's most
_DESCRIPTOR_LEAST, _DESCRIPTOR_MOST = 3, 1 << 17
_OFFSET_MOST = 1 << 63
_CLOCK_MOST = (1 << 63) - 1
_TIME_MOST = 1 << 40  # seconds; a later time can't be shown as a date

Id = Annotated[int, Meta(ge=0, le=ID_MOST)]
Count = Annotated[int, Meta(ge=0, le=ID_MOST)]
Digest = Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")]


class Commit(Struct, frozen=True, dict=True, tag="commit", forbid_unknown_fields=True):
    """The record of a commit: everything but its pages.

    A commit that is recorded again replaces the earlier record: others were folded into it.

    Attributes:
        id: Its number; later commits of a session have higher ones.
        parent: The commit it follows, or 0 for the base image.
        cell: The execution count of the cell before the commit. 0 if there is none, or if the cell
            ran before variables were last cleared: another cell may have its number now.
        count: The execution count of the next cell.
        label: The cell's first line, for people.
        time: Seconds since 1970.
        size: The size of the memory in bytes.
        cells: How many cells' effects it holds: more than one if others were folded into it, 0 if
            no counted cell ran, so that an undo passes over it.
        clock: The guest's monotonic clock, in nanoseconds: it must not go back.
        runs: Pages with content, as pairs of first page and number of pages.
        zeros: Pages that hold zeros, in the same way.
        files: The files that the guest had open.
        content: The SHA-256 of the pages of `runs`; empty if there are none, or not written yet.
        ran: How the cell ran; None if it is not known.
    """

    id: Id
    parent: Id
    cell: Count
    count: Count
    label: str
    time: Annotated[float, Meta(ge=-_TIME_MOST, le=_TIME_MOST)]
    size: Annotated[int, Meta(ge=0, le=4 << 30, multiple_of=PAGE)]
    cells: Count = 1
    clock: Annotated[int, Meta(ge=0, le=_CLOCK_MOST)] = 0
    runs: tuple[Run, ...] = ()
    zeros: tuple[Run, ...] = ()
    files: tuple[OpenFile, ...] = ()
    content: Digest = ""
    ran: Ran | None = None

    @cached_property
    def page_bytes(self) -> int:
        """The bytes that the commit's pages take on disk; read for every commit after each cell."""
        return sum(pages for _, pages in self.runs) * PAGE

    @property
    def all_runs(self) -> Runs:
        """The runs of all the commit's pages, with content or zeros."""
        return (*self.runs, *self.zeros)

    @property
    def ranges(self) -> Iterator[Range]:
        """The runs of all the commit's pages, as ranges of bytes."""
        return ((first * PAGE, (first + pages) * PAGE) for first, pages in self.all_runs)


def place_of(cell: int, label: str) -> str:
    """Returns the place of a commit in its session's course, in words for users."""
    if cell:
        return f"In[{cell}]"
    return "an earlier run" if label else "the beginning"


class Drop(Struct, frozen=True, tag="drop", forbid_unknown_fields=True):
    """The record of dropped commits."""

    ids: tuple[Id, ...]


class Head(Struct, frozen=True, tag="head", forbid_unknown_fields=True, omit_defaults=True):
    """The record of a head that is not the newest commit: `at` is its number, 0 before the first.

    A commit newer than `after` is the head instead. `undone` are the commits that a redo can return
    to, the latest last. `count` is as in `Tree`.
    """

    at: Id = 0
    after: Id = 0
    undone: tuple[Id, ...] = ()
    count: Count = 0

    def position(self, commits: Collection[int]) -> tuple[int, tuple[int, ...]]:
        """Returns the head and the undone commits of an index whose last head record is this."""
        newest = max(commits, default=0)
        return (newest, ()) if newest > self.after else (self.at, self.undone)


class Name(Struct, frozen=True, tag="name", forbid_unknown_fields=True):
    """The record that moves a name to a state; with state 0, no state has it anymore."""

    name: str
    id: Id


class ForkOrigin(Struct, frozen=True, tag="origin", forbid_unknown_fields=True):
    """The record of a fork: the part of its history that comes from its parent.

    Inherited commits refer to the parent's files: they name an open file by its identity
    (`linux/files.py`), and a copy has another identity.

    Attributes:
        last: The number of the last inherited commit; 0 if there is none.
        reseed: True if guests at an inherited commit draw other random numbers than the parent's.
        files: The copies' identities, by the files' identities in inherited commits.
    """

    last: Id = 0
    reseed: bool = False
    files: Mapping[str, str] = msgspec.field(default_factory=dict)

    def inherits(self, commit: Commit) -> bool:
        """Returns whether a commit comes from the parent."""
        return commit.id <= self.last

    def files_of(self, commit: Commit) -> tuple[OpenFile, ...]:
        """Returns the files that were open at a commit, with their identities in this session."""
        if not self.inherits(commit):
            return commit.files
        return tuple(
            replace(file, identity=self.files.get(file.identity, file.identity))
            for file in commit.files
        )


class IndexEnd(Struct, frozen=True, tag="closed", forbid_unknown_fields=True):
    """The last record if the session's holder ended in order: no later record was cut off."""


Record = Commit | Drop | Head | Name | ForkOrigin | IndexEnd
_DECODER = msgspec.json.Decoder(Record)


def decode(data: bytes) -> Record:
    """Returns the record in untrusted JSON; `HistoryError` if it is damaged or impossible."""
    if len(data) > RECORD_MOST_BYTES or data.count(b"{") > _OBJECTS_MOST:
        raise HistoryError("a record is too large")
    try:
        record: Record = _DECODER.decode(data)
    except DAMAGED as problem:
        raise HistoryError("a record is damaged") from problem
    if isinstance(record, Commit) and not _is_possible(record):
        raise HistoryError("the record of a commit is impossible")
    return record


def _is_possible(commit: Commit) -> bool:
    """Returns whether the runs are separate and inside the memory, and the files possible."""
    at = 0
    for first, pages in sorted((*commit.runs, *commit.zeros)):
        if first < at or pages < 1 or first + pages > commit.size // PAGE:
            return False
        at = first + pages
    files = commit.files
    are_separate = len({file.fd for file in files}) == len(files) <= _FILES_MOST
    return commit.parent < commit.id and are_separate and all(map(_is_file, files))


def _is_file(file: OpenFile) -> bool:
    flags = (file.flags, file.rights, file.fdflags)
    is_known = _DESCRIPTOR_LEAST <= file.fd < _DESCRIPTOR_MOST and 0 <= file.offset < _OFFSET_MOST
    return is_known and all(0 <= flag < 1 << 64 for flag in flags)


class IndexHeader(Struct, frozen=True):
    """The first line of an index."""

    index: int
    image: str
    salt: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class IndexContents(Struct, frozen=True):
    """The content of an index.

    In `entries`, None stands for one or more damaged or missing records. `length` is the file's
    without an unfinished last line. The salt is the key of the digests.
    """

    image: str
    salt: bytes
    entries: tuple[Record | None, ...]
    next_number: int
    length: int


def read_index(folder: Folder) -> IndexContents:
    """Reads the index in a folder, and changes nothing.

    Raises `HistoryError` if no part of it can be used, `FileNotFoundError` if there is none.
    """
    try:
        data = folder.read(NAME, MOST_BYTES)
    except TooLong:
        raise HistoryError("the record of the saved states is damaged") from None
    end = data.find(b"\n", 0, _HEADER_MOST)
    try:
        header = msgspec.json.decode(data[: max(end, 0)], type=IndexHeader)
    except DAMAGED:
        raise HistoryError("the record of the saved states is damaged") from None
    if header.index != VERSION:
        raise HistoryError(f"they were saved in format version {header.index}, this is {VERSION}")
    salt, length = bytes.fromhex(header.salt), data.rfind(b"\n") + 1
    entries: list[Record | None] = []
    expected = 1
    for line in data[end + 1 : length].split(b"\n")[:-1]:
        number, record = _parsed(line, salt)
        if (record is None or number != expected) and entries[-1:] != [None]:
            entries.append(None)
        if record is not None and number >= expected:
            entries.append(record)
            expected = number
        if record is None or number >= expected:
            expected += 1
    return IndexContents(header.image, salt, tuple(entries), expected, length)


def stored_image(folder: Folder) -> str:
    """Returns the base image that the index in a folder names; empty if it can't be read."""
    try:
        with os.fdopen(folder.open_regular(NAME), "rb") as file:
            return msgspec.json.decode(file.readline(_HEADER_MOST), type=IndexHeader).image
    except (OSError, *DAMAGED):
        return ""


def _parsed(line: bytes, salt: bytes) -> tuple[int, Record | None]:
    """Returns the number and the record of a line; None if its digest does not fit."""
    number, _, rest = line.partition(b" ")
    digest, _, text = rest.partition(b" ")
    if digest == keyed_digest(b"%b %b" % (number, text), salt):
        with contextlib.suppress(HistoryError, ValueError):
            return int(number), decode(text)
    return 0, None


def keyed_digest(text: bytes, key: bytes) -> bytes:
    """Returns the digest of a record's text with a key."""
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES, key=key).hexdigest().encode()


class RewriteNeeded(OSError):
    """The error of an index that was removed, or is as long as it may be."""


class Index(DescriptorOwner):
    """The index in one folder, open for writing by one thread at a time; close it."""

    def __init__(self, folder: Folder, image: str) -> None:
        """Opens nothing yet: `go_on` or `rewrite` does. The folder stays the caller's."""
        self._folder = folder
        self._image = image
        self.fd = -1
        self._salt = b""
        self._next, self._end = 1, 0
        self._rewritten_bytes = 0

    def is_wasteful(self, needed: int) -> bool:
        """Returns whether most of the index is likely useless; `needed` is how many records are."""
        wasted = self._next - 1 > 2 * needed + _USELESS_MOST
        return wasted or self._end > max(2 * self._rewritten_bytes, MOST_BYTES // 8)

    def go_on(self, reading: IndexContents) -> None:
        """Opens an index that was read, so that records are appended to it."""
        self._open(reading.salt, reading.next_number, reading.length)
        os.ftruncate(self.fd, self._end)

    def _open(self, salt: bytes, next_number: int, end: int) -> None:
        self.close()
        self.fd = self._folder.open_regular(NAME, os.O_WRONLY | os.O_APPEND)
        self._salt, self._next, self._end = salt, next_number, end

    def append(self, *records: Record) -> None:
        """Adds records, all of them or none; after `RewriteNeeded` call `rewrite` instead."""
        numbered = enumerate(records, start=self._next)
        data = b"".join(_line(number, one, self._salt) for number, one in numbered)
        if self.fd < 0 or not os.fstat(self.fd).st_nlink:
            raise RewriteNeeded(errno.ENOENT, "the record of the saved states was removed")
        if self._end + len(data) > MOST_BYTES:
            raise RewriteNeeded(errno.EFBIG, _TOO_LONG)
        if os.fstat(self.fd).st_size != self._end:
            os.ftruncate(self.fd, self._end)  # removes a record that was written in part
        with undoing(lambda: os.ftruncate(self.fd, self._end)):
            if os.write(self.fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._next += len(records)
        self._end += len(data)

    def rewrite(self, records: Sequence[Record]) -> None:
        """Puts a new index in place of the old one, as a whole or not at all."""
        salt = os.urandom(_SALT_BYTES)
        header = msgspec.json.encode(IndexHeader(VERSION, self._image, salt.hex())) + b"\n"
        lines = [_line(number, one, salt) for number, one in enumerate(records, start=1)]
        end = len(header) + sum(map(len, lines))
        if end > MOST_BYTES:
            raise OSError(errno.EFBIG, _TOO_LONG)
        with self._folder.replacing(NAME) as file:
            file.writelines([header, *lines])
        self._open(salt, len(lines) + 1, end)
        self._rewritten_bytes = end

    def sync(self) -> None:
        """Flushes the index and its name to the disk itself."""
        if self.fd >= 0:
            os.fdatasync(self.fd)
            os.fsync(self._folder.fd)


def _line(number: int, record: Record, salt: bytes) -> bytes:
    """Returns the line of a record; `OSError` if it is too large to be read again."""
    encoded = msgspec.json.encode(record)
    if len(encoded) > RECORD_MOST_BYTES:
        raise OSError(errno.EFBIG, "its memory is in too many pieces")
    text = b"%d %b" % (number, encoded)
    return b"%d %b %b\n" % (number, keyed_digest(text, salt), encoded)
