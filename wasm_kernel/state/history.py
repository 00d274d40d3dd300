"""A session's memory as a tree of commits: kept on disk, given back to a new instance.

Every cell leaves one commit, whose parent is the commit that the cell began at. The state at a
commit is the base image with the pages of its ancestors and its own laid over it, the newest
version of each page winning. `head` is the commit that the living memory stands at.

The tree and its names are here and in the index (`index.py`), what the commits hold is in the
`CommitStore`. The guest's thread owns a `History`; the recorder's thread writes, and alone calls
`squeeze` and `store`, and thins it (`thinning.py`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import HistoryError, describe
from wasm_kernel.linux.folders import Folder, NotRegular
from wasm_kernel.state import folding
from wasm_kernel.state.commits import CommitStore, GuestPages, Unreadable
from wasm_kernel.state.index import (
    Closed,
    Commit,
    Drop,
    Head,
    Index,
    IndexGone,
    Name,
    Origin,
    Record,
)
from wasm_kernel.state.pages import Content
from wasm_kernel.state.stored import Position, StateFolder, Usable, records_of

_UNDONE_MOST = 1_000  # states that a redo can come back to, one after the other
_USELESS_MOST = 100  # records


class History:
    """The commits of one session, in one folder, or in memory alone.

    Args:
        folder: The folder, which belongs to the history from now on; None for none.
        image: The base image that they lie over.
    """

    def __init__(self, folder: Folder | None, image: str) -> None:
        self.place = None if folder is None else StateFolder(folder)
        self.image = image
        self._guard = threading.Lock()  # over the tables below
        self._shape = threading.Lock()  # over the tree: no folding while memory is filled from it
        self._saving = threading.RLock()  # over what is recorded: a new index has all of it
        self._index = None if folder is None else Index(folder, image)
        self.commits_store = CommitStore()
        self._begin()

    def _begin(self) -> None:
        self._pinned: frozenset[int] = frozenset()
        self.origin = Origin()
        self.commits: dict[int, Commit] = {}
        self.names: dict[str, int] = {}
        self.undone: tuple[int, ...] = ()  # commits that were left by going back, latest last
        self.head = 0
        self.last = 0  # the highest number that was ever given
        self._stale = False  # the head on disk
        self._head_after = 0  # the newest commit when the head was last written
        self._saved_names: dict[str, int] = {}
        self._undropped: set[int] = set()  # the index does not say yet that they are gone

    def load(self, *, crashed: bool = False) -> Usable | None:
        """Find the commits on disk; what is damaged, or stands on that, is set aside.

        Args:
            crashed: Whether the last holder did not end as it should. If it did, the index says so.

        Returns:
            What could be used; None if nothing was stored.

        Raises:
            HistoryError: there are some, and none can be used. They are where they were.
            OSError: the folder can't be read or written.
        """
        if self.place is None or self._index is None:
            return None
        stored = self.place.read(self.image)
        if stored is None:
            self.clear()
            return None
        usable = self.place.usable(stored, is_cut=not (crashed or stored.is_closed))
        position = usable.position
        self.commits, self.origin, self.last = dict(usable.commits), stored.origin, stored.last
        self.head, self.undone, self.names = position.at, position.undone, dict(position.names)
        self._pinned, self._saved_names = frozenset(self.undone), dict(self.names)
        self._head_after = position.after
        self._open_store()
        if usable.is_damaged:
            self.place.keep_index()
            self._rewrite()
        else:
            self._index.go_on(stored.reading)
        return usable

    def clear(self) -> None:
        """Begin anew: what an earlier process left is removed."""
        self._begin_anew(StateFolder.clear)

    def set_aside(self) -> None:
        """Begin anew: what is on disk stays there unused, as long as there is room for it."""
        self._begin_anew(StateFolder.set_aside)

    def _begin_anew(self, empty: Callable[[StateFolder], None]) -> None:
        self._begin()
        if self.place is not None:
            empty(self.place)
            self._open_store()
            self._rewrite()

    def _open_store(self) -> None:
        self.commits_store.close()
        self.commits_store = CommitStore(None if self.place is None else self.place.contents())

    def _live(self) -> Iterable[Record]:
        """The records that a new index needs. What waits to be written is not among them."""
        with self._guard:
            waiting = set(self.commits_store.waiting)
            commits = {one: c for one, c in self.commits.items() if one not in waiting}
            self._head_after, self._stale = self.last, False
            self._saved_names, self._undropped = dict(self.names), set()
            at = folding.nearest(self.commits, self.head, waiting)
            position = Position(at, self.last, self._saved_names, self.undone)
            return records_of(self.origin, commits, position)

    def _append(self, *records: Record) -> None:
        if self._index is None or not records:
            return
        with self._saving:
            try:
                self._index.append(*records)
            except IndexGone:
                self._rewrite()
                self._index.append(*records)

    def _rewrite(self) -> None:
        if self._index is None:
            return
        with self._saving:
            undropped = set(self._undropped)
            try:
                self._index.rewrite(self._live)
            except OSError:
                with self._guard:
                    self._stale, self._saved_names = True, {}
                    self._undropped |= undropped
                raise

    def tidy(self) -> None:
        """Write the index anew if more than half of it is of no use.

        Raises:
            OSError: it can't be written; it is as it was.
        """
        needed = len(self.commits) + len(self.names)
        if self._index is not None and self._index.lines > 2 * needed + _USELESS_MOST:
            self._rewrite()

    def branch(self, folder: Folder, files: Mapping[str, str], *, reseed: bool) -> History:
        """A history of its own, in an empty folder, which begins where this stands.

        It has all that can be gone back to here. What is in memory only here, is so there, too:
        have it stored.

        Args:
            folder: Where it is to be; it belongs to that history.
            files: How the files that were open at commits are called there (`Origin`).
            reseed: Whether other random numbers are drawn there.

        Raises:
            OSError: it can't be written.
        """
        other = History(folder, self.image)
        try:
            with self._shape:
                other._grow_from(self, Origin(self.last, reseed, files))
        except BaseException:
            other.close()
            raise
        return other

    def _grow_from(self, parent: History, origin: Origin) -> None:
        with parent._guard:
            self.commits, self.names = dict(parent.commits), dict(parent.names)
            self.head, self.undone, self.last = parent.head, parent.undone, parent.last
        self.origin, self._pinned = origin, frozenset(self.undone)
        self._open_store()
        for one in sorted(self.commits):
            while not parent.commits_store.give(self.commits_store, self.commits[one]):
                self.commits[one] = parent.current(self.commits[one])
        self._rewrite()

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Keeps anything from being folded away while a block lasts."""
        with self._shape:
            yield

    def next_id(self) -> int:
        """The number of the next commit; none is given twice."""
        return self.last + 1

    def add(self, commit: Commit, content: Content) -> None:
        """A commit of the living memory, which it becomes the head of; not on disk yet."""
        self.commits_store.hold(commit, content)
        self._grow(commit)

    def add_written(self, commit: Commit, content: Iterable[memoryview]) -> None:
        """The same, and put on disk at once, without a copy in memory.

        Raises:
            OSError: it can't be written, or there is no disk; nothing was added.
        """
        written = self.commits_store.write(commit, content)
        with self._saving:
            self._append(written)
            self._grow(written)

    def _grow(self, commit: Commit) -> None:
        with self._guard:
            self.commits[commit.id] = commit
            self.head = self.last = commit.id
            if commit.cells:
                self.undone = ()
            elif self.undone:
                self._stale = True

    def squeeze(self, one: int) -> None:
        """Take the pages of zeros out of a commit that is not on disk yet."""
        squeezed = self.commits_store.squeeze(one)
        with self._guard:
            if squeezed is not None and one in self.commits:
                self.commits[one] = squeezed

    def store(self, one: int) -> None:
        """Write a commit to disk; nothing happens if it was dropped meanwhile.

        Raises:
            OSError: it can't be written, and stays in memory.
        """
        commit = self.commits_store.write_held(one)
        if commit is None:
            return
        with self._saving:
            recorded = self.has([one])
            if recorded:
                self._append(commit)
            with self._guard:
                there = one in self.commits
                if there:
                    self.commits[one] = commit
                    self._stale = self._stale or one <= self._head_after
                elif recorded:
                    self._undropped.add(one)
                self.commits_store.release(one)
        if not there:
            self._forget_content([commit])

    @property
    def waiting(self) -> list[int]:
        """The commits that are in memory only and belong on disk, oldest first.

        A commit on disk is of no use before all that it stands on are.
        """
        return self.commits_store.waiting

    @property
    def unwritten(self) -> int:
        """How many bytes of pages are in memory only."""
        return sum(self.commits[one].page_bytes for one in self.waiting if one in self.commits)

    def move(self, one: int, undone: tuple[int, ...] = ()) -> None:
        """Make a commit the head, or none (0), having left others for it. Call `save_head`.

        Raises:
            HistoryError: it was folded away meanwhile; nothing was changed.
        """
        with self._shape, self._guard:
            if one and one not in self.commits:
                raise HistoryError("that state of the session is not kept any more")
            self.head, self.undone, self._stale = one, undone[-_UNDONE_MOST:], True

    def name(self, name: str, one: int) -> None:
        """Give a commit a name, which keeps it from being folded away. Call `save_head`."""
        with self._guard:
            self.names = {**self.names, name: one}

    def least_bytes(self, names: Mapping[str, int], undone: Collection[int] = ()) -> int:
        """Returns how many bytes of pages stay when all is folded away that can be.

        Args:
            names: The names that commits have then.
            undone: Commits that were left by going back and are kept.
        """
        with self._guard:
            commits = dict(self.commits)
        return folding.least_bytes(commits, self.head, {*names.values(), *undone})

    def forget_undone(self) -> None:
        """What was left by going back can't be gone back to any more. Call `pin`."""
        with self._guard:
            self.undone, self._stale = (), True

    def pin(self, some: Collection[int]) -> None:
        """Keep these commits from being folded away, and no longer those before.

        Raises:
            HistoryError: one was folded away already; nothing was changed.
        """
        more = not self._pinned >= set(some)
        with self._shape if more else contextlib.nullcontext():
            if not self.commits.keys() >= set(some):
                raise HistoryError("that state of the session is not kept any more")
            self._pinned = frozenset(some)

    def save_head(self) -> None:
        """Remember the head and the names over a crash, as far as they are not yet.

        Raises:
            OSError: they can't be written; a later call tries again.
        """
        with self._saving:
            with self._guard:
                stale, self._stale = self._stale, False
                at = folding.nearest(self.commits, self.head, self.waiting)  # a crash may come
                head = [Head(at, self.last, self.undone)] if stale else []
                names, gone = dict(self.names), tuple(sorted(self._undropped))
                new = [Name(n, one) for n, one in names.items() if self._saved_names.get(n) != one]
                drops = [Drop(gone)] if gone else []
            try:
                self._append(*drops, *new, *head)
            except OSError:
                with self._guard:
                    self._stale = self._stale or stale
                raise
            with self._guard:
                self._saved_names.update(names)
                self._undropped -= set(gone)
                self._head_after = head[0].after if head else self._head_after

    def forget(self, one: int) -> int:
        """A commit can't be read: it and what stands on it are no more, the head is before it.

        Returns:
            How many states are lost.
        """
        with self._shape:
            before, gone = self.commits[one].parent, folding.standing_on(self.commits, one)
            with self._guard:
                self.names = {n: other for n, other in self.names.items() if other not in gone}
                self.undone = tuple(other for other in self.undone if other not in gone)
                self.head, self._stale = before, True
            kept = {c.content for other, c in self.commits.items() if other not in gone}
            lost = {self.commits[other].content for other in gone} - kept - {""}
            with contextlib.suppress(OSError):
                if self.place is not None:
                    self.place.set_contents_aside(lost)
            with contextlib.suppress(OSError):
                self.drop(gone)
            self._pinned -= gone
        return len(gone)

    def fill(self, instance: Instance, one: int) -> None:
        """Lay the pages of a commit over an instance that has the base image's memory.

        Raises:
            Unreadable: a content is not there, or is not as it was written.
            OSError: the system can't read one now, which says nothing of the commit.
            MemoryError: the policy's memory limit is below the commit's size.
        """
        with self._shape:
            line = folding.lineage(self.commits, one)
            if not line:
                return
            instance.grow_to(line[0].size)
            pages = GuestPages(instance)
            for commit in line:
                try:
                    now = commit
                    while not self.commits_store.lay(now, pages):
                        now = self.current(now)
                except (HistoryError, FileNotFoundError, NotRegular) as problem:
                    raise Unreadable(commit.id, describe(problem)) from problem

    def current(self, commit: Commit) -> Commit:
        """A commit as it is on disk, which was in memory before.

        Raises:
            HistoryError: it is not there any more.
        """
        now = self.commits.get(commit.id)
        if now is None or now == commit:
            raise HistoryError("what it held is not there any more")
        return now

    def drop(self, some: Collection[int]) -> None:
        """Forget commits that no others stand on.

        Raises:
            OSError: a content can't be removed.
        """
        with self._guard:
            waiting = set(self.waiting)
            gone = [self.commits.pop(one) for one in some if one in self.commits]
            if self.place is not None:
                self._undropped.update(c.id for c in gone if c.id not in waiting)
        for commit in gone:
            self.commits_store.release(commit.id)
        with contextlib.suppress(OSError):  # the next `save_head` tries again
            self.save_head()
        self._forget_content(gone)

    def _forget_content(self, gone: Iterable[Commit]) -> None:
        """Remove what commits held that are no more, and no other has."""
        with self._guard:
            used = {commit.content for commit in self.commits.values()}
        self.commits_store.remove({commit.content for commit in gone} - used - {""})

    def has(self, some: Collection[int]) -> bool:
        """Whether all these commits are there."""
        with self._guard:
            return self.commits.keys() >= set(some)

    def chains(self, keep: int, kept: Collection[int]) -> dict[int | None, list[int]]:
        """What can be folded away, by what it becomes a part of (`folding.py`)."""
        with self._guard:
            stay = {*kept, *self._pinned, *self.names.values()}
            return folding.chains(folding.plan(dict(self.commits), self.head, stay, keep))

    def let_go(self, chain: Collection[int], merged: Commit | None = None) -> None:
        """Drop commits that were folded away, into `merged` or nowhere, if nobody needs them.

        Raises:
            OSError: the index can't be written; all is as it was.
        """
        child = None if merged is None else merged.id
        with self._shape:
            with self._guard:
                needed = {self.head, *self._pinned, *self.names.values()}
                free = folding.free(self.commits, needed, chain, child)
                before = self.commits.get(child or 0)
            if merged is not None and (not free or not self._replace(merged)):
                self._forget_content([merged])
                return
            if free:
                self.drop(chain)
                self._forget_content([] if before is None else [before])

    def _replace(self, merged: Commit) -> bool:
        """A commit has others folded into it from now on; False if it is not there any more."""
        with self._guard:
            before = self.commits.get(merged.id)
            if before is None:
                return False
            self.commits[merged.id] = merged
        if self.on_disk and not self.commits_store.in_memory(merged.id):
            try:
                self._append(merged)
            except OSError:
                with self._guard:
                    self.commits[merged.id] = before
                self._forget_content([merged])
                raise
        return True

    @property
    def on_disk(self) -> bool:
        """Whether commits have a place on disk."""
        return self.place is not None

    @property
    def disk_bytes(self) -> int:
        """How many bytes of pages all commits hold, and what is set aside."""
        with self._guard:
            pages = sum(commit.page_bytes for commit in self.commits.values())
        return pages + (0 if self.place is None else self.place.unused_bytes)

    def close(self) -> bool:
        """Closes its folder; returns whether all is on disk, and says so. Safe to call twice."""
        ended = self._index is None
        with contextlib.suppress(OSError):  # the next process says that the end is missing
            if self._index is not None and not self.waiting:
                self.save_head()
                self._index.append(Closed())
                ended = True
        self.commits_store.close()
        for one in (self._index, self.place):
            if one is not None:
                one.close()
        return ended
