"""Products of positions (`dot`, `inner`, `einsum` and their like): they are those of int64.

`guest/positions.py` says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from guest.assembler import (
    BLOCK,
    END,
    I32,
    I32_ADD,
    I32_AND,
    I32_EQ,
    I32_EQZ,
    I32_LT_S,
    I32_NE,
    I32_SHL,
    IF,
    LOOP,
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
from guest.position_casts import ARRAY_DESCR, DESCR_NUMBER, LONG, is_positions, only, padded
from guest.wasm_module import START, Edit, WasmModule

_LONGLONG = 9  # NPY_LONGLONG
_LONGLONG_CLASS, _CLASS_DESCR = i32_load_static(27642932), 472
_ARRAY_NDIM, _ARRAY_SHAPE, _ARRAY_FLAGS, _CONTIGUOUS = 12, 16, 32, 1
_SAME_KIND = 3  # NPY_SAME_KIND_CASTING


def edits(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    """Yields edits of the functions that multiply arrays."""
    yield from _types(module, index)
    function, why = "PyArray_MatrixProduct2", "dot puts its result into positions"
    first, declared = module.further_locals(function, I32 * 2, why)
    yield from declared
    yield Edit(function, START, b"", _dot(module, index, first, first + 1), why)
    function, why = "PyArray_EinsteinSum", "einsum of positions gives int64"
    first, declared = module.further_locals(function, I32 * 2, why)
    yield from declared
    yield Edit(function, START, b"", _into_positions() + _einsum(first, first + 1), why)
    old = b"\x10" + padded(module.index(function))
    at = only(module.body("array_einsum"), re.escape(old), "array_einsum")
    yield Edit("array_einsum", at, old, call(index["einsum"]), why)


def _types(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    """Yields edits of calls that find the type to compute in."""
    products = ("InnerProduct", "MatrixProduct2", "Correlate", "Correlate2")
    old = b"\x10" + padded(module.index("PyArray_DTypeFromObject"))
    for function in (*(f"PyArray_{each}" for each in products), "array_vdot"):
        for found in re.finditer(re.escape(old), module.body(function)):
            new = call(index["wide_type_of"])
            yield Edit(function, found.start(), old, new, "products of positions are int64")
    for function, called in (
        ("array_promote_types", "PyArray_PromoteTypes"),
        ("array_result_type", "PyArray_ResultType"),
    ):
        old = b"\x10" + padded(module.index(called))
        at = only(module.body(function), re.escape(old), function)
        yield Edit(function, at, old, old + call(index["wide_descr"]), f"{function} of positions")


def _dot(module: WasmModule, index: dict[str, int], result: int, status: int) -> bytes:
    """Multiplies into a new array of int64, which is put into the given array of positions.

    numpy itself checks all other arrays that it is given, and says what they should be.
    """
    one, other, given = 0, 1, 2
    is_result = [
        local_get(result) + i32_load(ARRAY_DESCR) + i32_load(DESCR_NUMBER)
        + i32_const(_LONGLONG) + I32_EQ,
        local_get(result) + i32_load(_ARRAY_NDIM) + local_get(given) + i32_load(_ARRAY_NDIM)
        + I32_EQ,
        local_get(result) + i32_load(_ARRAY_SHAPE) + local_get(given) + i32_load(_ARRAY_SHAPE)
        + local_get(given) + i32_load(_ARRAY_NDIM) + call(module.index("PyArray_CompareLists")),
    ]  # fmt: skip
    return (
        BLOCK
        + local_get(given) + I32_EQZ + br_if(0)
        + is_positions(local_get(given)) + I32_EQZ + br_if(0)
        + local_get(given) + i32_load(_ARRAY_FLAGS) + i32_const(_CONTIGUOUS) + I32_AND
        + I32_EQZ + br_if(0)
        + local_get(one) + local_get(other) + i32_const(0)
        + call(module.index("PyArray_MatrixProduct2")) + local_tee(result) + I32_EQZ
        + IF + i32_const(0) + RETURN + END
        + BLOCK + b"".join(each + I32_EQZ + br_if(0) for each in is_result)
        + local_get(given) + local_get(result) + i32_const(0) + i32_const(_SAME_KIND)
        + call(module.index("PyArray_AssignArray")) + local_set(status)
        + local_get(result) + call(index["drop"])
        + local_get(status) + IF + i32_const(0) + RETURN + END
        + local_get(given) + call(index["keep"]) + local_get(given) + RETURN
        + END
        + local_get(result) + call(index["drop"])
        + END
    )  # fmt: skip


def _into_positions() -> bytes:
    """Lets a result of int64 become positions, if it is put into an array of them."""
    casting, result = 5, 6
    return (
        local_get(result) + IF
        + is_positions(local_get(result)) + local_get(casting) + i32_const(_SAME_KIND) + I32_LT_S
        + I32_AND + IF + i32_const(_SAME_KIND) + local_set(casting) + END + END
    )  # fmt: skip


def _einsum(number: int, wide: int) -> bytes:
    """Sets the type of the result, if positions were asked for."""
    count_, arrays, dtype = 1, 2, 3
    array = local_get(arrays) + local_get(number) + i32_const(2) + I32_SHL + I32_ADD + i32_load(0)
    return (
        BLOCK
        + i32_const(0) + _LONGLONG_CLASS + i32_load(_CLASS_DESCR) + local_set(wide)
        + local_get(dtype) + IF
        + local_get(dtype) + i32_load(DESCR_NUMBER) + i32_const(LONG) + I32_NE + br_if(1)
        + END
        + local_get(dtype) + I32_EQZ + IF
        + LOOP
        + is_positions(array) + I32_EQZ + br_if(2)
        + local_get(number) + i32_const(1) + I32_ADD + local_tee(number)
        + local_get(count_) + I32_LT_S + br_if(0) + END
        + END
        + local_get(wide) + local_set(dtype)
        + END
    )  # fmt: skip
