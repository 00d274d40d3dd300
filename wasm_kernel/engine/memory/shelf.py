"""The content of a session's commits: in memory until it is written, on disk from then on.

What can't be written (a full disk), or has no folder to be written to, stays in memory. The
recorder's thread writes; any thread reads.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from wasm_kernel.engine.folders.content import share
from wasm_kernel.engine.folders.descent import open_folder
from wasm_kernel.engine.memory import aside, found
from wasm_kernel.engine.memory import commit as commits
from wasm_kernel.engine.memory.commit import Commit, CommitFile, Content
from wasm_kernel.engine.memory.folding import Piece, merge
from wasm_kernel.engine.memory.pages import PAGE
from wasm_kernel.engine.memory.target import Target
from wasm_kernel.engine.memory.zeros import split_zeros
from wasm_kernel.errors import HistoryError

_STEP = 1024 * 1024  # other threads of this interpreter wait for the length of one


class Held:
    """A commit's content in memory, read as `CommitFile` reads one from disk."""

    def __init__(self, commit: Commit, content: Content) -> None:
        self.commit = commit
        self._content = content

    def read(self, at: int, target: memoryview) -> None:
        """Fill `target` from a position in the content."""
        with memoryview(self._content) as content:
            target[:] = content[at : at + len(target)]


Source = Held | CommitFile


