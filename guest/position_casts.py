"""Casts to positions: a number that does not fit 32 bits raises `OverflowError`.

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
    I32_OR,
    I32_SUB,
    I64_NE,
    IF,
    LOOP,
    RETURN,
    V128,
    br,
    br_if,
    call,
    global_get,
    global_set,
    i32_const,
    i32_load,
    i32_load_byte,
    i32_load_static,
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
from guest.wasm_module import START, Edit, ModuleError, WasmModule

_MESSAGE = (
    b"a number beyond 2,147,483,647 does not fit positions and counts (numpy.intp), which have 32 "
    b"bits here. As an index it is out of bounds; an array that should hold it must be made wider "
    b"first: array.astype(np.int64)"
)
LONG = 7  # NPY_LONG, the type of positions
ARRAY_DESCR, DESCR_NUMBER = 28, 16
_STACK = 0  # the global variable that holds the stack's end
OVERFLOW_ERROR, VALUE_ERROR = i32_load_static(26079564), i32_load_static(26079184)
_OR, _XOR, _ANY, _SHIFT = (
    vector(80),
    vector(81),
    vector(83),
    vector(172),
)  # instructions for vectors of 4 x 32 bits
_CHECKS_IF = local_get(0) + i32_load_byte(16) + i32_const(1) + I32_AND + I32_EQZ + br_if(0)
_SOURCES = "longlong|ulonglong|uint|ulong"


def edits(module: WasmModule, refuse: int) -> Iterator[Edit]:
    """Yields edits of the loops that cast to positions.

    numpy has a check of its own in them, for `casting="same_value"`, which is always made here.
    `guest/float_casts.py` sees to floats.
    """
    why = "what does not fit positions raises OverflowError"
    overflow = i32_const(0) + OVERFLOW_ERROR
    function = "_aligned_contig_cast_longlong_to_long"  # casts all indexes that are int64
    first, declared = module.further_locals(function, I32 * 4 + V128 * 4, why)
    yield from declared
    yield Edit(function, START, b"", _narrowed(first, refuse), why)
    yield from _dates(module, refuse)
    for function in module.functions_like(f"_(?:aligned_)?(?:contig_)?cast_(?:{_SOURCES})_to_long"):
        body = module.body(function)
        yield Edit(function, only(body, re.escape(_CHECKS_IF), function), _CHECKS_IF, b"", why)
        raising = (
            re.escape(i32_const(0) + VALUE_ERROR) + b"\x41.{5}" + re.escape(i32_const(0))
            + re.escape(b"\x10" + padded(module.index("npy_gil_error")))
        )  # fmt: skip
        at = only(body, raising, function)
        old = re.compile(raising, re.DOTALL).match(body, at)
        assert old is not None
        yield Edit(function, at, old[0], overflow + call(refuse), why)


def _dates(module: WasmModule, refuse: int) -> Iterator[Edit]:
    """Yields edits of casts of dates and differences, which have no check of their own."""
    why = "what does not fit positions raises OverflowError"
    source, left, number = 0, 2, b"\x29\0\0"  # i64.load
    for function in ("DATETIME_to_LONG", "TIMEDELTA_to_LONG"):
        first, declared = module.further_locals(function, I32 * 2, why)
        at, count = first, first + 1
        yield from declared
        yield Edit(
            function,
            START,
            b"",
            local_get(source) + local_set(at) + local_get(left) + local_set(count)
            + BLOCK + LOOP
            + local_get(count) + I32_EQZ + br_if(1)
            + local_get(at) + number + local_get(at) + i64_load_half(0) + I64_NE + IF
            + i32_const(0) + OVERFLOW_ERROR + call(refuse) + RETURN + END
            + local_get(at) + i32_const(8) + I32_ADD + local_set(at)
            + local_get(count) + i32_const(-1) + I32_ADD + local_set(count) + br(0)
            + END + END,
            why,
        )  # fmt: skip
    why = "a cast of an array of dates says that it failed"
    asked = local_get(4) + i32_load_byte(28)  # whether errors may occur
    for function in ("_aligned_strided_to_strided_cast", "_aligned_contig_to_contig_cast"):
        at = only(module.body(function), re.escape(asked), function)
        yield Edit(function, at, asked, i32_const(1), why)


def _narrowed(first: int, refuse: int) -> bytes:
    """Casts int64 to positions, 8 at a time; differences are gathered, and checked at the end."""
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
        + i32_const(0) + OVERFLOW_ERROR + call(refuse) + i32_const(-1) + RETURN + END
        + i32_const(0) + RETURN
    )  # fmt: skip


def only(body: bytes, pattern: bytes, function: str) -> int:
    """Returns the only place of a pattern in a function's body; `function` is its name."""
    places = [found.start() for found in re.finditer(pattern, body, re.DOTALL)]
    if len(places) != 1:
        raise ModuleError(f"{function} has a check at {places}, and one was expected")
    return places[0]


def padded(number: int) -> bytes:
    """Encodes the index of a function as the linker does."""
    return bytes(number >> 7 * place & 0x7F | 0x80 * (place < 4) for place in range(5))


def is_positions(array: bytes) -> bytes:
    """Pushes whether an array has the type of positions."""
    return array + i32_load(ARRAY_DESCR) + i32_load(DESCR_NUMBER) + i32_const(LONG) + I32_EQ


def refuse(module: WasmModule) -> bytes:
    """Raises the error that it is given; the message is laid out on the stack."""
    text = _MESSAGE + bytes(8 - len(_MESSAGE) % 8)
    size = -(-len(text) // 16) * 16
    code = global_get(_STACK) + i32_const(size) + I32_SUB + local_tee(1) + global_set(_STACK)
    for at in range(0, len(text), 8):
        number = int.from_bytes(text[at : at + 8], "little", signed=True)
        code += local_get(1) + i64_const(number) + i64_store(at)
    return (
        code + local_get(0) + local_get(1) + i32_const(0)
        + call(module.index("npy_gil_error"))
        + local_get(1) + i32_const(size) + I32_ADD + global_set(_STACK)
    )  # fmt: skip
