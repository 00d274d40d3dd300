"""What lies on disk of a session's memory: read strictly, looked at from outside, set aside.

The folder holds the `index`, the folder `contents`, and in `unused` what can't be used and is kept
as long as there is room for it.
"""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from wasm_kernel.errors import HistoryError
from wasm_kernel.folders.folders import FIRST_HISTORY, STATE
from wasm_kernel.linux.files import link_or_copy
from wasm_kernel.linux.folders import Folder, NotRegular
from wasm_kernel.state.commits import CONTENTS, missing_in
from wasm_kernel.state.index import NAME as INDEX
from wasm_kernel.state.index import (
    Closed,
    Commit,
    Drop,
    Head,
    Index,
    Name,
    Origin,
    Reading,
    Record,
    read_index,
)

_UNUSED = "unused"
_UNNAMED_MOST = 2  # contents that a killed process had written, and not yet their records
OTHER_IMAGE = "they were saved by another version of the sandbox, or before its cache was made anew"
_USELESS = "what was saved of them can't be used ({why})"


class Position(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a session stands in its history, and what its states are called.

    Attributes:
        at: The commit that memory stands at; 0 before the first.
        after: The newest commit when it was chosen.
        names: Commits by name.
        undone: Commits that were left for `at` and can be gone back to, the latest last.
    """

    at: int
    after: int
    names: Mapping[str, int]
    undone: tuple[int, ...] = ()


class Usable(Struct, frozen=True):
    """What of a stored state can be used.

    Attributes:
        commits: The commits that are whole, as all that they stand on are.
        position: Where memory stands among them.
        lost: How many states are lost, as far as that is known.
        is_certain: Whether the session was left at this position.
        is_damaged: Whether anything is damaged or missing.
    """

    commits: Mapping[int, Commit]
    position: Position
    lost: int
    is_certain: bool
    is_damaged: bool


class StoredState(Struct, frozen=True):
    """What an index says of a session's memory. Nothing is believed whose digest does not fit.

    Attributes:
        reading: The index.
        commits: The commits that were not dropped.
        position: Where memory stands, as the last record says.
        heads: Where it stood before, as the records say one after the other.
        origin: What was inherited.
        last: The highest number that a commit ever had.
        contents: All contents that any record names.
        is_certain: Whether the position follows everything that is damaged.
        is_closed: Whether the last holder ended as it should.
    """

    reading: Reading
    commits: Mapping[int, Commit]
    position: Position
    heads: tuple[int, ...]
    origin: Origin
    last: int
    contents: frozenset[str]
    is_certain: bool
    is_closed: bool

    @classmethod
    def read(cls, folder: Folder) -> StoredState:
        """Returns what the index in a folder says; nothing is changed.

        Raises:
            HistoryError, FileNotFoundError, OSError: as `read_index`.
        """
        reading = read_index(folder)
        commits: dict[int, Commit] = {}
        names: dict[str, int] = {}
        contents: set[str] = set()
        heads: list[int] = []
        origin, head, last, certain = None, Head(), 0, True
        for entry in reading.entries:
            match entry:
                case None:
                    certain = False
                case Commit(id=one, content=content):
                    certain = certain or one > last
                    commits[one], last = entry, max(last, one)
                    contents.add(content)
                case Drop(ids=ids):
                    for one in ids:
                        commits.pop(one, None)
                case Head():
                    head, certain, last = entry, True, max(last, entry.after)
                    heads.append(entry.at)
                case Name(name=name, id=one):
                    names[name] = one
                case Origin():
                    origin = entry
        if origin is None:  # nobody knows what it said: no file of the parent's, and fresh seeds
            origin = Origin(last, reseed=True)
        newest = max(commits, default=0)
        if newest > head.after:
            head = Head(newest, newest)
        position = Position(head.at, max(last, head.after), names, head.undone)
        closed = reading.entries[-1:] == (Closed(),)
        before, known = tuple(heads), frozenset(contents)
        return cls(reading, commits, position, before, origin, last, known, certain, closed)

    @property
    def image(self) -> str:
        """The base image that the commits lie over."""
        return self.reading.image

    def usable(self, missing: Collection[int], unnamed: int = 0, *, is_cut: bool = False) -> Usable:
        """Returns what can be used.

        Args:
            missing: Commits whose contents are not there.
            unnamed: How many contents lie there that no record names.
            is_cut: Whether the end of the index is missing.

        Raises:
            HistoryError: there are some, and none can be used.
        """
        whole: dict[int, Commit] = {}
        for one, commit in sorted(self.commits.items()):
            if one not in missing and (commit.parent == 0 or commit.parent in whole):
                whole[one] = commit
        parents = {commit.parent for commit in self.commits.values()} - self.commits.keys() - {0}
        cut = unnamed > _UNNAMED_MOST
        lost = len(self.commits) - len(whole) + len(parents) + (unnamed if cut else 0)
        adrift = self.position.at not in {0, *self.commits}
        broken = is_cut or adrift or None in self.reading.entries
        damaged = bool(lost) or broken
        if not whole and damaged:
            why = "a commit is damaged" if broken or missing else "the first commit is not there"
            raise HistoryError(_USELESS.format(why=why))
        at, certain = self._standing(whole), self.is_certain and not (cut or is_cut)
        mark = self.position
        undone = tuple(one for one in mark.undone if one in whole) if at == mark.at else ()
        names = {name: one for name, one in mark.names.items() if one in whole}
        position = Position(at, mark.after, names, undone)
        certain = certain and (at == mark.at or (mark.at == 0 and not lost))
        return Usable(whole, position, max(lost, int(broken)), certain, damaged)

    def _standing(self, whole: Mapping[int, Commit]) -> int:
        """The commit that memory stood at, or the nearest before it that is whole.

        If nothing is known of what was before it, memory stood last where an older record says.
        """
        at = self.position.at
        while at and at not in whole:
            at = self.commits[at].parent if at in self.commits else 0
        if not at and self.position.at:
            at = next((one for one in reversed(self.heads) if one in whole), 0)
        return at or max(whole, default=0)


class StateFolder:
    """The folder on disk; close it. Whoever has the session's lock may change it."""

    def __init__(self, folder: Folder) -> None:
        """Takes over the folder."""
        self._folder = folder
        self.unused_bytes = 0

    def read(self, image: str) -> StoredState | None:
        """Returns what is stored; None if nothing is.

        Raises:
            HistoryError: it can't be used.
            OSError: it can't be read.
        """
        self._weigh()
        try:
            stored = StoredState.read(self._folder)
        except FileNotFoundError:
            if self._names(CONTENTS):
                why = "the record of them is not there"
                raise HistoryError(_USELESS.format(why=why)) from None
            return None
        except NotRegular as problem:
            why = problem.strerror or "it can't be read"
            raise HistoryError(_USELESS.format(why=why)) from problem
        if stored.image != image:
            raise HistoryError(OTHER_IMAGE)
        return stored

    def usable(self, stored: StoredState, *, is_cut: bool) -> Usable:
        """Returns what can be used, and sets aside or removes the contents of all else.

        Args:
            stored: What the index says.
            is_cut: Whether the end of the index is missing.

        Raises:
            HistoryError: there are states, and none can be used. They are where they were.
            OSError: the folder can't be changed.
        """
        there = [name for name in self._names(CONTENTS) if not name.startswith(".")]
        unnamed = [name for name in there if name not in stored.contents]
        with self.contents() as contents:
            missing = missing_in(contents, stored.commits.values())
            usable = stored.usable(missing, len(unnamed), is_cut=is_cut)
            kept = {commit.content for commit in usable.commits.values()}
            lost = {c.content for c in stored.commits.values()} - kept
            aside = {*lost, *(unnamed if len(unnamed) > _UNNAMED_MOST else ())} & {*there}
            rest = {*there, *contents.abandoned()} - kept - aside
        self.set_contents_aside(aside)
        self._clear(CONTENTS, rest)
        self._clear(".", self._folder.abandoned())
        return usable

    def contents(self) -> Folder:
        """Opens the folder of the contents; what is no folder in its place is set aside.

        Raises:
            OSError: it can't be made.
        """
        return self._inner(CONTENTS)

    def _inner(self, name: str) -> Folder:
        try:
            return self._folder.enter(name, make=True)
        except OSError:
            status = self._folder.status(name)
            if status is None or stat.S_ISDIR(status.st_mode):
                raise
        self._folder.remove(name)  # a link, a pipe: nothing that could hold a state
        return self._folder.enter(name, make=True)

    def _names(self, name: str) -> list[str]:
        try:
            with self._folder.enter(name) as folder:
                return folder.names()
        except OSError as problem:
            if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return []
            raise

    def clear(self) -> None:
        """Removes everything; the index goes first, so a part of it is never taken for all.

        Raises:
            OSError: something can't be removed.
        """
        self._clear(".", [name for name in self._folder.names() if name not in (CONTENTS, _UNUSED)])
        self._clear(CONTENTS, self._names(CONTENTS))
        self.drop_unused()

    def _clear(self, where: str, names: Iterable[str]) -> None:
        """Removes files; what can't be removed, such as a folder, is set aside."""
        with self._folder.enter() if where == "." else self._inner(where) as folder:
            for name in names:
                try:
                    folder.remove(name)
                except (IsADirectoryError, PermissionError):
                    self._move(folder, name)

    def set_aside(self) -> None:
        """Gives everything names under which nobody looks for it: it may be wanted yet.

        Raises:
            OSError: it can't be moved.
        """
        if self._folder.status(INDEX) is not None:
            self._move(self._folder, INDEX)
        self.set_contents_aside(self._names(CONTENTS))

    def keep_index(self) -> None:
        """The index is damaged, and is kept beside the one that takes its place.

        Until then it stays where it is: without any, nothing could be used.

        Raises:
            OSError: it can't be.
        """
        with self._inner(_UNUSED) as unused:
            link_or_copy(self._folder.fd, INDEX, _free_name(unused, INDEX), unused.fd)
        self._weigh()

    def set_contents_aside(self, names: Iterable[str]) -> None:
        """These contents belong to states that can't be used."""
        with self.contents() as folder:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._move(folder, name)
        self._weigh()

    def _move(self, folder: Folder, name: str) -> None:
        with self._inner(_UNUSED) as unused:
            folder.rename(name, _free_name(unused, name), unused)

    def drop_unused(self) -> None:
        """Removes what was set aside; folders stay, they take no room that counts."""
        with contextlib.suppress(OSError), self._folder.enter(_UNUSED) as unused:
            for name in unused.names():
                with contextlib.suppress(OSError):
                    unused.remove(name)
        self._weigh()

    def _weigh(self) -> None:
        self.unused_bytes = 0
        with contextlib.suppress(OSError), self._folder.enter(_UNUSED) as unused:
            found = [unused.status(name) for name in unused.names()]
            regular = [one for one in found if one is not None and stat.S_ISREG(one.st_mode)]
            self.unused_bytes = sum(one.st_size for one in regular)

    def close(self) -> None:
        """Closes the folder. Safe to call twice."""
        self._folder.close()


def _free_name(unused: Folder, name: str) -> str:
    there, number = set(unused.names()), 1
    while (new := f"{number}-{name}") in there:
        number += 1
    return new


def set_first_aside(private: Folder) -> bool:
    """Sets states in the first version's format aside; False if there are none.

    Args:
        private: The session's private folder.
    """
    try:
        with private.enter(FIRST_HISTORY) as first, private.enter(STATE, make=True) as state:
            if not any(name.endswith(".commit") for name in first.names()):
                return False
            private.rename(FIRST_HISTORY, _UNUSED, state)
    except OSError:
        return False
    return True


def write_state(folder: Folder, image: str, records: Iterable[Record]) -> None:
    """Writes the index of a session that nobody has opened yet.

    Args:
        folder: The folder; its contents are there.
        image: The base image that the commits lie over.
        records: The records, an `Origin` first.

    Raises:
        OSError: it can't be written.
    """
    with contextlib.closing(Index(folder, image)) as index:
        index.rewrite(lambda: (*records, Closed()))


def records_of(
    origin: Origin, commits: Mapping[int, Commit], position: Position
) -> tuple[Record, ...]:
    """Returns the records that say these things, in the order of an index."""
    ordered = [commits[one] for one in sorted(commits)]
    names = [Name(name, one) for name, one in position.names.items()]
    return (origin, *ordered, *names, Head(position.at, position.after, position.undone))
