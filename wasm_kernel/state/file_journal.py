"""The journal of earlier files: records on disk of the files at paths before they changed.

Records are appended; now and then the journal is rewritten. Each line is a digest, a space, and a
JSON object. The digest is BLAKE2b with 128 bits over the object's text, keyed by the digest of the
line before, so a line that was changed, removed, moved or copied from elsewhere does not fit. If
the last line is cut off, its change did not happen. After any other damage, it is unknown which
records are missing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.files import boot_id
from wasm_kernel.linux.folders import DescriptorOwner, Folder, is_plain_name
from wasm_kernel.state.index import keyed_digest
from wasm_kernel.wasi_files.file_history import is_unlinked_name

JOURNAL = "journal"
JOURNAL_MOST_BYTES = 256 * 1024 * 1024
VERSION = 2
_DAMAGED = "the record of earlier files is damaged"

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Reason = Literal["large", "room", "unreadable", "unwritable", "changed"]  # words: `texts.py`
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Mode = Annotated[int, msgspec.Meta(ge=0, le=0o7777)]


class _PreImage(Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """A record of a path's content in the workspace before a change."""


class Absent(_PreImage, frozen=True, tag="nothing"):
    """The path was empty."""


class KeptFolder(_PreImage, frozen=True, tag="folder"):
    """A folder, whose own entries are records of their own."""


class KeptLink(_PreImage, frozen=True, tag="link"):
    """A symbolic link with this text."""

    text: str


class KeptFile(_PreImage, frozen=True, tag="file"):
    """A file, whose content is kept (`FileContents`) under the number `kept`.

    It was last written at `mtime`, in nanoseconds since 1970. `identity` named the file itself. The
    checksum is a CRC-32; None if it was kept without being read.
    """

    kept: Natural
    size: Natural
    mtime: Nanoseconds
    mode: Mode
    identity: str
    checksum: Natural | None = None


class NotKept(_PreImage, frozen=True, tag="unkept"):
    """A file that could not be kept, or can't be brought back."""

    why: Reason
    size: Natural = 0


PreImage = Absent | KeptFolder | KeptLink | KeptFile | NotKept


class FileChanged(Struct, frozen=True, tag_field="record", tag="file"):
    """A path, relative to the workspace, whose first change after a commit replaced `was`."""

    since: Natural
    path: str
    was: PreImage


class ContentLost(Struct, frozen=True, tag_field="record", tag="lost"):
    """The reason why a kept content does not exist any more."""

    kept: Natural
    why: Reason


class SameFile(Struct, frozen=True, tag_field="record", tag="same"):
    """Two identities that name the same file to the guest."""

    one: str
    other: str


class JournalEnd(Struct, frozen=True, tag_field="record", tag="closed"):
    """The last record if the journal's holder ended in order: nothing is missing."""


class Beginning(Struct, frozen=True, tag_field="record", tag="journal"):
    """The first record of a journal.

    The journal is complete for commits since `known_from`. `boot` is the machine's boot id, empty
    if unknown; `salt` makes this journal differ from every other one.
    """

    version: int
    known_from: Natural
    boot: str
    salt: str


FileRecord = FileChanged | ContentLost | SameFile | JournalEnd


class FileJournal(DescriptorOwner):
    """The file of records; close it. Records can be appended while `fd` is open."""

    def __init__(self, private: Folder, name: str) -> None:
        self._private = private
        self._name = name
        self.fd = -1
        self._digest = b""

    def read(self) -> bytes:
        """Returns the content of the journal; `OSError` if something else is in its place."""
        with self._private.enter(self._name) as folder:
            return folder.read(JOURNAL, JOURNAL_MOST_BYTES)

    def write(self, known_from: int, records: Iterable[FileRecord]) -> None:
        """Replaces the journal, or leaves it unchanged."""
        digest, beginning = b"", Beginning(VERSION, known_from, boot_id(), os.urandom(16).hex())
        with self._private.enter(self._name, make=True) as folder:
            with folder.replacing(JOURNAL) as file:
                for record in (beginning, *records):
                    line, digest = _line(record, digest)
                    file.write(line)
            self.close()
            self.fd = folder.open_regular(JOURNAL, os.O_WRONLY | os.O_APPEND)
        self._digest = digest

    def append(self, record: FileRecord) -> None:
        """Adds a record to a journal that was written."""
        line, digest = _line(record, self._digest)
        if os.write(self.fd, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._digest = digest

    def remove(self) -> None:
        """Closes and removes the journal."""
        self.close()
        with contextlib.suppress(FileNotFoundError), self._private.enter(self._name) as folder:
            folder.remove(JOURNAL)


def read_journal(data: bytes) -> tuple[Beginning, list[FileRecord]]:
    """Returns the records of a journal; `HistoryError` if damaged or of another version."""
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
            raise HistoryError(_DAMAGED)
        records.append(record)
    return beginning, records


def _is_possible(record: FileChanged) -> bool:
    """Returns whether a record's path stays inside, and the system accepts it and a link's text."""
    text = record.was.text if isinstance(record.was, KeptLink) else ""
    try:
        os.fsencode(record.path + text)
    except UnicodeEncodeError:
        return False
    is_plain = all(map(is_plain_name, record.path.split("/")))
    return (is_plain or is_unlinked_name(record.path)) and "\0" not in text


def _line(record: FileRecord | Beginning, before: bytes) -> tuple[bytes, bytes]:
    """Returns the line of a record and its digest, keyed by the digest of the line before."""
    # msgspec's own encoder refuses names that are not UTF-8, which `json` escapes
    text = json.dumps(msgspec.to_builtins(record), separators=(",", ":")).encode()
    digest = keyed_digest(text, before)
    return b"%s %s\n" % (digest, text), digest


def _decoded(line: bytes, before: bytes, kind: Any) -> tuple[Any, bytes]:
    digest, _, text = line.partition(b" ")
    try:
        if digest == keyed_digest(text, before):
            return msgspec.convert(json.loads(text), kind), digest
    except (ValueError, RecursionError):
        pass
    raise HistoryError(_DAMAGED)
