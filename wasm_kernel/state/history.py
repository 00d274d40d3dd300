"""A session's memory as a tree of commits: kept on disk, given back to a new instance.

Every cell leaves one commit (`commit.py`), whose parent is the commit that the cell began at. The
state at a commit is the base image with the pages of its ancestors and its own laid over it, the
newest version of each page winning. `head` is the commit that the living memory stands at.

The tree and its names are here, what the commits hold is on the `Shelf`. The guest's thread owns a
`History`; writing happens on the recorder's thread, which alone calls `squeeze` and `store`, and
thins it (`thinning.py`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping

from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state import bookmark, folding, origin
from wasm_kernel.state import commit as commits
from wasm_kernel.state.bookmark import Bookmark
from wasm_kernel.state.commit import Commit, Content
from wasm_kernel.state.origin import Origin
from wasm_kernel.state.shelf import Shelf
from wasm_kernel.state.target import Target

_UNDONE_MOST = 1_000  # states that a redo can come back to, one after the other


class Unreadable(HistoryError):
    """A commit can't be read; `one` is its number."""

    def __init__(self, one: int, why: str) -> None:
        super().__init__(why)
        self.one = one


class History:
    """The commits of one session, in one folder, or in memory alone.

    Args:
        folder: The folder, which belongs to the history from now on; None for none.
        image: The base image that they lie over.
    """

    def __init__(self, folder: Folder | None, image: str) -> None:
        self._folder = folder
        self.image = image
        self._guard = threading.Lock()  # over the tables below
        self._shape = threading.Lock()  # over the tree: no folding while memory is filled from it
        self._saving = threading.Lock()  # over the bookmark on disk
        self.shelf = Shelf(folder)
        self._pinned: frozenset[int] = frozenset()
        self._last = 0  # the highest number that was ever given
        self._stale = False  # the bookmark on disk
        self.origin = Origin()
        self.commits: dict[int, Commit] = {}
        self.head = 0
        self.names: dict[str, int] = {}
        self.undone: tuple[int, ...] = ()  # commits that were left by going back, the latest last

    def load(self) -> list[str]:
        """Find the commits on disk; what is damaged, or stands on that, is set aside.

        Returns:
            Sentences on what was damaged.

        Raises:
            HistoryError: there are some, and none can be used.
        """
        self.commits, problems = self.shelf.find(self.image, bookmark.NAME, origin.NAME)
        if self._folder is not None:
            self.origin = Origin.read(self._folder, max(self.commits, default=0))
        self._load_head()
        return problems

    def clear(self) -> None:
        """Begin anew: what an earlier process left is removed."""
        self.shelf.clear(bookmark.NAME, origin.NAME)
        self._begin()

    def set_aside(self) -> None:
        """Begin anew: what is on disk stays there unused, as long as there is room for it."""
        self.shelf.set_aside(None, bookmark.NAME, origin.NAME)
        self._begin()

    def _begin(self) -> None:
        self._pinned, self.origin = frozenset(), Origin()
        self.commits, self.names, self.undone, self.head, self._last = {}, {}, (), 0, 0

    def _load_head(self) -> None:
        self.head = self._last = newest = max(self.commits, default=0)
        mark = None if self._folder is None else Bookmark.read(self._folder)
        if mark is not None:
            self.names = {name: one for name, one in mark.names.items() if one in self.commits}
            if newest <= mark.after and mark.at in self.commits:
                self.head = mark.at
                self.undone = tuple(one for one in mark.undone if one in self.commits)
                self._pinned = frozenset(self.undone)
            # a commit that the bookmark knew and that was lost: its number would look older
            self._last = max(newest, mark.after)

    def branch(self, folder: Folder, files: Mapping[str, str], *, reseed: bool) -> History:
        """A history of its own, in an empty folder, which begins where this stands.

        It has all that can be gone back to here. What is in memory only here, is so there, too:
        have it stored.

        Args:
            folder: Where it is to be; it belongs to that history.
            files: How the files that were open at commits are called there (`origin.py`).
            reseed: Whether other random numbers are drawn there.

        Raises:
            OSError: it can't be written.
        """
        other = History(folder, self.image)
        try:
            with self._shape:
                with self._guard:
                    other.commits, other.names = dict(self.commits), dict(self.names)
                    other.head, other.undone, other._last = self.head, self.undone, self._last
                other.origin = Origin(other._last, reseed, files)
                other.origin.write(folder)
                self.shelf.lend(other.shelf, sorted(other.commits))
            other._pinned, other._stale = frozenset(other.undone), True
            other.save_head()
        except BaseException:
            other.close()
            raise
        return other

    @contextlib.contextmanager
    def still(self) -> Iterator[Bookmark]:
        """Nothing is folded away while a block lasts; it gets where memory stands."""
        with self._shape:
            with self._guard:
                mark = Bookmark(self.head, self._last, self.names, self.undone)
            yield mark

    @property
    def last(self) -> int:
        """The highest number that a commit ever had."""
        return self._last

    def next_id(self) -> int:
        """The number of the next commit; none is given twice."""
        return self._last + 1

    def add(self, commit: Commit, content: Content) -> None:
        """A commit of the living memory, which it becomes the head of; not on disk yet."""
        self.shelf.hold(commit, content)
        self._grow(commit)

    def add_written(self, commit: Commit, content: Iterable[memoryview]) -> None:
        """The same, and put on disk at once, without a copy in memory.

        Raises:
            OSError: it can't be written, or there is no disk; nothing was added.
        """
        self.shelf.write(commit, content)
        self._grow(commit)

    def _grow(self, commit: Commit) -> None:
        with self._guard:
            self.commits[commit.id] = commit
            self.head = self._last = commit.id
            if commit.cells:
                self.undone = ()
            elif self.undone:
                self._stale = True

    def squeeze(self, one: int) -> None:
        """Take the pages of zeros out of a commit that is not on disk yet."""
        squeezed = self.shelf.squeeze(one)
        with self._guard:
            if squeezed is not None and one in self.commits:
                self.commits[one] = squeezed

    def store(self, one: int) -> None:
        """Write a commit to disk; nothing happens where it was dropped meanwhile.

        Raises:
            OSError: it can't be written, and stays in memory.
        """
        self.shelf.store(one)

    @property
    def waiting(self) -> list[int]:
        """The commits that are in memory only and belong on disk, oldest first.

        A commit on disk is of no use before all that it stands on are.
        """
        return self.shelf.waiting

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
            self.names, self._stale = {**self.names, name: one}, True

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
        """Remember the head and the names over a crash, where they are not yet.

        Raises:
            OSError: they can't be written; a later call tries again.
        """
        with self._saving:
            with self._guard:
                mark = Bookmark(self.head, self._last, self.names, self.undone)
                stale, self._stale = self._stale, False
            try:
                if stale and self._folder is not None:
                    mark.write(self._folder)
            except OSError:
                self._stale = True
                raise

    def forget(self, one: int) -> None:
        """A commit can't be read: it and what stands on it are no more, the head is before it."""
        with self._shape:
            before, gone = self.commits[one].parent, {one}
            for other in sorted(self.commits):
                if self.commits[other].parent in gone:
                    gone.add(other)
            with contextlib.suppress(OSError):
                self.drop(gone)
            with self._guard:
                self.names = {n: other for n, other in self.names.items() if other not in gone}
                self.undone = tuple(other for other in self.undone if other not in gone)
                self.head, self._stale = before, True
            self._pinned -= gone

    def lineage(self, one: int) -> list[Commit]:
        """A commit and its ancestors, newest first."""
        return commits.lineage(self.commits, one)

    def fill(self, instance: Instance, one: int) -> None:
        """Lay the pages of a commit over an instance that has the base image's memory.

        Raises:
            Unreadable: a page can't be read, or is not as it was written.
            MemoryError: the policy's memory limit is below the commit's size.
        """
        with self._shape:
            line = self.lineage(one)
            if not line:
                return
            instance.grow_to(line[0].size)
            target = Target(instance)
            for commit in line:
                try:
                    self.shelf.lay(commit.id, target)
                except (HistoryError, OSError) as problem:
                    why = problem.strerror if isinstance(problem, OSError) else str(problem)
                    raise Unreadable(commit.id, why or "it can't be read") from problem

    def drop(self, some: Collection[int]) -> None:
        """Forget commits that no others stand on."""
        with self._guard:
            for one in some:
                self.commits.pop(one, None)
        self.shelf.drop(some)

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
        """Drop commits that were folded away, into `merged` or nowhere, if nobody needs them."""
        child = None if merged is None else merged.id
        with self._shape:
            with self._guard:
                needed = {self.head, *self._pinned, *self.names.values()}
                if not folding.free(self.commits, needed, chain, child):
                    return
                if merged is not None:
                    self.commits[merged.id] = merged
            self.drop(chain)

    @property
    def on_disk(self) -> bool:
        """Whether commits have a place on disk."""
        return self._folder is not None

    @property
    def staying(self) -> int:
        """How many commits stay when old ones are folded, besides the last cells."""
        with self._guard:
            heavy = (c for c in self.commits.values() if c.page_bytes > folding.HEAVY_BYTES)
            return len(self.names) + sum(1 for _ in heavy)

    @property
    def disk_bytes(self) -> int:
        """How many bytes of pages all commits hold, and what is set aside."""
        with self._guard:
            pages = sum(commit.page_bytes for commit in self.commits.values())
        return pages + self.shelf.unused_bytes

    def close(self) -> None:
        """Closes its folder. Safe to call twice."""
        if self._folder is not None:
            self._folder.close()
