"""The patch that lets the host compute large matrix products and sorts, if it has a numpy.

Each function first calls `host.call`, the guest's only import for such requests, if the work is
large enough that the call costs nothing in comparison. The answer 0 says that the host has done the
work; otherwise the function goes on as before. The request's number stands in place of the address
of an answer: `wasm_kernel/guests/python/host_numpy.py` reads it.

Products are those of OpenBLAS, which numpy and scipy call for `float32` and `float64`; sorts are
numpy's own, of the number types that processors have.
"""

from __future__ import annotations

from collections.abc import Iterator

from guest.assembler import (
    END,
    I32_EQZ,
    I32_GT_S,
    I32_OR,
    I64_EXTEND_I32_S,
    I64_GT_S,
    I64_MUL,
    IF,
    RETURN,
    call,
    i32_const,
    i32_load,
    i64_const,
    local_get,
)
from guest.wasm_module import START, Edit

_HOST_CALL = 0  # the first import of the module
_MULTIPLICATIONS = 64**3  # fewer take the guest less than a third of a millisecond
_NUMBERS = 4096  # fewer take the guest as little time

_M, _N, _K = 24, 28, 32  # in OpenBLAS's `blas_arg_t`, for 32-bit systems

# A request's number is 16 times one of these, plus a variant.
_PRODUCT, _TRIANGLE, _SORT, _STABLE_SORT, _ARGSORT, _STABLE_ARGSORT = range(1, 7)
# numpy's C++ types, and the number of each in a request.
_SORTED = {
    "npy::floating_point_type<float, (NPY_TYPES)11>, float": 0,
    "npy::floating_point_type<double, (NPY_TYPES)12>, double": 1,
    "npy::integral_type<int, (NPY_TYPES)5>, int": 2,
    "npy::integral_type<long, (NPY_TYPES)7>, long": 2,
    "npy::integral_type<unsigned int, (NPY_TYPES)6>, unsigned int": 3,
    "npy::integral_type<unsigned long, (NPY_TYPES)8>, unsigned long": 3,
    "npy::integral_type<long long, (NPY_TYPES)9>, long long": 4,
    "npy::integral_type<unsigned long long, (NPY_TYPES)10>, unsigned long long": 5,
}


def _edits() -> Iterator[Edit]:
    for number, letter in enumerate(("s", "d")):  # OpenBLAS's letters for `float` and `double`
        for variant, name in enumerate(("nn", "nt", "tn", "tt")):
            request = 16 * _PRODUCT + 4 * number + variant
            yield _product(f"{letter}gemm_{name}", request, (_M, _N, _K))
        for variant, name in enumerate(("UN", "UT", "LN", "LT")):
            request = 16 * _TRIANGLE + 4 * number + variant
            yield _product(f"{letter}syrk_{name}", request, (_N, _N, _K))
    for types, number in _SORTED.items():
        numbers = types.rpartition(", ")[2] + "*"
        yield _sort(f"quicksort_<{types}, false>({numbers}, long)", 16 * _SORT + number)
        yield _sort(f"timsort_<{types}, false>(void*, long)", 16 * _STABLE_SORT + number)
        yield _sort(f"aquicksort_<{types}, false>({numbers}, long*, long)", 16 * _ARGSORT + number)
        yield _sort(f"atimsort_<{types}, false>(void*, long*, long)", 16 * _STABLE_ARGSORT + number)


def _product(function: str, request: int, sizes: tuple[int, int, int]) -> Edit:
    """The edit of a product. Parameters: the arguments, and the wanted rows and columns or 0."""
    m, n, k = (local_get(0) + i32_load(at) + I64_EXTEND_I32_S for at in sizes)
    is_whole = local_get(1) + local_get(2) + I32_OR + I32_EQZ
    is_large = m + n + I64_MUL + k + I64_MUL + i64_const(_MULTIPLICATIONS) + I64_GT_S
    asked = local_get(0) + i32_const(0) + i32_const(request) + i32_const(0)
    new = is_whole + IF + is_large + IF + _return_if_done(asked, i32_const(0)) + END + END
    return Edit(function, START, b"", new, "large products are computed by the host's numpy")


def _sort(function: str, request: int) -> Edit:
    """The edit of a sort. Parameters: the numbers, their order if it is wanted, and the count."""
    with_order = function.startswith("a")
    count = local_get(2 if with_order else 1)
    asked = local_get(0) + local_get(1) + i32_const(request)
    asked += count if with_order else i32_const(0)
    answer = i32_const(0) if "timsort" in function else b""  # the others return nothing
    new = count + i32_const(_NUMBERS) + I32_GT_S + IF + _return_if_done(asked, answer) + END
    return Edit(f"int {function}", START, b"", new, "many numbers are sorted by the host's numpy")


def _return_if_done(asked: bytes, answer: bytes) -> bytes:
    return asked + call(_HOST_CALL) + I32_EQZ + IF + answer + RETURN + END


EDITS = tuple(_edits())
