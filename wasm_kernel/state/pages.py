"""Pages of a guest's memory: which changed since the last look, and which hold zeros.

There are two ways to know what changed:

- `WriteProtect` (Linux 6.7 and later, no privilege; some container runtimes forbid it):
  userfaultfd write-protection in async mode plus the PAGEMAP_SCAN ioctl; one call returns the
  written ranges and arms them again. Its cost follows what changed. Sources:
  ioctl_userfaultfd(2), admin-guide/mm/pagemap in Linux's own documentation.
- `Compare` (older Linux): pages are compared with a copy, except those that still belong to a
  mapped file, by `/proc/self/pagemap`, as they are unchanged. Source:
  Documentation/admin-guide/mm/pagemap: bit 63 present, bit 62 swapped, bit 61 still the file's. A
  page that was written since it was mapped is never the file's again.

Ranges are pairs of byte offsets, multiples of `PAGE`. A tracker belongs to the guest's thread.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Protocol

from wasm_kernel.errors import HistoryError, ImageError
from wasm_kernel.linux.folders import DescriptorOwner, undoing
from wasm_kernel.linux.libc import checked, system_call
from wasm_kernel.linux.memory import Range

PAGE = 4096
Run = tuple[int, int]
"""First page and number of pages."""

Runs = tuple[Run, ...]

Content = bytearray | mmap.mmap
"""The pages of runs, one after the other."""

Place = tuple[int, int, int]
"""First page and number of pages, and the address of their content."""

_BLOCK = 64 * PAGE

_differ = ctypes.CDLL(None).memcmp
_differ.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Tracker(Protocol):
    """Tracks the writes to a stretch of this process's memory."""

    name: str

    def changed(self, size: int) -> list[Range]:
        """Returns the ranges written since the last call, of memory that has `size` bytes now.

        New memory counts as written; so may ranges that were written before each of the last calls.
        """

    def cleared(self, ranges: Iterable[Range]) -> None:
        """Notes that ranges were cleared, maybe by mapping new pages there: that is not a write."""

    def close(self) -> None:
        """Ends tracking. Safe to call twice."""


class Heap(Protocol):
    """Finds the memory that a guest's allocator holds free, between two turns."""

    def free(self, least: int) -> list[Range]:
        """Returns sorted ranges of whole pages that may be cleared, inside the guest's memory.

        They lie inside free pieces of at least `least` bytes, a power of 2.
        """


