"""The patch that finds floating-point errors, from which numpy makes its warnings and exceptions.

Processors note divisions by zero, overflows and invalid operations in flags. WebAssembly has no
such flags, and the guest's C library keeps flags in memory that only some functions set. Here the
loops of the functions in which people meet such errors check their results: a NaN or an infinity
from finite numbers sets the flag. Loops run in pieces, whose results are still in the processor's
cache when they are checked: their sum is NaN or infinite if one of them is. Arguments that results
are written over, as in `a /= b`, are copied first. Quotients and roots are computed here, in
vectors, and added up on the way. Sums, differences and products are left out: they are so quick
that the check would cost more than they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from guest.assembler import (
    BLOCK,
    ELSE,
    END,
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
    I32_GE_S,
    I32_GE_U,
    I32_GT_S,
    I32_LT_S,
    I32_MUL,
    I32_NE,
    I32_OR,
    I32_SUB,
    I64_LOAD,
    I64_STORE,
    IF,
    LOOP,
    MEMORY_COPY,
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
from guest.wasm_module import START, Edit, Function, WasmModule

FLAGS = 27608152  # address of the C library's flags for floating-point errors, bits as in fenv.h
INVALID, DIVISION, OVERFLOW = 1, 4, 8
_STACK = 0  # the global variable that holds the stack's end
_PIECE = 1024  # numbers
_COUNT, _STEPS, _HERE, _COPIES = 16, 20, 32, 48  # offsets in the frame on the stack
_FRAME = _COPIES + 2 * 8 * _PIECE
_HELPERS = 5  # functions that are added before the loops themselves

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
_ADD, _SUBTRACT = {8: vector(240), 4: vector(228)}, {8: vector(241), 4: vector(229)}
_ANY = vector(83)  # whether a bit of a vector is set
_VECTORS = 8  # vectors that one round checks
_ROUND = 4  # vectors that one round computes
_OPERATIONS = {
    "DOUBLE_divide": vector(243),
    "FLOAT_divide": vector(231),
    "DOUBLE_sqrt": vector(239),
    "FLOAT_sqrt": vector(227),
}
_VECTOR_LOOPS = list(_OPERATIONS)
_OUT, _END, _AT, _TOTALS, _SPLAT, _RESULT = 4, 5, 6, 8, 9, 11  # local variables of their loops
ADDED = _HELPERS + len(_LOOPS) + len(_VECTOR_LOOPS)


def note_unless(flag: int) -> bytes:
    """Sets a flag if the number on the stack is 0."""
    flags = i32_const(0) + i32_const(0) + i32_load_static(FLAGS) + i32_const(flag) + I32_OR
    return I32_EQZ + IF + flags + i32_store_static(FLAGS) + END


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
    for size in _TYPES.values():
        yield Function("PyUFunc_d_d", b"", _gather(size), "copies what is written over")
    for name, _, _, _ in _LOOPS:
        yield Function(name, b"", b"", "the loop itself", module.body(name))
    for name in _VECTOR_LOOPS:
        variables = I32 * 4 + V128 * (3 + _ROUND)
        yield Function("PyUFunc_d_d", variables, _vectors(name, classify), "the loop of vectors")


def edits(module: WasmModule, first: int) -> Iterator[Edit]:
    """Yields the edits of loops."""
    look, gather = (
        {size: module.new_index(first + at + n) for n, size in enumerate(_TYPES.values())}
        for at in (1, 3)
    )
    for number, (name, size, arguments, rule) in enumerate(_LOOPS):
        local, declared = module.further_locals(name, I32 * 4, _WHY)
        yield from declared
        how = 4 * arguments + rule * 16
        copied = b"".join(
            _copied(local, n, arguments, size, gather[size]) for n in range(arguments)
        )
        loop = module.new_index(first + _HELPERS + number)
        work = _call(local, how, loop, look[size])
        at_once = b""
        if name in _VECTOR_LOOPS:
            at_once = _count_at_once(local, arguments, size)
            vectors = module.new_index(first + _HELPERS + len(_LOOPS) + _VECTOR_LOOPS.index(name))
            work = (
                local_get(local + 3) + IF + _call_vectors(local, how, vectors) + ELSE + work + END
            )
        code = _in_pieces(local, arguments, at_once, copied + work)
        yield Edit(name, START, b"", _reduced(arguments, loop) + code, _WHY)


def _reduced(arguments: int, loop: int) -> bytes:
    """Leaves reductions to the loop itself: they make one result of many numbers."""
    dims, steps = 1, 2
    return (
        local_get(steps) + i32_load(4 * arguments) + I32_EQZ
        + local_get(dims) + i32_load(0) + i32_const(1) + I32_NE + I32_AND + IF
        + b"".join(map(local_get, range(4))) + call(loop) + RETURN + END
    )  # fmt: skip


def _in_pieces(frame: int, arguments: int, counted: bytes, work: bytes) -> bytes:
    """Does the work for some numbers at a time.

    The frame on the stack holds what a loop takes: the addresses of arguments and result, the count
    of numbers, and the steps. Then come the addresses of this piece, and copies of arguments.
    """
    left, piece, pointers = frame + 1, frame + 2, arguments + 1
    args, dims, steps = range(3)

    def for_each(code: Callable[[int], bytes]) -> bytes:
        return b"".join(local_get(frame) + code(n) for n in range(pointers))

    return (
        global_get(_STACK) + i32_const(_FRAME) + I32_SUB + local_tee(frame) + global_set(_STACK)
        + for_each(lambda n: local_get(args) + i32_load(4 * n) + i32_store(_HERE + 4 * n))
        + for_each(lambda n: local_get(steps) + i32_load(4 * n) + i32_store(_STEPS + 4 * n))
        + local_get(dims) + i32_load(0) + local_set(left)
        + BLOCK + LOOP
        + local_get(left) + i32_const(0) + I32_GT_S + I32_EQZ + br_if(1)
        + local_get(left) + i32_const(_PIECE) + local_get(left) + i32_const(_PIECE) + I32_LT_S
        + SELECT + local_set(piece) + counted
        + local_get(frame) + local_get(piece) + i32_store(_COUNT)
        + for_each(lambda n: local_get(frame) + i32_load(_HERE + 4 * n) + i32_store(4 * n))
        + work
        + for_each(
            lambda n: local_get(frame) + i32_load(_HERE + 4 * n)
            + local_get(piece) + local_get(steps) + i32_load(4 * n) + I32_MUL + I32_ADD
            + i32_store(_HERE + 4 * n)
        )
        + local_get(left) + local_get(piece) + I32_SUB + local_set(left) + br(0)
        + END + END
        + local_get(frame) + i32_const(_FRAME) + I32_ADD + global_set(_STACK) + RETURN
    )  # fmt: skip


def _at(frame: int, offset: int) -> bytes:
    return local_get(frame) + i32_const(offset) + I32_ADD


def _call(frame: int, how: int, loop: int, look: int) -> bytes:
    """Calls the loop itself for a piece, and checks the results."""
    data = 3
    given = local_get(frame) + _at(frame, _COUNT) + _at(frame, _STEPS)
    return given + local_get(data) + call(loop) + given + i32_const(how) + call(look)


def _call_vectors(frame: int, how: int, vectors: int) -> bytes:
    """Calls the loop of vectors for a piece, which checks its results."""
    given = local_get(frame) + _at(frame, _COUNT) + _at(frame, _STEPS)
    return given + i32_const(how) + call(vectors)


def _count_at_once(frame: int, arguments: int, size: int) -> bytes:
    """Sets whether a piece is done by vectors, and makes its count a multiple of theirs.

    The numbers must lie side by side; an argument may also be one number. Results may not be
    arguments of the same round, as those of `accumulate` are.
    """
    args, steps, piece, by_vectors = 0, 2, frame + 2, frame + 3
    width = 16 * _ROUND

    def is_step(n: int, step: int) -> bytes:
        return local_get(steps) + i32_load(4 * n) + i32_const(step) + I32_EQ

    def is_apart(n: int) -> bytes:
        result, argument = (local_get(args) + i32_load(4 * each) for each in (arguments, n))
        return (
            result + argument + I32_SUB + i32_const(1) + I32_SUB + i32_const(width - 1) + I32_GE_U
        )

    return (
        local_get(piece) + i32_const(width // size) + I32_GE_S
        + is_step(arguments, size) + I32_AND
        + b"".join(
            is_step(n, size) + is_step(n, 0) + I32_OR + I32_AND + is_apart(n) + I32_AND
            for n in range(arguments)
        )
        + local_tee(by_vectors) + IF
        + local_get(piece) + i32_const(-width // size) + I32_AND + local_set(piece) + END
    )  # fmt: skip


def _vectors(name: str, classify: int) -> bytes:
    """Computes a function in vectors, and adds up its results: a NaN or an infinity stays one."""
    _, size, arguments, _ = next(row for row in _LOOPS if row[0] == name)
    args, dims, steps, how = range(4)

    def chosen(lone: Sequence[bool]) -> bytes:
        """Chooses among loops by the steps of the arguments that are left."""
        if len(lone) == arguments:
            return _vector_loop(name, size, lone)
        step = local_get(steps) + i32_load(4 * len(lone))
        return step + IF + chosen((*lone, False)) + ELSE + chosen((*lone, True)) + END

    load_splat = vector(10 if size == 8 else 9) + b"\0\0"
    return (
        b"".join(
            local_get(args) + i32_load(4 * n) + local_tee(_AT + n)
            + load_splat + local_set(_SPLAT + n)
            for n in range(arguments)
        )
        + local_get(args) + i32_load(4 * arguments) + local_tee(_OUT)
        + local_get(dims) + i32_load(0) + i32_const(size) + I32_MUL + I32_ADD + local_set(_END)
        + chosen(())
        + local_get(_TOTALS) + local_get(_TOTALS) + _SUBTRACT[size] + _ANY + IF
        + local_get(args) + local_get(dims) + local_get(steps)
        + local_get(how) + i32_const(256 * (size == 8)) + I32_OR + call(classify) + END
    )  # fmt: skip


def _vector_loop(name: str, size: int, lone: Sequence[bool]) -> bytes:
    """Computes some vectors a round; an argument may be one number, which all vectors share."""
    arguments, width = range(len(lone)), i32_const(16 * _ROUND)

    def taken(n: int, number: int) -> bytes:
        loaded = local_get(_AT + n) + vector(0) + b"\0" + unsigned(16 * number)
        return local_get(_SPLAT + n) if lone[n] else loaded

    return (
        LOOP
        + b"".join(
            local_get(_OUT) + b"".join(taken(n, number) for n in arguments)
            + _OPERATIONS[name] + local_tee(_RESULT + number)
            + vector(11) + b"\0" + unsigned(16 * number)
            for number in range(_ROUND)
        )
        + _summed([local_get(_RESULT + number) for number in range(_ROUND)], _ADD[size])
        + local_get(_TOTALS) + _ADD[size] + local_set(_TOTALS)
        + b"".join(
            local_get(_AT + n) + width + I32_ADD + local_set(_AT + n)
            for n in arguments if not lone[n]
        )
        + local_get(_OUT) + width + I32_ADD + local_tee(_OUT)
        + local_get(_END) + I32_NE + br_if(0) + END
    )  # fmt: skip


def _copied(frame: int, number: int, arguments: int, size: int, gather: int) -> bytes:
    """Gives the loop a copy of an argument that its results are written over."""
    args, piece, copy = 0, frame + 2, _COPIES + number * _PIECE * 8
    return (
        local_get(args) + i32_load(4 * number) + local_get(args) + i32_load(4 * arguments) + I32_EQ
        + IF
        + local_get(frame) + i32_load(4 * number) + _at(frame, copy)
        + local_get(2) + i32_load(4 * number) + local_get(piece) + call(gather)
        + local_get(frame) + _at(frame, copy) + i32_store(4 * number)
        + local_get(frame) + i32_const(size) + i32_store(_STEPS + 4 * number) + END
    )  # fmt: skip


def _gather(size: int) -> bytes:
    """Copies numbers that lie some bytes apart to a place where they lie side by side."""
    source, target, step, number = range(4)
    load, store = (I64_LOAD, I64_STORE) if size == 8 else (i32_load(0), i32_store(0))
    return (
        local_get(step) + i32_const(size) + I32_EQ + IF
        + local_get(target) + local_get(source) + local_get(number) + i32_const(size) + I32_MUL
        + MEMORY_COPY + RETURN + END
        + BLOCK + LOOP
        + local_get(number) + I32_EQZ + br_if(1)
        + local_get(target) + local_get(source) + load + store
        + local_get(source) + local_get(step) + I32_ADD + local_set(source)
        + local_get(target) + i32_const(size) + I32_ADD + local_set(target)
        + local_get(number) + i32_const(1) + I32_SUB + local_set(number) + br(0)
        + END + END
    )  # fmt: skip


def _look(size: int, classify: int) -> bytes:
    """Looks for a NaN or an infinity among results: their sum is one, too.

    A sum may also overflow; then `classify` finds nothing.
    """
    args, dims, steps, how, at, number, step, end, total, totals = range(10)
    load = _LOAD_DOUBLE if size == 8 else _LOAD_FLOAT + F64_PROMOTE_F32
    result = local_get(how) + i32_const(12) + I32_AND + I32_ADD + i32_load(0)
    at_once = 16 * _VECTORS // size
    loaded = [local_get(at) + vector(0) + b"\0" + unsigned(16 * n) for n in range(_VECTORS)]
    return (
        local_get(args) + result + local_set(at)
        + local_get(steps) + result + local_set(step)
        + local_get(dims) + i32_load(0) + local_set(number)
        + local_get(step) + I32_EQZ + IF + i32_const(1) + local_set(number) + END
        + local_get(step) + i32_const(size) + I32_EQ
        + local_get(number) + i32_const(at_once) + I32_GE_S + I32_AND + IF
        + local_get(at) + local_get(number) + i32_const(-at_once) + I32_AND
        + i32_const(size) + I32_MUL + I32_ADD + local_set(end)
        + local_get(number) + i32_const(at_once - 1) + I32_AND + local_set(number)
        + LOOP
        + _summed(loaded, _ADD[size]) + local_get(totals) + _ADD[size] + local_set(totals)
        + local_get(at) + i32_const(16 * _VECTORS) + I32_ADD + local_tee(at)
        + local_get(end) + I32_NE + br_if(0)
        + END
        + local_get(totals) + local_get(totals) + _SUBTRACT[size] + _ANY
        + IF + f64_const(float("nan")) + local_set(total) + END
        + END
        + BLOCK + LOOP
        + local_get(number) + I32_EQZ + br_if(1)
        + local_get(total) + local_get(at) + load + F64_ADD + local_set(total)
        + local_get(at) + local_get(step) + I32_ADD + local_set(at)
        + local_get(number) + i32_const(1) + I32_SUB + local_set(number) + br(0)
        + END + END
        + local_get(total) + local_get(total) + F64_SUB + f64_const(0.0) + F64_NE + IF
        + local_get(args) + local_get(dims) + local_get(steps)
        + local_get(how) + i32_const(256 * (size == 8)) + I32_OR + call(classify) + END
    )  # fmt: skip


def _summed(loaded: list[bytes], add: bytes) -> bytes:
    """Adds vectors in pairs, and pairs of pairs, so that no sum waits for all others."""
    if len(loaded) == 1:
        return loaded[0]
    half = len(loaded) // 2
    return _summed(loaded[:half], add) + _summed(loaded[half:], add) + add


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
        + i32_const(DIVISION) + i32_const(OVERFLOW) + pole + SELECT + set_flag + END
        + br(0)
        + END + END
        + i32_const(0) + i32_const(0) + i32_load_static(FLAGS) + local_get(flags) + I32_OR
        + i32_store_static(FLAGS)
    )  # fmt: skip
