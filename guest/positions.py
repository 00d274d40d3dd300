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
    I32_MUL,
    I32_NE,
    I32_OR,
    I32_SHL,
    I32_SUB,
    I64_NE,
    IF,
    LOOP,
    RETURN,
    SELECT,
    V128,
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
    i64_const,
    i64_load_half,
    i64_store,
    i64_store_low_half,
    local_get,
    local_set,
    local_tee,
    unsigned,
    vector,
)
from guest.wasm_module import START, DataEdit, Edit, Function, ModuleError, WasmModule

_MESSAGE = (
    b"a number beyond 2,147,483,647 does not fit an array of positions or counts (numpy.intp), "
    b"which has 32 bits here. Make the array wider first: array.astype(np.int64)"
)
_INT, _LONG, _LONGLONG = 5, 7, 9  # NPY_INT, NPY_LONG and NPY_LONGLONG
_STACK = 0  # the global variable that holds the stack's end

# Static variables: the DTypes of numpy.intp and of int64, scalar types, the type of arrays, errors.
_INTP_CLASS, _LONGLONG_CLASS = i32_load_static(27642972), i32_load_static(27642932)
_INT_SCALAR, _LONG_SCALAR, _LONGLONG_SCALAR = 26435228, 26435440, 26435652
_ARRAY_TYPE = 26443132
_NAME = 17395855  # where the text of an error lay that nothing raises any more
_OVERFLOW_ERROR, _VALUE_ERROR = i32_load_static(26079564), i32_load_static(26079184)

# Offsets in objects.
_TYPE = 4  # of any object
_ARRAY_DESCR, _DESCR_ORDER, _DESCR_NUMBER, _CLASS_DESCR = 28, 14, 16, 472
_UFUNC_NIN, _UFUNC_NARGS, _UFUNC_ROWS, _UFUNC_TYPES = 8, 16, 32, 44
_INFO_NAME, _INFO_SIZE, _INFO_KIND = 0, 8, 48  # of what Cython knows of a buffer's type

_NATIVE, _SIGNED = ord("="), ord("I")
_NAMES = (b"intp", b"npy_", b"Py_s")  # intp_t, npy_intp, Py_ssize_t
_CONST = b"const "  # may stand before the name
_FORCE, _WRITE_BACK, _WRITABLE = 0x10, 0x2000, 1
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
)


