"""Renaming in one step for whoever looks: two files change places, or a name is taken only if it
is free. Source: renameat2(2).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache

_NOREPLACE, _EXCHANGE = 1, 2  # RENAME_NOREPLACE, RENAME_EXCHANGE


def exchange(folder: int, name: str, other_folder: int, other_name: str) -> bool:
    """Swap two names; False, with nothing done, where the system or the file system can't.

    Args:
        folder: A descriptor of the folder of `name`.
        name: Some file.
        other_folder: A descriptor of the folder of `other_name`, in the same file system.
        other_name: Another file.
    """
    swap = _function()
    if swap is None:
        return False
    return swap(folder, os.fsencode(name), other_folder, os.fsencode(other_name), _EXCHANGE) == 0


def take_name(folder: int, name: str, new: str) -> bool:
    """Rename something in its folder; False, with nothing done, if the name is taken or can't be.

    Args:
        folder: A descriptor of the folder.
        name: The name that it has.
        new: The name that it is to have.
    """
    rename = _function()
    if rename is None:
        return False
    return rename(folder, os.fsencode(name), folder, os.fsencode(new), _NOREPLACE) == 0


@cache
def _function() -> Callable[[int, bytes, int, bytes, int], int] | None:
    function = getattr(ctypes.CDLL(None), "renameat2", None)
    if function is None:  # no Linux, or a C library without it
        return None
    function.argtypes = (
        *(ctypes.c_int, ctypes.c_char_p),
        *(ctypes.c_int, ctypes.c_char_p),
        ctypes.c_uint,
    )
    function.restype = ctypes.c_int
    found: Callable[[int, bytes, int, bytes, int], int] = function
    return found
