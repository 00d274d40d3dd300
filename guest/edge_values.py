"""The patch of functions whose answers at the edges of their range differ from those on x86-64.

`acosh` of numbers far below 1 was a number where the C library's formula cancels out; `frexp` of
infinity and NaN left any exponent that lay in memory; a shift by 2**32 or more read the lower half
of the count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from guest.assembler import (
    END,
    F64_LT,
    F64_PROMOTE_F32,
    I64_AND,
    IF,
    RETURN,
    f32_const,
    f64_const,
    i32_const,
    i32_store,
    i64_const,
    local_get,
)
from guest.wasm_module import START, Edit, ModuleError, WasmModule

_SHIFTS = "U?LONGLONG_(?:left|right)_shift|u?longlong_[lr]shift"
_LOW_HALF, _WHOLE = i64_const(2**32 - 64), i64_const(-64)
_NAN = float("nan")


def edits(module: WasmModule) -> Iterator[Edit]:
    """Yields the edits of the C library's functions, and of numpy's shifts of 64 bits."""
    below_1 = f64_const(1.0) + F64_LT + IF
    double = local_get(0) + below_1 + f64_const(_NAN) + RETURN + END
    single = local_get(0) + F64_PROMOTE_F32 + below_1 + f32_const(_NAN) + RETURN + END
    no_exponent = local_get(1) + i32_const(0) + i32_store(0)
    for function, first, why in (
        ("acosh", double, "arccosh below 1 is NaN"),
        ("acoshf", single, "arccosh below 1 is NaN"),
        ("frexp", no_exponent, "the exponent of infinity and NaN is 0"),
        ("frexpf", no_exponent, "the exponent of infinity and NaN is 0"),
    ):
        yield Edit(function, START, b"", first, why)
    for function in module.functions_like(_SHIFTS):
        old = _LOW_HALF + I64_AND
        places = [found.start() for found in re.finditer(re.escape(old), module.body(function))]
        if not places:
            raise ModuleError(f"{function} does not compare its count with 64")
        for at in places:
            yield Edit(function, at, old, _WHOLE + I64_AND, "shifts by 2**32 and more")
