"""The contents of a session's commits: in memory until they are written, then on disk.

The pages of a commit are one file, `contents/SHA-256`. It is written under a temporary name, then
renamed, and never written again. **A page is used only after the digest of its file was found to
be the commit's**, through the descriptor that is then read or mapped. Sessions never share such a
file: a process that an attacker took over can write to all files of its session, and memory mapped
from a shared file would change. A content that can't be written (a full disk), or has no folder,
stays in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import itertools
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux import memory
from wasm_kernel.linux.folders import DescriptorOwner, Folder, closing_fd, stamp_of, undoing
from wasm_kernel.linux.memory import Range
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import PAGE, Content, PageSet, Run

CONTENTS = "contents"
"""The folder of the contents, beside the index."""

STEP = 1024 * 1024  # bytes; other threads of this interpreter wait for one step
_BLOCK = 4 * 1024 * 1024
_SCRATCH = memoryview(bytearray(8 * PAGE))  # to read 8 unneeded pages costs less than a call

_MAP_PAGES = 64  # shorter stretches are read: a mapping each would cost more
_MAPPINGS_MOST = 16_384  # mappings of a memory; Linux gives a process 65,530
_CUT = "a commit is cut off"

Part = bytes | memoryview | Content
"""A part of a content."""

Stamp = tuple[int, ...]
"""Identifies the state of a file: another stamp means that the file was touched."""
Stamps = dict[str, Stamp]
"""The stamps of contents whose digest was found right, by name."""


class Unreadable(HistoryError):
    """The error of a commit that can't be read; `commit_id` is its number."""

    def __init__(self, commit_id: int, why: str) -> None:
        super().__init__(why)
        self.commit_id = commit_id


class HeldContent:
    """A content in memory."""

    def __init__(self, content: Content) -> None:
        self._content = content

    def read(self, at: int, *targets: memoryview) -> None:
        """Fills targets, one after the other, from a position in the content."""
        with memoryview(self._content) as content:
            for target in targets:
                target[:] = content[at : at + len(target)]
                at += len(target)

    def map(self, address: int, size: int, at: int) -> bool:
        """Returns False: there is no file to map."""
        return False


class ContentFile(DescriptorOwner):
    """A content on disk, open for reading, with its file's stamp at that time; close it."""

    def __init__(self, folder: Folder, commit: Commit) -> None:
        """Opens the content of a commit; `HistoryError` if its length is not the commit's."""
        self.fd = folder.open_regular(commit.content)
        self._wanted = commit.content
        status = os.fstat(self.fd)
        self.stamp = stamp_of(status)
        if status.st_size != commit.page_bytes:
            self.close()
            raise HistoryError(_CUT)

    def verify(self) -> None:
        """Reads the whole file; `HistoryError` if its digest is not the commit's."""
        digest, at, buffer = hashlib.sha256(), 0, bytearray(_BLOCK)
        while got := os.preadv(self.fd, [buffer], at):
            digest.update(memoryview(buffer)[:got])
            at += got
        if digest.hexdigest() != self._wanted:
            raise HistoryError("a commit is damaged")

    def read(self, at: int, *targets: memoryview) -> None:
        """Fills targets, one after the other, from a position in the file."""
        for first in range(0, len(targets), memory.RANGES_MOST):
            some = targets[first : first + memory.RANGES_MOST]
            if os.preadv(self.fd, some, at) == (size := sum(map(len, some))):
                at += size
                continue
            for target in some:
                self._fill(at, target)
                at += len(target)

    def _fill(self, at: int, target: memoryview) -> None:
        done = 0
        while done < len(target):
            got = os.preadv(self.fd, [target[done : done + _BLOCK]], at + done)
            if got == 0:
                raise HistoryError(_CUT)
            done += got

    def map(self, address: int, size: int, at: int) -> bool:
        """Maps a part of the file over memory; False if the caller must read it instead."""
        try:
            memory.map_file(address, size, self.fd, at)
        except OSError:  # such as too many mappings: the file may be fine
            return False
        return True


Source = ContentFile | HeldContent


