"""Pages of zeros, which need no room: found in what a commit holds, and left out."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence

from wasm_kernel.state.pages import PAGE, Content, Range, Run, merge

_ZERO = bytes(PAGE)
_STEP = 1024 * 1024
_SHORTEST = 16  # pages; a shorter stretch is cheaper to keep than to name


def split_zeros(
    runs: Sequence[Run], content: Content
) -> tuple[tuple[Run, ...], Content, tuple[Run, ...]]:
    """Runs without their longer stretches of zero pages, their content, and those stretches."""
    if all(pages < _SHORTEST for _, pages in runs):  # so after most cells
        return tuple(runs), content, ()
    kept: list[Run] = []
    less = bytearray()
    zeros: list[Run] = []
    position = 0
    for first, pages in runs:
        at = 0
        for start, end in [*_stretches(content, position, pages), (pages, pages)]:
            if start > at:
                kept.append((first + at, start - at))
                _add(less, content, position + at * PAGE, position + start * PAGE)
            if end > start:
                zeros.append((first + start, end - start))
            at = end
        position += pages * PAGE
    if not zeros:
        return tuple(runs), content, ()
    return tuple(kept), less, tuple(zeros)


def sort_out(address: int, ranges: Iterable[Range]) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The runs with content and the runs of zeros in ranges of this process's memory, by offsets.

    Only whole blocks of zeros are found, which is quick: nothing is copied.
    """
    differ, zero = ctypes.CDLL(None).memcmp, ctypes.create_string_buffer(_SHORTEST * PAGE)
    differ.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    found: tuple[list[Range], list[Range]] = ([], [])
    for start, end in ranges:
        for at in range(start, end, len(zero)):
            stop = min(at + len(zero), end)
            empty = stop - at == len(zero) and not differ(address + at, zero, len(zero))
            found[empty].append((at, stop))
    kept, zeros = (
        tuple((start // PAGE, (end - start) // PAGE) for start, end in merge(kind))
        for kind in found
    )
    return kept, zeros


def _add(less: bytearray, content: Content, start: int, end: int) -> None:
    """Copy in small steps: other threads of this interpreter wait for the length of one."""
    with memoryview(content) as view:
        for at in range(start, end, _STEP):
            less += view[at : min(at + _STEP, end)]


def _stretches(content: Content, position: int, pages: int) -> Iterator[Run]:
    """Start and end of every stretch of at least `_SHORTEST` zero pages in a run."""
    if pages < _SHORTEST:
        return
    begin = -1
    for page in range(pages + 1):
        at = position + page * PAGE
        if page < pages and content[at : at + PAGE] == _ZERO:
            begin = page if begin < 0 else begin
            continue
        if begin >= 0 and page - begin >= _SHORTEST:
            yield begin, page
        begin = -1
