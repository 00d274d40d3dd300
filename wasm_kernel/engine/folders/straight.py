"""Whether a path has a link in it, asked in one system call.

Reading each part of a path takes the kernel longer with every part. `openat2(2)` says in one walk
that there is no link on the way; where there is none of it, or it says no, the parts are read.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_OPENAT2, _AT_FDCWD = 437, -100
_NO_SYMLINKS, _NO_MAGICLINKS = 0x04, 0x02
_HOW = struct.pack("<QQQ", 0o10000000 | 0o2000000, 0, _NO_SYMLINKS | _NO_MAGICLINKS)  # a bare path


def is_straight(path: str) -> bool:
    """Whether the file at an absolute host path is there, and no part of its path is a link.

    False also where that can't be said.
    """
    if sys.platform != "linux":
        return False
    found = _SYSCALL(_OPENAT2, _AT_FDCWD, os.fsencode(path), _HOW, len(_HOW))
    if found < 0:
        return False
    os.close(found)
    return True


if sys.platform == "linux":
    _SYSCALL = ctypes.CDLL(None).syscall
    _SYSCALL.argtypes = (
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    )
    _SYSCALL.restype = ctypes.c_long