def edits(module: WasmModule) -> Iterator[Edit]:
    """Yields all edits of functions."""
    index = _indexes(module)
    yield from _arithmetic(module, index)
    yield from _scalars(module)
    yield from _casts(module, index)
    yield from _buffers(module, index)
    yield from _copies(module, index)
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
    yield Function("PyErr_Clear", I32, _refuse(module), "raises OverflowError in words")
    yield Function("PyArray_FromArray", I32, _as_positions(module, index), "positions of int64")
    yield Function(
        "PyArray_AssignArray", I32 * 2, _get_buffer(module, index), "a buffer of positions"
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
    yield Function("arr_bincount", b"", b"", "bincount itself", module.body("arr_bincount"))


def _indexes(module: WasmModule) -> dict[str, int]:
    return {name: module.new_index(number) for number, name in enumerate(HELPERS)}


def _arithmetic(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    why = "arithmetic on positions gives int64"
    function = "promote_and_get_ufuncimpl"
    first, declared = module.further_locals(function, I32 * 4, why)
    yield from declared
    yield Edit(function, START, b"", _widened(count(first), index["keep"]), why)
    why = "the common type of positions and others is that of int64"
    function = "default_builtin_common_dtype"
    is_positions = local_get(0) + i32_const(0) + _INTP_CLASS + I32_EQ
    wide = i32_const(0) + _LONGLONG_CLASS
    new = wide + local_get(0) + is_positions + SELECT + local_set(0)
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
    yield from _products(module, index)
    function = "ufunc_loop_matches"
    first, declared = module.further_locals(function, I32, why)
    yield from declared
    yield Edit(function, START, b"", _skipped(first), why)
    function, why = "PyArray_EinsteinSum", "einsum of positions gives int64"
    first, declared = module.further_locals(function, I32 * 2, why)
    yield from declared
    yield Edit(function, START, b"", _einsum(first, first + 1), why)


def _products(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    """Yields edits of calls that find a type in which is computed."""
    products = ("InnerProduct", "MatrixProduct2", "Correlate", "Correlate2")
    old = b"\x10" + _padded(module.index("PyArray_DTypeFromObject"))
    for function in (*(f"PyArray_{each}" for each in products), "array_vdot"):
        for found in re.finditer(re.escape(old), module.body(function)):
            new = call(index["wide_type_of"])
            yield Edit(function, found.start(), old, new, "products of positions are int64")
    for function, called in (
        ("array_promote_types", "PyArray_PromoteTypes"),
        ("array_result_type", "PyArray_ResultType"),
    ):
        old = b"\x10" + _padded(module.index(called))
        at = _only(module.body(function), re.escape(old), function)
        yield Edit(function, at, old, old + call(index["wide_descr"]), f"{function} of positions")


def _skipped(number: int) -> bytes:
    """Leaves out a ufunc's rows of 32 bits for positions, when numpy looks for one that fits."""
    ufunc, arrays, types = 0, 1, 6
    place = local_get(number) + i32_const(2) + I32_SHL + I32_ADD + i32_load(0)
    row = local_get(types) + place
    return (
        BLOCK + LOOP
        + local_get(number) + local_get(ufunc) + i32_load(_UFUNC_NIN) + I32_LT_S + I32_EQZ
        + br_if(1)
        + _is_positions(local_get(arrays) + place)
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


def _is_positions(array: bytes) -> bytes:
    return array + i32_load(_ARRAY_DESCR) + i32_load(_DESCR_NUMBER) + i32_const(_LONG) + I32_EQ


def _einsum(number: int, wide: int) -> bytes:
    """Sets the type of the result, if it was to be that of positions."""
    count_, arrays, dtype = 1, 2, 3
    array = local_get(arrays) + local_get(number) + i32_const(2) + I32_SHL + I32_ADD + i32_load(0)
    return (
        BLOCK
        + i32_const(0) + _LONGLONG_CLASS + i32_load(_CLASS_DESCR) + local_set(wide)
        + local_get(dtype) + IF
        + local_get(dtype) + i32_load(_DESCR_NUMBER) + i32_const(_LONG) + I32_NE + br_if(1)
        + END
        + local_get(dtype) + I32_EQZ + IF
        + LOOP
        + _is_positions(array) + I32_EQZ + br_if(2)
        + local_get(number) + i32_const(1) + I32_ADD + local_tee(number)
        + local_get(count_) + I32_LT_S + br_if(0) + END
        + END
        + local_get(wide) + local_set(dtype)
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


_OR, _XOR, _ANY, _SHIFT = (
    vector(80),
    vector(81),
    vector(83),
    vector(172),
)  # of vectors of 4 x 32 bits
_CHECKS_IF = local_get(0) + i32_load_byte(16) + i32_const(1) + I32_AND + I32_EQZ + br_if(0)
_FRACTION = {"float": b"\x8f\x5b", "double": b"\x9d\x61"}  # trunc, eq
_SOURCES = "longlong|ulonglong|uint|ulong|float|double"


def _casts(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    """Yields edits of the loops that cast to positions.

    numpy has a check of its own in them, for `casting="same_value"`. It is always made here; floats
    may have a fraction.
    """
    why = "what does not fit positions raises OverflowError"
    function = "_aligned_contig_cast_longlong_to_long"  # of all indexes that are int64
    first, declared = module.further_locals(function, I32 * 4 + V128 * 4, why)
    yield from declared
    yield Edit(function, START, b"", _narrowed(first, index["refuse"]), why)
    for function in module.functions_like(f"_(?:aligned_)?(?:contig_)?cast_(?:{_SOURCES})_to_long"):
        body = module.body(function)
        yield Edit(function, _only(body, re.escape(_CHECKS_IF), function), _CHECKS_IF, b"", why)
        raising = (
            re.escape(i32_const(0) + _VALUE_ERROR) + b"\x41.{5}" + re.escape(i32_const(0))
            + re.escape(b"\x10" + _padded(module.index("npy_gil_error")))
        )  # fmt: skip
        at = _only(body, raising, function)
        old = re.compile(raising, re.DOTALL).match(body, at)
        assert old is not None
        yield Edit(function, at, old[0], call(index["refuse"]), why)
        for source, opcodes in _FRACTION.items():
            if f"cast_{source}_" in function:
                found = re.search(b"\x20(.)\x20\\1" + re.escape(opcodes + br_if(1)), body)
                if found is None:
                    raise ModuleError(f"{function} does not look for fractions")
                yield Edit(function, found.start(), found[0], br(1), why)


def _narrowed(first: int, refuse: int) -> bytes:
    """Casts int64 to positions, 8 at a time; what differs is gathered and looked at in the end."""
    source, target, left, bad, gathered, one, other, low = range(first, first + 8)
    data, dims = 1, 2

    def of_four(number: int) -> bytes:
        halves = [bytes(8 * n + 4 * half + byte for n in range(4) for byte in range(4))
                  for half in (0, 1)]  # fmt: skip
        both = local_get(one) + local_get(other) + vector(13)
        load = vector(0) + b"\0"
        return (
            local_get(source) + load + unsigned(32 * number) + local_set(one)
            + local_get(source) + load + unsigned(32 * number + 16) + local_set(other)
            + local_get(target) + both + halves[0] + local_tee(low)
            + vector(11) + b"\0" + unsigned(16 * number)
            + both + halves[1] + local_get(low) + i32_const(31) + _SHIFT + _XOR
            + local_get(gathered) + _OR + local_set(gathered)
        )  # fmt: skip

    add = [local_get(place) + i32_const(number) + I32_ADD + local_set(place)
           for place, number in ((source, 64), (target, 32), (left, -8))]  # fmt: skip
    add_one = [local_get(place) + i32_const(number) + I32_ADD + local_set(place)
               for place, number in ((source, 8), (target, 4), (left, -1))]  # fmt: skip
    number = local_get(source) + b"\x29\0\0"  # i64.load
    return (
        local_get(data) + i32_load(0) + local_set(source)
        + local_get(data) + i32_load(4) + local_set(target)
        + local_get(dims) + i32_load(0) + local_set(left)
        + BLOCK + LOOP
        + local_get(left) + i32_const(8) + I32_LT_S + br_if(1)
        + of_four(0) + of_four(1) + b"".join(add) + br(0)
        + END + END
        + BLOCK + LOOP
        + local_get(left) + I32_EQZ + br_if(1)
        + local_get(target) + number + i64_store_low_half(0)
        + local_get(bad) + number + local_get(target) + i64_load_half(0) + I64_NE + I32_OR
        + local_set(bad) + b"".join(add_one) + br(0)
        + END + END
        + local_get(gathered) + _ANY + local_get(bad) + I32_OR + IF
        + call(refuse) + i32_const(-1) + RETURN + END
        + i32_const(0) + RETURN
    )  # fmt: skip


def _only(body: bytes, pattern: bytes, function: str) -> int:
    places = [found.start() for found in re.finditer(pattern, body, re.DOTALL)]
    if len(places) != 1:
        raise ModuleError(f"{function} has a check at {places}, and one was expected")
    return places[0]


def _padded(number: int) -> bytes:
    """Encodes the index of a function as the linker does."""
    return bytes(number >> 7 * place & 0x7F | 0x80 * (place < 4) for place in range(5))


def _refuse(module: WasmModule) -> bytes:
    """Raises OverflowError; the message is laid out on the stack."""
    text = _MESSAGE + bytes(8 - len(_MESSAGE) % 8)
    size = -(-len(text) // 16) * 16
    code = global_get(_STACK) + i32_const(size) + I32_SUB + local_tee(0) + global_set(_STACK)
    for at in range(0, len(text), 8):
        number = int.from_bytes(text[at : at + 8], "little", signed=True)
        code += local_get(0) + i64_const(number) + i64_store(at)
    return (
        code + i32_const(0) + _OVERFLOW_ERROR + local_get(0) + i32_const(0)
        + call(module.index("npy_gil_error"))
        + local_get(0) + i32_const(size) + I32_ADD + global_set(_STACK)
    )  # fmt: skip


def _as_positions(module: WasmModule, index: dict[str, int]) -> bytes:
    """Takes an object, the flags of a buffer and what Cython knows of the buffer's type.

    Returns a new array if the object is an array of int64 and positions are asked for, 0 if that
    failed, and otherwise the object.
    """
    given, flags, info, wide = 0, 1, 2, 3
    text = local_get(info) + i32_load(_INFO_NAME)
    is_const = text + i32_load(0) + i32_const(int.from_bytes(_CONST[:4], "little")) + I32_EQ
    behind = i32_const(len(_CONST)) + I32_MUL
    name = text + is_const + behind + I32_ADD + i32_load(0)
    is_name = [name + i32_const(int.from_bytes(each, "little")) + I32_EQ for each in _NAMES]
    is_any = is_name[0] + b"".join(each + I32_OR for each in is_name[1:])
    return (
        BLOCK
        + local_get(info) + I32_EQZ + br_if(0)
        + local_get(info) + i32_load(_INFO_SIZE) + i32_const(4) + I32_NE + br_if(0)
        + local_get(info) + i32_load_byte(_INFO_KIND) + i32_const(_SIGNED) + I32_NE + br_if(0)
        + is_any + I32_EQZ + br_if(0)
        + local_get(given) + i32_load(_TYPE) + i32_const(_ARRAY_TYPE) + I32_NE + br_if(0)
        + local_get(given) + i32_load(_ARRAY_DESCR) + i32_load(_DESCR_NUMBER)
        + i32_const(_LONGLONG) + I32_NE + br_if(0)
        + i32_const(0) + _INTP_CLASS + i32_load(_CLASS_DESCR) + local_tee(wide)
        + call(index["keep"]) + local_get(given) + local_get(wide)
        + i32_const(_FORCE | _WRITE_BACK) + i32_const(_FORCE)
        + local_get(flags) + i32_const(_WRITABLE) + I32_AND + SELECT
        + call(module.index("PyArray_FromArray")) + RETURN
        + END + local_get(given)
    )  # fmt: skip


def _get_buffer(module: WasmModule, index: dict[str, int]) -> bytes:
    """As PyObject_GetBuffer, with what Cython knows of the type as a fourth argument."""
    given, view, flags, info, used, answer = range(6)
    return (
        local_get(given) + local_get(flags) + local_get(info) + call(index["as_positions"])
        + local_tee(used) + I32_EQZ + IF + i32_const(-1) + RETURN + END
        + local_get(used) + local_get(view) + local_get(flags)
        + call(module.index("PyObject_GetBuffer")) + local_set(answer)
        + local_get(used) + local_get(given) + I32_NE + IF
        + local_get(used) + call(index["drop"]) + END
        + local_get(answer)
    )  # fmt: skip


def _buffers(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    """Yields edits of what Cython's modules have for buffers: arguments, and memory views."""
    why = "compiled code that asks for positions takes int64"
    getting = b"\x10" + _padded(module.index("PyObject_GetBuffer"))
    for function in _named(module, "__Pyx__GetBufferAndValidate"):
        body = module.body_at(function)
        at = _only(body, re.escape(getting), f"function {function}")
        info = _info(module, body)
        if info:
            yield Edit(function, at, getting, info + call(index["get_buffer"]), why)
    for function in _named(module, "__pyx_memoryview_new"):
        first, declared = module.further_locals(function, I32, why)
        yield from declared
        yield Edit(
            function,
            START,
            b"",
            local_get(0) + local_get(1) + local_get(3) + call(index["as_positions"])
            + local_tee(first) + I32_EQZ + IF + i32_const(0) + RETURN + END
            + local_get(first) + local_get(0) + I32_NE + IF
            + local_get(first) + local_get(1) + local_get(2) + local_get(3) + call(function)
            + local_get(first) + call(index["drop"]) + RETURN + END,
            why,
        )  # fmt: skip
    warning = i32_const(1) + b"\x10" + _padded(module.index("PyErr_WarnEx")) + local_set(2)
    yield Edit(
        "_clear_array_attributes",
        100,
        warning,
        b"\x1a\x1a" + i32_const(0) + local_set(2),
        "a copy is written back without a warning",
    )


def _named(module: WasmModule, name: str) -> list[int]:
    """The indexes of the functions of a name, with arguments in parentheses or without."""
    names = module.functions_like(re.escape(name) + r"(?:\(.*\))?")
    return [index for each in names for index in module.bodies_of(each)]


def _info(module: WasmModule, body: bytes) -> bytes:
    """Pushes what Cython knows of a buffer's type: an argument, or the only one of its module.

    It gives nothing if that is not of positions.
    """
    if local_get(2) + i32_load_byte(_INFO_KIND) in body:
        return local_get(2)
    found = re.search(rb"\x41([\x80-\xff]{4}.)\x36\x02\x28", body, re.DOTALL)  # into `root.type`
    if found is None:
        raise ModuleError("a buffer's type is not where it was")
    address = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(found[1]))
    text = int.from_bytes(module.initial_data(address, 4), "little")
    size = int.from_bytes(module.initial_data(address + _INFO_SIZE, 4), "little")
    name = module.initial_data(text, 10).removeprefix(_CONST)[:4]
    is_positions = size == 4 and name in _NAMES
    return i32_const_address(address) if is_positions else b""


def _copies(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    why = "positions are pickled as int64"
    for function in ("array_reduce", "array_reduce_ex"):
        first, declared = module.further_locals(function, I32 * 2, why)
        again = local_get(1)
        yield from declared
        yield Edit(
            function,
            START,
            b"",
            _is_positions(local_get(0)) + IF
            + local_get(0) + i32_const(0) + call(index["as_int64"]) + local_tee(first)
            + I32_EQZ + IF + i32_const(0) + RETURN + END
            + local_get(first) + again + call(module.index(function)) + local_set(first + 1)
            + local_get(first) + call(index["drop"])
            + local_get(first + 1) + RETURN + END,
            why,
        )  # fmt: skip
    function, why = "arr_bincount", "counts are int64"
    first, declared = module.further_locals(function, I32 * 2, why)
    yield from declared
    yield Edit(
        function,
        START,
        b"",
        b"".join(map(local_get, range(4))) + call(index["bincount"]) + local_tee(first) + IF
        + _is_positions(local_get(first)) + IF
        + local_get(first) + i32_const(0) + call(index["as_int64"])
        + local_get(first) + call(index["drop"]) + local_set(first) + END + END
        + local_get(first) + RETURN,
        why,
    )  # fmt: skip


def _strict(module: WasmModule) -> Iterator[Edit]:
    """Yields edits of compiled code that asks whether an array's type is that of int32."""
    why = "what was the number of int32 is that of positions"
    number = rb"(?:\x41\x10\x6a\x28\x02\x00|\x28\x02\x10)(?:\x22.)?"
    pandas = "__pyx_pw_6pandas_5_libs_5algos_47ensure_int32"
    for function in ("dvode_wrapper", "zvode_wrapper", "lbfgsb_setulb", "slsqp", pandas):
        body = module.body(function)
        for found in re.finditer(number + rb"(?=\x41\x07[\x46\x47])", body, re.DOTALL):
            yield Edit(function, found.end(), i32_const(_LONG), i32_const(_INT), why)
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
    """Returns the edits of initial data: what is called int32."""
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


DATA_EDITS = tuple(data_edits())
