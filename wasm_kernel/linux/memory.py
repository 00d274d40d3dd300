"""Laying a file over memory copy-on-write, where the system can; Linux can."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from functools import lru_cache
from typing import Any

MAPS = sys.platform == "linux"
_MAP_FIXED = 0x10  # Linux; Python's mmap module does not name it


@lru_cache(maxsize=1)
def _function() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    return function


def lay_over(address: int, size: int, descriptor: int, at: int) -> None:
    """Map `size` bytes of a file from position `at` over memory that is ours already.

    What is written there later stays in memory. Both `address` and `at` are multiples of a page.

    Raises:
        OSError: the system refuses; the memory is as it was.
    """
    access = mmap.PROT_READ | mmap.PROT_WRITE
    how = mmap.MAP_PRIVATE | _MAP_FIXED
    if _function()(address, size, access, how, descriptor, at) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
