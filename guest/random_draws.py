"""The patch that lets numpy draw random numbers above 2**31.

numpy's `RandomState`, which `numpy.random`'s functions and scipy's `rvs(random_state=1)` use, draws
counts as C's `long`, which has 32 bits here: geometric numbers above 2**31 were 2**31 - 1, and
`zipf` drew again. The wrappers around these draws return 64 bits already. `Generator.choice`
without replacement counted with 32 bits, and did not end for more than 2**31 numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from guest.assembler import (
    I32_LT_S,
    I32_TRUNC_SAT_F64_S,
    I64,
    I64_EXTEND32_S,
    I64_EXTEND_I32_S,
    I64_EXTEND_I32_U,
    I64_LT_S,
    I64_TRUNC_SAT_F64_S,
    f64_const,
    i32_const,
    i64_const,
    local_get,
    local_tee,
)
from guest.position_casts import padded
from guest.wasm_module import Edit, WasmModule

_GEOMETRIC, _ZIPF, _LOGSERIES = "legacy_random_geometric", "legacy_random_zipf", "legacy_logseries"
_CHOICE = "__pyx_pf_5numpy_6random_10_generator_9Generator_26choice"
_NARROW, _WIDE = I32_TRUNC_SAT_F64_S + I64_EXTEND_I32_S, I64_TRUNC_SAT_F64_S
_DRAWS = "random numbers above 2**31"


def edits(module: WasmModule) -> Iterator[Edit]:
    """Yields the edits of all functions that draw counts."""
    yield Edit(_GEOMETRIC, 82, _NARROW, _WIDE, _DRAWS)
    yield Edit(_ZIPF, 133, f64_const(2.0**31 - 1), f64_const(2.0**63), _DRAWS)
    yield Edit(_ZIPF, 222, _NARROW, _WIDE, _DRAWS)
    narrow = b"\x10" + padded(module.index("npy_legacy_random_poisson")) + I64_EXTEND_I32_S
    wide = b"\x10" + padded(module.index("random_poisson"))
    for function, at in (("legacy_random_poisson", 5), ("legacy_negative_binomial", 36)):
        yield Edit(function, at, narrow, wide, _DRAWS)
    drawn, declared = module.further_locals(_LOGSERIES, I64, _DRAWS)
    yield from declared
    old = I32_TRUNC_SAT_F64_S + local_tee(7) + i32_const(1) + I32_LT_S
    new = I64_TRUNC_SAT_F64_S + local_tee(drawn) + i64_const(1) + I64_LT_S
    yield Edit(_LOGSERIES, 176, old, new, _DRAWS)
    yield Edit(_LOGSERIES, 186, local_get(7) + I64_EXTEND_I32_U, local_get(drawn), _DRAWS)
    yield Edit(_CHOICE, 23628, I64_EXTEND32_S, b"", "a choice among more than 2**31 numbers")
