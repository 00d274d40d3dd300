"""The patch that lets numbers computed from positions and counts have 64 bits, as on x86-64.

numpy's positions (`numpy.intp`) are its type `l` (C `long`), which has 32 bits here; compiled code
of pandas, scipy and scikit-learn takes no others. On x86-64 they are `int64`. So arrays of `l` stay
what they are, and all that is computed from them is what it would be if they were `int64`:

- ufuncs, reductions and products take them as `int64`, and so does promotion to a common type;
- one number of them is a scalar of `int64`;
- what is pickled is `int64`;
- what does not fit 32 bits, and has to become a position, raises `OverflowError`;
- where compiled code asks for positions, it gets a copy of an `int64` array, which is copied back
  if the code may have written to it.

The name `int32` means the type `i` (C `int`), as on x86-64. Both have 32 bits, but `i` is what
people chose, and its arithmetic wraps around as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import count

from guest import (
    position_buffers,
    position_casts,
    position_indexes,
    position_pickles,
    position_products,
)
from guest.assembler import (
    BLOCK,
    END,
    I32,
    I32_ADD,
    I32_AND,
    I32_EQ,
    I32_EQZ,
    I32_GT_S,
    I32_LT_S,
    I32_OR,
    I32_SHL,
    I32_SUB,
    I32_WRAP_I64,
    I64,
    I64_EXTEND_I32_S,
    I64_NE,
    IF,
    LOOP,
    RETURN,
    SELECT,
    br,
    br_if,
    call,
    global_get,
    global_set,
    i32_const,
    i32_const_address,
    i32_load,
    i32_load_byte,
    i32_load_static,
    i32_store,
    i64_load_half,
    i64_store,
    local_get,
    local_set,
    local_tee,
)
from guest.position_casts import is_positions
from guest.wasm_module import START, DataEdit, Edit, Function, WasmModule

_INT, _LONG, _LONGLONG = 5, 7, 9  # NPY_INT, NPY_LONG and NPY_LONGLONG
_STACK = 0  # the global variable that holds the stack's end
_INTP_CLASS, _LONGLONG_CLASS = i32_load_static(27642972), i32_load_static(27642932)
_INT_SCALAR, _LONG_SCALAR, _LONGLONG_SCALAR = 26435228, 26435440, 26435652
_NAME = 17395630  # the place of the text of an error that no code raises any more
_ARRAY_DESCR, _DESCR_ORDER, _DESCR_NUMBER, _CLASS_DESCR = 28, 14, 16, 472
_UFUNC_NIN, _UFUNC_NARGS, _UFUNC_ROWS, _UFUNC_TYPES = 8, 16, 32, 44
_NATIVE, _SIGNED = ord("="), ord("I")
_FORCE, _WRITE_BACK, _WRITABLE = 0x10, 0x2000, 1
_SAME_KIND = 3  # NPY_SAME_KIND_CASTING
_IMMORTAL = 0x3FFFFFFF
HELPERS = (
    "keep",
    "drop",
    "refuse",
    "as_positions",
    "get_buffer",
    "as_int64",
    "wide_descr",
    "wide_type_of",
    "bincount",
    "as_index",
    "einsum",
    "of_longdouble",
)


def edits(module: WasmModule) -> Iterator[Edit]:
    """Yields all edits of functions."""
    index = _indexes(module)
    yield from _arithmetic(module, index)
    yield from position_products.edits(module, index)
    yield from _scalars(module)
    yield from position_casts.edits(module, index["refuse"])
    yield from position_buffers.edits(module, index)
    yield from position_indexes.edits(module, index)
    yield from position_pickles.edits(module, index)
    yield from _counts(module, index)
    yield from _strict(module)


def functions(module: WasmModule) -> Iterator[Function]:
    """Yields the functions that the edits call, in the order of `HELPERS`."""
    index = _indexes(module)
    item, kind = local_get(0), local_get(0) + i32_load(0)
    yield Function(
        "PyMem_Free",
        b"",
        kind + i32_const(_IMMORTAL) + I32_GT_S + I32_EQZ + IF
        + item + kind + i32_const(1) + I32_ADD + i32_store(0) + END,
        "takes a reference to an object",
    )  # fmt: skip
    yield Function(
        "PyMem_Free",
        I32,
        kind + local_tee(1) + i32_const(_IMMORTAL) + I32_GT_S + I32_EQZ + IF
        + item + local_get(1) + i32_const(1) + I32_SUB + local_tee(1) + i32_store(0)
        + local_get(1) + I32_EQZ + IF + item + call(module.index("_Py_Dealloc")) + END + END,
        "gives a reference back",
    )  # fmt: skip
    yield from _others(module, index)
    yield from _wrappers(module, index)


def _others(module: WasmModule, index: dict[str, int]) -> Iterator[Function]:
    yield Function(
        "PyMem_Free", I32, position_casts.refuse(module), "says what does not fit positions"
    )
    yield Function(
        "PyArray_FromArray", I32, position_buffers.as_positions(module, index), "positions of int64"
    )
    yield Function(
        "PyArray_AssignArray",
        I32 * 2,
        position_buffers.get_buffer(module, index),
        "a buffer of positions",
    )
    yield Function("PyArray_ObjectType", I32, _as_int64(module, index), "int64 of positions")
    wide = i32_const(0) + _LONGLONG_CLASS + i32_load(_CLASS_DESCR)
    is_long = local_get(0) + i32_load(_DESCR_NUMBER) + i32_const(_LONG) + I32_EQ
    yield Function(
        "PyLong_FromLong",
        b"",
        local_get(0) + IF + is_long + IF
        + local_get(0) + call(index["drop"])
        + wide + local_tee(0) + call(index["keep"]) + END + END + local_get(0),
        "the type in which is computed, for a type that is given back",
    )  # fmt: skip
    yield Function(
        "PyArray_DTypeFromObject",
        I32,
        local_get(0) + local_get(1) + local_get(2) + call(module.index("PyArray_DTypeFromObject"))
        + local_set(3)
        + local_get(2) + local_get(2) + i32_load(0) + call(index["wide_descr"]) + i32_store(0)
        + local_get(3),
        "as PyArray_DTypeFromObject, with int64 for positions",
    )  # fmt: skip


def _wrappers(module: WasmModule, index: dict[str, int]) -> Iterator[Function]:
    yield Function("arr_bincount", b"", b"", "bincount itself", module.body("arr_bincount"))
    yield Function(
        "PyArray_ObjectType", I32, position_indexes.as_index(module, index), "an index's positions"
    )
    einsum, answer = "PyArray_EinsteinSum", 7
    yield Function(
        einsum,
        I32,
        b"".join(map(local_get, range(answer))) + call(module.index(einsum)) + local_tee(answer)
        + IF + call(module.index("PyErr_Occurred")) + IF
        + local_get(answer) + call(index["drop"]) + i32_const(0) + local_set(answer) + END + END
        + local_get(answer),
        "einsum, which fails if a number did not fit its result",
    )  # fmt: skip
    wide = 2
    yield Function(
        "__fixtfsi",
        I64,
        local_get(0) + local_get(1) + call(module.index("__fixtfdi")) + local_tee(wide)
        + local_get(wide) + I32_WRAP_I64 + I64_EXTEND_I32_S + I64_NE + IF
        + i32_const(0) + position_casts.OVERFLOW_ERROR + call(index["refuse"]) + END
        + local_get(wide) + I32_WRAP_I64,
        "the position that a longdouble is",
    )  # fmt: skip


def _indexes(module: WasmModule) -> dict[str, int]:
    return {name: index_of(module, name) for name in HELPERS}


def index_of(module: WasmModule, name: str) -> int:
    """Returns the index of a function that is added, by its name in `HELPERS`."""
    return module.new_index(HELPERS.index(name))


def _arithmetic(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    why = "arithmetic on positions gives int64"
    function = "promote_and_get_ufuncimpl"
    first, declared = module.further_locals(function, I32 * 4, why)
    yield from declared
    yield Edit(function, START, b"", _widened(count(first), index["keep"]), why)
    why = "the common type of positions and others is that of int64"
    function = "default_builtin_common_dtype"
    is_their_class = local_get(0) + i32_const(0) + _INTP_CLASS + I32_EQ
    wide = i32_const(0) + _LONGLONG_CLASS
    new = wide + local_get(0) + is_their_class + SELECT + local_set(0)
    yield Edit(function, START, b"", new, why)
    function, end = "PyArray_ObjectType", local_get(3) + END
    yield Edit(
        function,
        len(module.body(function)) - len(end),
        end,
        i32_const(_LONGLONG)
        + local_get(3)
        + local_get(3)
        + i32_const(_LONG)
        + I32_EQ
        + SELECT
        + END,
        "correlations of scipy take positions as int64",
    )
    function = "ufunc_loop_matches"
    first, declared = module.further_locals(function, I32, why)
    yield from declared
    yield Edit(function, START, b"", _skipped(first), why)


def _skipped(number: int) -> bytes:
    """Leaves out a ufunc's rows of 32 bits for positions, when numpy looks for one that fits."""
    ufunc, arrays, types = 0, 1, 6
    place = local_get(number) + i32_const(2) + I32_SHL + I32_ADD + i32_load(0)
    row = local_get(types) + place
    return (
        BLOCK + LOOP
        + local_get(number) + local_get(ufunc) + i32_load(_UFUNC_NIN) + I32_LT_S + I32_EQZ
        + br_if(1)
        + is_positions(local_get(arrays) + place)
        + row + i32_const(_LONG) + I32_EQ + row + i32_const(_INT) + I32_EQ + I32_OR
        + I32_AND + IF + i32_const(0) + RETURN + END
        + local_get(number) + i32_const(1) + I32_ADD + local_set(number) + br(0)
        + END + END
    )  # fmt: skip


