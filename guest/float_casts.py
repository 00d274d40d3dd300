"""The patch that casts floats outside of an integer's range as x86-64 does.

WebAssembly's casts saturate, and make 0 of NaN: `np.array([-1.5]).astype("u1")` was 0 and not 255,
a NaN became 0 and not the smallest integer. On x86 processors every float that the instruction
can't cast becomes the smallest integer of 32 or 64 bits. Compilers cut narrower integers out of it.
Among dates and spans of time the smallest integer is NaT. scipy's special functions refuse it as an
order or count; with the largest integer in its place they gave wrong numbers, or counted up to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from guest.assembler import (
    END,
    F64,
    F64_ABS,
    F64_GE,
    F64_LT,
    F64_PROMOTE_F32,
    F64_SUB,
    I32_AND,
    I32_EQZ,
    I32_TRUNC_SAT_F64_S,
    I32_WRAP_I64,
    I64_TRUNC_SAT_F64_S,
    I64_XOR,
    IF,
    SELECT,
    call,
    f64_const,
    i32_const,
    i64_const,
    local_get,
    local_set,
    local_tee,
    trunc_sat,
)
from guest.float_errors import INVALID, note_unless
from guest.position_casts import OVERFLOW_ERROR, padded
from guest.wasm_module import Edit, ModuleError, WasmModule

_FROM, _TO = "c?(?:float|double)|half", "byte|short|int|long|longlong"
_CASTS = f"_(?:aligned_)?(?:contig_)?cast_({_FROM})_to_(u?)({_TO})"
_INTO_TIMES = "(?:C?(?:FLOAT|DOUBLE)|HALF)_to_(?:DATETIME|TIMEDELTA)"
_SPANS = "TIMEDELTA_(?:dm_m_multiply|md_m_(?:multiply|divide))"
_RECIPROCALS = "(U?)(BYTE|SHORT|INT|LONG|LONGLONG)_reciprocal"
_SPECIAL = (
    r"(?:\w+ )?xsf::(?!numpy_gufuncs|.*legendre_p_).*"
    r"|__pyx_(?:f|fuse_0\w*)_+(?:pyx_f_)?5scipy_7special_(?:7_legacy|14cython_special)_\w+"
    r"|(?:cem_cva|mcm[12]|msm[12]|oblate_\w+|pbdv|pbvv|pmv|prolate_\w+|sem_cva)_wrap"
    r"|special_cyl_bessel_j|xsf_\w+"
)
_FILTERS = "NI_(?:Correlate|LineBufferToArray|(?:Generic|MinOrMax|Rank)Filter)"
_PICTURES = (
    "f2i|_putdata|ImagingPointTransform|_ImagingResample(?:Horizontal|Vertical)_32bpc"
    "|bi(?:linear|cubic)_filter32I"
)
_SILENT = {  # functions of scipy and Pillow, and their casts
    _SPECIAL: rb"\xfc[\x00\x02]",
    _FILTERS: rb"\xfc[\x02\x03\x06\x07]",
    # neither casts of positions nor casts to 64 bits, whose largest integer is not a float
    "NI_(?:GeometricTransform|ZoomShift)": rb"(?<=\x1b)\xfc[\x02\x03]",
    _PICTURES: rb"\xfc[\x00\x02\x03]",
}
_SILENT_CASTS = 575
_STORE = re.compile(rb"(?s)(?:.{2,24}?\x1b)??([\x36\x3a\x3b])")  # perhaps behind a `select`
_KINDS = {"LONG": "int"}  # the reciprocal of a position is at most 1
_WHY = "floats beyond an integer's range, and NaN"
_LEAST_32, _LEAST_64 = -(2**31), -(2**63)


def edits(module: WasmModule, refuse: int, of_longdouble: int) -> Iterator[Edit]:
    """Yields the edits of all of numpy's loops that cast floats to integers.

    Args:
        module: The guest.
        refuse: The function that reports numbers which do not fit positions.
        of_longdouble: The function that makes a position of a `longdouble`.
    """
    cast = b"\x10" + padded(module.index("__fixtfsi"))
    for function in module.functions_like("_(?:aligned_)?(?:contig_)?cast_c?longdouble_to_long"):
        yield from _failing(module, function)
        for place in re.finditer(re.escape(cast), module.body(function)):
            yield Edit(function, place.start(), cast, call(of_longdouble), _WHY)
    for function, is_single, unsigned, target, times in _loops(module):
        old = trunc_sat(is_wide=target == "longlong", is_double=not is_single, is_unsigned=unsigned)
        value, declared = module.further_locals(function, F64, _WHY)
        new = _cast(target, unsigned, value)
        if target == "long" and not unsigned:
            new = _cast_to_position(value, refuse)
            yield from _failing(module, function)
        if is_single:
            new = F64_PROMOTE_F32 + new
        places = [match.start() for match in re.finditer(re.escape(old), module.body(function))]
        if len(places) != times:
            raise ModuleError(f"{function} casts at {places}, which are not the expected places")
        yield from declared
        yield from (Edit(function, at, old, new, _WHY) for at in places)
    yield from _silent_casts(module)


def _silent_casts(module: WasmModule) -> Iterator[Edit]:
    """Yields the edits of functions without numpy's warnings.

    The store instruction behind a cast shows the width of its type.
    """
    times, stores = 0, {b"\x3a": "byte", b"\x3b": "short"}
    found = [
        (name, casts) for like, casts in _SILENT.items() for name in module.functions_like(like)
    ]
    for function, casts in found:
        body = module.body(function)
        places = list(re.finditer(casts, body))
        if not places:
            continue
        value, declared = module.further_locals(function, F64, _WHY)
        yield from declared
        for each in places:
            is_wide, is_double, is_unsigned = (bool(each[0][1] & bit) for bit in (4, 2, 1))
            store = _STORE.match(body, each.end())
            narrow = stores.get(store[1], "int") if store else "int"
            target = "longlong" if is_wide else narrow
            promoted = b"" if is_double else F64_PROMOTE_F32
            new = promoted + _cast_silently(target, is_unsigned, value)
            yield Edit(function, each.start(), each[0], new, _WHY)
        times += len(places)
    if times != _SILENT_CASTS:
        raise ModuleError(f"functions of scipy and Pillow cast {times} times")


def _loops(module: WasmModule) -> Iterator[tuple[str, bool, bool, str, int]]:
    """Yields loops: name, whether they cast a `float32`, to unsigned integers, of which type, and
    how often.
    """
    for function in module.functions_like(_CASTS):
        source, unsigned, target = _parts(_CASTS, function)
        is_single = source in ("float", "cfloat", "half")
        yield function, is_single, bool(unsigned), target, 3 if source == "half" else 6
    for function in module.functions_like(_INTO_TIMES):
        times = 1 if function.startswith("HALF") else 3
        yield function, "DOUBLE" not in function, False, "longlong", times
    for function in module.functions_like(_SPANS):
        yield function, False, False, "longlong", 1
    for function in module.functions_like(_RECIPROCALS):
        unsigned, target = _parts(_RECIPROCALS, function)
        yield function, False, bool(unsigned), _KINDS.get(target, target.lower()), 9


def _parts(pattern: str, function: str) -> Sequence[str]:
    """Returns what the groups of a pattern match in a function's name."""
    found = re.fullmatch(pattern, function)
    assert found is not None
    return found.groups()


