"""The patch that finds floating-point errors, from which numpy makes its warnings and exceptions.

Processors note divisions by zero, overflows and invalid operations in flags. WebAssembly has no
such flags, and the guest's C library keeps flags in memory that only some functions set. Here the
loops of the functions in which people meet such errors check their results: a NaN or an infinity
from finite numbers sets the flag. Loops run in pieces, whose results are still in the processor's
cache when they are checked. Sums, differences and products are left out: they are so quick that the
check would cost more than they do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from guest.assembler import (
    BLOCK,
    ELSE,
    END,
    F32_DEMOTE_F64,
    F64,
    F64_ABS,
    F64_ADD,
    F64_EQ,
    F64_NE,
    F64_PROMOTE_F32,
    F64_SUB,
    I32,
    I32_ADD,
    I32_AND,
    I32_EQ,
    I32_EQZ,
    I32_GT_S,
    I32_LT_S,
    I32_MUL,
    I32_OR,
    I32_SUB,
    IF,
    LOOP,
    RETURN,
    SELECT,
    V128,
    br,
    br_if,
    call,
    f64_const,
    global_get,
    global_set,
    i32_const,
    i32_load,
    i32_load_static,
    i32_store,
    i32_store_static,
    local_get,
    local_set,
    local_tee,
    unsigned,
    vector,
)
from guest.wasm_module import START, Edit, Function, ModuleError, WasmModule

_FLAGS = 27608152  # address of the C library's flags for floating-point errors, bits as in fenv.h
INVALID, _DIVISION, _OVERFLOW = 1, 4, 8
_STACK = 0  # the global variable that holds the stack's end
_PIECE = 1024  # numbers

# The error when finite numbers give an infinity: an overflow, or a division by zero: for a function
# of one number always, for a function of two if the first or the second is 0.
_OVERFLOWS, _POLE, _POLE_OF_FIRST, _POLE_OF_SECOND = range(4)
_ONE = {
    **dict.fromkeys(("log", "log2", "log10", "log1p", "arctanh", "reciprocal"), _POLE),
    **dict.fromkeys(("sqrt", "arcsin", "arccos", "arccosh"), _OVERFLOWS),
    **dict.fromkeys(("exp", "exp2", "expm1", "sinh", "cosh", "sin", "cos", "tan"), _OVERFLOWS),
}
_TWO = {
    "divide": _POLE_OF_SECOND,
    "floor_divide": _POLE_OF_SECOND,
    "remainder": _POLE_OF_SECOND,
    "power": _POLE_OF_FIRST,
}
_TYPES = {"DOUBLE": 8, "FLOAT": 4}
_LOOPS = [
    (f"{kind}_{name}", size, arguments, rule)
    for kind, size in _TYPES.items()
    for arguments, table in ((1, _ONE), (2, _TWO))
    for name, rule in table.items()
]
_WHY = "floating-point errors are found in results"
_LOAD_DOUBLE, _LOAD_FLOAT = b"\x2b\x00\x00", b"\x2a\x00\x00"
_STORES = (b"\x39", b"\x38", b"\x21", b"\x22")  # after a division: to memory, or to a variable
_OR, _ANY = vector(80), vector(83)  # of all bits of vectors
_VECTORS = 8  # vectors that one round checks


def note_unless(flag: int) -> bytes:
    """Sets a flag if the number on the stack is 0."""
    flags = i32_const(0) + i32_const(0) + i32_load_static(_FLAGS) + i32_const(flag) + I32_OR
    return I32_EQZ + IF + flags + i32_store_static(_FLAGS) + END


def functions(module: WasmModule, first: int) -> Iterator[Function]:
    """Yields the functions that the edits call.

    Args:
        module: The guest.
        first: The number of functions that are added before these.
    """
    classify = module.new_index(first)
    yield Function("PyUFunc_d_d", I32 * 4 + F64 * 3, _classify(), "finds errors of numbers")
    for size in _TYPES.values():
        variables = I32 * 4 + F64 + V128
        yield Function("PyUFunc_d_d", variables, _look(size, classify), "finds a NaN or infinity")
    divide = module.new_index(first + 3)
    yield Function("pow", F64, _divide(), "divides two numbers")
    promoted = local_get(0) + F64_PROMOTE_F32 + local_get(1) + F64_PROMOTE_F32
    yield Function("powf", b"", promoted + call(divide) + F32_DEMOTE_F64, "the same in float32")
    for name, _, _, _ in _LOOPS:
        yield Function(name, b"", b"", "the loop itself", module.body(name))


def edits(module: WasmModule, first: int) -> Iterator[Edit]:
    """Yields the edits of loops, and of the division of two numbers."""
    look = {size: module.new_index(first + 1 + n) for n, size in enumerate(_TYPES.values())}
    loops = first + 5
    for number, (name, size, arguments, rule) in enumerate(_LOOPS):
        local, declared = module.further_locals(name, I32 * 3, _WHY)
        yield from declared
        code = _in_pieces(local, arguments, rule, module.new_index(loops + number), look[size])
        yield Edit(name, START, b"", code, _WHY)
    for number, (name, division) in enumerate((("double", b"\xa3"), ("float", b"\x95"))):
        function = f"{name}_true_divide"
        places = [found.start() for found in re.finditer(division, module.body(function))]
        divisions = [at for at in places if module.body(function)[at + 1 : at + 2] in _STORES]
        if len(divisions) != 1:
            raise ModuleError(f"{function} divides at {divisions}, and one place was expected")
        yield Edit(
            function, divisions[0], division, call(module.new_index(first + 3 + number)), _WHY
        )


def _in_pieces(frame: int, arguments: int, rule: int, loop: int, look: int) -> bytes:
    """Calls the loop itself for some numbers at a time, and checks their results.

    The frame on the stack holds the addresses of arguments and result, and the count of numbers.
    """
    left, piece, pointers = frame + 1, frame + 2, arguments + 1
    args, dims, steps, data = range(4)
    reduces = local_get(steps) + i32_load(4 * arguments) + I32_EQZ
    copy = b"".join(
        local_get(frame) + local_get(args) + i32_load(4 * n) + i32_store(4 * n)
        for n in range(pointers)
    )
    advance = b"".join(
        local_get(frame) + local_get(frame) + i32_load(4 * n)
        + local_get(piece) + local_get(steps) + i32_load(4 * n) + I32_MUL + I32_ADD
        + i32_store(4 * n)
        for n in range(pointers)
    )  # fmt: skip
    return (
        reduces + IF
        + b"".join(map(local_get, range(4))) + call(loop) + RETURN + END
        + global_get(_STACK) + i32_const(32) + I32_SUB + local_tee(frame) + global_set(_STACK)
        + copy + local_get(dims) + i32_load(0) + local_set(left)
        + BLOCK + LOOP
        + local_get(left) + i32_const(0) + I32_GT_S + I32_EQZ + br_if(1)
        + local_get(left) + i32_const(_PIECE) + local_get(left) + i32_const(_PIECE) + I32_LT_S
        + SELECT + local_set(piece)
        + local_get(frame) + local_get(piece) + i32_store(16)
        + local_get(frame) + local_get(frame) + i32_const(16) + I32_ADD
        + local_get(steps) + local_get(data) + call(loop)
        + local_get(frame) + local_get(frame) + i32_const(16) + I32_ADD
        + local_get(steps) + i32_const(4 * arguments + rule * 16) + call(look)
        + advance
        + local_get(left) + local_get(piece) + I32_SUB + local_set(left) + br(0)
        + END + END
        + local_get(frame) + i32_const(32) + I32_ADD + global_set(_STACK) + RETURN
    )  # fmt: skip


def _look(size: int, classify: int) -> bytes:
    """Looks for a NaN or an infinity among results: `x - x` is 0 if `x` is neither."""
    args, dims, steps, how, at, number, step, end, total, totals = range(10)
    load = _LOAD_DOUBLE if size == 8 else _LOAD_FLOAT + F64_PROMOTE_F32
    difference = vector(241 if size == 8 else 229)
    result = local_get(how) + i32_const(12) + I32_AND + I32_ADD + i32_load(0)
    at_once = 16 * _VECTORS // size
    one = local_get(at) + load
    return (
        local_get(args) + result + local_set(at)
        + local_get(steps) + result + local_set(step)
        + local_get(dims) + i32_load(0) + local_set(number)
        + local_get(step) + I32_EQZ + IF + i32_const(1) + local_set(number) + END
        + local_get(step) + i32_const(size) + I32_EQ + IF
        + local_get(at) + local_get(number) + i32_const(-at_once) + I32_AND
        + i32_const(size) + I32_MUL + I32_ADD + local_set(end)
        + local_get(number) + i32_const(at_once - 1) + I32_AND + local_set(number)
        + BLOCK + LOOP
        + local_get(at) + local_get(end) + I32_EQ + br_if(1)
        + local_get(totals)
        + b"".join(
            local_get(at) + loaded + local_get(at) + loaded + difference + _OR
            for loaded in (vector(0) + b"\0" + unsigned(16 * n) for n in range(_VECTORS))
        )
        + local_set(totals)
        + local_get(at) + i32_const(16 * _VECTORS) + I32_ADD + local_set(at) + br(0)
        + END + END
        + local_get(totals) + _ANY + IF + f64_const(float("nan")) + local_set(total) + END
        + END
        + BLOCK + LOOP
        + local_get(number) + I32_EQZ + br_if(1)
        + local_get(total) + one + one + F64_SUB + F64_ADD + local_set(total)
        + local_get(at) + local_get(step) + I32_ADD + local_set(at)
        + local_get(number) + i32_const(1) + I32_SUB + local_set(number) + br(0)
        + END + END
        + local_get(total) + local_get(total) + F64_NE + IF
        + local_get(args) + local_get(dims) + local_get(steps)
        + local_get(how) + i32_const(256 * (size == 8)) + I32_OR + call(classify) + END
    )  # fmt: skip


def _is_nan(local: int) -> bytes:
    return local_get(local) + local_get(local) + F64_NE


def _is_infinite(local: int) -> bytes:
    return local_get(local) + F64_ABS + f64_const(float("inf")) + F64_EQ


def _is_zero(local: int) -> bytes:
    return local_get(local) + f64_const(0.0) + F64_EQ


def _pole(rule: int, first: int, second: int) -> bytes:
    """Pushes whether an infinity is a division by zero, by a function's rule and its arguments."""

    def is_rule(rule_: int) -> bytes:
        return local_get(rule) + i32_const(rule_) + I32_EQ

    return (
        is_rule(_POLE)
        + is_rule(_POLE_OF_FIRST) + _is_zero(first) + I32_AND + I32_OR
        + is_rule(_POLE_OF_SECOND) + _is_zero(second) + I32_AND + I32_OR
    )  # fmt: skip


