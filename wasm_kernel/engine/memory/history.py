"""A session's memory as a tree of commits: kept on disk, given back to a new instance.

Every cell leaves one commit (`commit.py`), whose parent is the commit that the cell began at. The
state at a commit is the base image with the pages of its ancestors and its own laid over it, the
newest version of each page winning. `head` is the commit that the living memory stands at.

A commit that could not be written (a full disk) stays in memory: the session goes on, and rollback
works; only a crash of this process would lose it. The guest's thread owns a `History`; writing
happens on the recorder's thread, which calls `squeeze` and `store` alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from wasm_kernel.engine.instance import Instance
from wasm_kernel.engine.memory import commit as commits
from wasm_kernel.engine.memory.commit import Commit, CommitFile
from wasm_kernel.engine.memory.pages import PAGE
from wasm_kernel.engine.memory.zeros import split_zeros
from wasm_kernel.errors import HistoryError

_SUFFIX = ".commit"
_HEAD = "head.json"

Pages = Sequence[bytes]
"""The content of a commit's runs, in order."""


class History:
    """The commits of one session, below one folder."""

    def __init__(self, folder: Path, image: str) -> None:
        self._folder = folder
        self.image = image
        self._guard = threading.Lock()
        self._held: dict[int, Pages] = {}  # commits that are not on disk
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
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found: dict[int, Commit] = {}
        problems = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
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

    def _whole(self, one: int, found: dict[int, Commit]) -> bool:
        while one:
            commit = found.get(one)
            if commit is None or commit.image != self.image or commit.parent >= one:
                return False
            one = commit.parent
        return True

    def _load_head(self) -> None:
        newest = max(self.commits, default=0)
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

    def add(self, commit: Commit, pages: Pages) -> None:
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
        if commit is None or pages is None:
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
            return sum(self.commits[one].page_bytes for one in self._held if one in self.commits)

    # -- going somewhere

    def move(self, one: int) -> None:
        """Make a commit the head, 0 for the base image, and remember it over a crash."""
        self.head = one
        self._save_head()

    def name(self, name: str, one: int) -> None:
        """Give a commit a name, which keeps it from being folded away."""
        self.names[name] = one
        self._save_head()

    def _save_head(self) -> None:
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
        line = self.lineage(one)
        if not line:
            return
        instance.grow_to(line[0].size)
        memory = _Memory(instance)
        for commit in line:
            self._lay(commit, memory)

    def _lay(self, commit: Commit, memory: _Memory) -> None:
        with self._guard:
            held = self._held.get(commit.id)
        if held is not None:
            for (first, pages), content in zip(commit.runs, held, strict=True):
                memory.lay(first, pages, _from_bytes(content))
        else:
            with CommitFile(self._path(commit.id)) as file:
                for first, pages, at in file.places():
                    memory.lay(first, pages, _from_file(file, at))
        for first, pages in commit.zeros:
            memory.lay(first, pages, _zero)

    # -- folding away

    def drop(self, one: int) -> None:
        """Forget a commit that no other stands on."""
        with self._guard:
            self.commits.pop(one, None)
            self._held.pop(one, None)
        self._path(one).unlink(missing_ok=True)

    def children(self, one: int) -> list[int]:
        """The commits whose parent is `one`."""
        return [c.id for c in self.commits.values() if c.parent == one]

    def _path(self, one: int) -> Path:
        return self._folder / f"{one:010d}{_SUFFIX}"


Fill = Callable[[memoryview, int], None]
"""Fills a stretch of memory from the page of a run that it begins at."""


def _from_bytes(content: bytes) -> Fill:
    def fill(target: memoryview, page: int) -> None:
        target[:] = content[page * PAGE : page * PAGE + len(target)]

    return fill


def _from_file(file: CommitFile, at: int) -> Fill:
    def fill(target: memoryview, page: int) -> None:
        file.read_into(target, at + page * PAGE)

    return fill


def _zero(target: memoryview, _page: int) -> None:
    target[:] = bytes(len(target))


class _Memory:
    """A guest's memory that is filled from the newest commit to the oldest, each page once."""

    def __init__(self, instance: Instance) -> None:
        size = instance.reach.size
        stretch = (ctypes.c_char * size).from_address(instance.reach.address)
        self._view = memoryview(stretch).cast("B")
        self._laid = bytearray(size // PAGE)

    def lay(self, first: int, pages: int, fill: Fill) -> None:
        """Fill the pages of a run that are not laid yet."""
        if first < 0 or pages < 0 or first + pages > len(self._laid):
            raise HistoryError("a commit has pages outside of the memory")
        for start, end in self._free(first, first + pages):
            fill(self._view[start * PAGE : end * PAGE], start - first)
        self._laid[first : first + pages] = b"\1" * pages

    def _free(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        while start < end:
            begin = self._laid.find(b"\0", start, end)
            if begin < 0:
                return
            stop = self._laid.find(b"\1", begin, end)
            start = end if stop < 0 else stop
            yield begin, start
