"""Which path held what at which commit. Pure, in memory.

Commits are numbered as time goes on, also where memory went back between two of them, and files
have one past only. What a path held when a commit was taken is what it held when it first changed
after that; where it did not, it holds it still.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from wasm_kernel.state.was import Entry, File, Nothing, Unkept, Was


class Ledger:
    """The entries of one workspace, and the commit since which there is one for every change."""

    def __init__(self, complete: int = 0, entries: Iterable[Entry] = ()) -> None:
        self.complete = complete
        self._by_path: dict[str, list[Entry]] = {}
        for entry in entries:
            self.add(entry)

    def __iter__(self) -> Iterator[Entry]:
        """Every entry, oldest first."""
        found = [entry for entries in self._by_path.values() for entry in entries]
        return iter(sorted(found, key=lambda entry: entry.since))

    def __len__(self) -> int:
        return sum(map(len, self._by_path.values()))

    def add(self, entry: Entry) -> bool:
        """Add an entry that is not older than the others of its path.

        False where its path has one since that commit already: what was there first counts.
        """
        entries = self._by_path.setdefault(entry.path, [])
        if entries and entries[-1].since >= entry.since:
            return False
        entries.append(entry)
        return True

    def knows(self, path: str, since: int) -> bool:
        """Whether a path has an entry since a commit."""
        entries = self._by_path.get(path)
        return entries is not None and entries[-1].since >= since

    def at(self, path: str, one: int) -> Was | None:
        """What a path held at a commit; None for what it holds now."""
        entries = self._by_path.get(path, [])
        index = bisect_left(entries, one, key=lambda entry: entry.since)
        return entries[index].was if index < len(entries) else None

    def state(self, one: int) -> dict[str, Was]:
        """The paths that hold something else now than at a commit, or may, and what they held."""
        found = ((path, self.at(path, one)) for path in self._by_path)
        return {path: was for path, was in found if was is not None}

    def vanished(self, path: str, since: int) -> bool:
        """Forget that a path held nothing at a commit, as it holds nothing now. False if it did."""
        entries = self._by_path.get(path)
        if not entries or entries[-1].since < since or not isinstance(entries[-1].was, Nothing):
            return False
        entries.pop()
        if not entries:
            del self._by_path[path]
        return True

    def lose(self, kept: int, why: str) -> None:
        """A content of the store is no more."""
        for entries in self._by_path.values():
            for index, entry in enumerate(entries):
                if isinstance(entry.was, File) and entry.was.kept == kept:
                    entries[index] = replace(entry, was=Unkept(why, entry.was.size))

    def forget(self, path: str) -> None:
        """A path does not matter any more."""
        self._by_path.pop(path, None)

    @property
    def contents(self) -> dict[int, File]:
        """The contents that are needed, by their numbers, oldest first."""
        found = (entry.was for entry in self)
        return {was.kept: was for was in found if isinstance(was, File)}

    def folded(self, commits: Collection[int]) -> Ledger:
        """The entries that these commits need, as if no others had ever been."""
        known = sorted(commits)
        folded = Ledger(self.complete)
        for entry in self:
            index = bisect_right(known, entry.since)
            if index:
                folded.add(replace(entry, since=known[index - 1]))
        return folded

    def renamed(self, names: Mapping[str, str]) -> Ledger:
        """The same of copies of the files, whose identities are others."""
        renamed = Ledger(self.complete)
        for entry in self:
            was = entry.was
            if isinstance(was, File):
                was = replace(was, identity=names.get(was.identity, ""))
            renamed.add(replace(entry, was=was))
        return renamed

    def cut(self, last: int) -> Ledger:
        """The same where commits after `last` were lost: what changed since changed after it."""
        cut = Ledger(self.complete)
        for entry in self:
            cut.add(replace(entry, since=min(entry.since, last)))
        return cut
