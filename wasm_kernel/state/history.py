"""A session's memory over time: a tree of commits on disk, from which new instances are filled.

The state at a commit is the base image with the pages of its ancestors and its own laid over it;
the newest version of each page wins.

The guest's thread owns a `History`; the recorder's thread writes it in the background. One lock
keeps the tree, the index and the tables of the contents consistent. It is never held while a
content is written.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec.structs import replace

from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import ForkError, HistoryError, describe
from wasm_kernel.linux.folders import Folder, NotRegular
from wasm_kernel.state.commits import CommitStore, GuestPages, Stamps, Unreadable
from wasm_kernel.state.index import ID_MOST, Commit, Head, Index, IndexEnd, RewriteNeeded
from wasm_kernel.state.pages import Content, split_zeros
from wasm_kernel.state.stored import RecoveredHistory, StateFolder
from wasm_kernel.state.tree import Tree

NOT_SAVED = "the variables of this session are not saved to disk"
COPIED_MUCH, _STRETCHES_MANY = 32 * 1024 * 1024, 10_000


class History:
    """The commits of one session, in one folder, or in memory alone.

    Attributes:
        tree: The commits. Any thread may read it; it is replaced as a whole.
        contents: The contents of the commits.
        pinned: Commits that must stay, besides the head, named ones and those that were undone.
        place: The folder, which belongs to the history; None if all is in memory.
        lock: Keeps the tree unchanged while a thread holds it.
    """

    def __init__(self, folder: Folder | None, image: str, verified: Stamps | None = None) -> None:
        self._verified = verified
        self.place = None if folder is None else StateFolder(folder)
        self.image = image
        self.lock = threading.RLock()
        self.contents = CommitStore()
        self._index = None if folder is None else Index(folder, image)
        self._begin(Tree())

    def _begin(self, tree: Tree) -> None:
        self.tree = tree
        self.pinned: frozenset[int] = frozenset()
        self._written, self._written_head = Tree(), Head()  # what the index says
        self._unsynced: set[str] = set()  # contents that may not be on the disk itself yet

    def load(self, *, crashed: bool = False) -> RecoveredHistory | None:
        """Loads the commits on disk; damaged ones, and those that stand on them, are set aside.

        Returns None if nothing was stored. If the last holder did not crash (`crashed`), the index
        must end with `IndexEnd`. Raises `HistoryError` if there are commits and none can be used;
        then they stay on disk.
        """
        if self.place is None or self._index is None:
            return None
        if (stored := self.place.read(self.image)) is None:
            self.clear()
            return None
        usable = self.place.usable(stored, is_cut=not (crashed or stored.is_closed))
        self._begin(usable.tree)
        self._open_contents()
        if usable.is_damaged:
            self.place.keep_index()
            self.rewrite()
        else:
            self._index.go_on(stored.reading)
            self._written, self._written_head = stored.tree, stored.head
        return usable

    def clear(self) -> None:
        """Removes all commits, also those on disk, and begins anew."""
        self._begin_anew(StateFolder.clear)

    def keep_named(self) -> None:
        """Goes before the first commit; keeps only the loaded named states and their ancestors.

        Their cells' numbers are free again.
        """
        with self.lock:
            tree = self.tree
            needed = {each.id for one in tree.names.values() for each in tree.lineage(one)}
            commits = {one: replace(commit, cell=0) for one, commit in tree.commits.items()}
            self.tree = replace(tree, commits=commits, head=0, undone=(), count=0)
            gone = self.drop(commits.keys() - needed)
        self.remove_contents(gone)

    def set_aside(self) -> None:
        """Begins anew; the files on disk stay there unused, as long as there is room for them."""
        self._begin_anew(StateFolder.set_aside)

    def _begin_anew(self, empty: Callable[[StateFolder], None]) -> None:
        self._begin(Tree())
        if self.place is not None:
            empty(self.place)
            self._open_contents()
            self.rewrite()

    def _open_contents(self) -> None:
        self.contents.close()
        folder = None if self.place is None else self.place.contents()
        self.contents = CommitStore(folder, self._verified)

    # -- the index

    def save(self) -> None:
        """Appends the records that the index lacks.

        A commit that is not on disk is not recorded, nor is a head at it: after a crash, memory is
        at the state before it. If the index can't be written, a later call tries again.
        """
        with self.lock:
            if self._index is None:
                return
            tree = self.tree.without(self.waiting)
            records = tree.records_since(self._written, self._written_head)
            if not records:
                return
            try:
                self._index.append(*records)
            except RewriteNeeded:
                self.rewrite()
                return
            self._written = tree
            if isinstance(records[-1], Head):
                self._written_head = records[-1]

    def rewrite(self) -> None:
        """Rewrites the index with the commits that are on disk, or leaves it unchanged."""
        with self.lock:
            if self._index is not None:
                tree = self.tree.without(self.waiting)
                self._index.rewrite(tree.records())
                self._written, self._written_head = tree, tree.head_record()

    def tidy(self) -> None:
        """Rewrites the index if many of its records are useless."""
        needed = len(self.tree.commits) + len(self.tree.names)
        if self._index is not None and self._index.is_wasteful(needed):
            self.rewrite()

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Saves the changes that a block makes to the tree, or takes them back."""
        with self.lock:
            before = self.tree
            try:
                yield
                self.save()
            except BaseException:
                self.tree = before
                raise

    def sync(self) -> None:
        """Flushes all that was written to the disk itself, in case power is lost."""
        if self._index is None:
            return
        with self.lock:
            names, self._unsynced = self._unsynced - {""}, set()
        try:
            self.contents.sync(names)
            self._index.sync()
        except OSError:
            with self.lock:
                self._unsynced |= names
            raise

    # -- commits come

    def next_id(self) -> int:
        """Returns a number that no commit has had; `OSError` if there are none left."""
        if self.tree.last >= ID_MOST:
            raise OSError(errno.EOVERFLOW, "this session has no numbers left for its states")
        return self.tree.last + 1

    def add(self, commit: Commit, content: Content) -> None:
        """Adds a commit of the living memory as the new head; it is in memory, not on disk yet."""
        self.contents.held[commit.id] = commit, content
        with self.lock:
            self._grow(commit)

    def add_written(self, commit: Commit, content: Iterable[memoryview]) -> None:
        """Adds a commit as the new head, written to disk without a copy in memory, or nothing."""
        written = self.contents.write(commit, content)
        with self._saving():
            self._grow(written)
            self._unsynced.add(written.content)

    def _grow(self, commit: Commit) -> None:
        undone = () if commit.cells else self.tree.undone
        tree = self.tree.with_commit(commit)
        self.tree = replace(tree, head=commit.id, last=commit.id, undone=undone)

    def squeeze(self, commit_id: int) -> None:
        """Removes the pages of zeros from a commit that stays in memory alone."""
        held = self.contents.held.get(commit_id)
        if held is None or self.on_disk:
            return
        commit, parts = _without_zeros(*held)
        content = bytearray().join(parts)
        with self.lock:
            if commit_id in self.tree.commits:
                self.contents.held[commit_id] = commit, content
                self.tree = self.tree.with_commit(commit)

    def store(self, commit_id: int) -> None:
        """Writes a commit without its pages of zeros to disk, or keeps it in memory.

        Nothing happens if it was dropped.
        """
        if (held := self.contents.held.get(commit_id)) is None:
            return
        written = self.contents.write(*_without_zeros(*held))
        with self.lock:
            if commit_id not in self.tree.commits:
                self.remove_contents([written])
                return
            del self.contents.held[commit_id]
            try:
                with self._saving():
                    self.tree = self.tree.with_commit(written)
            except BaseException:
                self.contents.held[commit_id] = held
                raise
            self._unsynced.add(written.content)

    @property
    def waiting(self) -> list[int]:
        """The commits that are in memory only and belong on disk, oldest first.

        A commit on disk is useless until its ancestors and the index have followed.
        """
        with self.lock:
            return self.contents.waiting

    @property
    def unwritten(self) -> int:
        """The bytes of pages that are in memory only."""
        commits = self.tree.commits
        return sum(commits[one].page_bytes for one in self.waiting if one in commits)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Keeps the history on disk unchanged during a fork; `ForkError` if it is not all there."""
        with self.lock:
            if self.waiting or not self.on_disk:
                raise ForkError(NOT_SAVED)
            try:
                self.save()
            except OSError as problem:
                raise ForkError(describe(problem)) from problem
            yield

    # -- memory goes back and forth

    def move(self, commit_id: int, undone: tuple[int, ...] = ()) -> None:
        """Makes a commit the head, or none (0); `undone` can be redone from there. Call `save`.

        Raises `HistoryError` if the commit was folded away; nothing was changed.
        """
        with self.lock:
            self.check({commit_id} - {0})
            self.tree = replace(self.tree, head=commit_id, undone=undone)

    def name(self, name: str, commit_id: int) -> None:
        """Gives a commit a name, which keeps it from being folded away. Call `save`."""
        with self.lock:
            self.tree = replace(self.tree, names={**self.tree.names, name: commit_id})

    def forget_name(self, name: str) -> None:
        """Takes a name from its commit, which may then be folded away. Call `save`."""
        with self.lock:
            names = {each: one for each, one in self.tree.names.items() if each != name}
            self.tree = replace(self.tree, names=names)

    def use_count(self, count: int) -> None:
        """Notes the next execution count after a cell that left no commit. Call `save`."""
        with self.lock:
            self.tree = replace(self.tree, count=count)

    def pin(self, some: Collection[int]) -> None:
        """Keeps these commits from being folded away, and releases those pinned before.

        Raises `HistoryError` if one was folded away already; nothing was changed.
        """
        with self.lock:
            self.check(some)
            self.pinned = frozenset(some)

    def fill(self, instance: Instance) -> GuestPages:
        """Lays the pages of the head over an instance with the base image's memory, and returns it.

        Raises:
            Unreadable: a content is missing or damaged.
            OSError: the system can't read one now; the commit itself may be fine.
            MemoryError: the policy's memory limit is below the commit's size.
        """
        with self.lock:
            line = self.tree.lineage(self.tree.head)
            used = instance.memory.size
            if line:
                instance.grow_to(line[0].size)
            pages = GuestPages(instance, [(0, used)])
            self.contents.verify(line)
            self.lay(pages, line)
            return pages

    def fills_quickly(self) -> bool:
        """Returns whether `fill` copies little, as most of the head's pages can be mapped."""
        with self.lock:
            line = self.tree.lineage(self.tree.head)
            copied = sum(map(self.contents.copied_bytes, line))
            return copied < COPIED_MUCH and sum(len(one.runs) for one in line) < _STRETCHES_MANY

    def lay(self, pages: GuestPages, line: Iterable[Commit]) -> None:
        """Lays commits over a memory, the newest first; raises as `fill`."""
        for commit in line:
            try:
                with self.contents.source_of(commit) as source:
                    pages.lay(commit, source)
            except (HistoryError, FileNotFoundError, NotRegular) as problem:
                raise Unreadable(commit.id, describe(problem)) from problem

    def forget(self, commit_id: int) -> int:
        """Drops a commit that can't be read and those that stand on it; returns how many.

        The head is now the commit's parent.
        """
        with self.lock:
            tree, gone = self.tree, self.tree.standing_on(commit_id)
            names = {name: one for name, one in tree.names.items() if one not in gone}
            undone = tuple(one for one in tree.undone if one not in gone)
            head = tree.commits[commit_id].parent
            self.tree = replace(tree, names=names, undone=undone, head=head)
            kept = {c.content for one, c in tree.commits.items() if one not in gone}
            with contextlib.suppress(OSError):
                if self.place is not None:
                    lost = {tree.commits[one].content for one in gone} - kept - {""}
                    self.place.set_contents_aside(lost)
            with contextlib.suppress(OSError):
                self.remove_contents(self.drop(gone))
        return len(gone)

    # -- commits go

    def drop(self, some: Collection[int]) -> list[Commit]:
        """Forgets commits that no others build on; returns them, for `remove_contents`."""
        with self.lock:
            gone = [self.tree.commits[one] for one in some if one in self.tree.commits]
            self.tree = self.tree.without({commit.id for commit in gone})
            for commit in gone:
                self.contents.held.pop(commit.id, None)
            with contextlib.suppress(OSError):  # the next `save` tries again
                self.save()
        return gone

    def remove_contents(self, gone: Iterable[Commit]) -> None:
        """Deletes the contents of dropped commits, unless another commit has them, too."""
        used = {commit.content for commit in self.tree.commits.values()}
        self.contents.remove({commit.content for commit in gone} - used - {""})

    def has(self, some: Collection[int]) -> bool:
        """Returns whether all these commits are there."""
        return self.tree.commits.keys() >= set(some)

    def check(self, some: Collection[int]) -> None:
        """Raises `HistoryError` if one of these commits is not there any more."""
        if not self.has(some):
            raise HistoryError("that state of the session is not kept any more")

    @property
    def needed(self) -> set[int]:
        """The commits that must stay."""
        tree = self.tree
        return {tree.head, *tree.undone, *tree.names.values(), *self.pinned}

    def put_merged(self, merged: Commit, content: Content | None) -> Commit | None:
        """Replaces the commit of this number by one with others folded into it.

        Returns the replaced commit; None, with nothing changed, if it does not exist any more.
        """
        with self.lock:
            if (before := self.tree.commits.get(merged.id)) is not None:
                with self._saving():
                    self.tree = self.tree.with_commit(merged)
                if content is not None:
                    self.contents.held[merged.id] = merged, content
                self._unsynced.add(merged.content)
        return before

    @property
    def on_disk(self) -> bool:
        """Returns whether commits have a place on disk."""
        return self.place is not None

    @property
    def disk_bytes(self) -> int:
        """The bytes of all commits' pages, and of files that were set aside."""
        pages = sum(commit.page_bytes for commit in self.tree.commits.values())
        return pages + (0 if self.place is None else self.place.unused_bytes)

    def close(self, *, sync: bool = False) -> bool:
        """Closes the folder; returns whether all is on disk and the index ends with `IndexEnd`.

        Safe to call twice. With `sync`, all is flushed to the disk itself, in case power is lost.
        """
        ended = self._index is None
        with contextlib.suppress(OSError):  # the next process finds the end missing, and says so
            if self._index is not None and not self.waiting:
                self.save()
                self._index.append(IndexEnd())
                if sync:
                    self.sync()
                ended = True
        for each in (self.contents, self._index, self.place):
            if each is not None:
                each.close()
        return ended


def _without_zeros(commit: Commit, content: Content) -> tuple[Commit, list[memoryview]]:
    """Returns a commit without its pages of zeros, and the parts of its content."""
    runs, parts, zeros = split_zeros(commit.runs, content)
    return replace(commit, runs=runs, zeros=(*commit.zeros, *zeros)), parts
