"""The journal of what the workspace's paths held at earlier commits: a file of records."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.walks import is_plain_name
from wasm_kernel.wasi_files.file_history import is_unlinked_name

JOURNAL = "journal"
JOURNAL_MOST_BYTES = 256 * 1024 * 1024
VERSION = 2

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Mode = Annotated[int, msgspec.Meta(ge=0, le=0o7777)]


class Absent(Struct, frozen=True, tag_field="kind", tag="nothing", forbid_unknown_fields=True):
    """There was nothing."""


class KeptFolder(Struct, frozen=True, tag_field="kind", tag="folder", forbid_unknown_fields=True):
    """There was a folder."""


class KeptLink(Struct, frozen=True, tag_field="kind", tag="link", forbid_unknown_fields=True):
    """There was a symbolic link, with this text."""

    text: str


class KeptFile(Struct, frozen=True, tag_field="kind", tag="file", forbid_unknown_fields=True):
    """There was a file, whose content is kept (`FileContents`).

    Attributes:
        kept: The number of the content.
        size: Its length in bytes.
        mtime: When the file was changed, in nanoseconds since 1970.
        mode: Its permissions.
        identity: What named the file itself (`linux/identity.py`).
        checksum: The content's CRC-32; None if it was kept without being read.
    """

    kept: Natural
    size: Natural
    mtime: Nanoseconds
    mode: Mode
    identity: str
    checksum: Natural | None = None


class NotKept(Struct, frozen=True, tag_field="kind", tag="unkept", forbid_unknown_fields=True):
    """There was something that could not be kept: `large`, `room` (none was left), `unreadable`, or
    `changed` (from outside, after it was kept).
    """

    why: str
    size: Natural = 0


PreImage = Absent | KeptFolder | KeptLink | KeptFile | NotKept
"""What stood at a path of the workspace before it changed."""


class FileChanged(Struct, frozen=True, tag_field="record", tag="file"):
    """What stood at a path, relative to the workspace, when it first changed after a commit."""

    since: Natural
    path: str
    was: PreImage


class ContentLost(Struct, frozen=True, tag_field="record", tag="lost"):
    """A kept content does not exist any more, and why."""

    kept: Natural
    why: str


class SameFile(Struct, frozen=True, tag_field="record", tag="same"):
    """Two identities that name one and the same file to the guest."""

    one: str
    other: str


class Closed(Struct, frozen=True, tag_field="record", tag="closed"):
    """The journal's holder ended well: nothing follows, and nothing is missing."""


class Beginning(Struct, frozen=True, tag_field="record", tag="journal"):
    """The first record of a journal.

    Attributes:
        version: The version of the format.
        known_from: The first commit of which everything is known.
        boot: Names the time since the machine was last started, during which this was written;
            empty if that is unknown.
        salt: Tells this journal from every other one.
    """

    version: int
    known_from: Natural
    boot: str
    salt: str


FileRecord = FileChanged | ContentLost | SameFile | Closed


class FileJournal:
    """A file of records that only grows, and is written anew now and then; close it.

    Each line is a digest, a space, and a JSON object. The digest is BLAKE2b with 128 bits over the
    object's text, keyed by the digest of the line before, so a line that was changed, taken out,
    moved or comes from elsewhere does not fit. A last line that is cut off speaks of something that
    did not happen; any other damage means that nobody knows what is missing.

    Attributes:
        is_written: Whether this process has written it, so that it can be appended to.
    """

    def __init__(self, private: Folder | None, name: str) -> None:
        self._private = private
        self._name = name
        self._descriptor = -1
        self._digest = b""
        self.is_written = False

    def _folder(self, *, make: bool = False) -> Folder:
        if self._private is None:
            raise FileNotFoundError(errno.ENOENT, "no files are kept")
        return self._private.enter(self._name, make=make)

    def read(self) -> bytes:
        """Returns what the journal holds; nothing if there is none.

        Raises:
            OSError: it can't be read, or something else is in its place.
        """
        try:
            with self._folder() as folder:
                return folder.read(JOURNAL, JOURNAL_MOST_BYTES)
        except FileNotFoundError:
            return b""

    def write(self, known_from: int, records: Iterable[FileRecord]) -> None:
        """Writes it anew.

        Raises:
            OSError: it can't be written; it is as it was.
        """
        digest, salt = b"", secrets.token_hex(16)
        with self._folder(make=True) as folder, folder.replacing(JOURNAL) as file:
            for record in (Beginning(VERSION, known_from, boot(), salt), *records):
                line, digest = _encoded(record, digest)
                file.write(line)
        self.close()
        self._digest, self.is_written = digest, True

    def append(self, record: FileRecord) -> None:
        """Adds a record to a journal that was written.

        Raises:
            OSError: it can't be added.
        """
        if self._descriptor < 0:
            with self._folder() as folder:
                self._descriptor = folder.open_regular(JOURNAL, os.O_WRONLY | os.O_APPEND)
        line, digest = _encoded(record, self._digest)
        if os.write(self._descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._digest = digest

    def close(self) -> None:
        """Closes the file. Safe to call twice."""
        self.is_written = False
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def clear(self) -> None:
        """Removes it."""
        self.close()
        with contextlib.suppress(FileNotFoundError), self._folder() as folder:
            folder.remove(JOURNAL)


def read_journal(data: bytes) -> tuple[Beginning, list[FileRecord]]:
    """Returns the records of a journal.

    Raises:
        HistoryError: it is damaged, or of another version.
    """
    whole, _, _ = data.rpartition(b"\n")
    first, *lines = whole.split(b"\n")
    beginning: Beginning
    beginning, digest = _decoded(first, b"", Beginning)
    if beginning.version != VERSION:
        raise HistoryError("the record of earlier files has another version")
    records: list[FileRecord] = []
    for line in lines:
        record, digest = _decoded(line, digest, FileRecord)
        if isinstance(record, FileChanged) and not _is_possible(record):
            raise HistoryError("the record of earlier files is damaged")
        records.append(record)
    return beginning, records


def _is_possible(record: FileChanged) -> bool:
    """Whether a path stays below the workspace, and the system can have it and a link's text."""
    text = record.was.text if isinstance(record.was, KeptLink) else ""
    try:
        os.fsencode(record.path + text)
    except UnicodeEncodeError:
        return False
    is_plain = all(map(is_plain_name, record.path.split("/")))
    return (is_plain or is_unlinked_name(record.path)) and "\0" not in text


def _encoded(record: FileRecord | Beginning, before: bytes) -> tuple[bytes, bytes]:
    """Returns a line, and its digest, by the digest of the line before."""
    # msgspec's own encoder refuses names that are not UTF-8, which `json` escapes
    text = json.dumps(msgspec.to_builtins(record), separators=(",", ":")).encode()
    digest = _digest(text, before)
    return b"%s %s\n" % (digest, text), digest


def _decoded(line: bytes, before: bytes, kind: Any) -> tuple[Any, bytes]:
    """Returns the record of a line, and its digest."""
    digest, _, text = line.partition(b" ")
    try:
        if digest == _digest(text, before):
            return msgspec.convert(json.loads(text), kind), digest
    except (ValueError, RecursionError) as problem:
        raise HistoryError("the record of earlier files is damaged") from problem
    raise HistoryError("the record of earlier files is damaged")


def _digest(text: bytes, before: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16, key=before).hexdigest().encode()


@cache
def boot() -> str:
    """Names the time since the machine was last started; empty if the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
