"""The patch of functions whose results at the edges of their range differ from x86-64.

`acosh` of numbers far below 1 was a number where the C library's formula cancels out; `frexp` of
infinity and NaN left the exponent uninitialized; a shift by 2**32 or more used the lower half of
the count.

In scipy, `yn` of an order beyond 32 bits stopped at order 2, `struve` of the order -inf counted up
to 2**31, and `hyperu` of a number below -2**31 was 0. Parabolic cylinder functions asked for memory
of 2**32 bytes and more, got the size of the lower 32 bits, and wrote beyond it; they fail now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from guest.assembler import (
    END,
    F64_EQ,
    F64_GE,
    F64_LT,
    F64_PROMOTE_F32,
    I32_EQ,
    I32_LT_U,
    I64_AND,
    IF,
    RETURN,
    SELECT,
    f32_const,
    f64_const,
    i32_const,
    i32_store,
    i64_const,
    local_get,
)
from guest.position_casts import padded
from guest.wasm_module import START, Edit, ModuleError, WasmModule

_SHIFTS = "U?LONGLONG_(?:left|right)_shift|u?longlong_[lr]shift"
_HYPERU = "hypU_wrap"
_YN = "xsf::cephes::yn(int, double)"
_STRUVE = "xsf::cephes::detail::struve_hl(double, double, int)"
_CYLINDERS = r"void xsf::pb[dv]v<(?:double|float)>\(.*|pb[dv]v_wrap"
_LOW_HALF, _WHOLE = i64_const(2**32 - 64), i64_const(-64)
_NAN = float("nan")


def edits(module: WasmModule) -> Iterator[Edit]:
    """Yields the edits of the C library's functions, and of numpy's shifts of 64 bits."""
    number, nan, infinity = local_get(0), f64_const(_NAN), f64_const(-float("inf"))
    single = number + F64_PROMOTE_F32 + f64_const(1.0) + F64_LT
    no_exponent = local_get(1) + i32_const(0) + i32_store(0)
    above_0 = _early(local_get(1) + f64_const(0.0) + F64_GE, infinity)
    for function, first, why in (
        ("acosh", _early(number + f64_const(1.0) + F64_LT, nan), "arccosh below 1 is NaN"),
        ("acoshf", _early(single, f32_const(_NAN)), "arccosh below 1 is NaN"),
        ("frexp", no_exponent, "the exponent of infinity and NaN is 0"),
        ("frexpf", no_exponent, "the exponent of infinity and NaN is 0"),
        (_HYPERU, _early(number + f64_const(-(2.0**31)) + F64_LT, nan), "hyperu of such a number"),
        (_STRUVE, _early(number + infinity + F64_EQ, nan), "struve of the order -inf"),
        (_YN, _early(number + i32_const(-(2**31)) + I32_EQ, above_0 + nan), "yn beyond 32 bits"),
    ):
        yield Edit(function, START, b"", first, why)
    yield from _checks_of_sizes(module)
    for function in module.functions_like(_SHIFTS):
        old = _LOW_HALF + I64_AND
        places = [found.start() for found in re.finditer(re.escape(old), module.body(function))]
        if not places:
            raise ModuleError(f"{function} does not compare its count with 64")
        for at in places:
            yield Edit(function, at, old, _WHOLE + I64_AND, "shifts by 2**32 and more")


def _early(condition: bytes, answer: bytes) -> bytes:
    """Returns from a function with the number that `answer` pushes, if a condition holds."""
    return condition + IF + answer + RETURN + END


def _checks_of_sizes(module: WasmModule) -> Iterator[Edit]:
    """Makes parabolic cylinder functions ask for all memory if their size overflows."""
    count = 5  # the local variable with the number of items, of 8 or 16 bytes
    for function in module.functions_like(_CYLINDERS):
        allocate = b"\x10" + padded(module.index("malloc"))
        found = re.search(rb"\x41[\x03\x04]\x74" + re.escape(allocate), module.body(function))
        if found is None:
            raise ModuleError(f"{function} does not shift a count for its memory")
        size = found[0][:3]
        fits = local_get(count) + i32_const(2**28) + I32_LT_U
        new = size + i32_const(-1) + fits + SELECT
        yield Edit(function, found.start(), size, new, "orders that need more memory than there is")
