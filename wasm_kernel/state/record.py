"""What is known of a workspace's earlier states: the ledger, and its journal on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.journal import Journal, Line
from wasm_kernel.state.ledger import Ledger
from wasm_kernel.state.was import Entry, File, Was

_USELESS_MOST = 1000
_DAMAGED = (HistoryError, KeyError, TypeError, ValueError, AttributeError, RecursionError)


class Record:
    """The record in one folder; close it. The guest's thread owns it.

    Attributes:
        since: The commit that what changes now changes after.
        trouble: Why the journal can't be written, until it can again. The next process knows
            nothing of what changed by then.
    """

    def __init__(self, private: Folder | None, name: str) -> None:
        self._journal = Journal(private, name)
        self._ledger = Ledger()
        self._twins: dict[str, str] = {}
        self.since = 0
        self.trouble: OSError | None = None
        self._useless = 0  # lines of the journal that need not be there

    def __len__(self) -> int:
        return len(self._ledger)

    def begin(self, last: int, *, known: bool = True) -> None:
        """What changes from now on changes after commit `last`.

        Whether nothing changed since then yet is `known`; before that, nothing is.
        """
        self._ledger, self._twins, self.since = Ledger(last if known else last + 1), {}, last

    def load(self, last: int) -> bool:
        """Go on with what is on disk, up to commit `last`; False where there is nothing whole."""
        self.begin(last, known=False)
        try:
            lines = self._journal.read()
        except OSError as problem:
            self.trouble = problem
            return False
        except _DAMAGED:
            return False
        return bool(lines) and self.take_over(lines)

    def take_over(self, lines: list[Line]) -> bool:
        """Begin with what a journal says; False where that makes no sense."""
        last = self.since
        try:
            self._ledger = self._read(lines).cut(last)
        except _DAMAGED:
            self.begin(last, known=False)
            return False
        return True

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

    def write(self) -> None:
        """Write the journal anew; where that fails, `trouble` says so."""
        self._useless = 0
        twins: list[Line] = [{"twins": pair} for pair in self._twins.items()]
        entries = (entry.as_json() for entry in self._ledger)
        try:
            self._journal.write(self._ledger.complete, [*entries, *twins])
            self.trouble = None
        except OSError as problem:
            self._fail(problem)

    def _append(self, line: Line) -> None:
        if self.trouble is not None:
            return
        try:
            self._journal.append(line)
        except OSError as problem:
            self._fail(problem)

    def _fail(self, problem: OSError) -> None:
        self.trouble = problem
        try:
            self._journal.clear()
        except OSError:
            self._journal.close()

    def knows(self, path: str) -> bool:
        """Whether what a path held at the last commit is known already."""
        return self._ledger.knows(path, self.since)

    def add(self, path: str, was: Was) -> None:
        """What a path holds is about to change."""
        entry = Entry(self.since, path, was)
        self._append(entry.as_json())
        self._ledger.add(entry)

    def lose(self, number: int, why: str) -> None:
        """A content of the store is no more."""
        self._ledger.lose(number, why)
        self._append({"lost": number, "why": why})

    def vanished(self, path: str) -> None:
        """A path that held nothing at the last commit holds nothing again.

        What is written of it is taken away with the rest of what is of no use, once there is more
        of that than of the rest.
        """
        if self._ledger.vanished(path, self.since):
            self._useless += 1
            if self._useless > _USELESS_MOST and self._useless > len(self._ledger):
                self.write()

    def forget(self, path: str) -> None:
        """A path does not matter any more."""
        self._ledger.forget(path)

    def rename(self, names: Mapping[str, str]) -> None:
        """The files have other identities here."""
        self._ledger = self._ledger.renamed(names)

    def fold(self, commits: Collection[int]) -> None:
        """Let go of what no commit needs. Call `write`."""
        self._ledger = self._ledger.folded(commits)

    def complete(self, one: int) -> bool:
        """Whether what all paths held at a commit is known."""
        return one >= self._ledger.complete

    def state(self, one: int) -> dict[str, Was]:
        """What the paths held at a commit that may hold something else now."""
        return self._ledger.state(one)

    def at(self, path: str, one: int) -> Was | None:
        """What a path held at a commit; None for what it holds now."""
        return self._ledger.at(path, one)

    @property
    def contents(self) -> dict[int, File]:
        """The contents of the store that are needed, oldest first."""
        return self._ledger.contents

    def pair(self, one: str, other: str) -> None:
        """Two identities name the same file to the guest."""
        if one and other and self.first_twin(one) != self.first_twin(other):
            self._pair(one, other)
            self._append({"twins": [one, other]})

    def _pair(self, one: str, other: str) -> None:
        self._twins[self.first_twin(other)] = self.first_twin(one)

    def first_twin(self, identity: str) -> str:
        """One and the same identity for all that name the same file."""
        seen = set()
        while identity in self._twins and identity not in seen:
            seen.add(identity)
            identity = self._twins[identity]
        return identity

    def remove(self) -> None:
        """Forget everything, also on disk."""
        self.begin(self.since, known=False)
        with contextlib.suppress(OSError):
            self._journal.clear()

    def twins(self, identity: str) -> set[str]:
        """All that name the same file."""
        first = self.first_twin(identity)
        return {identity, first, *(one for one in self._twins if self.first_twin(one) == first)}

    def close(self) -> None:
        """Give the journal's file back."""
        self._journal.close()
