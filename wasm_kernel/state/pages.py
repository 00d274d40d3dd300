"""Pages of a guest's memory: which changed since the last look, and which hold zeros.

There are three ways to know what changed:

- `WriteProtect` (Linux 6.7 and later, no privilege): userfaultfd write-protection in async mode
  plus the PAGEMAP_SCAN ioctl; one call returns the written ranges and arms them again. Exact, and
  its cost follows what changed. Sources: ioctl_userfaultfd(2), admin-guide/mm/pagemap in Linux's
  own documentation.
- `Pagemap` (older Linux): `/proc/self/pagemap` tells which pages of a private mapping are no longer
  the file's; those are compared with a copy.
- `Compare` (elsewhere): everything is compared with a copy.

Ranges are pairs of byte offsets, multiples of `PAGE`. A tracker belongs to the guest's thread.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

PAGE = 4096
Range = tuple[int, int]
Run = tuple[int, int]
"""First page and number of pages."""

Content = bytes | bytearray
"""The pages of runs, one after the other."""

_BLOCK = 64 * PAGE


class Tracker(Protocol):
    """Knows what was written to a stretch of this process's memory."""

    name: str

    def changed(self, size: int) -> list[Range]:
        """The ranges written since the last call, of memory that is `size` bytes large now.

        What lies beyond the size of the last call counts as written.
        """

    def close(self) -> None:
        """Stop tracking; idempotent."""


class PageSet:
    """Pages of a memory that are covered already, if newer things are laid before older ones."""

    def __init__(self, pages: int) -> None:
        self._flags = bytearray(pages)

    def holds(self, first: int, pages: int) -> bool:
        """Whether a run lies inside the memory."""
        return first >= 0 and pages >= 0 and first + pages <= len(self._flags)

    def free(self, first: int, pages: int) -> Iterator[tuple[int, int]]:
        """Start and end of the stretches of a run that are not covered; afterwards they are."""
        at, end = first, first + pages
        while at < end:
            begin = self._flags.find(b"\0", at, end)
            if begin < 0:
                break
            stop = self._flags.find(b"\1", begin, end)
            at = end if stop < 0 else stop
            yield begin, at
        self._flags[first:end] = b"\1" * pages


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Sorted ranges without overlaps, neighbours joined."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def best(address: int, size: int) -> Tracker:
    """The best tracker that works here, with everything marked as unwritten."""
    for kind in (WriteProtect, Pagemap):
        try:
            return kind(address, size)
        except (OSError, AttributeError):
            continue
    return Compare(address, size)


def available() -> str:
    """The name of the tracker that works here."""
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
_UFFDIO_WRITEPROTECT = _iowr(0xAA, 0x06, 24)
_REGISTER_MODE_WP, _WRITEPROTECT_MODE_WP = 2, 1
_FEATURES = (1 << 12) | (1 << 13) | (1 << 15)  # shared memory, unpopulated pages, async
_PAGEMAP_SCAN = _iowr(ord("f"), 16, 96)
_WP_MATCHING, _CHECK_WPASYNC = 1, 2
_PAGE_IS_WRITTEN = 1 << 1
_VECTOR = 65_536


class WriteProtect:
    """Tracks through write-protection faults that the kernel resolves by itself."""

    name = "write-protect"

    def __init__(self, address: int, size: int) -> None:
        number = _SYSCALL.get(platform.machine())
        if sys.platform != "linux" or number is None:
            raise OSError("no userfaultfd here")
        self._address, self._size = address, 0
        libc = ctypes.CDLL(None, use_errno=True)
        self._faults = libc.syscall(number, os.O_CLOEXEC | _USER_MODE_ONLY)
        if self._faults < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd")
        self._pagemap = -1
        try:
            _ioctl(self._faults, _UFFDIO_API, struct.pack("<QQQ", 0xAA, _FEATURES, 0))
            self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            self._found = (ctypes.c_uint64 * (3 * _VECTOR))()
            self._extend(size)
            self._scan(size)
        except OSError:
            self.close()
            raise

    def _extend(self, size: int) -> None:
        at, length = self._address + self._size, size - self._size
        if length > 0:
            mode = struct.pack("<QQQQ", at, length, _REGISTER_MODE_WP, 0)
            _ioctl(self._faults, _UFFDIO_REGISTER, mode)
            protect = struct.pack("<QQQ", at, length, _WRITEPROTECT_MODE_WP)
            _ioctl(self._faults, _UFFDIO_WRITEPROTECT, protect)
            self._size = size

    def changed(self, size: int) -> list[Range]:
        """The ranges written since the last call."""
        before = self._size
        self._extend(size)
        ranges = self._scan(before)
        return [*ranges, (before, size)] if size > before else ranges

    def _scan(self, size: int) -> list[Range]:
        found: list[Range] = []
        at, end = self._address, self._address + size
        vector = ctypes.addressof(self._found)
        while at < end:
            flags = _WP_MATCHING | _CHECK_WPASYNC
            fields = (96, flags, at, end, 0, vector, _VECTOR, 0, 0, _PAGE_IS_WRITTEN, 0)
            request = bytearray(struct.pack("<12Q", *fields, _PAGE_IS_WRITTEN))
            count = _ioctl(self._pagemap, _PAGEMAP_SCAN, request)
            at = struct.unpack_from("<Q", request, 32)[0]
            regions = self._found[: 3 * count]  # start, end and categories of each
            base = self._address
            found += [
                (a - base, b - base) for a, b in zip(regions[::3], regions[1::3], strict=True)
            ]
        return found

    def close(self) -> None:
        """Give the descriptors back; the memory is unprotected with them."""
        for name in ("_faults", "_pagemap"):
            descriptor = getattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)