class GuestPages:
    """The memory of an instance, over which commits are laid, from the newest to the oldest.

    Each page is laid once. The guest's thread owns it. Ranges that are `mapped` come from files;
    ranges that are `cleared` hold zeros and take no memory.
    """

    def __init__(
        self,
        instance: Instance,
        used: Sequence[Range],
        only: Sequence[Range] | None = None,
        *,
        map_pages: int = _MAP_PAGES,
    ) -> None:
        """Begins with memory that holds the base image, or pages that need not be laid.

        Ranges outside `used` hold zeros. Only the ranges `only` must be laid; None means all. From
        `map_pages` on, stretches are mapped.
        """
        size = instance.memory.size
        self._used = PageSet(size // PAGE, used)
        self.mapped: list[Range] = []
        self.cleared: list[Range] = []
        self._address = instance.memory.address
        self._view = memoryview((ctypes.c_char * size).from_address(self._address)).cast("B")
        self._laid, self._map_pages = PageSet(size // PAGE, only), map_pages

    def needs(self, commit: Commit) -> bool:
        """Returns whether pages of a commit are still to be laid."""
        return any(self._laid.has_free(first, pages) for first, pages in commit.all_runs)

    def lay(self, commit: Commit, source: Source) -> None:
        """Lays the pages of a commit; `HistoryError` if they don't fit, or its file is cut off."""
        begun = done = 0  # neighbours in the file, or near ones, are read at once
        targets: list[memoryview] = []
        for start, end, before in self._laid.cover(commit.runs):
            begin, size = before * PAGE, (end - start) * PAGE
            maps = end - start >= self._map_pages and len(self.mapped) < _MAPPINGS_MOST
            if maps and source.map(self._address + start * PAGE, size, begin):
                self.mapped.append((start * PAGE, end * PAGE))
                continue
            if targets and 0 < begin - done <= len(_SCRATCH):
                targets.append(_SCRATCH[: begin - done])
            elif begin != done:
                source.read(begun, *targets)
                begun, targets = begin, []
            targets.append(self._view[start * PAGE : end * PAGE])
            done = begin + size
        source.read(begun, *targets)
        self.clear((start * PAGE, end * PAGE) for start, end, _ in self._laid.cover(commit.zeros))

    def left(self) -> Iterator[Range]:
        """Yields the wanted ranges that no commit has."""
        for start, end, _ in self._laid.cover([(0, len(self._view) // PAGE)]):
            yield start * PAGE, end * PAGE

    def clear(self, ranges: Iterable[Range]) -> None:
        """Fills ranges with zeros; long ranges, and unused ones, then take no memory."""
        for start, end in ranges:
            used = self._used.cover([(start // PAGE, (end - start) // PAGE)])
            emptied = [self._take_back(first * PAGE, last * PAGE) for first, last, _ in used]
            if all(emptied):
                self.cleared.append((start, end))

    def _take_back(self, start: int, end: int) -> bool:
        """Clears a range; returns True if it takes no memory any more."""
        if end - start >= _MAP_PAGES * PAGE:
            with contextlib.suppress(OSError):  # such as too many mappings
                memory.clear(self._address + start, end - start, mapped=True)
                return True
        ctypes.memset(self._address + start, 0, end - start)
        return False


_numbers = itertools.count(1)


def write_content(folder: Folder, parts: Iterable[Part]) -> tuple[str, Stamp]:
    """Puts a content on disk, whole or not at all; returns its SHA-256 and the file's stamp.

    Without any bytes, no file is made, and the name is empty.
    """
    digest, length, aside = hashlib.sha256(), 0, f".{next(_numbers)}.aside"
    folder.remove(aside)
    made = folder.open_regular(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with closing_fd(made) as fd, undoing(lambda: folder.remove(aside)):
        for part in parts:
            digest.update(part)
            length += len(part)
            with memoryview(part) as view:
                done = 0
                while done < len(view):
                    done += os.write(fd, view[done:])
        if not length:
            folder.remove(aside)
            return "", ()
        folder.rename(aside, digest.hexdigest())
        return digest.hexdigest(), stamp_of(os.fstat(fd))


class CommitStore:
    """The contents of the commits of one session; below one folder, or in memory alone.

    Any thread may read. The tables need no lock: each is changed by single operations. `held` has
    the commits that are in memory only.
    """

    def __init__(self, folder: Folder | None = None, verified: Stamps | None = None) -> None:
        """Takes over the folder of the contents, or keeps all in memory.

        `verified` are contents known to be right; the store keeps the table up to date.
        """
        self.folder = folder
        self.held: dict[int, tuple[Commit, Content]] = {}
        self._verified = {} if verified is None else verified

    @property
    def waiting(self) -> list[int]:
        """The commits that are in memory only and belong on disk, oldest first."""
        return [] if self.folder is None else sorted(self.held)

    def write(self, commit: Commit, content: Iterable[Part]) -> Commit:
        """Puts the content of a commit on disk, and returns the commit that names it."""
        name, stamp = write_content(self._place(), content)
        self._verified[name] = stamp
        return replace(commit, content=name)

    def remove(self, contents: Collection[str]) -> None:
        """Removes contents that no commit has any more.

        Tries all of them, then raises `OSError` if one could not be removed.
        """
        failed: OSError | None = None
        for name in contents:
            self._verified.pop(name, None)
            try:
                if name and self.folder is not None:
                    self.folder.remove(name)
            except OSError as problem:
                failed = problem
        if failed is not None:
            raise failed

    @contextlib.contextmanager
    def source_of(self, commit: Commit) -> Iterator[Source]:
        """Opens the content of a commit, in memory or on disk, after checking its digest.

        Raises `HistoryError` if it is damaged, `OSError` if it can't be opened.
        """
        held = self.held.get(commit.id)
        if held is not None or not commit.runs:
            yield HeldContent(bytearray() if held is None else held[1])
            return
        if not commit.content:  # it was in memory, and has been dropped since
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with ContentFile(self._place(), commit) as file:
            if self._verified.get(commit.content) != file.stamp:
                file.verify()
            self._verified[commit.content] = file.stamp
            yield file

    def verify(self, line: Iterable[Commit]) -> None:
        """Checks the digests of large contents on all processors; leaves errors to `source_of`."""
        large = [one for one in line if one.page_bytes >= _BLOCK and not self.is_untouched(one)]
        if len(large) > 1:
            from concurrent.futures import ThreadPoolExecutor  # few sessions need it

            at_once = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
            with contextlib.suppress(RuntimeError), at_once as threads:  # too few may be allowed
                for one in large:
                    threads.submit(self._verify, one)

    def _verify(self, commit: Commit) -> None:
        with self.source_of(commit):
            pass

    def copied_bytes(self, commit: Commit) -> int:
        """Returns the least number of bytes that must be copied, as a commit can't map them."""
        if commit.id in self.held:
            return commit.page_bytes
        return sum(pages for _, pages in commit.runs if pages < _MAP_PAGES) * PAGE

    def is_untouched(self, commit: Commit) -> bool:
        """Returns whether a commit's content is unchanged since its digest was checked."""
        if commit.id in self.held or not commit.runs or self.folder is None:
            return True
        status = self.folder.status(commit.content)
        return status is not None and self._verified.get(commit.content) == stamp_of(status)

    def fold(self, line: Sequence[Commit]) -> tuple[Commit, Content | None]:
        """Merges commits, newest first, into the first of them; the others still exist.

        Returns the merged commit, and its content if the first one is in memory, not on disk.
        """
        with contextlib.ExitStack() as opened:
            sources = {one.id: opened.enter_context(self.source_of(one)) for one in line}
            merged, pieces = merge(line)
            content = _content(pieces, sources)
            if self.held.get(merged.id) is None:
                return self.write(merged, content), None
            return merged, bytearray().join(bytes(part) for part in content)

    def sync(self, contents: Iterable[str]) -> None:
        """Flushes contents and their names to the disk itself."""
        folder = self._place()
        for name in contents:
            gone = contextlib.suppress(FileNotFoundError)
            with gone, closing_fd(folder.open_regular(name)) as fd:
                os.fdatasync(fd)
        os.fsync(folder.fd)

    def _place(self) -> Folder:
        if self.folder is None:
            raise HistoryError("this history is in memory alone")
        return self.folder

    def close(self) -> None:
        """Closes the folder of the contents. Safe to call twice."""
        if self.folder is not None:
            self.folder.close()


def missing_in(folder: Folder, commits: Iterable[Commit]) -> set[int]:
    """Returns the commits whose content is not in a folder, or has the wrong length."""
    found: set[int] = set()
    for commit in commits:
        if commit.runs or commit.content:
            status = folder.status(commit.content) if commit.content else None
            there = status is not None and stat.S_ISREG(status.st_mode)
            if status is None or not there or status.st_size != commit.page_bytes:
                found.add(commit.id)
    return found


def places(commit: Commit) -> Iterator[tuple[int, int, int]]:
    """Yields first page, number of pages and position in the content of every run."""
    at = 0
    for first, pages in commit.runs:
        yield first, pages, at
        at += pages * PAGE


class Piece(Struct, frozen=True):
    """A stretch of a commit's content, in bytes."""

    commit_id: int
    at: int
    length: int


def merge(line: Sequence[Commit]) -> tuple[Commit, list[Piece]]:
    """Returns the newest commit with the pages of the others below its own, on the oldest's parent.

    `line` has the newest first. The second value lists the pieces that make up its content.
    """
    runs: list[Run] = []
    zeros: list[Run] = []
    pieces: list[Piece] = []
    covered = PageSet(line[0].size // PAGE)
    for commit in line:
        for start, end, before in covered.cover(commit.runs):
            runs.append((start, end - start))
            pieces.append(Piece(commit.id, before * PAGE, (end - start) * PAGE))
        zeros += [(start, end - start) for start, end, _ in covered.cover(commit.zeros)]
    cells = sum(commit.cells for commit in line)
    whole = replace(line[0], parent=line[-1].parent, cells=cells)
    return replace(whole, runs=tuple(runs), zeros=tuple(zeros), content=""), pieces


def _content(pieces: Iterable[Piece], sources: Mapping[int, Source]) -> Iterator[memoryview]:
    """Yields the bytes of all pieces, in steps; each is valid until the next."""
    buffer = memoryview(bytearray(STEP))
    for piece in pieces:
        for at in range(0, piece.length, STEP):
            step = buffer[: min(STEP, piece.length - at)]
            sources[piece.commit_id].read(piece.at + at, step)
            yield step