class PageSet:
    """The pages of a memory that are covered already, as commits are laid newest first."""

    def __init__(self, pages: int, free: Sequence[Range] | None = None) -> None:
        """Begins with no page covered, or with all but those in the ranges `free`."""
        self._flags = bytearray(pages) if free is None else bytearray(b"\1") * pages
        for start, end in free or ():
            self._flags[start // PAGE : end // PAGE] = bytes((end - start) // PAGE)

    def has_free(self, first: int, pages: int) -> bool:
        """Returns whether a page of a run is not covered."""
        return self._flags.find(b"\0", first, first + pages) >= 0

    def cover(self, runs: Iterable[Run]) -> Iterator[tuple[int, int, int]]:
        """Yields the stretches of runs that are not covered yet, and covers them.

        Each has its start, its end, and the number of pages that the runs have before it. Raises
        `HistoryError` for a run outside of the memory. Nearly all of an old commit's runs are
        covered: such a run takes one call of `find`.
        """
        flags, before = self._flags, 0
        for first, pages in runs:
            end = first + pages
            if not 0 <= first <= end <= len(flags):
                raise HistoryError("a commit has pages outside of the memory")
            begin = flags.find(0, first, end)
            while begin >= 0:
                found = flags.find(1, begin, end)
                stop = end if found < 0 else found
                flags[begin:stop] = b"\1" * (stop - begin)
                yield begin, stop, before + begin - first
                begin = flags.find(0, stop, end)
            before += pages


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Returns sorted ranges without overlaps, neighbours joined."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def without(ranges: Iterable[Range], gone: Sequence[Range]) -> list[Range]:
    """Returns the parts of sorted ranges that lie outside the sorted ranges `gone`."""
    left: list[Range] = []
    index = 0
    for start, end in ranges:
        while index < len(gone) and gone[index][1] <= start:
            index += 1
        begin, at = start, index
        while at < len(gone) and gone[at][0] < end:
            if begin < gone[at][0]:
                left.append((begin, gone[at][0]))
            begin = gone[at][1]
            at += 1
        if begin < end:
            left.append((begin, end))
    return left


def check_pages() -> None:
    """Raises `ImageError` if this machine's pages are not `PAGE` bytes large.

    Mapping and tracking would then reach other memory than meant.
    """
    here = os.sysconf("SC_PAGE_SIZE")
    if here != PAGE:
        raise ImageError(
            f"This machine's memory has pages of {here // 1024} KiB, and sandboxes keep theirs in "
            "pages of 4 KiB: none can run here. Nothing was changed. Start the machine with a "
            "Linux whose pages have 4 KiB, or use another one."
        )


def best(address: int, size: int) -> Tracker:
    """Returns the best tracker that works here, with everything marked as unwritten."""
    try:
        return WriteProtect(address, size)
    except (OSError, AttributeError):
        return Compare(address, size)


def available() -> str:
    """Returns the name of the best tracker that works here."""
    spot = ctypes.create_string_buffer(4 * PAGE)
    start = -(-ctypes.addressof(spot) // PAGE) * PAGE
    tracker = best(start, PAGE)
    tracker.close()
    return tracker.name


def _iowr(kind: int, number: int, size: int) -> int:
    return (3 << 30) | (size << 16) | (kind << 8) | number


_SYSCALL = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY = 1
_UFFDIO_API = _iowr(0xAA, 0x3F, 24)
_UFFDIO_REGISTER = _iowr(0xAA, 0x00, 32)
_REGISTER_MODE_WP = 2
_FEATURES = (1 << 12) | (1 << 13) | (1 << 15)  # shared memory, unpopulated pages, async
_PAGEMAP_SCAN = _iowr(ord("f"), 16, 96)
_WP_MATCHING, _CHECK_WPASYNC = 1, 2
_PAGE_IS_WRITTEN = 1 << 1
_VECTOR = 4096  # most regions that one call returns; ctypes fills the array with zeros
_HOT_LOOKS = 16  # for which hot pages stay writable
_COLD_MOST = 64  # ranges; of more, all pages are protected by one call


class WriteProtect(DescriptorOwner):
    """Tracks writes by write-protection faults that Linux resolves by itself.

    Nearly all pages that a small cell writes are the interpreter's own, the same for each cell, and
    a fault takes longer than keeping the page. So the pages written before two calls in a row are
    hot: they stay writable, and count as written, for the next 14 calls. Closing the descriptor
    ends the protection of the memory.
    """

    name = "write-protect"

    def __init__(self, address: int, size: int) -> None:
        self._address, self._size = address, 0
        self._looks = 0
        self._last: list[Range] = []
        self._hot: list[Range] = []
        number = _SYSCALL.get(platform.machine(), -1)
        self.fd = checked(system_call(number, os.O_CLOEXEC | _USER_MODE_ONLY))
        with undoing(self.close):
            _ioctl(self.fd, _UFFDIO_API, struct.pack("<QQQ", 0xAA, _FEATURES, 0))
            self._pagemap = _pagemap_of(os.getpid())
            self._found = (ctypes.c_uint64 * (3 * _VECTOR))()
            self._extend(size)

    def _extend(self, size: int) -> None:
        if size > self._size:
            self._watch(self._address + self._size, size - self._size)
            self._size = size

    def _watch(self, at: int, length: int) -> None:
        mode = struct.pack("<QQQQ", at, length, _REGISTER_MODE_WP, 0)
        _ioctl(self.fd, _UFFDIO_REGISTER, mode)
        self._protect(at, length)

    def _protect(self, at: int, length: int) -> None:
        # without a vector the scan only protects: four times as fast as UFFDIO_WRITEPROTECT
        fields = (96, _WP_MATCHING | _CHECK_WPASYNC, at, at + length, *[0] * 5, _PAGE_IS_WRITTEN, 0)
        _ioctl(self._pagemap, _PAGEMAP_SCAN, struct.pack("<12Q", *fields, _PAGE_IS_WRITTEN))

    def cleared(self, ranges: Iterable[Range]) -> None:
        """Protects cleared ranges again: their pages lost the protection."""
        for start, end in ranges:
            self._watch(self._address + start, end - start)

    def changed(self, size: int) -> list[Range]:
        """Returns the ranges written since the last call, and the hot ranges."""
        before = self._size
        self._extend(size)
        ranges = self._written(before)
        return [*ranges, (before, size)] if size > before else ranges

    def _written(self, size: int) -> list[Range]:
        """Returns the written ranges, and protects them if they are not hot."""
        self._looks = (self._looks + 1) % _HOT_LOOKS
        ranges = self._scan(size, 0 if self._looks > 1 else _WP_MATCHING)
        if self._looks == 2:
            self._hot = without(ranges, without(ranges, self._last))
        self._last = ranges
        if self._looks > 1:
            cold = without(ranges, self._hot)
            if len(cold) > _COLD_MOST:
                self._looks, cold = 0, [(0, size)]
            for start, end in cold:
                self._protect(self._address + start, end - start)
        return ranges

    def _scan(self, size: int, protecting: int) -> list[Range]:
        found: list[Range] = []
        at, end = self._address, self._address + size
        vector = ctypes.addressof(self._found)
        while at < end:
            flags = protecting | _CHECK_WPASYNC
            fields = (96, flags, at, end, 0, vector, _VECTOR, 0, 0, _PAGE_IS_WRITTEN, 0)
            request = bytearray(struct.pack("<12Q", *fields, _PAGE_IS_WRITTEN))
            count = _ioctl(self._pagemap, _PAGEMAP_SCAN, request)
            at = struct.unpack_from("<Q", request, 32)[0]
            regions, base = self._found[: 3 * count], self._address  # start, end and more
            pairs = zip(regions[::3], regions[1::3], strict=True)
            found += [(start - base, stop - base) for start, stop in pairs]
        return found


@cache
def _pagemap_of(process: int) -> int:  # noqa: ARG001 - a forked process has another one
    """Opens the page map of this process, which all trackers share."""
    return os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)


def _ioctl(descriptor: int, request: int, argument: bytes | bytearray) -> int:
    mutable = argument if isinstance(argument, bytearray) else bytearray(argument)
    answer: int = fcntl.ioctl(descriptor, request, mutable)
    return answer


_OWN = bytes(byte >> 6 > 0 and not byte >> 5 & 1 for byte in range(256))
"""Tells by the highest byte of a page's entry whether the page no longer belongs to a file."""


class Compare:
    """Compares memory with a copy of it, except pages that belong to a file."""

    name = "compare"

    def __init__(self, address: int, size: int) -> None:
        self._address = address
        self._copy = bytearray()
        self._copy_range(0, size)

    def _copy_range(self, start: int, end: int) -> None:
        self._copy[start:end] = ctypes.string_at(self._address + start, end - start)

    def _candidates(self, size: int) -> Iterable[Range]:
        first, count = self._address // PAGE, size // PAGE
        try:
            entries = os.pread(_pagemap_of(os.getpid()), 8 * count, 8 * first)
            own = entries[7::8].translate(_OWN) + b"\0"
        except OSError:  # not every system has `/proc/self/pagemap`
            own = b"\1" * count + b"\0"
        begin = own.find(1)
        while begin >= 0:
            end = own.find(0, begin)
            yield begin * PAGE, end * PAGE
            begin = own.find(1, end)

    def changed(self, size: int) -> list[Range]:
        """Returns the ranges that differ from the copy, and updates the copy."""
        before = len(self._copy)
        if size > before:
            self._copy_range(before, size)
        ranges = merge(
            found
            for start, end in self._candidates(before)
            for found in self._compare(start, min(end, before))
        )
        for start, end in ranges:
            self._copy_range(start, end)
        return [*ranges, (before, size)] if size > before else ranges

    def cleared(self, ranges: Iterable[Range]) -> None:
        """Clears the copy as well."""
        for start, end in ranges:
            self._copy[start:end] = bytes(end - start)

    def _compare(self, start: int, end: int) -> Iterable[Range]:
        with memoryview(self._copy) as view:
            base = ctypes.addressof(ctypes.c_char.from_buffer(view)) if view else 0
            for block in range(start, end, _BLOCK):
                stop = min(block + _BLOCK, end)
                if _differ(self._address + block, base + block, stop - block):
                    yield from self._pages(base, block, stop)

    def _pages(self, base: int, start: int, end: int) -> Iterable[Range]:
        for page in range(start, end, PAGE):
            if _differ(self._address + page, base + page, PAGE):
                yield page, page + PAGE

    def close(self) -> None:
        """Drops the copy."""
        self._copy = bytearray()


_ZEROS_PAGES = 4  # checked together; fewer zero pages are cheaper to store than to record


def split_zeros(runs: Sequence[Run], content: Content) -> tuple[Runs, list[memoryview], Runs]:
    """Returns the runs without pages of zeros, the parts of their content, and the zeros."""
    if not content:
        return tuple(runs), [], ()
    base = ctypes.addressof(ctypes.c_char.from_buffer(content))
    places, at = [], 0
    for first, pages in runs:
        places.append((first, pages, base + at))
        at += pages * PAGE
    kept, zeros = _sort_out(places)
    left, view = joined((first, pages) for first, pages, _ in kept), memoryview(content)
    parts = joined(((address - base) // PAGE, pages) for _, pages, address in kept)
    return left, [view[at * PAGE : (at + pages) * PAGE] for at, pages in parts], zeros


def sort_out(address: int, ranges: Iterable[Range]) -> tuple[Runs, Runs]:
    """Splits ranges of this process's memory into runs with content and runs of zeros."""
    places = [(a // PAGE, (b - a) // PAGE, address + a) for a, b in ranges]
    kept, zeros = _sort_out(places)
    return joined((first, pages) for first, pages, _ in kept), zeros


def _sort_out(places: Iterable[Place]) -> tuple[list[Place], Runs]:
    zero = bytes(_ZEROS_PAGES * PAGE)
    kept: list[Place] = []
    zeros: list[Run] = []
    for first, pages, address in places:
        for at in range(0, pages, _ZEROS_PAGES):
            count, there = min(_ZEROS_PAGES, pages - at), address + at * PAGE
            if count == _ZEROS_PAGES and not _differ(there, zero, len(zero)):
                zeros.append((first + at, count))
            else:
                kept.append((first + at, count, there))
    return kept, joined(zeros)


def joined(runs: Iterable[Run]) -> Runs:
    """Returns runs in the same order, with adjacent ones joined."""
    found: list[Run] = []
    for first, pages in runs:
        if found and sum(found[-1]) == first:
            found[-1] = (found[-1][0], found[-1][1] + pages)
        else:
            found.append((first, pages))
    return tuple(found)
