"""Marking the base image's objects as immortal, where they lie in the guest's memory.

CPython writes an object's reference count at every use. For an immortal object it does not (PEP
683), so pages that hold only such objects stay as they are in the image: shared between kernels,
neither copied nor saved with a commit. Source of the layout: `Include/refcount.h` of CPython 3.14
and later, the branch for 32-bit systems.
"""

from __future__ import annotations

from collections.abc import Iterable

from wasm_kernel.engine.reach import OutOfBounds, Reach

_IMMORTAL = 5 << 28  # _Py_IMMORTAL_INITIAL_REFCNT
_PLAUSIBLE = 1 << 24


def make_immortal(reach: Reach, addresses: Iterable[int]) -> int:
    """Mark the objects at these addresses; how many were marked.

    An address where no reference count can be is passed over.
    """
    marked = 0
    for at in addresses:
        try:
            count = reach.read_word(at)
        except OutOfBounds:
            continue
        if 0 < count < _PLAUSIBLE and at % 8 == 0:
            reach.write_word(at, _IMMORTAL)
            marked += 1
    return marked