def _widened(local: Iterator[int], keep: int) -> bytes:
    """Replaces positions by int64 among a ufunc's types, given and asked for.

    Comparisons take positions as they are: all rows of their tables give a bool.
    """
    positions, wide, number, place = (next(local) for _ in range(4))
    ufunc, signature, types = 0, 2, 3

    def replace(of: int) -> bytes:
        at = local_get(of) + local_get(number) + i32_const(2) + I32_SHL + I32_ADD + local_tee(place)
        return (
            at + i32_load(0) + local_get(positions) + I32_EQ + IF
            + local_get(place) + local_get(wide) + i32_store(0)
            + local_get(wide) + call(keep) + END
        )  # fmt: skip

    row = local_get(ufunc) + i32_load(_UFUNC_NARGS) + i32_const(1) + I32_SHL
    compares = (
        local_get(ufunc) + i32_load(_UFUNC_ROWS) + i32_const(1) + I32_GT_S + IF
        + local_get(ufunc) + i32_load(_UFUNC_TYPES) + row + I32_ADD + i32_const(1) + I32_SUB
        + i32_load_byte(0) + I32_EQZ + br_if(1) + END
    )  # fmt: skip
    return (
        BLOCK + compares
        + i32_const(0) + _INTP_CLASS + local_set(positions)
        + i32_const(0) + _LONGLONG_CLASS + local_set(wide)
        + local_get(ufunc) + i32_load(_UFUNC_NARGS) + local_set(number)
        + LOOP + local_get(number) + i32_const(1) + I32_SUB + local_set(number)
        + replace(signature)
        + local_get(number) + local_get(ufunc) + i32_load(_UFUNC_NIN) + I32_LT_S + IF
        + replace(types) + END
        + local_get(number) + br_if(0) + END
        + END
    )  # fmt: skip