def _ioctl(descriptor: int, request: int, argument: bytes | bytearray) -> int:
    import fcntl

    mutable = argument if isinstance(argument, bytearray) else bytearray(argument)
    answer: int = fcntl.ioctl(descriptor, request, mutable)
    return answer


class Compare:
    """Compares memory with a copy of it."""

    name = "compare"

    def __init__(self, address: int, size: int) -> None:
        self._address = address
        self._copy = bytearray()
        self._differ = ctypes.CDLL(None).memcmp
        self._differ.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._take(0, size)

    def _take(self, start: int, end: int) -> None:
        self._copy[start:end] = ctypes.string_at(self._address + start, end - start)

    def _candidates(self, size: int) -> Iterable[Range]:
        return [(0, size)]

    def changed(self, size: int) -> list[Range]:
        """The ranges that differ from the copy, which then follows."""
        before = len(self._copy)
        if size > before:
            self._take(before, size)
        ranges = merge(
            found
            for start, end in self._candidates(before)
            for found in self._compare(start, min(end, before))
        )
        for start, end in ranges:
            self._take(start, end)
        return [*ranges, (before, size)] if size > before else ranges

    def _compare(self, start: int, end: int) -> Iterable[Range]:
        with memoryview(self._copy) as view:
            base = ctypes.addressof(ctypes.c_char.from_buffer(view)) if view else 0
            for block in range(start, end, _BLOCK):
                stop = min(block + _BLOCK, end)
                if self._differ(self._address + block, base + block, stop - block):
                    yield from self._pages(base, block, stop)

    def _pages(self, base: int, start: int, end: int) -> Iterable[Range]:
        for page in range(start, end, PAGE):
            if self._differ(self._address + page, base + page, PAGE):
                yield page, page + PAGE

    def close(self) -> None:
        """Drop the copy."""
        self._copy = bytearray()


class Pagemap(Compare):
    """Compares only the pages that a private file mapping has no longer in common with its file.

    Source: Documentation/admin-guide/mm/pagemap: bit 63 present, bit 62 swapped, bit 61 still the
    file's. A page that was written since it was mapped is never the file's again.
    """

    name = "pagemap"

    def __init__(self, address: int, size: int) -> None:
        self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            super().__init__(address, size)
        except BaseException:
            os.close(self._pagemap)
            raise

    def _candidates(self, size: int) -> Iterable[Range]:
        first = self._address // PAGE
        entries = os.pread(self._pagemap, 8 * (size // PAGE), 8 * first)
        for index, (entry,) in enumerate(struct.iter_unpack("<Q", entries)):
            if entry >> 62 and not entry >> 61 & 1:
                yield index * PAGE, (index + 1) * PAGE

    def close(self) -> None:
        """Give the descriptor back."""
        super().close()
        if self._pagemap >= 0:
            os.close(self._pagemap)
            self._pagemap = -1


_ZERO = bytes(PAGE)
_COPIED_BYTES = 1024 * 1024
_SHORTEST = 16  # pages; a shorter stretch is cheaper to keep than to name


def split_zeros(
    runs: Sequence[Run], content: Content
) -> tuple[tuple[Run, ...], Content, tuple[Run, ...]]:
    """Runs without their longer stretches of zero pages, their content, and those stretches."""
    if all(pages < _SHORTEST for _, pages in runs):  # so after most cells
        return tuple(runs), content, ()
    kept: list[Run] = []
    less = bytearray()
    zeros: list[Run] = []
    position = 0
    for first, pages in runs:
        at = 0
        for start, end in [*_zero_stretches(content, position, pages), (pages, pages)]:
            if start > at:
                kept.append((first + at, start - at))
                _append_steps(less, content, position + at * PAGE, position + start * PAGE)
            if end > start:
                zeros.append((first + start, end - start))
            at = end
        position += pages * PAGE
    if not zeros:
        return tuple(runs), content, ()
    return tuple(kept), less, tuple(zeros)


def sort_out(address: int, ranges: Iterable[Range]) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The runs with content and the runs of zeros in ranges of this process's memory, by offsets.

    Only whole blocks of zeros are found, which is quick: nothing is copied.
    """
    differ, zero = ctypes.CDLL(None).memcmp, ctypes.create_string_buffer(_SHORTEST * PAGE)
    differ.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    found: tuple[list[Range], list[Range]] = ([], [])
    for start, end in ranges:
        for at in range(start, end, len(zero)):
            stop = min(at + len(zero), end)
            empty = stop - at == len(zero) and not differ(address + at, zero, len(zero))
            found[empty].append((at, stop))
    kept, zeros = (
        tuple((start // PAGE, (end - start) // PAGE) for start, end in merge(kind))
        for kind in found
    )
    return kept, zeros


def _append_steps(less: bytearray, content: Content, start: int, end: int) -> None:
    """Copy in small steps: other threads of this interpreter wait for the length of one."""
    with memoryview(content) as view:
        for at in range(start, end, _COPIED_BYTES):
            less += view[at : min(at + _COPIED_BYTES, end)]


def _zero_stretches(content: Content, position: int, pages: int) -> Iterator[Run]:
    """Start and end of every stretch of at least `_SHORTEST` zero pages in a run."""
    if pages < _SHORTEST:
        return
    begin = -1
    for page in range(pages + 1):
        at = position + page * PAGE
        if page < pages and content[at : at + PAGE] == _ZERO:
            begin = page if begin < 0 else begin
            continue
        if begin >= 0 and page - begin >= _SHORTEST:
            yield begin, page
        begin = -1