class Shelf:
    """Commits with their content, by number; below one folder, or in memory alone."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._guard = threading.Lock()
        self._held: dict[int, tuple[Commit, Content]] = {}
        self._stamps: dict[int, tuple[int, ...]] = {}  # of the files, as they were last verified

    def find(self, image: str) -> tuple[dict[int, Commit], list[str]]:
        """The commits on disk that can be used, and sentences on those that were damaged.

        Those and what stands on them are removed.

        Raises:
            HistoryError: there are some, and none can be used.
        """
        files = self._files()
        usable, problems = found.usable(files, image)
        kept = {self._path(one) for one in usable}
        self._remove(path for path in files if path not in kept)
        for one in usable:
            self._note(one)
        return usable, problems

    def clear(self) -> None:
        """Remove what is there."""
        self._remove(self._files())

    def _files(self) -> list[Path]:
        if self._folder is None:
            return []
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return sorted(self._folder.glob(f"*{found.SUFFIX}"))

    def _remove(self, files: Iterable[Path]) -> None:
        for path in [*files, *aside.left_in(self._folder)]:
            path.unlink(missing_ok=True)

    def hold(self, commit: Commit, content: Content) -> None:
        """Keep a commit in memory until it is written."""
        with self._guard:
            self._held[commit.id] = commit, content

    def write(self, commit: Commit, content: Iterable[Content | memoryview]) -> None:
        """Put a commit on disk at once.

        Raises:
            OSError: it can't be written, or there is no disk to write to.
        """
        commits.write(self._path(commit.id), commit, content)
        self._note(commit.id)

    def lend(self, other: Shelf, some: Iterable[int]) -> None:
        """Give commits to an empty shelf: both have the same file, or the same bytes in memory.

        Nobody may drop commits meanwhile.

        Raises:
            OSError: a file can't be given.
        """
        with contextlib.ExitStack() as opened:
            folder = -1
            for one in some:
                with self._guard:
                    held = self._held.get(one)
                if held is not None:
                    other.hold(*held)
                    continue
                if folder < 0:
                    folder = open_folder(self._path(one).parent)
                    opened.callback(os.close, folder)
                verified = self._stamps.get(one) == self._stamp(one)
                share(folder, found.name_of(one), other._path(one))
                if verified:
                    other._note(one)

    def squeeze(self, one: int) -> Commit | None:
        """Take the pages of zeros out of a commit in memory: what it is then, None where it is not
        in memory.
        """
        with self._guard:
            if one not in self._held:
                return None
            commit, content = self._held[one]
        runs, less, zeros = split_zeros(commit.runs, content)
        squeezed = replace(commit, runs=runs, zeros=(*commit.zeros, *zeros))
        with self._guard:
            if one in self._held:
                self._held[one] = squeezed, less
        return squeezed

    def store(self, one: int) -> None:
        """Write a commit that is in memory to disk.

        Raises:
            OSError: it can't be written, and stays in memory.
        """
        with self._guard:
            commit, content = self._held.get(one, (None, b""))
        if commit is None or self._folder is None:
            return
        self.write(commit, [content])
        with self._guard:
            dropped = self._held.pop(one, None) is None
        if dropped:
            self._path(one).unlink(missing_ok=True)

    def in_memory(self, one: int) -> bool:
        """Whether a commit is in memory only."""
        with self._guard:
            return one in self._held

    @property
    def waiting(self) -> list[int]:
        """The commits that are in memory only and belong on disk, oldest first."""
        with self._guard:
            return [] if self._folder is None else sorted(self._held)

    def drop(self, some: Collection[int]) -> None:
        """Forget commits."""
        with self._guard:
            for one in some:
                self._held.pop(one, None)
                self._stamps.pop(one, None)
        if self._folder is not None:
            for one in sorted(some, reverse=True):
                self._path(one).unlink(missing_ok=True)

    def lay(self, one: int, target: Target) -> None:
        """Lay a commit over memory that newer ones were laid over.

        Raises:
            HistoryError: it can't be read, or is not as it was written.
        """
        with self._guard:
            held = self._held.get(one)
        if held is not None:
            self._lay_held(*held, target)
            return
        self._verify(one)
        with CommitFile(self._path(one)) as file:
            for first, pages, at in file.places():
                target.lay_file(first, pages, file, at)
            target.lay_zeros(file.commit.zeros)

    def _lay_held(self, commit: Commit, content: Content, target: Target) -> None:
        at = 0
        for first, pages in commit.runs:
            target.lay_bytes(first, pages, content, at)
            at += pages * PAGE
        target.lay_zeros(commit.zeros)

    def fold(self, line: Sequence[int]) -> Commit:
        """Merge commits, newest first, into the first of them, which stays where it is: in memory
        or on disk. What comes of it is returned; the others are there still.

        Raises:
            OSError, HistoryError: it can't be written, or one of them can't be read.
        """
        with contextlib.ExitStack() as opened:
            sources = {one: self._source(one, opened) for one in line}
            merged, pieces = merge([sources[one].commit for one in line])
            content = _content(pieces, sources)
            if self.in_memory(line[0]):
                laid = bytearray()
                for part in content:
                    laid += part
                with self._guard:
                    if line[0] in self._held:
                        self._held[line[0]] = merged, laid
            else:
                self.write(merged, content)
        return merged

    def _source(self, one: int, opened: contextlib.ExitStack) -> Source:
        with self._guard:
            held = self._held.get(one)
        if held is not None:
            return Held(*held)
        self._verify(one)
        return opened.enter_context(CommitFile(self._path(one)))

    def _verify(self, one: int) -> None:
        """Read a file whole, where somebody touched it since it was written or verified."""
        if self._stamps.get(one) == self._stamp(one):
            return
        with CommitFile(self._path(one)) as file:
            file.verify()
        self._note(one)

    def _note(self, one: int) -> None:
        self._stamps[one] = self._stamp(one)

    def _stamp(self, one: int) -> tuple[int, ...]:
        try:
            there = self._path(one).stat()
        except OSError:
            return ()
        return there.st_ino, there.st_size, there.st_mtime_ns

    def _path(self, one: int) -> Path:
        if self._folder is None:
            raise HistoryError("this history is in memory alone")
        return self._folder / found.name_of(one)


def _content(pieces: Iterable[Piece], sources: dict[int, Source]) -> Iterator[memoryview]:
    """The bytes of all pieces, in steps; each is good until the next."""
    buffer = memoryview(bytearray(_STEP))
    for piece in pieces:
        for at in range(0, piece.length, _STEP):
            step = buffer[: min(_STEP, piece.length - at)]
            sources[piece.commit].read(piece.at + at, step)
            yield step
