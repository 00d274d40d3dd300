"""Indexes of arrays: a number beyond 32 bits raises an error before anything is indexed.

numpy casts index arrays piece by piece while it walks along them, and in some places it does not
look whether a cast failed: in the original no cast of an index can fail. So they are cast as a
whole, first of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from guest.assembler import (
    END,
    I32_ADD,
    I32_EQ,
    I32_EQZ,
    I32_LT_S,
    I32_MUL,
    I32_OR,
    IF,
    RETURN,
    br_if,
    call,
    i32_const,
    i32_load,
    i32_load_static,
    local_get,
    local_set,
    local_tee,
)
from guest.position_casts import OVERFLOW_ERROR, VALUE_ERROR, only, padded
from guest.wasm_module import Edit, WasmModule

_WIDE = (6, 8, 9, 10)  # NPY_UINT, NPY_ULONG, NPY_LONGLONG and NPY_ULONGLONG
_INTP_CLASS, _INDEX_ERROR = i32_load_static(27642972), i32_load_static(26079528)
_ARRAY_DESCR, _DESCR_NUMBER, _CLASS_DESCR = 28, 16, 472
_FORCE, _ENSURE_ARRAY = 0x10, 0x40


def as_index(module: WasmModule, index: dict[str, int]) -> bytes:
    """Takes a new array or 0, and the error to raise if its numbers don't fit positions.

    Returns positions if the array's type has numbers beyond 32 bits, otherwise the array as it is.
    """
    array, error, number = 0, 1, 2
    is_wide = [local_get(number) + i32_const(each) + I32_EQ for each in _WIDE]
    wanted = i32_const(0) + _INTP_CLASS + i32_load(_CLASS_DESCR)
    return (
        local_get(array) + I32_EQZ + IF + i32_const(0) + RETURN + END
        + local_get(array) + i32_load(_ARRAY_DESCR) + i32_load(_DESCR_NUMBER) + local_set(number)
        + is_wide[0] + b"".join(each + I32_OR for each in is_wide[1:]) + IF
        + wanted + call(index["keep"])
        + local_get(array) + wanted + i32_const(_FORCE | _ENSURE_ARRAY)
        + call(module.index("PyArray_FromArray")) + local_set(number)
        + local_get(array) + call(index["drop"])
        + local_get(number) + I32_EQZ + IF
        + i32_const(0) + OVERFLOW_ERROR + call(module.index("PyErr_ExceptionMatches")) + IF
        + call(module.index("PyErr_Clear")) + local_get(error) + call(index["refuse"]) + END + END
        + local_get(number) + local_set(array) + END
        + local_get(array)
    )  # fmt: skip


def edits(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    """Yields edits of the functions that take arrays of indexes."""
    why = "an index beyond 32 bits raises IndexError"
    function, array, shared, number, failed = "prepare_index_noarray", 23, 3, 7, 16
    taken = (
        local_get(shared) + local_get(number) + i32_const(12) + I32_MUL + I32_ADD + local_tee(22)
        + b"\x42\xff\xff\xff\xff\x8f\x02"  # the kind "fancy" beside the value -1
    )  # fmt: skip
    new = (
        local_get(array) + i32_const(0) + _INDEX_ERROR + call(index["as_index"])
        + local_tee(array) + I32_EQZ + br_if(failed)
    )  # fmt: skip
    at = only(module.body(function), re.escape(taken), function)
    yield Edit(function, at, b"", new, why)
    for function in ("arr_ravel_multi_index", "arr_unravel_index"):
        old = b"\x10" + padded(module.index("astype_anyint"))
        at = only(module.body(function), re.escape(old), function)
        new = old + i32_const(0) + VALUE_ERROR + call(index["as_index"])
        yield Edit(function, at, old, new, why)
    why = "a cast that fails before the first item ends an assignment"
    for function in ("array_subscript", "array_assign_subscript"):
        reset, old = b"\x10" + padded(module.index("NpyIter_Reset")), i32_const(0) + I32_LT_S
        at = only(module.body(function), re.escape(reset + old), function) + len(reset)
        yield Edit(function, at, old, I32_EQZ, why)
