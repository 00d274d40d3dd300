"""The notice that positions and counts are narrower here than numpy's other integers."""

from __future__ import annotations

import re
import sys
from typing import Any

from wasm_kernel_agent.host import note

_NARROW = (
    "positions and counts (of argsort, nonzero, searchsorted, bincount and the like) have 32 bits "
    "here: what is computed from them wraps around beyond ±2,147,483,647, and arrays do so without "
    "a warning. Some such numbers of this cell are large. Make them wider first, as in "
    "positions.astype(int). (This is said once.)"
)
_POSITIONS = re.compile(
    r"\barg\w+|nonzero|\bwhere\(|searchsorted|digitize|bincount|histogram|lexsort|factorize|indexer"
    r"|return_(index|inverse|indices)|_index\(|_indices|\bq?cut\(|codes|str_len|\.find\(|\.count\("
)
_ASKS_FOR_32_BITS = ("int32", "intc", "intp", "'i4'", '"i4"', "<i4")
_LARGE = 2**24  # of the numbers that wrap around, one in 128 is smaller
_SAMPLE = 10_000  # of an array's elements


class PositionNotice:
    """Says once a session that positions have 32 bits, when it first matters.

    numpy's positions are as wide as a pointer, and pointers have 32 bits here. Arithmetic on
    arrays wraps around without a warning, so no error could say it. Few notebooks compute with
    positions. The notice comes if one does and a number is large, as almost every number is that
    has wrapped around. A notebook that asks for 32 bits by name needs no notice.
    """

    def __init__(self) -> None:
        self._has_positions = False
        self._is_done = False

    def look(self, names: dict[str, Any], code: str) -> None:
        """Says it if the cell `code` left a large integer of a position's width in `names`."""
        numpy: Any = sys.modules.get("numpy")
        if self._is_done or numpy is None:
            return
        self._is_done = any(word in code for word in _ASKS_FOR_32_BITS)
        self._has_positions = self._has_positions or _POSITIONS.search(code) is not None
        if self._is_done or not self._has_positions:
            return
        touched = (value for name, value in list(names.items()) if name == "_" or name in code)
        if any(_is_large(numpy, value) for value in touched):
            self._is_done = True
            note(_NARROW)


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
