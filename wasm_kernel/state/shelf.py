"""The content of a session's commits: in memory until it is written, on disk from then on.

What can't be written (a full disk), or has no folder to be written to, stays in memory. The
recorder's thread writes; any thread reads.
"""

from __future__ import annotations

import contextlib
import stat
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.files import link_or_copy
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state import commit as commits
from wasm_kernel.state import found
from wasm_kernel.state.commit import Commit, CommitFile, Content
from wasm_kernel.state.folding import Piece, merge
from wasm_kernel.state.pages import PAGE
from wasm_kernel.state.target import Target
from wasm_kernel.state.zeros import split_zeros

_STEP = 1024 * 1024  # other threads of this interpreter wait for the length of one
_UNUSED = "unused-"


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

    def __init__(self, folder: Folder | None) -> None:
        self._folder = folder
        self.unused_bytes = 0  # of what is set aside on disk
        self._guard = threading.Lock()
        self._held: dict[int, tuple[Commit, Content]] = {}
        self._stamps: dict[int, tuple[int, ...]] = {}  # of the files, as they were last verified

    def find(self, image: str, *others: str) -> tuple[dict[int, Commit], list[str]]:
        """Returns the commits on disk that can be used, and sentences on those that are damaged.

        Those and what stands on them are set aside.

        Args:
            image: The base image that they are to lie over.
            others: Names of files that are written here besides; folders in their place are set
                aside, too.

        Raises:
            HistoryError: there are some, and none can be used. They are where they were.
        """
        if self._folder is None:
            return {}, []
        self._make_way(self._folder, self._folder.abandoned())
        names = found.names_in(self._folder)
        usable, problems = found.usable(self._folder, names, image)
        kept = {found.name_of(one) for one in usable}
        self.set_aside([*(name for name in names if name not in kept), *self._folders(others)])
        for one in usable:
            self._note(one)
        return usable, problems

    def clear(self, *names: str) -> None:
        """Removes all commits, what is set aside, and other files of these names."""
        if self._folder is None:
            return
        there = self._folder.names()
        unused = [name for name in there if name.startswith(_UNUSED)]
        commits = found.names_in(self._folder)
        rest = [name for name in names if name in there]
        self._make_way(self._folder, [*commits, *rest, *self._folder.abandoned()])
        self.drop_unused(unused)

    def set_aside(self, names: Sequence[str] | None = None, *others: str) -> None:
        """Gives files names under which nobody looks for them: they may be wanted yet.

        Args:
            names: Their names; those of all commits by default.
            others: Further names, under which there may be nothing.
        """
        if self._folder is None:
            return
        there = set(self._folder.names())
        moving = found.names_in(self._folder) if names is None else names
        number = 1
        for name in [*moving, *(other for other in others if other in there)]:
            while (new := f"{_UNUSED}{number}-{name}") in there:
                number += 1
            self._folder.rename(name, new)
        self._weigh()

    def drop_unused(self, names: Sequence[str] | None = None) -> None:
        """Removes what is set aside, or of that only what has these names."""
        if self._folder is None:
            return
        some = self._folder.names() if names is None else names
        for name in some:
            if name.startswith(_UNUSED):
                with contextlib.suppress(OSError):  # a folder takes no room that counts
                    self._folder.remove(name)
        self._weigh()

    def _folders(self, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            status = self._place().status(name)
            if status is not None and stat.S_ISDIR(status.st_mode):
                yield name

    def _weigh(self) -> None:
        if self._folder is not None:
            unused = [name for name in self._folder.names() if name.startswith(_UNUSED)]
            there = [status for status in map(self._folder.status, unused) if status is not None]
            self.unused_bytes = sum(one.st_size for one in there if stat.S_ISREG(one.st_mode))

    def _make_way(self, folder: Folder, names: Iterable[str]) -> None:
        """Removes files; what can't be removed, such as a folder, is set aside."""
        stubborn = []
        for name in names:
            try:
                folder.remove(name)
            except (IsADirectoryError, PermissionError):
                stubborn.append(name)
        self.set_aside(stubborn)

    def hold(self, commit: Commit, content: Content) -> None:
        """Keep a commit in memory until it is written."""
        with self._guard:
            self._held[commit.id] = commit, content

    def write(self, commit: Commit, content: Iterable[Content | memoryview]) -> None:
        """Put a commit on disk at once.

        Raises:
            OSError: it can't be written, or there is no disk to write to.
        """
        commits.write(self._place(), found.name_of(commit.id), commit, content)
        self._note(commit.id)

    def lend(self, other: Shelf, some: Iterable[int]) -> None:
        """Give commits to an empty shelf: both have the same file, or the same bytes in memory.

        Nobody may drop commits meanwhile.

        Raises:
            OSError: a file can't be given.
        """
        for one in some:
            with self._guard:
                held = self._held.get(one)
            if held is not None:
                other.hold(*held)
                continue
            verified, name = self._stamps.get(one) == self._stamp(one), found.name_of(one)
            link_or_copy(self._place().fd, name, name, other._place().fd)
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
            self._folder.remove(found.name_of(one))

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
                self._folder.remove(found.name_of(one))

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
        with CommitFile(self._place(), found.name_of(one)) as file:
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
        return opened.enter_context(CommitFile(self._place(), found.name_of(one)))

    def _verify(self, one: int) -> None:
        """Read a file whole, where somebody touched it since it was written or verified."""
        if self._stamps.get(one) == self._stamp(one):
            return
        with CommitFile(self._place(), found.name_of(one)) as file:
            file.verify()
        self._note(one)

    def _note(self, one: int) -> None:
        self._stamps[one] = self._stamp(one)

    def _stamp(self, one: int) -> tuple[int, ...]:
        there = self._place().status(found.name_of(one))
        return () if there is None else (there.st_ino, there.st_size, there.st_mtime_ns)

    def _place(self) -> Folder:
        if self._folder is None:
            raise HistoryError("this history is in memory alone")
        return self._folder


def _content(pieces: Iterable[Piece], sources: dict[int, Source]) -> Iterator[memoryview]:
    """The bytes of all pieces, in steps; each is good until the next."""
    buffer = memoryview(bytearray(_STEP))
    for piece in pieces:
        for at in range(0, piece.length, _STEP):
            step = buffer[: min(_STEP, piece.length - at)]
            sources[piece.commit].read(piece.at + at, step)
            yield step
