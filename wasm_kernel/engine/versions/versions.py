"""Catching what stands in the workspace before a cell changes it.

The guest's own calls tell what is about to change (`files.py`); the first time that a path changes
after a commit, what it held is written down here. A cell that changes no file costs nothing. What
happens between a call's look and its act is never lost: an entry is on disk before the change.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection
from enum import Enum
from pathlib import Path

from wasm_kernel.engine.versions.journal import Journal, Line
from wasm_kernel.engine.versions.ledger import Ledger
from wasm_kernel.engine.versions.store import Key, Store, TooLarge
from wasm_kernel.engine.versions.was import Entry, File, Folder, Link, Nothing, Unkept, Was
from wasm_kernel.errors import HistoryError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLD_AFTER = 20  # commits


class Change(Enum):
    """What is about to happen to a file: it is written to, gets another name, or loses its name."""

    WRITE = "write"
    MOVE = "move"
    END = "end"


class Versions:
    """The earlier versions of one workspace's files. The guest's thread owns them.

    Args:
        root: The workspace.
        folder: Where they are kept, on the same file system.
        most_bytes: The most they may take; 0 to keep none.
        copy_bytes: The largest file that is copied where it can't be cloned.

    Attributes:
        told: Paths, with why and how many bytes, that could not be kept; whoever tells the user
            takes them away.
        trouble: Why nothing can be kept any more, until it can again.
    """

    def __init__(self, root: Path, folder: Path, *, most_bytes: int, copy_bytes: int) -> None:
        self.root = root
        self._most_bytes = most_bytes
        self._journal = Journal(folder)
        self.store = Store(folder, copy_bytes)
        self._ledger = Ledger()
        self._since = 0
        self._files: dict[int, File] = {}
        self._own: dict[int, int] = {}  # the bytes of contents that lie nowhere else, oldest first
        self._commits = 0
        self._twins: dict[str, str] = {}
        self.told: list[tuple[str, Unkept]] = []
        self.trouble: OSError | None = None

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._most_bytes > 0

    def clear(self) -> None:
        """Begin anew, with a history that begins."""
        self._open(Ledger(), 0)
        self.store.clear()

    def load(self, last: int) -> bool:
        """Go on with what an earlier process kept, up to commit `last`.

        False where that is damaged: only what changes from now on can be brought back.
        """
        try:
            lines = self._journal.read()
            ledger = self._read(lines).cut(last) if lines else Ledger(last)
        except (HistoryError, OSError, KeyError, TypeError, ValueError, AttributeError):
            lines, ledger = [], None
        self._open(ledger or Ledger(last), last)
        return ledger is not None

    def _read(self, lines: list[Line]) -> Ledger:
        ledger = Ledger(int(lines[0]["complete"]))
        for line in lines[1:]:
            if "lost" in line:
                ledger.lose(int(line["lost"]), str(line["why"]))
            elif "twins" in line:
                self._pair(*line["twins"])
            else:
                ledger.add(Entry.of_json(line))
        return ledger

    def _open(self, ledger: Ledger, last: int) -> None:
        self._ledger, self._since, self._commits = ledger, last, 0
        if not self.keeps:
            ledger.complete = last + 1
        try:
            for number in self.store.open(ledger.contents if self.keeps else {}):
                ledger.lose(number, "changed")
        except OSError as problem:
            self._fail(problem)
        else:
            self._write()

    def _write(self) -> None:
        """Write the journal anew."""
        twins = [{"twins": pair} for pair in self._twins.items()]
        try:
            self._journal.write(
                self._ledger.complete, [*(e.as_json() for e in self._ledger), *twins]
            )
            self.trouble = None
        except OSError as problem:
            self._fail(problem)
        self._files = self._ledger.contents
        alone = (n for n in self._files if not self.store.has_a_name_elsewhere(n))
        self._own = {number: self._files[number].size for number in alone}

    def _fail(self, problem: OSError) -> None:
        """The journal can't be written: what changed since the last commit is known to nobody."""
        self.trouble = problem
        self._ledger.complete = self._since + 1
        try:
            self._journal.clear()
        except OSError:
            self._journal.close()

    def begin(self, last: int, commits: Collection[int]) -> None:
        """Commit `last` was taken; all that are kept are `commits`."""
        self._since = last
        self._commits += 1
        due = self._commits >= _FOLD_AFTER and len(self._ledger)
        if self.keeps and (due or self.trouble is not None):
            self.fold(commits)

    def fold(self, commits: Collection[int]) -> None:
        """Let go of what no commit needs, and of the oldest where all is too much."""
        before = self._files
        self._ledger = self._ledger.folded(commits)
        self._write()
        self._make_room(0)
        self._commits = 0
        if self.trouble is None:
            for number in before.keys() - self._files.keys():
                self.store.remove(number)

    def _make_room(self, size: int) -> None:
        """Let the oldest go, until so many bytes can come."""
        while self._own and sum(self._own.values()) + size > self._most_bytes:
            self._lose(next(iter(self._own)), "room")

    def _lose(self, number: int, why: str) -> None:
        self._ledger.lose(number, why)
        self._append({"lost": number, "why": why})
        self.store.remove(number)
        self._files.pop(number, None)
        self._own.pop(number, None)

    def _append(self, line: Line) -> None:
        if self.trouble is not None:
            return
        try:
            self._journal.append(line)
        except OSError as problem:
            self._fail(problem)

    def touch(self, path: str | None, found: os.stat_result | None, change: Change) -> None:
        """What stands at a path is about to change; never raises.

        Args:
            path: Relative to the workspace; None for one outside of it.
            found: What stands there, links not followed; None for nothing.
            change: What is to happen to a file.
        """
        if path is None or not self.keeps:
            return
        if not self._ledger.knows(path, self._since):
            self._add(path, self._was(path, found, change))
        if change is Change.WRITE and found is not None:
            self.part((found.st_dev, found.st_ino))

    def knows(self, path: str) -> bool:
        """Whether what a path held at the last commit is kept already."""
        return self._ledger.knows(path, self._since)

    def part(self, key: Key) -> None:
        """A file is about to be written to; what is kept of it may be the file itself."""
        number = self.store.shared.pop(key, 0)
        if not number:
            return
        try:
            self.store.part(number)
            self._own[number] = self._files[number].size
        except (OSError, TooLarge) as problem:
            self._lose(number, _why(problem))

    def _add(self, path: str, was: Was) -> None:
        entry = Entry(self._since, path, was)
        self._append(entry.as_json())
        self._ledger.add(entry)
        if isinstance(was, File):
            self._files[was.kept] = was
        elif isinstance(was, Unkept):
            self.told.append((path, was))

    def _was(self, path: str, found: os.stat_result | None, change: Change) -> Was:
        if found is None:
            return Nothing()
        if stat.S_ISDIR(found.st_mode):
            return Folder()
        try:
            if stat.S_ISLNK(found.st_mode):
                return Link(str(self.host(path).readlink()))
            if stat.S_ISREG(found.st_mode):
                return self._content(self.host(path), found, change)
        except (OSError, TooLarge) as problem:
            return Unkept(_why(problem), found.st_size)
        return Unkept("unreadable")

    def _content(self, path: Path, found: os.stat_result, change: Change) -> Was:
        shared = self._files.get(self.store.shared.get((found.st_dev, found.st_ino), 0))
        if shared is not None:
            return shared
        if found.st_size > self._most_bytes and change is not Change.MOVE:
            return Unkept("large", found.st_size)
        if change is Change.MOVE:
            with contextlib.suppress(OSError):  # no hard links here
                return self.store.refer(path, found)
        self._make_room(found.st_size)
        if change is Change.END:
            with contextlib.suppress(OSError):
                return self._owned(self.store.refer(path, found))
        return self._owned(self.store.copy(path))

    def _owned(self, was: File) -> File:
        self._own[was.kept] = was.size
        return was

    def host(self, path: str) -> Path:
        """Where a path of the workspace lies."""
        return self.root / path

    def complete(self, one: int) -> bool:
        """Whether what all paths held at a commit is known."""
        return self.keeps and one >= self._ledger.complete

    def state(self, one: int) -> dict[str, Was]:
        """The paths that may hold something else now than at a commit, and what they held."""
        return self._ledger.state(one)

    def pair(self, one: str, other: str) -> None:
        """Two identities name the same file to the guest."""
        if one and other and one != other:
            self._pair(one, other)
            self._append({"twins": [one, other]})

    def _pair(self, one: str, other: str) -> None:
        self._twins[self.first_twin(other)] = self.first_twin(one)

    def first_twin(self, identity: str) -> str:
        """One and the same identity for all that name the same file."""
        while (twin := self._twins.get(identity, identity)) != identity:
            identity = twin
        return identity

    def close(self) -> None:
        """Give the journal's file back."""
        self._journal.close()


def _why(problem: OSError | TooLarge) -> str:
    if isinstance(problem, TooLarge):
        return "large"
    return "room" if problem.errno in _NO_ROOM else "unreadable"
