"""The C library of this process: its functions, and system calls that it has no function for."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any, cast

POINTER, TEXT, SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
INT, UNSIGNED, LONG = ctypes.c_int, ctypes.c_uint, ctypes.c_long
_LIBRARY = ctypes.CDLL(None, use_errno=True)


@cache
def function(name: str, *types: type[Any], result: type[Any] = INT) -> Callable[..., int]:
    """Returns a function of the C library, or one that always fails if the library is too old."""
    found: Any = getattr(_LIBRARY, name, None)
    if found is None:
        return lambda *_: -1
    found.argtypes, found.restype = types, result
    return cast("Callable[..., int]", found)


def system_call(number: int, *arguments: int | bytes | None) -> int:
    """Makes a system call; returns its answer, which is below 0 if it failed."""
    words = [LONG(a) if isinstance(a, int) else a for a in arguments]
    return int(_LIBRARY.syscall(LONG(number), *words))


def failure(what: str = "") -> OSError:
    """Returns the error of the call that has just failed, in the system's words or in `what`."""
    code = ctypes.get_errno()
    return OSError(code, what or os.strerror(code))


def checked(answer: int) -> int:
    """Returns the answer of a call that did not fail; raises `OSError` otherwise."""
    if answer < 0:
        raise failure()
    return answer
