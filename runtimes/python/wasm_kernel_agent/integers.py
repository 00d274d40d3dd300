"""The one thing about numbers that differs from most machines, said when it first matters.

numpy's default integer is as wide as a pointer, and pointers have 32 bits here. Arithmetic on
arrays wraps around without a warning, so no error could say it; the notice comes with the first
such array or number that a cell leaves behind.
"""

from __future__ import annotations

import sys
from typing import Any

from wasm_kernel_agent.outbox import note

_NOTICE = (
    "numpy's default integer has 32 bits here: results beyond ±2,147,483,647 wrap around, and "
    "arrays do so without a warning. Where numbers may get that large, ask for dtype=np.int64, as "
    "pandas does by itself. (This is said once.)"
)
_ASKED = ("int32", "intc", "'i4'", '"i4"', "<i4")
_LARGEST = 10_000  # names that are looked at


class IntegerNotice:
    """Says once a session that integers are narrow. `told` where it has been said."""

    def __init__(self) -> None:
        self.told = False

    def look(self, names: dict[str, Any], code: str) -> None:
        """Say it if the cell `code` left an integer of the default width in `names`.

        A cell that asks for 32 bits by name needs no notice.
        """
        if self.told or any(word in code for word in _ASKED):
            return
        numpy: Any = sys.modules.get("numpy")
        if numpy is None or numpy.dtype(int).itemsize > 4:
            return
        if any(_is_narrow(numpy, value) for value in list(names.values())[-_LARGEST:]):
            self.told = True
            note(_NOTICE)


def _is_narrow(numpy: Any, value: Any) -> bool:
    kind = type(value)
    if kind is numpy.ndarray:
        return bool(value.dtype == numpy.int32)
    return kind is numpy.int32