def _cast(target: str, unsigned: bool, value: int) -> bytes:
    """Casts the number on the stack, an f64, to an integer, and notes a number that does not fit.

    `value` is a local variable to use.
    """
    wide = target == "longlong" or (unsigned and target in ("int", "long"))
    fits = _fits(value, 2.0**63 if wide else 2.0**31)
    return _cast_silently(target, unsigned, value) + fits + note_unless(INVALID)


def _cast_silently(target: str, unsigned: bool, value: int) -> bytes:
    if target == "longlong":
        return _cast_unsigned(value) if unsigned else _cast_wide(value)
    if unsigned and target in ("int", "long"):
        return _cast_wide(value) + I32_WRAP_I64
    return _cast_narrow(value)


def _fits(value: int, limit: float) -> bytes:
    return local_get(value) + F64_ABS + f64_const(limit) + F64_LT


def _cast_narrow(value: int) -> bytes:
    return (
        local_tee(value)
        + I32_TRUNC_SAT_F64_S
        + i32_const(_LEAST_32)
        + _fits(value, 2.0**31)
        + SELECT
    )


def _cast_to_position(value: int, refuse: int) -> bytes:
    """Casts the number on the stack, an f64, to a position; a number that does not fit is
    refused.
    """
    below = local_get(value) + f64_const(2.0**31) + F64_LT
    above = f64_const(_LEAST_32 - 1) + local_get(value) + F64_LT
    return (
        local_tee(value) + I32_TRUNC_SAT_F64_S
        + below + above + I32_AND + I32_EQZ + IF
        + i32_const(0) + OVERFLOW_ERROR + call(refuse) + END
    )  # fmt: skip


def _failing(module: WasmModule, function: str) -> Iterator[Edit]:
    """Makes a loop return -1, and not its answer 0, if a number was refused."""
    body = module.body(function)
    before = rb"(?:(?<=\x0b\x0b)|(?<=\x24\x80\x80\x80\x80\x00))"  # an end, or the stack's
    answer = re.search(before + rb"\x20.\x0b$", body, re.DOTALL)
    if answer is None:
        raise ModuleError(f"{function} does not end with its answer")
    new = i32_const(-1) + answer[0][:2] + call(module.index("PyErr_Occurred")) + SELECT
    yield Edit(function, answer.start(), answer[0][:2], new, _WHY)


def _cast_wide(value: int) -> bytes:
    fits = _fits(value, 2.0**63)
    return local_tee(value) + I64_TRUNC_SAT_F64_S + i64_const(_LEAST_64) + fits + SELECT


def _cast_unsigned(value: int) -> bytes:
    """Casts numbers; first lowers those from 2**63 on by 2**63, as compilers for x86-64 do."""
    is_high = local_get(value) + f64_const(2.0**63) + F64_GE
    return (
        local_set(value)
        + (i64_const(_LEAST_64) + i64_const(0) + is_high + SELECT)
        + local_get(value)
        + (f64_const(2.0**63) + f64_const(0.0) + is_high + SELECT)
        + F64_SUB
        + _cast_wide(value)
        + I64_XOR
    )
