"""Copying many stretches of this process's memory in few calls.

A cell leaves hundreds of small dirty stretches; one C call each would cost more than the copying.
On Linux `process_vm_readv`, asked about the own process, copies a thousand at once. Source:
process_vm_readv(2).
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from wasm_kernel.state.pages import PAGE, Range

_AT_ONCE = 1024  # IOV_MAX
_STEP = 4 * 1024 * 1024
_MOST = 1024 * 1024 * 1024  # bytes; one call copies a little less than 2 GiB


def gather(address: int, ranges: Sequence[Range]) -> bytes | bytearray:
    """The content of `ranges`, offsets from `address`, one after the other.

    Raises:
        OSError: a range is not readable memory.
    """
    total = sum(end - start for start, end in ranges)
    if sys.platform != "linux" or not ranges:
        return b"".join(ctypes.string_at(address + a, b - a) for a, b in ranges)
    target = bytearray(total)
    base = ctypes.addressof(ctypes.c_char.from_buffer(target)) if total else 0
    done = 0
    for part in _portions(ranges):
        remote = array("Q", [n for a, b in part for n in (address + a, b - a)])
        done += _read(base + done, sum(remote[1::2]), remote)
    return target


def stretch(address: int, size: int) -> memoryview:
    """So many bytes of this process's memory, for reading."""
    whole = (ctypes.c_char * size).from_address(address)
    return memoryview(whole).cast("B").toreadonly()


def in_steps(memory: memoryview, runs: Sequence[tuple[int, int]]) -> Iterator[memoryview]:
    """The content of runs of pages, one after the other, in parts of at most `_STEP` bytes."""
    for first, pages in runs:
        end = (first + pages) * PAGE
        for at in range(first * PAGE, end, _STEP):
            yield memory[at : min(at + _STEP, end)]


def _portions(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """The ranges in portions that one call can take; longer ones are cut."""
    if len(ranges) <= _AT_ONCE and sum(end - start for start, end in ranges) <= _MOST:
        yield list(ranges)  # so after most cells
        return
    portion: list[Range] = []
    room = _MOST
    for start, end in ranges:
        at = start
        while at < end:
            stop = min(end, at + room)
            portion.append((at, stop))
            room -= stop - at
            at = stop
            if room == 0 or len(portion) == _AT_ONCE:
                yield portion
                portion, room = [], _MOST
    if portion:
        yield portion


def _read(target: int, length: int, remote: array[int]) -> int:
    local = array("Q", (target, length))
    got: int = _function()(
        os.getpid(), local.buffer_info()[0], 1, remote.buffer_info()[0], len(remote) // 2, 0
    )
    if got != length:
        raise OSError(ctypes.get_errno(), "process_vm_readv")
    return got


@lru_cache(maxsize=1)
def _function() -> Any:
    function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    function.restype = ctypes.c_ssize_t
    count, pointer = ctypes.c_ulong, ctypes.c_void_p
    function.argtypes = [ctypes.c_int, pointer, count, pointer, count, count]
    return function