def _scalars(module: WasmModule) -> Iterator[Edit]:
    function, why = "PyArray_Scalar", "a number of an array of positions is an int64"
    first, declared = module.further_locals(function, I32, why)
    number, wide = local_get(1) + i32_load(_DESCR_NUMBER), i32_const(0) + _LONGLONG_CLASS
    order = local_get(1) + i32_load_byte(_DESCR_ORDER)
    yield from declared
    yield Edit(
        function,
        START,
        b"",
        number + i32_const(_LONG) + I32_EQ + order + i32_const(_NATIVE) + I32_EQ + I32_AND + IF
        + global_get(_STACK) + i32_const(16) + I32_SUB + local_tee(first) + global_set(_STACK)
        + local_get(first) + local_get(0) + i64_load_half(0) + i64_store(0)
        + local_get(first) + wide + i32_load(_CLASS_DESCR) + local_get(2)
        + call(module.index(function))
        + local_get(first) + i32_const(16) + I32_ADD + global_set(_STACK)
        + RETURN + END,
        why,
    )  # fmt: skip
    yield Edit(
        "long_arrtype_new",
        START,
        b"",
        local_get(0) + i32_const(_LONG_SCALAR) + I32_EQ + IF
        + i32_const(_LONGLONG_SCALAR) + local_get(1) + local_get(2)
        + call(module.index("longlong_arrtype_new")) + RETURN + END,
        "numpy.intp(5) is an int64",
    )  # fmt: skip


