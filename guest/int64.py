"""The patch that makes numpy's default integer 64 bits wide, as on x86-64.

Without the patch it has the width of a pointer, 32 bits in this guest. `numpy.intp` stays
unchanged: indexes and sizes have 32 bits. Only the type that numpy takes if the caller names none
changes: `long long` instead of `long`. numpy does the same on 64-bit Windows, where `long` has 32
bits.

Each row names the function, the place, the old and the new instructions, and the purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

from guest.assembler import (
    I32_ADD,
    I32_AND,
    I32_EQ,
    I32_OR,
    I64_EXTEND_I32_S,
    SELECT,
    i32_const,
    i32_load,
    i32_load_static,
    i32_store,
    i64_store,
    i64_store_low_half,
    local_get,
)
from guest.wasm_module import DataEdit, Edit

_LONG, _LONGLONG = i32_const(7), i32_const(9)  # NPY_LONG and NPY_LONGLONG: 4 and 8 bytes
_UNSIGNED = (6, 8)  # NPY_UINT and NPY_ULONG: 4 bytes
_INTP_CLASS, _LONGLONG_CLASS = i32_load_static(27642972), i32_load_static(27642932)

# Cython's variables for the names in numpy/random/mtrand.pyx.
_NAME_LONG, _NAME_L = i32_load_static(27668500), i32_load_static(27668432)
_NAME_INT64 = i32_load_static(27668356)

_RANDOM_STATE = "__pyx_pw_5numpy_6random_6mtrand_11RandomState_"
_CHOICE = "__pyx_pf_5numpy_6random_6mtrand_11RandomState_34choice"

_TYPE_NUMBER, _TYPES = 16, (5, 4)  # offset in PyArray_Descr; locals of PyArray_FromArray


def _is_type(local: int, number: bytes) -> bytes:
    """Pushes whether the dtype in a local variable has the type number `number`."""
    return local_get(local) + i32_load(_TYPE_NUMBER) + number + I32_EQ


def _types() -> Iterator[Edit]:
    """The type of Python's ints, of `dtype=int` and of arrays made from them."""
    for function, at, why in (
        ("discover_descriptor_from_pylong", 32, "np.array([1])"),
        ("discover_descriptor_from_pylong", 97, "np.array(int)"),
        ("int_default_descriptor", 1, "ufuncs on Python ints"),
        ("_convert_from_any", 202, "dtype=int"),
        ("PyArray_ArangeObj", 248, "np.arange(3)"),
        ("can_cast_pyscalar_scalar_to", 136, "np.can_cast with a Python int"),
        ("_multiarray_umath_exec", 3084, "arrays that stand for a Python int in promotion"),
        ("convert_ufunc_arguments", 730, "whether a Python int fits the default integer"),
        ("py_resolve_dtypes_generic", 803, "ufunc.resolve_dtypes((int, ...))"),
        ("py_resolve_dtypes_generic", 1280, "ufunc.resolve_dtypes((int, ...))"),
    ):
        yield Edit(function, at, _LONG, _LONGLONG, why)
    yield Edit("int_common_dtype", 43, _INTP_CLASS, _LONGLONG_CLASS, "bool array with a Python int")
    yield Edit("int_common_dtype", 308, _INTP_CLASS, _LONGLONG_CLASS, "a user's dtype with an int")
    yield Edit(
        "ufunc_generic_fastcall",
        353,
        i32_store(304) + _LONG,
        I64_EXTEND_I32_S + i64_store(304) + _LONGLONG,
        "a ufunc of one Python int: its value is stored with 8 bytes",
    )


def _reductions() -> Iterator[Edit]:
    """The type of sums, products and counts."""
    sums = "reducelike_promote_and_resolve"
    yield Edit(sums, 108, _LONG, _LONGLONG, "sum and prod of bool and of small integers")
    yield Edit(sums, 129, i32_const(3), i32_const(7), "small is what has less than 8 bytes")
    count = "array_count_nonzero"  # the value moves to 8 bytes that are free on the stack
    yield Edit(count, 109, i32_store(24), I64_EXTEND_I32_S + i64_store(0), "count_nonzero")
    yield Edit(count, 167, _LONG, _LONGLONG, "count_nonzero")
    yield Edit(count, 182, i32_const(24) + I32_ADD, i32_const(0) + I32_ADD, "count_nonzero")


def _conversions() -> Iterator[Edit]:
    """The casts that C code needs, since it asks for `intp`, which would have 64 bits elsewhere."""
    wide = (_LONGLONG, *map(i32_const, _UNSIGNED))
    is_wide = [_is_type(_TYPES[1], each) for each in wide]
    is_any = is_wide[0] + b"".join(each + I32_OR for each in is_wide[1:])
    is_default_to_index = _is_type(_TYPES[0], _LONG) + is_any + I32_AND
    yield Edit(
        "PyArray_FromArray",
        256,
        I32_AND + SELECT,
        I32_AND + is_default_to_index + I32_OR + SELECT,
        "C code that asks for indexes takes int64 and uint32: 'same_kind' instead of 'safe'",
    )


def _random() -> Iterator[Edit]:
    """The type of random integers from `np.random` and `RandomState`."""
    for function, at, why in (
        (f"{_RANDOM_STATE}31randint", 1699, "randint without a dtype"),
        (_CHOICE, 17367, "choice with probabilities"),
        (_CHOICE, 20949, "choice with probabilities"),
        (f"{_RANDOM_STATE}109permutation", 5483, "permutation(n)"),
        (f"{_RANDOM_STATE}87binomial", 4300, "binomial"),
        (f"{_RANDOM_STATE}87binomial", 6561, "binomial"),
        (f"{_RANDOM_STATE}87binomial", 7454, "binomial"),
        (f"{_RANDOM_STATE}103multinomial", 4009, "multinomial"),
    ):
        yield Edit(function, at, _NAME_LONG, _NAME_INT64, why)
    to_long = "__pyx_f_5numpy_6random_6mtrand_int64_to_long"
    integers = f"{_RANDOM_STATE}43random_integers"
    yield Edit(integers, 4171, _NAME_L, _NAME_INT64, "random_integers")
    yield Edit(to_long, 924, _NAME_L, _NAME_INT64, "poisson, geometric, zipf and others")
    yield from _binomial()
    yield from _multinomial()


def _binomial() -> Iterator[Edit]:
    function, store = f"{_RANDOM_STATE}87binomial", i64_store_low_half(0)
    yield Edit(function, 5646, store, i64_store(0), "binomial: a number is stored with 8 bytes")
    yield Edit(function, 5651, i32_const(4), i32_const(8), "binomial: to the next number")
    yield Edit(function, 9540, store, i64_store(0), "binomial: a number is stored with 8 bytes")


def _multinomial() -> Iterator[Edit]:
    rows, numbers = f"{_RANDOM_STATE}103multinomial", "legacy_random_multinomial"
    yield Edit(rows, 5461, i32_const(2), i32_const(3), "multinomial: to the next row")
    yield Edit(numbers, 91, i32_const(4), i32_const(8), "multinomial: to the next number")
    yield Edit(numbers, 138, i32_const(2), i32_const(3), "multinomial: to the last number")


EDITS = (*_types(), *_reductions(), *_conversions(), *_random())
DATA_EDITS = (
    DataEdit(
        22081920,  # by type number, from NPY_UBYTE (2) on: the type of sums
        bytes([8, 7] * 4 + [8]),
        bytes([10, 9] * 4 + [10]),
        "sum and prod of small integers, without a type asked for",
    ),
)
