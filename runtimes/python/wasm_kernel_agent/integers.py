"""The one thing about numbers that differs from most machines, said when it first matters.

numpy's default integer is as wide as a pointer, and pointers have 32 bits here. Arithmetic on
arrays wraps around without a warning, so no error could say it. Most notebooks never come near the
limit and need not hear of it: the notice comes with the first such number that is large, as almost
every number is that has wrapped around.
"""

from __future__ import annotations

import sys
from typing import Any

from wasm_kernel_agent.outbox import note

_NOTICE = (
    "numpy's default integer has 32 bits here: results beyond ±2,147,483,647 wrap around, and "
    "arrays do so without a warning. Some numbers of this cell are large. Where they may be larger "
    "still, ask for dtype=np.int64. (This is said once.)"
)
_ASKED = ("int32", "intc", "'i4'", '"i4"', "<i4")
_LARGE = 2**24  # of the numbers that wrap around, one in 128 is smaller
_SAMPLE = 10_000  # of an array's elements


class IntegerNotice:
    """Says once a session that integers are narrow. `told` where it has been said."""

    def __init__(self) -> None:
        self.told = False

    def look(self, names: dict[str, Any], code: str) -> None:
        """Say it if the cell `code` left a large integer of the default width in `names`.

        A cell that asks for 32 bits by name needs no notice.
        """
        numpy: Any = sys.modules.get("numpy")
        if self.told or numpy is None or numpy.dtype(int).itemsize > 4:
            return
        if any(word in code for word in _ASKED):
            return
        touched = (value for name, value in list(names.items()) if name == "_" or name in code)
        if any(_is_large(numpy, value) for value in touched):
            self.told = True
            note(_NOTICE)


def _is_large(numpy: Any, value: Any) -> bool:
    kind = type(value)
    if kind is numpy.int32:
        return abs(int(value)) > _LARGE
    pandas: Any = sys.modules.get("pandas")
    if pandas is not None and kind is pandas.DataFrame:
        return any(_is_large(numpy, value[name]) for name in value.select_dtypes("int32").columns)
    if pandas is not None and kind in (pandas.Series, pandas.Index):
        value, kind = value.to_numpy(), numpy.ndarray
    if kind is not numpy.ndarray or value.dtype != numpy.int32 or not value.size:
        return False
    sample = value.flat[:: max(1, value.size // _SAMPLE)]
    return max(abs(int(sample.max())), abs(int(sample.min()))) > _LARGE
