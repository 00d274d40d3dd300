"""Buffers that compiled code asks for: it takes int64 where it wants positions.

It gets a copy of 32 bits, which is copied back if the code may have written to it. All modules of
Cython have the same functions for that.
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
    I32_MUL,
    I32_NE,
    I32_OR,
    IF,
    RETURN,
    SELECT,
    br_if,
    call,
    i32_const,
    i32_const_address,
    i32_load,
    i32_load_byte,
    i32_load_static,
    local_get,
    local_set,
    local_tee,
)
from guest.position_casts import only, padded
from guest.wasm_module import START, Edit, ModuleError, WasmModule

_INT, _LONG, _LONGLONG = 5, 7, 9  # NPY_INT, NPY_LONG and NPY_LONGLONG
_INTP_CLASS, _LONGLONG_CLASS = i32_load_static(27642972), i32_load_static(27642932)
_ARRAY_TYPE = 26443132
_TYPE = 4  # the place of any object's type
_ARRAY_DESCR, _DESCR_ORDER, _DESCR_NUMBER, _CLASS_DESCR = 28, 14, 16, 472
_INFO_NAME, _INFO_SIZE, _INFO_KIND = 0, 8, 48  # places in Cython's description of a buffer's type
_NATIVE, _SIGNED = ord("="), ord("I")
_NAMES = (b"intp", b"npy_", b"Py_s")  # intp_t, npy_intp, Py_ssize_t
_CONST = b"const "  # may stand before the name
_FORCE, _WRITE_BACK, _WRITABLE = 0x10, 0x2000, 1
_CHECKING = (  # has the check of a buffer's type in its own code
    "__pyx_tp_new_vectorcall_7sklearn_4tree_10_criterion_ClassificationCriterion"
)


def as_positions(module: WasmModule, index: dict[str, int]) -> bytes:
    """Takes an object, the flags of a buffer, and Cython's description of the buffer's type.

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


def get_buffer(module: WasmModule, index: dict[str, int]) -> bytes:
    """Does the work of PyObject_GetBuffer; Cython's description of the type is a fourth
    argument.
    """
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


def edits(module: WasmModule, index: dict[str, int]) -> Iterator[Edit]:
    """Yields edits of the code for buffers in Cython's modules: of arguments, and of memory
    views.
    """
    why = "compiled code that asks for positions takes int64"
    getting = b"\x10" + padded(module.index("PyObject_GetBuffer"))
    for function in (*_named(module, "__Pyx__GetBufferAndValidate"), *_named(module, _CHECKING)):
        body = module.body_at(function)
        at = only(body, re.escape(getting), f"function {function}")
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
    warning = i32_const(1) + b"\x10" + padded(module.index("PyErr_WarnEx")) + local_set(2)
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
    """Pushes Cython's description of a buffer's type: an argument, or the only one of its module.

    Returns no code if the type is not that of positions.
    """
    if local_get(2) + i32_load_byte(_INFO_KIND) in body:
        return local_get(2)
    found = re.search(rb"\x41([\x80-\xff]{4}.)\x36\x02[\x28\x78]", body, re.DOTALL)  # `root.type`
    if found is None:
        raise ModuleError("a buffer's type is not where it was")
    address = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(found[1]))
    text = int.from_bytes(module.initial_data(address, 4), "little")
    size = int.from_bytes(module.initial_data(address + _INFO_SIZE, 4), "little")
    name = module.initial_data(text, 10).removeprefix(_CONST)[:4]
    is_positions = size == 4 and name in _NAMES
    return i32_const_address(address) if is_positions else b""
