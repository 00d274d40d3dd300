"""A session's memory as it lies on disk: read strictly, looked at from outside, set aside.

The folder holds the `index`, the folder `contents`, and in `unused` what can't be used and is kept
as long as there is room for it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import stat
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import HistoryError
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
    read_index,
)
from wasm_kernel.state.tree import Tree

_UNUSED = "unused"
_UNNAMED_MOST = 2  # contents that a killed process had written, and not yet their records
OTHER_IMAGE = (
    "they were saved by another version of the sandbox or by its other language, or before its "
    "cache was made anew"
)
_OF_ANOTHER = (
    f"{OTHER_IMAGE}. They are kept for that version or language, as long as history_bytes has room "
    "for them: to carry values over, open the session with it and write them to files"
)
_USELESS = "what was saved of them can't be used ({why})"


class Usable(Struct, frozen=True):
    """The part of a stored state that can be used: the whole commits, on whole ones.

    `lost` is how many states are lost, as far as that is known. `is_certain` says that the session
    was left at the tree's head, `is_damaged` that anything is damaged or missing.
    """

    tree: Tree
    lost: int
    is_certain: bool
    is_damaged: bool


class StoredState(Struct, frozen=True):
    """A session's memory as its index says. Nothing is believed whose digest does not fit.

    Attributes:
        tree: The commits that were not dropped, and the head as the last record says.
        head: The last record of a head.
        heads: The commits that memory was at, as the records say one after the other.
        contents: All contents that any record names.
        is_certain: Whether the head follows everything that is damaged.
        is_closed: Whether the last holder ended as it should.
    """

    reading: Reading
    tree: Tree
    head: Head
    heads: tuple[int, ...]
    contents: frozenset[str]
    is_certain: bool
    is_closed: bool

    @classmethod
    def read(cls, folder: Folder) -> StoredState:
        """Returns what the index in a folder says; nothing is changed. Raises as `read_index`."""
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
                case Commit(id=commit_id, content=content):
                    certain = certain or commit_id > last
                    commits[commit_id], last = entry, max(last, commit_id)
                    contents.add(content)
                case Drop(ids=ids):
                    for commit_id in ids:
                        commits.pop(commit_id, None)
                case Head():
                    head, certain, last = entry, True, max(last, entry.after)
                    heads.append(entry.at)
                case Name(name=name, id=commit_id):
                    names[name] = commit_id
                case Origin():
                    origin = entry
        if origin is None:  # nobody knows what it said: no file of the parent's, and fresh seeds
            origin = Origin(last, reseed=True)
        at, undone = head.position(commits)
        tree = Tree(commits, at, names, undone, last, origin, head.count)
        closed = reading.entries[-1:] == (Closed(),)
        return cls(reading, tree, head, tuple(heads), frozenset(contents), certain, closed)

    @property
    def image(self) -> str:
        """The base image that the commits lie over."""
        return self.reading.image

    def usable(self, missing: Collection[int], unnamed: int = 0, *, is_cut: bool = False) -> Usable:
        """Returns what can be used; `HistoryError` if there are some, and none can be.

        The contents of the commits `missing` are not there; `unnamed` others lie there. The end of
        the index is missing if it `is_cut`.
        """
        tree, whole = self.tree, dict[int, Commit]()
        for commit_id, commit in sorted(tree.commits.items()):
            if commit_id not in missing and (commit.parent == 0 or commit.parent in whole):
                whole[commit_id] = commit
        parents = {commit.parent for commit in tree.commits.values()} - tree.commits.keys() - {0}
        cut = unnamed > _UNNAMED_MOST
        lost = len(tree.commits) - len(whole) + len(parents) + (unnamed if cut else 0)
        adrift = tree.head not in {0, *tree.commits}
        broken = is_cut or adrift or None in self.reading.entries
        damaged = bool(lost) or broken
        if not whole and damaged:
            why = "a commit is damaged" if broken or missing else "the first commit is not there"
            raise HistoryError(_USELESS.format(why=why))
        certain = self.is_certain and not (cut or is_cut)
        head = 0 if not tree.head and certain and not lost else self._usable_head(whole)
        undone = tuple(each for each in tree.undone if each in whole) if head == tree.head else ()
        names = {name: each for name, each in tree.names.items() if each in whole}
        used = replace(tree, commits=whole, head=head, names=names, undone=undone)
        return Usable(used, max(lost, int(broken)), certain and head == tree.head, damaged)

    def _usable_head(self, whole: Mapping[int, Commit]) -> int:
        """Returns the commit that memory was at, or the nearest before it that is whole.

        If nothing is known of what was before it, memory was last where an older record says.
        """
        tree, at = self.tree, self.tree.head
        while at and at not in whole:
            at = tree.commits[at].parent if at in tree.commits else 0
        if not at and tree.head:
            at = next((each for each in reversed(self.heads) if each in whole), 0)
        return at or max(whole, default=0)


def may_have_names(folder: Folder) -> bool:
    """Returns whether a state in a folder has a name, or nobody can tell."""
    try:
        tree = StoredState.read(folder).tree
    except FileNotFoundError:
        return False
    except (OSError, HistoryError):
        return True
    return not tree.commits.keys().isdisjoint(tree.names.values())


class StateFolder:
    """The folder on disk; close it. Whoever has the session's lock may change it.

    `unused_bytes` are set aside. What was read `has_come_back` if it had been, for its base image.
    """

    def __init__(self, folder: Folder) -> None:
        """Takes over the folder."""
        self._folder = folder
        self._other = ""  # the base image that what lies here stands on, if it is not ours
        self.unused_bytes = 0
        self.has_come_back = False

    def read(self, image: str) -> StoredState | None:
        """Returns what is stored; None if nothing is; `HistoryError` if it can't be used."""
        self._weigh()
        stored = self._read()
        if stored is not None and stored.image != image:
            self._other = stored.image
        if (stored is None or self._other) and self._bring_back(image):
            stored = self._read()
        elif self._other:
            raise HistoryError(_OF_ANOTHER)
        elif stored is None and self._names(CONTENTS):
            raise HistoryError(_USELESS.format(why="the record of them is not there"))
        return stored

    def _read(self) -> StoredState | None:
        try:
            return StoredState.read(self._folder)
        except FileNotFoundError:
            return None
        except NotRegular as problem:
            why = problem.strerror or "it can't be read"
            raise HistoryError(_USELESS.format(why=why)) from problem

    def _bring_back(self, image: str) -> bool:
        """Puts in place what was set aside for a base image; returns False if nothing was."""
        prefix = _prefix(image)
        if prefix + INDEX not in self._names(_UNUSED):
            return False
        self.set_aside()
        self._other = ""
        with self._inner(_UNUSED) as unused, self.contents() as contents:
            ours = {name for name in unused.names() if name.startswith(prefix)}
            for name in ours - {prefix + INDEX}:
                unused.rename(name, name.removeprefix(prefix), contents)
            unused.rename(prefix + INDEX, INDEX, self._folder)
        self._weigh()
        self.has_come_back = True
        return True

    def usable(self, stored: StoredState, *, is_cut: bool) -> Usable:
        """Returns what can be used, and sets aside or removes the contents of all else.

        Raises `HistoryError` if none of the states can be used; they are where they were.
        """
        there = {name for name in self._names(CONTENTS) if not name.startswith(".")}
        unnamed = there - stored.contents
        commits = stored.tree.commits.values()
        with self.contents() as contents:
            usable = stored.usable(missing_in(contents, commits), len(unnamed), is_cut=is_cut)
            kept = {commit.content for commit in usable.tree.commits.values()}
            lost = {commit.content for commit in commits} - kept
            aside = (lost | unnamed if len(unnamed) > _UNNAMED_MOST else lost) & there
            rest = {*there, *contents.abandoned()} - kept - aside
        self.set_contents_aside(aside)
        self._clear(CONTENTS, rest)
        self._clear(".", self._folder.abandoned())
        return usable

    def contents(self) -> Folder:
        """Opens the folder of the contents; what is no folder in its place is removed."""
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
        """Removes everything; the index goes first, so a part of it is never taken for all."""
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

        What stands on another base image comes back when that one is asked for.
        """
        if self._folder.status(INDEX) is not None:
            self._move(self._folder, INDEX)
        self.set_contents_aside(self._names(CONTENTS))

    def keep_index(self) -> None:
        """Keeps the damaged index beside the one that takes its place.

        Until then it stays where it is: without any, nothing could be used.
        """
        with self._inner(_UNUSED) as unused:
            link_or_copy(self._folder.fd, INDEX, _free_name(unused, INDEX), unused.fd)
        self._weigh()

    def set_contents_aside(self, names: Iterable[str]) -> None:
        """Sets the contents of states aside that can't be used."""
        with self.contents() as folder:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._move(folder, name)
        self._weigh()

    def _move(self, folder: Folder, name: str) -> None:
        with self._inner(_UNUSED) as unused:
            new = _prefix(self._other) + name if self._other else _free_name(unused, name)
            folder.rename(name, new, unused)

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
            found = [status for name in unused.names() if (status := unused.status(name))]
            self.unused_bytes = sum(s.st_size for s in found if stat.S_ISREG(s.st_mode))

    def close(self) -> None:
        """Closes the folder. Safe to call twice."""
        self._folder.close()


def _prefix(image: str) -> str:
    """The beginning of the names that are set aside for a base image."""
    return f"{hashlib.sha256(image.encode()).hexdigest()[:16]}-"


def _free_name(unused: Folder, name: str) -> str:
    there, number = set(unused.names()), 1
    while (new := f"{number}-{name}") in there:
        number += 1
    return new


def write_state(folder: Folder, image: str, tree: Tree) -> None:
    """Writes the index of a session, whose contents are there, that nobody has opened yet."""
    with contextlib.closing(Index(folder, image)) as index:
        index.rewrite((*tree.records(), Closed()))
