"""A session's memory on disk: strict reading, recovery, and setting unusable files aside.

The folder holds the `index`, the folder `contents`, and the folder `unused` with files that can't
be used, which are kept as long as there is room for them.
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
    Commit,
    Drop,
    ForkOrigin,
    Head,
    Index,
    IndexContents,
    IndexEnd,
    Name,
    read_index,
)
from wasm_kernel.state.tree import Tree

_UNUSED = "unused"
_UNNAMED_MOST = 2  # contents without records that a killed process can have left
OTHER_IMAGE = (
    "they were saved by another version of the sandbox or by its other language, or before its "
    "cache was made anew"
)
_OF_ANOTHER = (
    f"{OTHER_IMAGE}. They are kept for that version or language, as long as history_bytes has room "
    "for them: to carry values over, open the session with it and write them to files"
)
_USELESS = "their saved states can't be used ({why})"


class RecoveredHistory(Struct, frozen=True):
    """The usable part of a stored state: whole commits whose ancestors are whole, too.

    `lost` is the known number of lost states. `is_certain` is True if the session certainly ended
    at the tree's head, `is_damaged` if anything is damaged or missing.
    """

    tree: Tree
    lost: int
    is_certain: bool
    is_damaged: bool


class StoredState(Struct, frozen=True):
    """A session's memory as its index describes it; records with a wrong digest are ignored.

    Attributes:
        tree: The commits that were not dropped, and the head of the last record.
        head: The last record of a head.
        heads: The commits that memory was at, in the order of the head records.
        contents: All contents that any record names.
        is_certain: True if the head is recorded after all damaged records.
        is_closed: True if the last holder ended in order.
    """

    reading: IndexContents
    tree: Tree
    head: Head
    heads: tuple[int, ...]
    contents: frozenset[str]
    is_certain: bool
    is_closed: bool

    @classmethod
    def read(cls, folder: Folder) -> StoredState:
        """Reads the index in a folder, and changes nothing. Raises the errors of `read_index`."""
        return cls.of(read_index(folder))

    @classmethod
    def of(cls, reading: IndexContents) -> StoredState:
        """Returns the state that the records of an index describe."""
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
                case ForkOrigin():
                    origin = entry
        if origin is None:  # it was damaged: take no file of a parent's, and fresh seeds
            origin = ForkOrigin(last, reseed=True)
        at, undone = head.position(commits)
        tree = Tree(commits, at, names, undone, last, origin, head.count)
        closed = reading.entries[-1:] == (IndexEnd(),)
        return cls(reading, tree, head, tuple(heads), frozenset(contents), certain, closed)

    @property
    def image(self) -> str:
        """The base image that the commits lie over."""
        return self.reading.image

    def usable(
        self, missing: Collection[int], unnamed: int = 0, *, is_cut: bool = False
    ) -> RecoveredHistory:
        """Returns the usable part; `HistoryError` if something is damaged and no commit is usable.

        The contents of the commits `missing` do not exist; `unnamed` is the number of contents
        without a record. The end of the index is missing if it `is_cut`.
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
        return RecoveredHistory(
            used, max(lost, int(broken)), certain and head == tree.head, damaged
        )

    def _usable_head(self, whole: Mapping[int, Commit]) -> int:
        """Returns the commit that memory was at, or its nearest whole ancestor.

        If no ancestor is known, returns the latest whole head of older records, or the newest whole
        commit.
        """
        tree, at = self.tree, self.tree.head
        while at and at not in whole:
            at = tree.commits[at].parent if at in tree.commits else 0
        if not at and tree.head:
            at = next((each for each in reversed(self.heads) if each in whole), 0)
        return at or max(whole, default=0)


def may_have_names(folder: Folder) -> bool:
    """Returns whether a state in a folder has a name; True if that can't be read."""
    try:
        tree = StoredState.read(folder).tree
    except FileNotFoundError:
        return False
    except (OSError, HistoryError):
        return True
    return not tree.commits.keys().isdisjoint(tree.names.values())


class StateFolder:
    """The folder of a state on disk; close it. Only the holder of the session's lock may change it.

    `unused_bytes` is the size of the files set aside. `has_come_back` is True if the state that was
    read had been set aside for its base image.
    """

    def __init__(self, folder: Folder) -> None:
        """Takes over the folder."""
        self._folder = folder
        self._other = ""  # the base image of the state that lies here, if it is not ours
        self.unused_bytes = 0
        self.has_come_back = False

    def read(self, image: str) -> StoredState | None:
        """Returns the stored state; None if there is none; `HistoryError` if it can't be used."""
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
        """Brings back the state set aside for a base image; returns False if there is none."""
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

    def usable(self, stored: StoredState, *, is_cut: bool) -> RecoveredHistory:
        """Returns the usable part, and sets aside or removes all other contents.

        Raises `HistoryError` if no state can be used; then the files stay in place.
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
        """Opens the folder of the contents; removes anything in its place that is not a folder."""
        return self._inner(CONTENTS)

    def _inner(self, name: str) -> Folder:
        try:
            return self._folder.enter(name, make=True)
        except OSError:
            status = self._folder.status(name)
            if status is None or stat.S_ISDIR(status.st_mode):
                raise
        self._folder.remove(name)  # a link or a pipe, which can't hold a state
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
        """Removes everything; the index goes first, so that a part is never taken for the whole."""
        self._clear(".", [name for name in self._folder.names() if name not in (CONTENTS, _UNUSED)])
        self._clear(CONTENTS, self._names(CONTENTS))
        self.drop_unused()

    def _clear(self, where: str, names: Iterable[str]) -> None:
        """Removes files; sets aside those that can't be removed, such as folders."""
        with self._folder.enter() if where == "." else self._inner(where) as folder:
            for name in names:
                try:
                    folder.remove(name)
                except (IsADirectoryError, PermissionError):
                    self._move(folder, name)

    def set_aside(self) -> None:
        """Moves everything into the folder `unused`, as it may be needed later.

        The state of another base image comes back when `read` is called for that image.
        """
        if self._folder.status(INDEX) is not None:
            self._move(self._folder, INDEX)
        self.set_contents_aside(self._names(CONTENTS))

    def keep_index(self) -> None:
        """Keeps a copy of the damaged index before another one replaces it.

        The index itself stays until then: without one, no commit could be used.
        """
        with self._inner(_UNUSED) as unused:
            link_or_copy(self._folder.fd, INDEX, _free_name(unused, INDEX), unused.fd)
        self._weigh()

    def set_contents_aside(self, names: Iterable[str]) -> None:
        """Sets the contents of unusable states aside."""
        with self.contents() as folder:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._move(folder, name)
        self._weigh()

    def _move(self, folder: Folder, name: str) -> None:
        with self._inner(_UNUSED) as unused:
            new = _prefix(self._other) + name if self._other else _free_name(unused, name)
            try:
                folder.rename(name, new, unused)
            except PermissionError:  # a pipe: a confined process may remove it, but not move it
                folder.remove(name)

    def drop_unused(self) -> None:
        """Removes the files that were set aside; folders stay, as they hardly take room."""
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
    """Returns the prefix of the names of files set aside for a base image."""
    return f"{hashlib.sha256(image.encode()).hexdigest()[:16]}-"


def _free_name(unused: Folder, name: str) -> str:
    there, number = set(unused.names()), 1
    while (new := f"{number}-{name}") in there:
        number += 1
    return new


def write_state(folder: Folder, image: str, tree: Tree) -> None:
    """Writes the index of a new session that is not open yet, and whose contents exist."""
    with contextlib.closing(Index(folder, image)) as index:
        index.rewrite((*tree.records(), IndexEnd()))
