"""Which file a path leads to: the same one as before, or another that took its name.

Numbers of inodes are given again as soon as a file is gone, so the time of birth belongs to it.
Linux tells that through statx(2) alone.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from functools import lru_cache

_AT_FDCWD, _NO_FOLLOW, _WANTED = -100, 0x100, 0x900  # number and birth
_BORN = 0x800
_ANSWER = 256


def identity(path: str) -> str:
    """Names the file itself, links not followed; empty where there is none."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return ""
    born = _statx_birth(path) if sys.platform == "linux" else _birth(found)
    return f"{found.st_ino}:{born}"


def _birth(found: os.stat_result) -> str:
    return str(getattr(found, "st_birthtime_ns", getattr(found, "st_birthtime", "")))


def _statx_birth(path: str) -> str:
    function, answer = _function(), ctypes.create_string_buffer(_ANSWER)
    if function is None or function(_AT_FDCWD, os.fsencode(path), _NO_FOLLOW, _WANTED, answer):
        return ""
    seconds, nanoseconds = struct.unpack_from("<qI", answer, 80)
    known = struct.unpack_from("<I", answer)[0] & _BORN
    return f"{seconds}.{nanoseconds:09d}" if known else ""


@lru_cache(maxsize=1)
def _function() -> Callable[..., int] | None:
    """The C library's statx; None where it is too old to have one."""
    function = getattr(ctypes.CDLL(None), "statx", None)
    if function is None:
        return None
    word = ctypes.c_uint
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, word, ctypes.c_char_p]
    found: Callable[..., int] = function
    return found
