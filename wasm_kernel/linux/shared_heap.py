"""The heap that forked processes share: objects whose references Python does not count.

A forked process shares its parent's memory, and copies each page when it first writes to it. Python
writes to nearly every object that it uses, because it counts the references to it. From Python 3.12
on it counts none to immortal objects, such as None. Source: PEP 683. Earlier versions, and those
without the global lock, know no such mark, or keep it elsewhere; there, objects stay as they are.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any

_RUNNING = {AsyncGeneratorType, CoroutineType, FrameType, GeneratorType}
_probe = object()


def freeze() -> None:
    """Makes all objects immortal, and hides them from the garbage collector; call it before a fork.

    They are never freed. It takes a tenth of a second or two.
    """
    mark = _count(None).value
    _count(_probe).value = mark
    if _is_immortal(_probe):
        gc.unfreeze()
        _immortalize(gc.get_objects(), mark)
    gc.freeze()


def _count(item: object) -> ctypes.c_uint32:
    """Returns the half of an object's count of references that makes it immortal."""
    return ctypes.c_uint32.from_address(id(item))


def _is_immortal(item: object) -> bool:
    before = sys.getrefcount(item)
    more = [item]
    return sys.getrefcount(*more) == before


def _immortalize(left: list[Any], mark: int) -> None:
    """Makes objects immortal, and all that they refer to; code that runs stays as it is."""
    while left:
        item = left.pop()
        count = _count(item)
        if count.value == mark or type(item) in _RUNNING:
            continue
        count.value = mark
        left += _parts(item) if type(item) is CodeType else gc.get_referents(item)


def _parts(code: CodeType) -> list[object]:
    """Returns the objects of code, which the garbage collector does not know."""
    return [
        *(code.co_name, code.co_qualname, code.co_filename, code.co_names, code.co_consts),
        *(code.co_linetable, code.co_exceptiontable),
        *(*code.co_varnames, *code.co_cellvars, *code.co_freevars),
    ]
