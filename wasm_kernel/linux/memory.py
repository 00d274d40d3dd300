"""This process's memory: files mapped over it, copies of it, and how much more may be taken."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from wasm_kernel.linux import libc
from wasm_kernel.linux.folders import undoing
from wasm_kernel.linux.libc import INT, LONG, POINTER, SIZE, failure

_MAP_FIXED = 0x10  # Python's mmap module does not name it
_FAILED = ctypes.c_void_p(-1).value
_POPULATE_WRITE = 23  # Python's mmap module does not name it
_NO_ACCESS = 0  # PROT_NONE
_MAY_MOVE, _FIXED = 1, 2  # flags of mremap
_MAPS = Path("/proc/self/maps")
MEMINFO, GROUP = Path("/proc/meminfo"), Path("/proc/self/cgroup")
VMSTAT = Path("/proc/vmstat")
GROUPS = Path("/sys/fs/cgroup")
_mmap = libc.function("mmap", POINTER, SIZE, INT, INT, INT, LONG, result=POINTER)
_munmap = libc.function("munmap", POINTER, SIZE)
_mremap = libc.function("mremap", POINTER, SIZE, SIZE, INT, POINTER, result=POINTER)
_madvise = libc.function("madvise", POINTER, SIZE, INT)
_read = libc.function(
    "process_vm_readv", INT, POINTER, SIZE, POINTER, SIZE, SIZE, result=ctypes.c_ssize_t
)
_ARENA_MAX = -8  # an option of mallopt
RANGES_MOST = 1024  # IOV_MAX
_LARGE_COPY = 16 * 1024 * 1024  # bytes, from which on a copy gets whole pages of the system
COPIED_MOST = 1024 * 1024 * 1024  # bytes; one call copies a little less than 2 GiB

Range = tuple[int, int]
"""The beginning and the end of a range, as offsets."""


def map_file(address: int, size: int, descriptor: int, offset: int) -> None:
    """Maps `size` bytes of a file from `offset` over memory that is ours already, copy-on-write.

    Both `address` and `offset` are multiples of a page. After an `OSError` the memory is as it was.
    """
    access = mmap.PROT_READ | mmap.PROT_WRITE
    how = mmap.MAP_PRIVATE | _MAP_FIXED
    if _mmap(address, size, access, how, descriptor, offset) != address:
        raise failure()


def clear(address: int, size: int, *, mapped: bool) -> None:
    """Gives whole pages of ours back to the system; they hold zeros from now on.

    If files are `mapped` into the pages, the mappings are replaced: otherwise the files' contents
    would show again. After an `OSError` the memory is as it was.
    """
    if mapped:
        access, how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        failed = _mmap(address, size, access, how | _MAP_FIXED, -1, 0) != address
    else:
        failed = _madvise(address, size, mmap.MADV_DONTNEED) != 0
    if failed:
        raise failure()


def clear_ranges(
    address: int, anonymous: Iterable[Range], mapped: Iterable[Range]
) -> Iterator[Range]:
    """Clears ranges of memory, without and with files mapped into them; yields the cleared ones."""
    with contextlib.suppress(OSError):  # such as too many mappings
        for ranges, is_mapped in ((anonymous, False), (mapped, True)):
            for start, end in ranges:
                clear(address + start, end - start, mapped=is_mapped)
                yield start, end


def mappings(access: bytes = b"") -> list[Range]:
    """Returns this process's mappings, all or those of one kind of `access`, such as `rw-p`."""
    found = []
    for line in _MAPS.read_bytes().splitlines():
        place, kind, _ = line.split(b" ", 2)
        if not access or kind == access:
            start, _, end = place.partition(b"-")
            found.append((int(start, 16), int(end, 16)))
    return found


def copy_ahead(address: int, size: int) -> None:
    """Copies pages that this process shares, without changing them. Needs Linux 5.14 or later.

    Source: madvise(2), MADV_POPULATE_WRITE.
    """
    _madvise(address, size, _POPULATE_WRITE)


_MOVE = _MAY_MOVE | _FIXED | 4  # MREMAP_DONTUNMAP


