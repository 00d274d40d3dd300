"""A session's memory as a tree of commits: kept on disk, given back to a new instance.

Every cell leaves one commit (`commit.py`), whose parent is the commit that the cell began at. The
state at a commit is the base image with the pages of its ancestors and its own laid over it, the
newest version of each page winning. `head` is the commit that the living memory stands at.

A commit that could not be written (a full disk) stays in memory: the session goes on, and rollback
works; only a crash of this process would lose it. The guest's thread owns a `History`; writing
happens on the recorder's thread, which calls `squeeze`, `store` and `fold` alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from wasm_kernel.engine.instance import Instance
from wasm_kernel.engine.memory import aside, bookmark, folding, found
from wasm_kernel.engine.memory import commit as commits
from wasm_kernel.engine.memory.bookmark import Bookmark
from wasm_kernel.engine.memory.commit import Commit, CommitFile, Content
from wasm_kernel.engine.memory.pages import PAGE
from wasm_kernel.engine.memory.target import Target
from wasm_kernel.engine.memory.zeros import split_zeros
from wasm_kernel.errors import HistoryError


class History:
    """The commits of one session, below one folder, or in memory alone where there is none."""

    def __init__(self, folder: Path | None, image: str) -> None:
        self._folder = folder
        self.image = image
        self._guard = threading.Lock()  # over the tables below
        self._shape = threading.Lock()  # over the tree: no folding while memory is filled from it
        self._saving = threading.Lock()  # over the bookmark on disk
        self._held: dict[int, Content] = {}  # commits that are not on disk
        self._pinned: frozenset[int] = frozenset()
        self._last = 0  # the highest number that was ever given
        self._stale = False  # the bookmark on disk
        self.commits: dict[int, Commit] = {}
        self.head = 0
        self.names: dict[str, int] = {}

    def load(self) -> list[str]:
        """Find the commits on disk; what is damaged, or stands on that, is removed.

        Returns:
            Sentences on what was damaged.

        Raises:
            HistoryError: there are some, and none can be used.
        """
        files = self._files()
        self.commits, problems = found.usable(files, self.image)
        self._remove(path for path in files if path not in set(map(self._path, self.commits)))
        self._load_head()
        return problems

    def _files(self) -> list[Path]:
        if self._folder is None:
            return []
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return sorted(self._folder.glob(f"*{found.SUFFIX}"))

    def _remove(self, files: Iterable[Path]) -> None:
        for path in [*files, *aside.left_in(self._folder)]:
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Begin anew: what an earlier process left is removed."""
        self._remove(self._files())
        if self._folder is not None:
            bookmark.remove(self._folder)
        self.commits, self.names, self.head, self._last = {}, {}, 0, 0

    def _load_head(self) -> None:
        self.head = self._last = newest = max(self.commits, default=0)
        mark = None if self._folder is None else Bookmark.read(self._folder)
        if mark is not None:
            self.names = {name: one for name, one in mark.names.items() if one in self.commits}
            if newest <= mark.after and mark.at in self.commits:
                self.head = mark.at
            # a commit that the bookmark knew and that was lost: its number would look older
            self._last = max(newest, mark.after)

    def next_id(self) -> int:
        """The number of the next commit; none is given twice."""
        return self._last + 1

    def add(self, commit: Commit, pages: Content) -> None:
        """A commit of the living memory, which it becomes the head of; not on disk yet."""
        with self._guard:
            self.commits[commit.id] = commit
            self._held[commit.id] = pages
            self.head = self._last = commit.id

    def squeeze(self, one: int) -> None:
        """Take the pages of zeros out of a commit that is not on disk yet."""
        with self._guard:
            commit, pages = self.commits.get(one), self._held.get(one)
        if commit is None or pages is None:
            return
        runs, content, zeros = split_zeros(commit.runs, pages)
        with self._guard:
            if one in self.commits:
                self.commits[one] = replace(commit, runs=runs, zeros=(*commit.zeros, *zeros))
                self._held[one] = content

    def store(self, one: int) -> None:
        """Write a commit to disk; nothing happens where it was dropped meanwhile.

        Raises:
            OSError: it can't be written, and stays in memory.
        """
        with self._guard:
            commit, pages = self.commits.get(one), self._held.get(one)
        if commit is None or pages is None or self._folder is None:
            return
        commits.write(self._path(one), commit, pages)
        with self._guard:
            self._held.pop(one, None)
            dropped = one not in self.commits
        if dropped:
            self._path(one).unlink(missing_ok=True)

    @property
    def waiting(self) -> list[int]:
        """The commits that are in memory only and belong on disk, oldest first.

        A commit on disk is of no use before all that it stands on are.
        """
        with self._guard:
            return [] if self._folder is None else sorted(self._held)

    @property
    def unwritten(self) -> int:
        """How many bytes of pages are in memory only."""
        return sum(self.commits[one].page_bytes for one in self.waiting if one in self.commits)

    def move(self, one: int) -> None:
        """Make a commit the head. Call `save_head` afterwards.

        Raises:
            HistoryError: it was folded away meanwhile; nothing was changed.
        """
        with self._shape, self._guard:
            if one not in self.commits:
                raise HistoryError("that state of the session is not kept any more")
            self.head, self._stale = one, True

    def name(self, name: str, one: int) -> None:
        """Give a commit a name, which keeps it from being folded away. Call `save_head`."""
        with self._guard:
            self.names, self._stale = {**self.names, name: one}, True

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
                mark = Bookmark(self.head, self._last, self.names)
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
            before = self.commits[one].parent
            gone = {o for o in self.commits if self.commits[one] in self.lineage(o)}
            with contextlib.suppress(OSError):
                self.drop(gone)
            with self._guard:
                self.names = {n: other for n, other in self.names.items() if other not in gone}
                self.head, self._stale = before, True
            self._pinned -= gone

    def lineage(self, one: int) -> list[Commit]:
        """A commit and its ancestors, newest first."""
        return commits.lineage(self.commits, one)

    def fill(self, instance: Instance, one: int) -> None:
        """Lay the pages of a commit over an instance that has the base image's memory.

        Raises:
            HistoryError: a page can't be read.
            MemoryError: the policy's memory limit is below the commit's size.
        """
        with self._shape:
            line = self.lineage(one)
            if not line:
                return
            instance.grow_to(line[0].size)
            target = Target(instance)
            for commit in line:
                self._lay(commit.id, target)

    def _lay(self, one: int, target: Target) -> None:
        with self._guard:  # the recorder squeezes a commit and its pages together
            commit, held = self.commits[one], self._held.get(one)
        if held is not None:
            at = 0
            for first, pages in commit.runs:
                target.lay_bytes(first, pages, held, at)
                at += pages * PAGE
        else:
            with CommitFile(self._path(one)) as file:
                commit = file.commit
                for first, pages, at in file.places():
                    target.lay_file(first, pages, file, at)
        for first, pages in commit.zeros:
            target.lay_zeros(first, pages)

    def drop(self, some: Collection[int]) -> None:
        """Forget commits that no others stand on."""
        with self._guard:
            for one in some:
                self.commits.pop(one, None)
                self._held.pop(one, None)
        if self._folder is not None:
            for one in sorted(some, reverse=True):
                self._path(one).unlink(missing_ok=True)

    def fold(self, keep: int, kept: Collection[int] = ()) -> None:
        """Fold away what lies more than `keep` cells behind the head, has no name and no pin.

        What is in `kept` stays as well.

        Raises:
            OSError, HistoryError: a commit can't be written, or read; all others are folded.
        """
        failed: Exception | None = None
        with self._guard:
            stay = {*kept, *self._pinned, *self.names.values()}
            steps = folding.plan(dict(self.commits), self.head, stay, keep)
        for child, chain in folding.chains(steps).items():
            try:
                self._fold_chain(chain, child)
            except (OSError, HistoryError) as problem:
                failed = failed or problem
        if failed is not None:
            raise failed

    def _fold_chain(self, chain: list[int], child: int | None) -> None:
        if child is None:
            with self._shape:
                if self._free(chain):
                    self.drop(chain)
            return
        with self._guard:
            disk = self._folder is not None and child in self._held
            written = [one for one in chain if disk and one not in self._held]
        self._merge([one for one in chain if one not in written], child)
        if written:  # a crash must find them on disk, as long as the child is not there
            self._merge(written[:-1], written[-1])

    def _merge(self, chain: list[int], child: int) -> None:
        # nobody waits for this: memory may be filled meanwhile, from the child before or after and
        # from the chain, which goes in the end if nobody needs it then
        with self._guard:
            known = [self.commits.get(one) for one in (child, *reversed(chain))]
        if not chain or (line := [c for c in known if c is not None]) != known:
            return
        merged, content = folding.merge((commit, self._content(commit.id)) for commit in line)
        if self._folder is not None and child not in self._held:
            commits.write(self._path(child), merged, content)
        with self._shape:
            if self._free(chain, child):
                with self._guard:
                    self.commits[child] = merged
                    if child in self._held:
                        self._held[child] = content
                self.drop(chain)

    def _free(self, chain: list[int], child: int | None = None) -> bool:
        with self._guard:
            needed = {self.head, *self._pinned, *self.names.values()}
            return folding.free(self.commits, needed, chain, child)

    def _content(self, one: int) -> Content:
        with self._guard:
            held = self._held.get(one)
        if held is not None:
            return held
        with CommitFile(self._path(one)) as file:
            return file.read_pages()

    @property
    def disk_bytes(self) -> int:
        """How many bytes of pages all commits hold."""
        with self._guard:
            return sum(commit.page_bytes for commit in self.commits.values())

    def _path(self, one: int) -> Path:
        if self._folder is None:
            raise HistoryError("this history is in memory alone")
        return self._folder / found.name_of(one)
