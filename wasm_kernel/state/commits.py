"""What the commits of a session hold: in memory until it is written, on disk from then on.

The pages of a commit are one file, `contents/SHA-256`, which is written aside, gets its name as a
whole and is never written again; forks have it by a hard link. **A page is used only after the
digest of its file was found to be the commit's**, through the descriptor that is then read or
mapped. What can't be written (a full disk), or has no folder to be written to, stays in memory.

The recorder's thread writes; any thread reads.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import os
import stat
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux import memory
from wasm_kernel.linux.files import link_or_copy
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.folding import Piece, merge
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import PAGE, Content, PageSet, Run, split_zeros

CONTENTS = "contents"
"""The folder of the contents, beside the index."""

_STEP = 1024 * 1024  # other threads of this interpreter wait for the length of one
_BLOCK = 4 * 1024 * 1024
_MAP_PAGES = 64  # shorter stretches are read: a mapping each would cost more
_DAMAGED = "a commit is damaged"
_CUT = "a commit is cut off"

Stamp = tuple[int, ...]


class Unreadable(HistoryError):
    """A commit can't be read; `one` is its number."""

    def __init__(self, one: int, why: str) -> None:
        super().__init__(why)
        self.one = one


class GuestPages:
    """The memory of an instance, over which commits are laid, from the newest to the oldest.

    Each page is laid once. The guest's thread owns it.
    """

    def __init__(self, instance: Instance) -> None:
        size = instance.memory.size
        self._address = instance.memory.address
        stretch = (ctypes.c_char * size).from_address(self._address)
        self._view = memoryview(stretch).cast("B")
        self._laid = PageSet(size // PAGE)

    def lay_bytes(self, first: int, pages: int, content: Content, at: int) -> None:
        """Lays pages whose content stands in `content` from `at` on."""
        for start, end in self._free(first, pages):
            begin = at + (start - first) * PAGE
            stop = begin + (end - start) * PAGE
            self._view[start * PAGE : end * PAGE] = memoryview(content)[begin:stop]

    def lay_file(self, first: int, pages: int, file: ContentFile, at: int) -> None:
        """Lays pages whose content stands in a file from `at` on; long stretches are mapped."""
        for start, end in self._free(first, pages):
            begin = at + (start - first) * PAGE
            if end - start < _MAP_PAGES or not self._mapped(start, end, file, begin):
                file.read(begin, self._view[start * PAGE : end * PAGE])

    def _mapped(self, start: int, end: int, file: ContentFile, at: int) -> bool:
        try:
            memory.map_file(self._address + start * PAGE, (end - start) * PAGE, file.fd, at)
        except OSError:  # such as too many mappings: that says nothing of the file
            return False
        return True

    def lay_zeros(self, runs: Iterable[Run]) -> None:
        """Lays pages of zeros."""
        for first, pages in runs:
            for start, end in self._free(first, pages):
                ctypes.memset(self._address + start * PAGE, 0, (end - start) * PAGE)

    def _free(self, first: int, pages: int) -> list[tuple[int, int]]:
        """The stretches of a run that no newer commit has laid, which count as laid from now on.

        Raises:
            HistoryError: the run lies outside of the memory.
        """
        if not self._laid.holds(first, pages):
            raise HistoryError("a commit has pages outside of the memory")
        return list(self._laid.free(first, pages))


class ContentFile:
    """A content on disk, open for reading; close it.

    Attributes:
        fd: Its descriptor.
        stamp: Tells whether somebody touched it since.
    """

    def __init__(self, folder: Folder, commit: Commit) -> None:
        """Opens the content of a commit; nothing of it is checked but its length.

        Raises:
            HistoryError: it is not as long as the commit's pages.
            OSError: it can't be opened, or is not a regular file.
        """
        self.fd = folder.open_regular(commit.content)
        self._wanted = commit.content
        self.stamp = _stamp(os.fstat(self.fd))
        if os.fstat(self.fd).st_size != commit.page_bytes:
            self.close()
            raise HistoryError(_CUT)

    def verify(self) -> None:
        """Reads the whole file.

        Raises:
            HistoryError: its digest is not the commit's.
        """
        digest, at, buffer = hashlib.sha256(), 0, bytearray(_BLOCK)
        while got := os.preadv(self.fd, [buffer], at):
            digest.update(memoryview(buffer)[:got])
            at += got
        if digest.hexdigest() != self._wanted:
            raise HistoryError(_DAMAGED)

    def read(self, at: int, target: memoryview) -> None:
        """Fills `target` from a position in the file.

        Raises:
            HistoryError: the file ends before.
        """
        done = 0
        while done < len(target):
            got = os.preadv(self.fd, [target[done : done + _BLOCK]], at + done)
            if got == 0:
                raise HistoryError(_CUT)
            done += got

    def close(self) -> None:
        """Closes the file. Safe to call twice."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __enter__(self) -> ContentFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _stamp(status: os.stat_result) -> Stamp:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


class _Source(Protocol):
    def read(self, at: int, target: memoryview) -> None:
        """Fill `target` from a position in the content."""


class _HeldContent:
    """A content in memory, read as one on disk."""

    def __init__(self, content: Content) -> None:
        self._content = content

    def read(self, at: int, target: memoryview) -> None:
        """Fill `target` from a position in the content."""
        with memoryview(self._content) as content:
            target[:] = content[at : at + len(target)]


_numbers = itertools.count(1)


def write_content(folder: Folder, parts: Iterable[Content | memoryview]) -> tuple[str, Stamp]:
    """Puts a content on disk, whole or not at all.

    Args:
        folder: The folder of the contents.
        parts: The content, in parts of any length.

    Returns:
        Its name, which is its SHA-256, and the stamp of the file. Without any bytes, no file is
        made, and the name is empty.

    Raises:
        OSError: it can't be written; nothing is left behind.
    """
    digest, length, aside = hashlib.sha256(), 0, f".{next(_numbers)}.aside"
    folder.remove(aside)
    fd = folder.open_regular(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    try:
        for part in parts:
            digest.update(part)
            length += len(part)
            _write_all(fd, part)
        if not length:
            folder.remove(aside)
            return "", ()
        folder.rename(aside, digest.hexdigest())
        return digest.hexdigest(), _stamp(os.fstat(fd))
    except BaseException:
        with contextlib.suppress(OSError):
            folder.remove(aside)
        raise
    finally:
        os.close(fd)


def _write_all(fd: int, part: Content | memoryview) -> None:
    with memoryview(part) as view:
        done = 0
        while done < len(view):
            done += os.write(fd, view[done:])


class CommitStore:
    """The contents of the commits of one session; below one folder, or in memory alone."""

    def __init__(self, folder: Folder | None = None) -> None:
        """Takes over the folder of the contents.

        Args:
            folder: The folder, which is closed with the store; None to keep all in memory.
        """
        self.folder = folder
        self._guard = threading.Lock()
        self._held: dict[int, tuple[Commit, Content]] = {}
        self._verified: dict[str, Stamp] = {}  # by content, what this process wrote or checked

    def hold(self, commit: Commit, content: Content) -> None:
        """Keeps a commit in memory until it is written."""
        with self._guard:
            self._held[commit.id] = commit, content

    def write(self, commit: Commit, content: Iterable[Content | memoryview]) -> Commit:
        """Puts the content of a commit on disk, and returns the commit that names it.

        Raises:
            OSError: it can't be written, or there is no disk to write to.
        """
        name, stamp = write_content(self._place(), content)
        with self._guard:
            self._verified[name] = stamp
        return replace(commit, content=name)

    def write_held(self, one: int) -> Commit | None:
        """Writes a commit that is in memory, where it stays until `release`.

        Returns:
            The commit as it is on disk; None if it is not in memory, or there is no disk.

        Raises:
            OSError: it can't be written.
        """
        with self._guard:
            commit, content = self._held.get(one, (None, b""))
        if commit is None or self.folder is None:
            return None
        return self.write(commit, [content])

    def release(self, one: int) -> None:
        """A commit is on disk, or given up: it leaves memory."""
        with self._guard:
            self._held.pop(one, None)

    def squeeze(self, one: int) -> Commit | None:
        """Takes the pages of zeros out of a commit in memory.

        Returns:
            What it is then; None if it is not in memory.
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

    def in_memory(self, one: int) -> bool:
        """Whether a commit is in memory only."""
        with self._guard:
            return one in self._held

    @property
    def waiting(self) -> list[int]:
        """The commits that are in memory only and belong on disk, oldest first."""
        with self._guard:
            return [] if self.folder is None else sorted(self._held)

    def remove(self, contents: Collection[str]) -> None:
        """Removes contents that no commit has any more.

        Raises:
            OSError: one can't be removed; all others are.
        """
        failed: OSError | None = None
        for name in contents:
            with self._guard:
                self._verified.pop(name, None)
            try:
                if name and self.folder is not None:
                    self.folder.remove(name)
            except OSError as problem:
                failed = problem
        if failed is not None:
            raise failed

    def missing(self, commits: Iterable[Commit]) -> set[int]:
        """The commits whose content is not there, or not as long as it should be."""
        return missing_in(self.folder, commits)

    def lay(self, commit: Commit, pages: GuestPages) -> bool:
        """Lays a commit over memory that newer ones were laid over.

        Returns:
            False if it was written meanwhile: ask again for what it is now.

        Raises:
            HistoryError, OSError: it can't be read, or is not as it was written.
        """
        with self._guard:
            held = self._held.get(commit.id)
        if held is not None:
            commit, content = held
            for first, count, at in places(commit):
                pages.lay_bytes(first, count, content, at)
        elif commit.content:
            with self.opened(commit) as file:
                for first, count, at in places(commit):
                    pages.lay_file(first, count, file, at)
        elif commit.runs:
            return False
        pages.lay_zeros(commit.zeros)
        return True

    def fold(self, line: Sequence[Commit]) -> Commit:
        """Merges commits, newest first, into the first of them, which stays where it is: in memory
        or on disk.

        Returns:
            What comes of it; the others are there still.

        Raises:
            OSError, HistoryError: it can't be written, or one of them can't be read.
        """
        with contextlib.ExitStack() as opened:
            found = {one.id: self._source(one, opened) for one in line}
            merged, pieces = merge([found[one.id][0] for one in line])
            content = _content(pieces, {one: source for one, (_, source) in found.items()})
            if not self.in_memory(merged.id):
                return self.write(merged, content)
            laid = bytearray().join(bytes(part) for part in content)
            with self._guard:
                if merged.id in self._held:
                    self._held[merged.id] = merged, laid
        return merged

    def _source(self, commit: Commit, opened: contextlib.ExitStack) -> tuple[Commit, _Source]:
        with self._guard:
            held = self._held.get(commit.id)
        if held is not None:
            return held[0], _HeldContent(held[1])
        if not commit.content:
            return commit, _HeldContent(b"")
        return commit, opened.enter_context(self.opened(commit))

    def opened(self, commit: Commit) -> ContentFile:
        """Opens the content of a commit that is on disk, once its digest was found right.

        Raises:
            HistoryError: it is damaged.
            OSError: it can't be opened.
        """
        file = ContentFile(self._place(), commit)
        try:
            with self._guard:
                known = self._verified.get(commit.content) == file.stamp
            if not known:
                file.verify()
                with self._guard:
                    self._verified[commit.content] = file.stamp
        except BaseException:
            file.close()
            raise
        return file

    def give(self, other: CommitStore, commit: Commit) -> bool:
        """Gives a commit to another store: both have the same file, or the same bytes in memory.

        Nobody may drop commits meanwhile.

        Returns:
            False if it was written meanwhile: ask again for what it is now.

        Raises:
            OSError: a file can't be given.
        """
        with self._guard:
            held = self._held.get(commit.id)
        if held is not None:
            other.hold(*held)
        elif commit.runs and not commit.content:
            return False
        elif commit.content:
            here, there, name = self._place(), other._place(), commit.content
            before = here.status(name)
            share_once(here, there, name)
            with self._guard:
                verified = before is not None and self._verified.get(name) == _stamp(before)
            for store, place in ((self, here), (other, there)):
                after = place.status(name)
                if verified and after is not None:  # the link has changed a time of both
                    with store._guard:
                        store._verified[name] = _stamp(after)
        return True

    def _place(self) -> Folder:
        if self.folder is None:
            raise HistoryError("this history is in memory alone")
        return self.folder

    def close(self) -> None:
        """Closes its folder. Safe to call twice."""
        if self.folder is not None:
            self.folder.close()


def missing_in(folder: Folder | None, commits: Iterable[Commit]) -> set[int]:
    """The commits whose content is not in a folder, or not as long as it should be."""
    found: set[int] = set()
    for commit in commits:
        if not commit.runs and not commit.content:
            continue
        status = folder.status(commit.content) if folder is not None and commit.content else None
        there = status is not None and stat.S_ISREG(status.st_mode)
        if not there or (status is not None and status.st_size != commit.page_bytes):
            found.add(commit.id)
    return found


def share_once(source: Folder, target: Folder, content: str) -> None:
    """Gives a content to another folder, unless it is there.

    Raises:
        OSError: it can't be, or it is not a regular file.
    """
    with contextlib.suppress(FileExistsError):
        link_or_copy(source.fd, content, content, target.fd)


def places(commit: Commit) -> Iterator[tuple[int, int, int]]:
    """First page, number of pages and position in the content of every run."""
    at = 0
    for first, pages in commit.runs:
        yield first, pages, at
        at += pages * PAGE


def _content(pieces: Iterable[Piece], sources: Mapping[int, _Source]) -> Iterator[memoryview]:
    """The bytes of all pieces, in steps; each is good until the next."""
    buffer = memoryview(bytearray(_STEP))
    for piece in pieces:
        for at in range(0, piece.length, _STEP):
            step = buffer[: min(_STEP, piece.length - at)]
            sources[piece.commit].read(piece.at + at, step)
            yield step
