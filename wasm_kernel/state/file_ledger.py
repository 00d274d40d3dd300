"""The earlier contents of the workspace's paths: a ledger in memory, and its journal on disk.

Commits are numbered as time goes on, even if memory went back between two of them: files have only
one past. The file at a path as of a commit is the one that its first change after that commit
replaced; without a change, it is the present one.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.files import boot_id
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.file_journal import (
    Absent,
    ContentLost,
    FileChanged,
    FileJournal,
    FileRecord,
    JournalEnd,
    KeptFile,
    NotKept,
    PreImage,
    Reason,
    SameFile,
    read_journal,
)

_DEAD_MOST = 1000  # useless records of the journal


class FileLedger:
    """The earlier files at the paths of one workspace. The guest's thread owns it; close it.

    A record is on disk before the change that it announces.

    Attributes:
        at_commit: The last commit: changes from now on come after it.
        known_from: The first commit for which the ledger is complete.
        last_content: The highest number of a content in the journal that was read.
        trouble: Why the journal can't be written, or None. The next process will not know of
            changes made while it is set.
    """

    def __init__(self, private: Folder, name: str) -> None:
        self._journal = FileJournal(private, name)
        self.last_content = 0
        self.trouble: OSError | None = None
        self._dead = 0
        self.begin(0)

    def __iter__(self) -> Iterator[FileChanged]:
        """Yields every entry, oldest first."""
        entries = [entry for entries in self._by_path.values() for entry in entries]
        return iter(sorted(map(self._current, entries), key=lambda entry: entry.since))

    def __len__(self) -> int:
        return sum(map(len, self._by_path.values()))

    def begin(self, last: int, *, known: bool = True) -> None:
        """Begins with nothing; if `known`, all files are as they were at the last commit."""
        self._by_path: dict[str, list[FileChanged]] = {}
        self._lost: dict[int, Reason] = {}  # contents that are gone; until the next `write`
        self._same: dict[str, str] = {}
        self.at_commit, self.known_from = last, last if known else last + 1

    def load(self, last: int, *, crashed: bool) -> bool:
        """Loads the journal on disk, up to the last commit; returns whether it is whole.

        If the last holder did not crash, the journal must end with `JournalEnd`.
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
        if records[-1:] != [JournalEnd()] and (power_was_lost or not crashed):
            return False
        self.known_from = beginning.known_from
        for record in records:
            match record:
                case FileChanged(was=was):
                    self._add(replace(record, since=min(record.since, last)))
                    if isinstance(was, KeptFile):  # even if a lost commit made it useless
                        self.last_content = max(self.last_content, was.kept)
                case ContentLost(kept=kept, why=why):
                    self._lost[kept] = why
                case SameFile(one=one, other=other):
                    self._note_same(one, other)
        return True

    def write(self) -> None:
        """Rewrites the journal; if that fails, `trouble` has the error."""
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

        Returns False if `JournalEnd` could not be appended: the journal then counts as left by a
        crash. After `trouble` there is no journal to end, and the result is True.
        """
        ended = True
        if self.trouble is None and self._journal.fd >= 0:
            try:
                self._journal.append(JournalEnd())
            except OSError:
                ended = False
        self._journal.close()
        return ended

    def _append(self, record: FileRecord) -> None:
        if self.trouble is not None or self._journal.fd < 0:
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
        """Returns whether the ledger already has what a path held at the last commit."""
        entries = self._by_path.get(path)
        return entries is not None and entries[-1].since >= self.at_commit

    def add(self, path: str, was: PreImage) -> None:
        """Notes the file at a path before it changes; the first note after a commit counts."""
        entry = FileChanged(self.at_commit, path, was)
        self._append(entry)
        self._add(entry)

    def _add(self, entry: FileChanged) -> None:
        """Adds an entry, unless its path has one since that commit: the first one counts."""
        entries = self._by_path.setdefault(entry.path, [])
        if not entries or entries[-1].since < entry.since:
            entries.append(entry)

    def drop_content(self, number: int, why: Reason) -> None:
        """Notes that a kept content does not exist any more."""
        self._lost[number] = why
        self._append(ContentLost(number, why))

    def _current(self, entry: FileChanged) -> FileChanged:
        """Returns an entry, as `NotKept` if its content was lost."""
        was = entry.was
        if isinstance(was, KeptFile) and was.kept in self._lost:
            return replace(entry, was=NotKept(self._lost[was.kept], was.size))
        return entry

    def forget_absence(self, path: str) -> None:
        """Forgets that a path held nothing at the last commit, as it holds nothing now.

        Its record is removed when the journal is rewritten: at the latest once there are more such
        records than others.
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
        """Rewrites the journal with only the entries that these commits need."""
        known, entries = sorted(commits), list(self)
        self._by_path = {}
        for entry in entries:
            if index := bisect_right(known, entry.since):
                self._add(replace(entry, since=known[index - 1]))
        self.write()

    def inherit(self, parent: FileLedger, names: Mapping[str, str]) -> None:
        """Writes a journal with the parent's entries, for copies of its files.

        If the parent's ledger is not complete for any commit, the copies' past begins now. `names`
        maps identities of files that were open at commits to those of the copies.
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
        """Returns the file at a path as of a commit; None if it has not changed since."""
        entries = self._by_path.get(path, [])
        index = bisect_left(entries, commit, key=lambda entry: entry.since)
        return self._current(entries[index]).was if index < len(entries) else None

    def state(self, commit: int) -> dict[str, PreImage]:
        """Returns the paths that may have changed since a commit, with their files at it."""
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
        """Returns the first of all identities that name the same file."""
        seen = set()
        while identity in self._same and identity not in seen:
            seen.add(identity)
            identity = self._same[identity]
        return identity
