"""Ballast: fills the holes that booting leaves in the guest's memory.

What a boot frees lies scattered over the whole image, and the C library's allocator, which CPython
uses here for all of its objects, hands it out again first: two thousand small objects of a cell lay
on five hundred pages, each of which has to be copied, tracked and saved. With the holes filled for
good they lie side by side.
"""

from __future__ import annotations

import gc

_LARGEST, _SMALLEST, _STEP = 16_384, 16, 8  # bytes; larger holes are few, and whole pages
_FRESH = 32_768  # bytes side by side: that is no hole any more
_SLOTS = 65_536
_HEADER = b"".__sizeof__()

Ballast = list[bytes | None]

_kept: list[Ballast] = []


def fill() -> Ballast:
    """Fill the holes; they stay so as long as the ballast is kept. Only the boot turn may."""
    gc.collect()
    kept: Ballast = [None] * _SLOTS  # at once: a list that grows would take holes, too
    at, size = 0, _LARGEST
    while size >= _SMALLEST:
        at = _fill(kept, size, at)
        size = size - _STEP if size <= 1024 else size * 7 // 8 // _STEP * _STEP
    return kept


def fill_for_good() -> None:
    """The same at the boot's end: sessions find no holes."""
    _kept.append(fill())


def _fill(kept: Ballast, size: int, at: int) -> int:
    """Take every hole for objects of one size; what lies side by side at last goes again."""
    begun, before = at, 0
    while (at - begun) * size < _FRESH and at < _SLOTS:
        one = bytes(max(size - _HEADER, 2))
        if not 0 < id(one) - before <= size + 2 * _STEP:
            begun = at
        before = id(one)
        kept[at] = one
        at += 1
    kept[begun:at] = [None] * (at - begun)
    return begun