def _classify() -> bytes:
    """Sets flags for results that are NaN or infinite if their arguments are not."""
    args, dims, steps, how, number, flags, rule, _, first, second, result = range(11)

    def number_at(place: bytes) -> bytes:
        """Pushes the number of an argument, as a double, at `number` steps."""
        address = (
            local_get(args) + place + I32_ADD + i32_load(0)
            + local_get(steps) + place + I32_ADD + i32_load(0) + local_get(number) + I32_MUL
            + I32_ADD
        )  # fmt: skip
        typed_if = b"\x04" + F64
        return (
            local_get(how) + i32_const(256) + I32_AND + typed_if + address + _LOAD_DOUBLE
            + ELSE + address + _LOAD_FLOAT + F64_PROMOTE_F32 + END
        )  # fmt: skip

    pole = _pole(rule, first, second)
    set_flag = local_get(flags) + I32_OR + local_set(flags)
    return (
        local_get(how) + i32_const(48) + I32_AND + i32_const(4) + b"\x76" + local_set(rule)
        + local_get(dims) + i32_load(0) + local_set(number)
        + BLOCK + LOOP
        + local_get(number) + I32_EQZ + br_if(1)
        + local_get(number) + i32_const(1) + I32_SUB + local_set(number)
        + number_at(i32_const(0)) + local_set(first)
        + number_at(local_get(how) + i32_const(12) + I32_AND + i32_const(4) + I32_SUB)
        + local_set(second)
        + number_at(local_get(how) + i32_const(12) + I32_AND) + local_set(result)
        + _is_nan(first) + _is_nan(second) + I32_OR + br_if(0)
        + _is_nan(result) + IF + i32_const(INVALID) + set_flag + br(1) + END
        + _is_infinite(first) + _is_infinite(second) + I32_OR + br_if(0)
        + _is_infinite(result) + IF
        + i32_const(_DIVISION) + i32_const(_OVERFLOW) + pole + SELECT + set_flag + END
        + br(0)
        + END + END
        + i32_const(0) + i32_const(0) + i32_load_static(_FLAGS) + local_get(flags) + I32_OR
        + i32_store_static(_FLAGS)
    )  # fmt: skip


def _divide() -> bytes:
    """Divides two numbers, and sets flags as a processor does."""
    first, second, result = range(3)
    finite = [local_get(n) + local_get(n) + F64_SUB + f64_const(0.0) + F64_EQ for n in (0, 1)]
    invalid = local_get(result) + local_get(result) + F64_NE
    nans = [local_get(n) + local_get(n) + F64_EQ for n in (0, 1)]
    flag = i32_const(0) + i32_const(0) + i32_load_static(_FLAGS)
    return (
        local_get(first) + local_get(second) + b"\xa3" + local_tee(result)
        + local_get(result) + F64_SUB + f64_const(0.0) + F64_EQ + I32_EQZ + IF
        + invalid + nans[0] + I32_AND + nans[1] + I32_AND + IF
        + flag + i32_const(INVALID) + I32_OR + i32_store_static(_FLAGS) + END
        + invalid + I32_EQZ + finite[0] + I32_AND + finite[1] + I32_AND + IF
        + flag + i32_const(_DIVISION) + i32_const(_OVERFLOW)
        + local_get(second) + f64_const(0.0) + F64_EQ + SELECT + I32_OR
        + i32_store_static(_FLAGS) + END + END
        + local_get(result)
    )  # fmt: skip
