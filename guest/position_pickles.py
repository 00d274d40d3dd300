"""Pickles of positions: arrays are int64, and a type alone means 32 bits to others.

`guest/positions.py` says why. numpy pickles a type by its text. `|i4` is `int32` everywhere, but
numpy never writes it: here it is the type of positions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from guest.assembler import (
    END,
    I32,
    I32_ADD,
    I32_EQ,
    I32_EQZ,
    IF,
    RETURN,
    SELECT,
    call,
    global_set,
    i32_const,
    i32_const_address,
    i32_load,
    i32_load_byte,
    i32_load_static,
    local_get,
    local_set,
    local_tee,
)
from guest.position_casts import DESCR_NUMBER, LONG, is_positions, only
from guest.wasm_module import START, DataEdit, Edit, WasmModule

_INTP_CLASS, _CLASS_DESCR = i32_load_static(27642972), 472
_STACK = 0  # the global variable that holds the stack's end
_TYPE_TEXT = b"|i4\0"
_FORMAT = 17678816  # "%c%d"
_OWN_FORMAT = 17395641  # the place of the text of an error that no code raises any more
DATA_EDITS = (DataEdit(_OWN_FORMAT, b"ast 's", b"|%c%d\0", "the type of positions is pickled"),)


def edits(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    """Yields the edits for pickling, and for reading a type's text."""
    why = "positions are pickled as int64"
    for function in ("array_reduce", "array_reduce_ex"):
        first, declared = module.further_locals(function, I32 * 2, why)
        again = local_get(1)
        yield from declared
        yield Edit(
            function,
            START,
            b"",
            is_positions(local_get(0)) + IF
            + local_get(0) + i32_const(0) + call(index["as_int64"]) + local_tee(first)
            + I32_EQZ + IF + i32_const(0) + RETURN + END
            + local_get(first) + again + call(module.index(function)) + local_set(first + 1)
            + local_get(first) + call(index["drop"])
            + local_get(first + 1) + RETURN + END,
            why,
        )  # fmt: skip
    yield from _types(module, index)


def _types(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    function, why = "arraydescr_reduce", "the type of positions is pickled as such"
    format_ = i32_const_address(_FORMAT)
    at = only(module.body(function), re.escape(format_), function)
    is_theirs = local_get(0) + i32_load(DESCR_NUMBER) + i32_const(LONG) + I32_EQ
    yield Edit(
        function,
        at,
        format_,
        i32_const_address(_OWN_FORMAT) + format_ + is_theirs + SELECT,
        why,
    )
    function, frame, text, descr, size = "_convert_from_str", 2, 4, 6, 64
    first_letter = local_get(text) + i32_load_byte(0) + local_tee(descr)
    at = only(module.body(function), re.escape(first_letter), function)
    yield Edit(
        function,
        at,
        b"",
        local_get(text) + i32_load(0) + i32_const(int.from_bytes(_TYPE_TEXT, "little")) + I32_EQ
        + IF
        + local_get(frame) + i32_const(size) + I32_ADD + global_set(_STACK)
        + i32_const(0) + _INTP_CLASS + i32_load(_CLASS_DESCR) + local_tee(descr)
        + call(index["keep"]) + local_get(descr) + RETURN
        + END,
        why,
    )  # fmt: skip
