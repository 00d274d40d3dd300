"""Floating-point errors in arithmetic of two numbers, such as `numpy.float64(1) / 0`.

`guest/float_errors.py` says what the flags are. Here each operation becomes a function that looks
at its result, which costs nothing beside the Python objects around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from guest.assembler import (
    END,
    F64,
    F64_ABS,
    F64_EQ,
    F64_LT,
    F64_NE,
    F64_PROMOTE_F32,
    I32_AND,
    I32_OR,
    IF,
    SELECT,
    call,
    f64_const,
    i32_const,
    i32_load_static,
    i32_store_static,
    local_get,
    local_set,
)
from guest.float_errors import DIVISION, FLAGS, INVALID, OVERFLOW
from guest.position_casts import padded
from guest.wasm_module import Edit, Function, ModuleError, WasmModule

_WHY = "floating-point errors of two numbers are found"
_F32 = b"\x7d"
_STORED = rb"(?=[\x21\x22\x38\x39])"  # a store, or a variable, follows


@dataclass(frozen=True)
class _Kind:
    """A type of numbers: numpy's names of it, its first operation's code, and C's functions."""

    names: tuple[str, ...]
    add: int
    type: bytes
    power: str
    remainder: str


_KINDS = (
    _Kind(("double",), 0xA0, F64, "pow", "fmod"),
    _Kind(("float", "half"), 0x92, _F32, "powf", "fmodf"),
)
_OPERATIONS = ("add", "subtract", "multiply", "true_divide", "power", "remainder")
_QUOTIENTS = ("floor_divide", "divmod")
_INTEGERS = [
    sign + name for name in ("byte", "short", "int", "long", "longlong") for sign in ("", "u")
]


def functions(module: WasmModule) -> Iterator[Function]:
    """Yields the operations that look at their results."""
    for kind in _KINDS:
        for number, name in enumerate(_OPERATIONS):
            done = bytes([kind.add + number])
            if name in {"power", "remainder"}:
                done = call(module.index(getattr(kind, name)))
            yield Function(kind.power, kind.type, _checked(done, name, kind), f"{name} of two")


def edits(module: WasmModule, first: int) -> Iterator[Edit]:
    """Yields the edits of numpy's arithmetic of two numbers.

    Args:
        module: The guest.
        first: How many functions are added before these.
    """
    for place, kind in enumerate(_KINDS):
        start = module.new_index(first + place * len(_OPERATIONS))
        index = {name: start + number for number, name in enumerate(_OPERATIONS)}
        if kind.type == F64:  # numpy divides integers as these
            for name in _INTEGERS:
                yield from _edits(module, kind, f"{name}_true_divide", "true_divide", index)
        for name in kind.names:
            # remainders of float16 are functions of their own, and hardly used
            for operation in _OPERATIONS[:5] if name == "half" else (*_OPERATIONS, *_QUOTIENTS):
                yield from _edits(module, kind, f"{name}_{operation}", operation, index)


def _edits(
    module: WasmModule, kind: _Kind, function: str, operation: str, index: dict[str, int]
) -> Iterator[Edit]:
    clear = b"\x10" + padded(module.index("npy_clear_floatstatus_barrier"))
    found = [each for each in module.bodies_of(function) if clear in module.body_at(each)]
    if len(found) != 1:
        raise ModuleError(f"{function} of two numbers is {found}, and one was expected")
    body = module.body_at(found[0])
    if operation in {"power", "remainder", *_QUOTIENTS}:
        name = "power" if operation == "power" else "remainder"
        old = b"\x10" + padded(module.index(getattr(kind, name)))
        yield _only(found[0], body, re.escape(old), len(old), call(index[name]))
    if operation in _QUOTIENTS:  # a quotient by 0
        old = bytes([kind.add + 3])
        pattern = rb"(?<=\x20.\x20.)" + re.escape(old) + rb"(?=\x21)"
        yield _only(found[0], body, pattern, 1, call(index["true_divide"]))
    elif operation not in {"power", "remainder"}:
        to_half = rb"|(?=\x10" + re.escape(padded(module.index("npy_float_to_half"))) + rb")"
        old = re.escape(bytes([kind.add + _OPERATIONS.index(operation)]))
        pattern = old + rb"(?:" + _STORED + to_half + rb")"
        yield _only(found[0], body, pattern, 1, call(index[operation]))


def _only(function: int, body: bytes, pattern: bytes, size: int, new: bytes) -> Edit:
    places = [found.start() for found in re.finditer(pattern, body, re.DOTALL)]
    if len(places) != 1:
        raise ModuleError(f"function {function} computes at {places}, and one was expected")
    return Edit(function, places[0], body[places[0] : places[0] + size], new, _WHY)


def _checked(done: bytes, name: str, kind: _Kind) -> bytes:
    """Computes with two numbers, and sets flags as a processor does."""
    first, second, result = (
        local_get(n) + (F64_PROMOTE_F32 if kind.type == _F32 else b"") for n in range(3)
    )
    finite = [each + F64_ABS + f64_const(float("inf")) + F64_LT for each in (first, second)]
    numbers = [each + each + F64_EQ for each in (first, second)]
    is_nan = result + result + F64_NE
    pole = {"true_divide": second, "power": first}.get(name)
    is_pole = pole + f64_const(0.0) + F64_EQ if pole else i32_const(0)
    flag = i32_const(0) + i32_const(0) + i32_load_static(FLAGS)
    return (
        local_get(0) + local_get(1) + done + local_set(2)
        + is_nan + numbers[0] + I32_AND + numbers[1] + I32_AND + IF
        + flag + i32_const(INVALID) + I32_OR + i32_store_static(FLAGS) + END
        + result + F64_ABS + f64_const(float("inf")) + F64_EQ
        + finite[0] + I32_AND + finite[1] + I32_AND + IF
        + flag + i32_const(DIVISION) + i32_const(OVERFLOW) + is_pole + SELECT + I32_OR
        + i32_store_static(FLAGS) + END
        + local_get(2)
    )  # fmt: skip
