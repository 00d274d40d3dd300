"""The earlier contents of the workspace's paths: a ledger in memory, and its journal on disk.

Commits are numbered as time goes on, also when memory went back between two of them, and files
have one past only. What a path held when a commit was taken is what it held when it first changed
after that; if it did not change, it holds it still.

The journal only grows, and is written anew now and then. Each line is a digest, a space, and a JSON
object. The digest is BLAKE2b with 128 bits over the object's text, keyed by the digest of the line
before, so a line that was changed, taken out, moved or comes from elsewhere does not fit. A last
line that is cut off speaks of something that did not happen; any other damage means that nobody
knows what is missing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.files import boot_id
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.walks import is_plain_name
from wasm_kernel.wasi_files.file_history import is_unlinked_name

JOURNAL = "journal"
JOURNAL_MOST_BYTES = 256 * 1024 * 1024
VERSION = 2
_DEAD_MOST = 1000  # records of the journal that need not be there
_DAMAGED = "the record of earlier files is damaged"

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Reason = Literal["large", "room", "unreadable", "unwritable", "changed"]  # words: `texts.py`
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Mode = Annotated[int, msgspec.Meta(ge=0, le=0o7777)]


class _PreImage(Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """A record of what stood at a path of the workspace before it changed."""


class Absent(_PreImage, frozen=True, tag="nothing"):
    """The path was empty."""


class KeptFolder(_PreImage, frozen=True, tag="folder"):
    """A folder, whose own entries are records of their own."""


class KeptLink(_PreImage, frozen=True, tag="link"):
    """A symbolic link with this text."""

    text: str


class KeptFile(_PreImage, frozen=True, tag="file"):
    """A file, whose content is kept (`FileContents`).

    Attributes:
        kept: The number of the content.
        size: Its length in bytes.
        mtime: When the file was changed, in nanoseconds since 1970.
        mode: Its permissions.
        identity: What named the file itself (`linux/files.py`).
        checksum: The content's CRC-32; None if it was kept without being read.
    """

    kept: Natural
    size: Natural
    mtime: Nanoseconds
    mode: Mode
    identity: str
    checksum: Natural | None = None


class NotKept(_PreImage, frozen=True, tag="unkept"):
    """Something that could not be kept, or not be brought back."""

    why: Reason
    size: Natural = 0


PreImage = Absent | KeptFolder | KeptLink | KeptFile | NotKept


class FileChanged(Struct, frozen=True, tag_field="record", tag="file"):
    """A path, relative to the workspace, that first changed after a commit, and what it held."""

    since: Natural
    path: str
    was: PreImage


class ContentLost(Struct, frozen=True, tag_field="record", tag="lost"):
    """A kept content does not exist any more, and why."""

    kept: Natural
    why: Reason


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
        boot: The boot of the machine during which this was written; empty if that is unknown.
        salt: Tells this journal from every other one.
    """

    version: int
    known_from: Natural
    boot: str
    salt: str


FileRecord = FileChanged | ContentLost | SameFile | Closed