def _counts(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    function, why = "arr_bincount", "counts are int64"
    first, declared = module.further_locals(function, I32 * 2, why)
    yield from declared
    yield Edit(
        function,
        START,
        b"",
        b"".join(map(local_get, range(4))) + call(index["bincount"]) + local_tee(first) + IF
        + is_positions(local_get(first)) + IF
        + local_get(first) + i32_const(0) + call(index["as_int64"])
        + local_get(first) + call(index["drop"]) + local_set(first) + END + END
        + local_get(first) + RETURN,
        why,
    )  # fmt: skip


def _strict(module: WasmModule) -> Iterator[Edit]:
    """Yields edits of compiled code that asks whether an array's type is that of int32."""
    why = "the number that int32 had is that of positions"
    number = rb"(?:\x41\x10\x6a\x28\x02\x00|\x28\x02\x10)(?:\x22.)?"
    pandas = "__pyx_pw_6pandas_5_libs_5algos_47ensure_int32"
    for function in ("dvode_wrapper", "zvode_wrapper", "lbfgsb_setulb", "slsqp", pandas):
        body = module.body(function)
        for found in re.finditer(number + rb"(?=\x41\x07[\x46\x47])", body, re.DOTALL):
            yield Edit(function, found.end(), i32_const(_LONG), i32_const(_INT), why)
    why = "an array that compiled code makes as int32 is not one of positions"
    made = rb"\x41\x07(?=\x20.\x28\x02\xb4\x01\x11)"  # calls numpy's PyArray_DescrFromType
    scipy = r"(?:_linalg_(?:lu|qr)|__pyx_pw_5scipy_7special_8_specfun_\d+jdzo)\(.*\)"
    for function in module.functions_like(rf"{pandas}|{scipy}|__pyx_\w+_11statsmodels_\w+"):
        for place in module.bodies_of(function):
            for found in re.finditer(made, module.body_at(place), re.DOTALL):
                yield Edit(place, found.start(), i32_const(_LONG), i32_const(_INT), why)
    why = "a number of int32 has the hash of the same int"
    for kind in ("int", "uint"):
        same = call(module.index(kind.replace("int", "long") + "_arrtype_hash"))
        yield Edit(f"{kind}_arrtype_hash", START, b"", local_get(0) + same + RETURN, why)
    why = "the DType of int32 is called Int32DType, that of positions LongDType"
    int_name, int32_name, long_name = map(i32_const_address, (17535911, 17536795, 17536262))
    yield Edit("set_typeinfo", 1337, int_name + i32_const(0), int32_name + int_name, why)
    yield Edit("set_typeinfo", 1477, int32_name, long_name, why)


def _as_int64(module: WasmModule, index: dict[str, int]) -> bytes:
    """Returns a copy of an array, of int64."""
    return (
        i32_const(0) + _LONGLONG_CLASS + i32_load(_CLASS_DESCR) + local_tee(2) + call(index["keep"])
        + local_get(0) + local_get(2) + i32_const(_FORCE) + call(module.index("PyArray_FromArray"))
    )  # fmt: skip


def data_edits() -> Iterable[DataEdit]:
    """Returns the edits of initial data: the names of types that `int32` stands for."""
    return (
        DataEdit(22071594, b"\x07", b"\x05", "the type 'i4' is that of int32"),
        DataEdit(
            _INT_SCALAR + 12,
            (17715201).to_bytes(4, "little"),
            (18129762).to_bytes(4, "little"),
            "the scalar type of int32 is called so",
        ),
        DataEdit(
            _LONG_SCALAR + 12,
            (18129762).to_bytes(4, "little"),
            _NAME.to_bytes(4, "little"),
            "the scalar type of positions is called so",
        ),
        DataEdit(
            _NAME, b"could not c", b"numpy.intp\0", "the scalar type of positions is called so"
        ),
    )


DATA_EDITS = (*data_edits(), *position_pickles.DATA_EDITS)
