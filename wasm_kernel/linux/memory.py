"""This process's memory: files mapped over it, copies of it, and how much more may be taken."""

from __future__ import annotations

import ctypes
import mmap
import os
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

_MAP_FIXED = 0x10  # Python's mmap module does not name it
_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_RANGES_MOST = 1024  # IOV_MAX
_COPIED_MOST = 1024 * 1024 * 1024  # bytes; one call copies a little less than 2 GiB

Range = tuple[int, int]
"""The beginning and the end of a range, as offsets."""


def map_file(address: int, size: int, descriptor: int, offset: int) -> None:
    """Maps `size` bytes of a file from `offset` over memory that is ours already, copy-on-write.

    What is written there later stays in memory. Both `address` and `offset` are multiples of a
    page.

    Raises:
        OSError: the system refuses; the memory is as it was.
    """
    access = mmap.PROT_READ | mmap.PROT_WRITE
    how = mmap.MAP_PRIVATE | _MAP_FIXED
    if _mmap()(address, size, access, how, descriptor, offset) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@cache
def _mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    pointer, size, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    function.argtypes = [pointer, size, word, word, word, ctypes.c_long]
    return function


def view(address: int, size: int) -> memoryview:
    """Returns so many bytes of memory, for reading."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B").toreadonly()


def read_ranges(address: int, ranges: Sequence[Range]) -> bytearray:
    """Returns a copy of what ranges of memory hold, one after the other.

    A cell leaves hundreds of small dirty ranges; one C call each would cost more than the copying.
    `process_vm_readv`, asked about the own process, copies a thousand at once. Source:
    process_vm_readv(2).

    Args:
        address: What the offsets are relative to.
        ranges: The ranges.

    Raises:
        OSError: a range is not readable memory.
    """
    target = bytearray(sum(end - start for start, end in ranges))
    base, done = ctypes.addressof(ctypes.c_char.from_buffer(target)) if target else 0, 0
    for part in _portions(ranges):
        remote = array("Q", [n for a, b in part for n in (address + a, b - a)])
        length = sum(remote[1::2])
        local = array("Q", (base + done, length))
        there, here = remote.buffer_info()[0], local.buffer_info()[0]
        if _process_vm_readv()(os.getpid(), here, 1, there, len(part), 0) != length:
            raise OSError(ctypes.get_errno(), "process_vm_readv")
        done += length
    return target


def _portions(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Yields the ranges in portions that one call can take; longer ones are cut."""
    if len(ranges) <= _RANGES_MOST and sum(end - start for start, end in ranges) <= _COPIED_MOST:
        yield list(ranges)  # so after most cells
        return
    portion: list[Range] = []
    room = _COPIED_MOST
    for start, end in ranges:
        at = start
        while at < end:
            stop = min(end, at + room)
            portion.append((at, stop))
            room -= stop - at
            at = stop
            if room == 0 or len(portion) == _RANGES_MOST:
                yield portion
                portion, room = [], _COPIED_MOST
    if portion:
        yield portion


@cache
def _process_vm_readv() -> Any:
    function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    function.restype = ctypes.c_ssize_t
    count, pointer = ctypes.c_ulong, ctypes.c_void_p
    function.argtypes = [ctypes.c_int, pointer, count, pointer, count, count]
    return function


def available_memory() -> int:
    """Returns the bytes that can be taken without pressing on anybody; 0 if it can't be told.

    It is what the system has left, or what a control group of this process leaves if that is less.
    """
    return min([_of_system(), *_of_groups()])


def _of_system() -> int:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


def _of_groups() -> list[int]:
    """Returns what each control group above this process leaves (version 2, as containers have)."""
    try:
        lines = _GROUP.read_text().splitlines()
        name = next(line[3:] for line in lines if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    left = []
    folder = _GROUPS / name.strip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(_GROUPS):
            break
        try:
            most = int((group / "memory.max").read_text())
            left.append(max(0, most - int((group / "memory.current").read_text())))
        except (OSError, ValueError):
            continue  # the topmost has no limit, nor has one that says "max"
    return left