class FileJournal:
    """The file of records, open for writing; close it.

    Attributes:
        is_written: Whether this process has written it, so that it can be appended to.
    """

    def __init__(self, private: Folder, name: str) -> None:
        self._private = private
        self._name = name
        self._fd = -1
        self._digest = b""
        self.is_written = False

    def read(self) -> bytes:
        """Returns what the journal holds.

        Raises:
            OSError: it can't be read, or something else is in its place.
        """
        with self._private.enter(self._name) as folder:
            return folder.read(JOURNAL, JOURNAL_MOST_BYTES)

    def write(self, known_from: int, records: Iterable[FileRecord]) -> None:
        """Writes it anew.

        Raises:
            OSError: it can't be written; it is as it was.
        """
        digest, beginning = b"", Beginning(VERSION, known_from, boot_id(), os.urandom(16).hex())
        with self._private.enter(self._name, make=True) as folder:
            with folder.replacing(JOURNAL) as file:
                for record in (beginning, *records):
                    line, digest = _line(record, digest)
                    file.write(line)
            self.close()
            self._fd = folder.open_regular(JOURNAL, os.O_WRONLY | os.O_APPEND)
        self._digest, self.is_written = digest, True

    def append(self, record: FileRecord) -> None:
        """Adds a record to a journal that was written.

        Raises:
            OSError: it can't be added.
        """
        line, digest = _line(record, self._digest)
        if os.write(self._fd, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._digest = digest

    def close(self) -> None:
        """Closes the file. Safe to call twice."""
        self.is_written = False
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def remove(self) -> None:
        """Closes and removes it.

        Raises:
            OSError: it can't be removed.
        """
        self.close()
        with contextlib.suppress(FileNotFoundError), self._private.enter(self._name) as folder:
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
            raise HistoryError(_DAMAGED)
        records.append(record)
    return beginning, records


def _is_possible(record: FileChanged) -> bool:
    """Returns whether a path stays in the workspace, and the system can have it and a link."""
    text = record.was.text if isinstance(record.was, KeptLink) else ""
    try:
        os.fsencode(record.path + text)
    except UnicodeEncodeError:
        return False
    is_plain = all(map(is_plain_name, record.path.split("/")))
    return (is_plain or is_unlinked_name(record.path)) and "\0" not in text


def _line(record: FileRecord | Beginning, before: bytes) -> tuple[bytes, bytes]:
    """Returns the line of a record, and its digest, by the digest of the line before."""
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
    except (ValueError, RecursionError):
        pass
    raise HistoryError(_DAMAGED)


def _digest(text: bytes, before: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16, key=before).hexdigest().encode()


class FileLedger:
    """The ledger of one workspace: what paths held. The guest's thread owns it; close it.

    A record is on disk before what it speaks of happens.

    Args:
        private: The session's private folder.
        name: The name of the journal's folder there.

    Attributes:
        at_commit: The last commit: what changes now changes after it.
        known_from: The first commit of which everything is known.
        last_content: The highest number of a content in the journal that was read.
        trouble: Why the journal can't be written, until it can again. The next process knows
            nothing of what changed by then.
    """

    def __init__(self, private: Folder, name: str) -> None:
        self._journal = FileJournal(private, name)
        self.last_content = 0
        self.trouble: OSError | None = None
        self._dead = 0
        self.begin(0)

    def __iter__(self) -> Iterator[FileChanged]:
        """Every entry, oldest first."""
        entries = [entry for entries in self._by_path.values() for entry in entries]
        return iter(sorted(map(self._current, entries), key=lambda entry: entry.since))

    def __len__(self) -> int:
        return sum(map(len, self._by_path.values()))

    def begin(self, last: int, *, known: bool = True) -> None:
        """Begins with nothing.

        Args:
            last: The last commit.
            known: Whether all files are as they were at that commit.
        """
        self._by_path: dict[str, list[FileChanged]] = {}
        self._lost: dict[int, Reason] = {}  # contents that are gone; until the next `write`
        self._same: dict[str, str] = {}
        self.at_commit, self.known_from = last, last if known else last + 1

    def load(self, last: int, *, crashed: bool) -> bool:
        """Goes on with the journal on disk, up to the last commit.

        Args:
            last: The last commit.
            crashed: Whether its last holder did not end well. If it did, the journal says so.

        Returns:
            Whether there is a whole one.
        """
        self.begin(last, known=False)
        try:
            beginning, records = read_journal(self._journal.read())
        except (FileNotFoundError, HistoryError):
            return False
        except OSError as problem:
            self.trouble = problem
            return False
        power_was_lost = "" != beginning.boot != boot_id() != ""
        if records[-1:] != [Closed()] and (power_was_lost or not crashed):
            return False
        self.known_from = beginning.known_from
        for record in records:
            match record:
                case FileChanged(was=was):
                    self._add(replace(record, since=min(record.since, last)))
                    if isinstance(was, KeptFile):  # also if a lost commit's, and of no use now
                        self.last_content = max(self.last_content, was.kept)
                case ContentLost(kept=kept, why=why):
                    self._lost[kept] = why
                case SameFile(one=one, other=other):
                    self._note_same(one, other)
        return True

    def write(self) -> None:
        """Writes the journal anew; if that fails, `trouble` says so."""
        entries = list(self)
        self._by_path, self._lost, self._dead = {}, {}, 0
        for entry in entries:
            self._by_path.setdefault(entry.path, []).append(entry)
        same = [SameFile(one, other) for other, one in self._same.items()]
        try:
            self._journal.write(self.known_from, [*entries, *same])
            self.trouble = None
        except OSError as problem:
            self._fail(problem)

    def remove(self) -> None:
        """Forgets everything, also on disk."""
        self.begin(self.at_commit, known=False)
        with contextlib.suppress(OSError):
            self._journal.remove()

    def close(self) -> bool:
        """Closes the journal. Safe to call twice.

        Returns:
            False if the journal should say that it ends so, and can't: it must count as left by a
            crash then. After `trouble` it is of no use, and must not.
        """
        ended = True
        if self.trouble is None and self._journal.is_written:
            try:
                self._journal.append(Closed())
            except OSError:
                ended = False
        self._journal.close()
        return ended

    def _append(self, record: FileRecord) -> None:
        if self.trouble is not None or not self._journal.is_written:
            return
        try:
            self._journal.append(record)
        except OSError as problem:
            self._fail(problem)

    def _fail(self, problem: OSError) -> None:
        self.trouble = problem
        with contextlib.suppress(OSError):
            self._journal.remove()

    def knows(self, path: str) -> bool:
        """Returns whether what a path held at the last commit is known already."""
        entries = self._by_path.get(path)
        return entries is not None and entries[-1].since >= self.at_commit

    def add(self, path: str, was: PreImage) -> None:
        """Notes what a path holds that is about to change, unless that is known already."""
        entry = FileChanged(self.at_commit, path, was)
        self._append(entry)
        self._add(entry)

    def _add(self, entry: FileChanged) -> None:
        """Adds an entry, unless its path has one since that commit: what was there first counts."""
        entries = self._by_path.setdefault(entry.path, [])
        if not entries or entries[-1].since < entry.since:
            entries.append(entry)

    def drop_content(self, number: int, why: Reason) -> None:
        """Notes that a kept content does not exist any more."""
        self._lost[number] = why
        self._append(ContentLost(number, why))

    def _current(self, entry: FileChanged) -> FileChanged:
        """An entry, by what is known of its content now."""
        was = entry.was
        if isinstance(was, KeptFile) and was.kept in self._lost:
            return replace(entry, was=NotKept(self._lost[was.kept], was.size))
        return entry

    def forget_absence(self, path: str) -> None:
        """Forgets that a path held nothing at the last commit, as it holds nothing now.

        Its record goes when the journal is written anew: at the latest once there are more of that
        kind than others.
        """
        entries = self._by_path.get(path)
        if not entries or not self.knows(path) or not isinstance(entries[-1].was, Absent):
            return
        entries.pop()
        if not entries:
            del self._by_path[path]
        self._dead += 1
        if self._dead > _DEAD_MOST and self._dead > len(self):
            self.write()

    def forget(self, path: str) -> None:
        """Forgets a path that does not matter any more."""
        self._by_path.pop(path, None)

    def fold(self, commits: Collection[int]) -> None:
        """Writes the journal anew without what no commit of these needs."""
        known, entries = sorted(commits), list(self)
        self._by_path = {}
        for entry in entries:
            if index := bisect_right(known, entry.since):
                self._add(replace(entry, since=known[index - 1]))
        self.write()

    def inherit(self, parent: FileLedger, names: Mapping[str, str]) -> None:
        """Writes a journal of what another ledger knows, for copies of its files.

        Args:
            parent: The other ledger. If it knows nothing, the copies' past begins now.
            names: The identities of files that were open at commits, and those of the copies.
        """
        self.begin(parent.at_commit)
        if parent.known_from <= parent.at_commit:
            self.known_from, self._same = parent.known_from, dict(parent._same)
            for entry in parent:
                was = entry.was
                if isinstance(was, KeptFile):
                    was = replace(was, identity=names.get(was.identity, ""))
                self._add(replace(entry, was=was))
        self.write()

    def at(self, path: str, commit: int) -> PreImage | None:
        """Returns what a path held at a commit; None for what it holds now."""
        entries = self._by_path.get(path, [])
        index = bisect_left(entries, commit, key=lambda entry: entry.since)
        return self._current(entries[index]).was if index < len(entries) else None

    def state(self, commit: int) -> dict[str, PreImage]:
        """Returns the paths that may hold something else now than at a commit, with what they
        held.
        """
        held = ((path, self.at(path, commit)) for path in self._by_path)
        return {path: was for path, was in held if was is not None}

    @property
    def contents(self) -> dict[int, KeptFile]:
        """The contents that are needed, by number, oldest first."""
        files = (entry.was for entry in self)
        return {was.kept: was for was in files if isinstance(was, KeptFile)}

    def note_same_file(self, one: str, other: str) -> None:
        """Notes that two identities name the same file to the guest."""
        if one and other and self.first_identity(one) != self.first_identity(other):
            self._note_same(one, other)
            self._append(SameFile(one, other))

    def _note_same(self, one: str, other: str) -> None:
        self._same[self.first_identity(other)] = self.first_identity(one)

    def first_identity(self, identity: str) -> str:
        """Returns one and the same identity for all that name the same file."""
        seen = set()
        while identity in self._same and identity not in seen:
            seen.add(identity)
            identity = self._same[identity]
        return identity
