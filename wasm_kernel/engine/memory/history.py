"""A session's memory as a tree of commits: kept on disk, given back to a new instance.

Every cell leaves one commit (`commit.py`), whose parent is the commit that the cell began at. The
state at a commit is the base image with the pages of its ancestors and its own laid over it, the
newest version of each page winning. `head` is the commit that the living memory stands at.

A commit that could not be written (a full disk) stays in memory: the session goes on, and rollback
works; only a crash of this process would lose it. The guest's thread owns a `History`; writing
happens on the recorder's thread, which calls `squeeze` and `store` alone.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from wasm_kernel.engine.instance import Instance
from wasm_kernel.engine.memory import commit as commits
from wasm_kernel.engine.memory import folding
from wasm_kernel.engine.memory.commit import Commit, CommitFile, Content
from wasm_kernel.engine.memory.pages import PAGE
from wasm_kernel.engine.memory.target import Target
from wasm_kernel.engine.memory.zeros import split_zeros
from wasm_kernel.errors import HistoryError

_SUFFIX = ".commit"
_HEAD = "head.json"


class History:
    """The commits of one session, below one folder, or in memory alone where there is none."""

    def __init__(self, folder: Path | None, image: str) -> None:
        self._folder = folder
        self.image = image
        self._guard = threading.Lock()  # over the tables below
        self._shape = threading.Lock()  # over the tree: no folding while memory is filled from it
        self._held: dict[int, Content] = {}  # commits that are not on disk
        self.commits: dict[int, Commit] = {}
        self.head = 0
        self.names: dict[str, int] = {}

    # -- reading what an earlier process left

    def load(self) -> list[str]:
        """Find the commits on disk. Those that are damaged, or stand on one, are left out.

        Returns:
            Sentences on what was left out.

        Raises:
            HistoryError: all of it belongs to another base image or format version.
        """
        found: dict[int, Commit] = {}
        problems = []
        for path in self._files():
            try:
                with CommitFile(path) as file:
                    file.verify()
                    found[file.commit.id] = file.commit
            except (HistoryError, OSError) as problem:
                problems.append(str(problem))
        foreign = {one for one, commit in found.items() if commit.image != self.image}
        if found and len(foreign) == len(found):
            raise HistoryError(
                "the variables of this session were saved by another version of the sandbox"
            )
        self.commits = {one: c for one, c in found.items() if self._whole(one, found)}
        self._load_head()
        return problems

    def _files(self) -> list[Path]:
        if self._folder is None:
            return []
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return sorted(self._folder.glob(f"*{_SUFFIX}"))

    def clear(self) -> None:
        """Begin anew: what an earlier process left is removed."""
        for path in self._files():
            path.unlink(missing_ok=True)
        if self._folder is not None:
            (self._folder / _HEAD).unlink(missing_ok=True)
        self.commits, self.names, self.head = {}, {}, 0

    def _whole(self, one: int, found: dict[int, Commit]) -> bool:
        while one:
            commit = found.get(one)
            if commit is None or commit.image != self.image or commit.parent >= one:
                return False
            one = commit.parent
        return True

    def _load_head(self) -> None:
        newest = max(self.commits, default=0)
        if self._folder is None:
            return
        try:
            raw = json.loads((self._folder / _HEAD).read_text())
            at, after = int(raw["at"]), int(raw["after"])
            names = {str(name): int(one) for name, one in raw["names"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.head = newest
            return
        self.names = {name: one for name, one in names.items() if one in self.commits}
        self.head = at if newest <= after and (at in self.commits or at == 0) else newest

    # -- adding

    def next_id(self) -> int:
        """The number of the next commit."""
        return max(self.commits, default=0) + 1

    def add(self, commit: Commit, pages: Content) -> None:
        """A commit of the living memory, which it becomes the head of; not on disk yet."""
        with self._guard:
            self.commits[commit.id] = commit
            self._held[commit.id] = pages
            self.head = commit.id

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
    def unwritten(self) -> int:
        """How many bytes of pages are in memory only."""
        with self._guard:
            if self._folder is None:
                return 0
            return sum(self.commits[one].page_bytes for one in self._held if one in self.commits)

    # -- going somewhere

    def move(self, one: int) -> None:
        """Make a commit the head, 0 for the base image, and remember it over a crash.

        Raises:
            HistoryError: it was folded away meanwhile.
        """
        with self._shape, self._guard:
            if one and one not in self.commits:
                raise HistoryError("that state of the session is not kept any more")
            self.head = one
        self._save_head()

    def name(self, name: str, one: int) -> None:
        """Give a commit a name, which keeps it from being folded away."""
        self.names[name] = one
        self._save_head()

    def _save_head(self) -> None:
        if self._folder is None:
            return
        text = json.dumps(
            {"at": self.head, "after": max(self.commits, default=0), "names": self.names}
        )
        aside = self._folder / f".{_HEAD}.{os.getpid()}"
        aside.write_text(text)
        aside.replace(self._folder / _HEAD)

    def lineage(self, one: int) -> list[Commit]:
        """A commit and its ancestors, newest first."""
        line = []
        while one:
            commit = self.commits[one]
            line.append(commit)
            one = commit.parent
        return line

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
                self._lay(commit, target)

    def _lay(self, commit: Commit, target: Target) -> None:
        with self._guard:
            held = self._held.get(commit.id)
        if held is not None:
            at = 0
            for first, pages in commit.runs:
                target.lay_bytes(first, pages, held, at)
                at += pages * PAGE
        else:
            with CommitFile(self._path(commit.id)) as file:
                for first, pages, at in file.places():
                    target.lay_file(first, pages, file, at)
        for first, pages in commit.zeros:
            target.lay_zeros(first, pages)

    # -- folding away

    def drop(self, one: int) -> None:
        """Forget a commit that no other stands on."""
        with self._guard:
            self.commits.pop(one, None)
            self._held.pop(one, None)
        if self._folder is not None:
            self._path(one).unlink(missing_ok=True)

    def fold(self, keep: int, kept: Collection[int] = ()) -> None:
        """Fold away what lies more than `keep` cells behind the head and has no name.

        Raises:
            OSError: a commit can't be written; the tree is as it was, or folded up to there.
        """
        with self._shape:
            with self._guard:
                commits_now, head = dict(self.commits), self.head
            stay = {*kept, *self.names.values()}
            for one, child in folding.plan(commits_now, head, stay, keep):
                if child is not None:
                    self._merge(one, child)
                self.drop(one)

    def _merge(self, one: int, child: int) -> None:
        merged, content = folding.merge(
            self.commits[one], self._content(one), self.commits[child], self._content(child)
        )
        if self._folder is not None and child not in self._held:
            commits.write(self._path(child), merged, content)
        with self._guard:
            self.commits[child] = merged
            if child in self._held:
                self._held[child] = content

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
        return self._folder / f"{one:010d}{_SUFFIX}"