class MovedMemory:
    """Memory that was moved away from its place, with its mappings; close it.

    Page tables are moved, no content: a gigabyte takes less than a millisecond. Source: mremap(2);
    MREMAP_DONTUNMAP, of Linux 5.7 and later, leaves empty memory, so the place stays reserved.
    """

    def __init__(self, address: int, size: int) -> None:
        """Moves memory of ours away; its old place is undefined then, also after an `OSError`."""
        how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        place = _mmap(None, size, _NO_ACCESS, how, -1, 0)
        if place in (None, _FAILED):
            raise failure()
        self.size, self._place = size, place
        with undoing(self.close):
            _move(address, place, size)

    def move_to(self, address: int, size: int) -> None:
        """Moves the first `size` bytes over other memory, which is undefined after an `OSError`."""
        _move(self._place, address, size)

    def close(self) -> None:
        """Frees the part that was not moved on. Safe to call twice."""
        if self._place:
            place, self._place = self._place, 0
            _munmap(place, self.size)


def _move(source: int, target: int, size: int) -> None:
    at = source
    for start, end in _mappings(source, source + size):
        place = target + start - source
        moved = _mremap(start, end - start, end - start, _MOVE, place)
        if start != at or moved != place:
            raise failure("mremap")
        at = end
    if at != source + size:
        raise OSError(errno.EFAULT, "mremap")


def _mappings(start: int, end: int) -> list[Range]:
    """Returns the mappings between two addresses; mremap moves one mapping per call."""
    parts = ((max(start, first), min(end, last)) for first, last in mappings())
    return [(first, last) for first, last in parts if first < last]


def view(address: int, size: int) -> memoryview:
    """Returns a read-only view of `size` bytes of memory."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B").toreadonly()


def read_ranges(address: int, ranges: Sequence[Range]) -> bytearray | mmap.mmap:
    """Returns a copy of the contents of ranges of memory, one after the other.

    Other threads go on: a new `bytearray` is first filled with zeros, and a gigabyte of
    them would stop all threads for seconds. A cell leaves hundreds of small dirty ranges; one C
    call each would cost more than the copying. process_vm_readv(2), asked about the own process,
    copies a thousand at once.
    """
    size = sum(end - start for start, end in ranges)
    try:
        is_large = size >= _LARGE_COPY
        target = mmap.mmap(-1, size, mmap.MAP_PRIVATE) if is_large else bytearray(size)
    except OSError:
        raise MemoryError from None
    base, done = ctypes.addressof(ctypes.c_char.from_buffer(target)) if target else 0, 0
    for part in _portions(ranges):
        remote = array("Q", [n for a, b in part for n in (address + a, b - a)])
        length = sum(remote[1::2])
        local = array("Q", (base + done, length))
        there, here = remote.buffer_info()[0], local.buffer_info()[0]
        if _read(os.getpid(), here, 1, there, len(part), 0) != length:
            raise failure("process_vm_readv")
        done += length
    return target


def _portions(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Yields the ranges in portions that one call can take; longer ones are cut."""
    cut = [
        (at, min(at + COPIED_MOST, end))
        for start, end in ranges
        for at in range(start, end, COPIED_MOST)
    ]
    for first in range(0, len(cut), RANGES_MOST):
        some = cut[first : first + RANGES_MOST]
        if sum(end - start for start, end in some) <= COPIED_MOST:
            yield some
        else:
            yield from ([one] for one in some)


def use_one_arena() -> None:
    """Makes all threads share one arena of the C library, which takes less memory, if possible.

    Call it before the second thread begins.
    """
    libc.function("mallopt", INT, INT)(_ARENA_MAX, 1)


def trim() -> None:
    """Returns the C library's free memory to the system, if the library supports that."""
    with contextlib.suppress(AttributeError):
        libc.function("malloc_trim", SIZE)(0)


def available_memory() -> int:
    """Returns the bytes that can be allocated without swapping; 0 if that is unknown.

    A control group of this process may leave less than the system has.
    """
    return min([_of_system(), *_of_groups()])


def oom_kills() -> int:
    """Returns how many processes the system has ended for lack of memory; 0 if unknown."""
    with contextlib.suppress(OSError):
        for line in VMSTAT.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _of_system() -> int:
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


def _of_groups() -> list[int]:
    """Returns the bytes that each control group of this process leaves (cgroup version 2)."""
    try:
        lines = GROUP.read_text().splitlines()
        name = next(line[3:] for line in lines if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    left = []
    folder = GROUPS / name.strip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(GROUPS):
            break
        try:
            most = int((group / "memory.max").read_text())
            left.append(max(0, most - int((group / "memory.current").read_text())))
        except (OSError, ValueError):
            continue  # no limit: the topmost group, or one that says "max"
    return left
