"""This process's memory: files mapped over it, and how much more of it may be taken."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from pathlib import Path
from typing import Any

_MAP_FIXED = 0x10  # Python's mmap module does not name it
_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


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
