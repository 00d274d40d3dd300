"""The heap that forked processes share: objects whose references Python does not count, and pages
that are copied ahead.

A forked process shares its parent's memory, and copies each page when it first writes to it. Python
writes to nearly every object that it uses, because it counts the references to it. From Python 3.12
on it does not count references to immortal objects, such as None. Source: PEP 683. Earlier versions
have no immortal objects, and those without the global lock mark them in another place: there, this
module changes no objects.

The pages that earlier processes have copied are likely to be copied by the next one, too. It copies
them as soon as it is forked, before anything waits for it: on a virtual machine, each page takes 2
microseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any

from wasm_kernel.linux import memory
from wasm_kernel.linux.memory import Range

_PAGE, _ENTRY = 4096, 8  # bytes
_MARKS = 1 << 63 | 1 << 61 | 1 << 56  # the page is present; a file's; mapped by one process
_COPIED = 1 << 63 | 1 << 56
_RUNNING = {AsyncGeneratorType, CoroutineType, FrameType, GeneratorType}
_COUNT = 2**32 - 1
"""The part of an object's first word that makes it immortal if it is high, its count of references.

In Python 3.14 and later the same word has flags, too.
"""
_FLAG = 1 << 48  # marks immortal objects in 3.14 and later, beside the count
_probe = object()


def freeze() -> None:
    """Makes all objects immortal, and hides them from the garbage collector; call it before a fork.

    The objects are never freed. The call takes 0.1 to 0.2 s.
    """
    lowest = _word(None).value & _COUNT
    # In 3.14 and later, running code subtracts the references that it holds even from an immortal
    # object's count, so the new count is far above the lowest. Before 3.14, the lowest count is the
    # highest.
    mark = (lowest + _COUNT) // 2 | _word(None).value & _FLAG
    _immortalize([_probe], lowest, mark)
    if _is_immortal(_probe):
        gc.unfreeze()
        _immortalize(gc.get_objects(), lowest, mark)
    gc.freeze()


def _word(item: object) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(id(item))


def _is_immortal(item: object) -> bool:
    before = sys.getrefcount(item)
    more = [item]
    return sys.getrefcount(*more) == before


def _immortalize(left: list[Any], lowest: int, mark: int) -> None:
    """Makes objects immortal, and all that they refer to; code that runs stays as it is."""
    while left:
        item = left.pop()
        word = _word(item)
        if word.value & _COUNT >= lowest or type(item) in _RUNNING:
            continue
        word.value = word.value & ~_COUNT | mark
        left += _parts(item) if type(item) is CodeType else gc.get_referents(item)


def _parts(code: CodeType) -> list[object]:
    """Returns the objects of code, which the garbage collector does not know."""
    return [
        *(code.co_name, code.co_qualname, code.co_filename, code.co_names, code.co_consts),
        *(code.co_linetable, code.co_exceptiontable),
        *(*code.co_varnames, *code.co_cellvars, *code.co_freevars),
    ]


def copied(processes: Iterable[int]) -> list[Range]:
    """Returns the ranges of this process's memory that each of some forked processes has copied.

    A page that this process has written to since is one of them. Empty if the system does not tell.
    Source: Documentation/admin-guide/mm/pagemap.rst of Linux.
    """
    with contextlib.suppress(OSError):
        pages = set.intersection(*({*_copied_by(process)} for process in processes))
        ranges: list[Range] = []
        for page in sorted(pages):
            is_next = bool(ranges) and ranges[-1][1] == page
            start = ranges.pop()[0] if is_next else page
            ranges.append((start, page + _PAGE))
        return ranges
    return []


def _copied_by(process: int) -> Iterator[int]:
    with Path(f"/proc/{process}/pagemap").open("rb", buffering=0) as pagemap:
        for start, end in memory.mappings(b"rw-p"):
            pagemap.seek(start // _PAGE * _ENTRY)
            entries = array("Q", pagemap.read((end - start) // _PAGE * _ENTRY))
            for page, entry in zip(range(start, end, _PAGE), entries, strict=False):
                if entry & _MARKS == _COPIED:
                    yield page
