"""Matrix products and sorts of a guest, computed by the host's numpy in the guest's own memory.

OpenBLAS and numpy in the guest request them (`guest/host_numpy.py` patches them so), from a size on
at which the call to the host pays. Without numpy on the host, and for requests that are not
supported, the answer is "not done", and the guest computes by itself.

Everything in a request is hostile: no number in it makes the host touch a byte outside of the
guest's memory, which can't grow during the request. Work is done in pieces. Before each piece its
fuel is counted and the clock is checked. Work that is broken off is answered with "done", because
the guest's call ends then, and its changes are dropped. An interrupt that the guest takes by itself
breaks nothing off: the guest goes on after it, and must not have a part of a product.

Source of the layout: `blas_arg_t` in OpenBLAS's common.h, for 32-bit systems.
"""

from __future__ import annotations

import logging
import math
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from msgspec import Struct

from wasm_kernel.engine.host_calls import OutOfBounds
from wasm_kernel.engine.instance import Instance

_LOG = logging.getLogger("wasm_kernel.guests")
_DONE, _NOT_DONE = 0, 1

# A request's number is 16 times one of these, plus a variant.
_PRODUCT, _TRIANGLE, _SORT, _STABLE_SORT, _ARGSORT, _STABLE_ARGSORT = range(1, 7)
_FLOATS = ("<f4", "<f8")  # by a quarter of a product's variant
_A_TRANSPOSED, _B_TRANSPOSED = 2, 1  # in a product's variant
_LOWER, _TRANSPOSED = 2, 1  # in a triangle's variant
_SORTED = ("<f4", "<f8", "<i4", "<u4", "<i8", "<u8")  # by a sort's variant

_COMPUTING = threading.Lock()
_ARGUMENTS = struct.Struct("<3I4x2I6i")  # three matrices, alpha, beta; m, n, k, three strides

_PIECE = 500_000_000  # multiplications of a piece: some 20 to 50 ms of one core
_SIDE = 16  # rows and columns of the smallest piece; BLAS computes as many at once
_TRIANGLE_SIDE = 256  # rows of a triangle's pieces; half of a piece on the diagonal is wasted
_ASIDE = 1 << 22  # most numbers of a piece that is not computed in its place
_SORTED_AT_ONCE = 1 << 22  # numbers; half a second at most
_SORTED_MOST = 1 << 27

# Fuel burns about as in the guest: one unit per byte of a number for a multiplication with its
# addition, and this many for each of the n * log2(n) comparisons of a sort.
_COMPARISON_FUEL = 30


class _Refused(Exception):
    """A request that the host does not serve."""


class _CallEnded(Exception):
    """The guest's call ends as soon as the request is answered."""


class _Product(Struct, frozen=True):
    """The arguments of one of BLAS's products: `c = alpha * a @ b + beta * c`.

    `c` has `m` rows and `n` columns, and each of its numbers is a sum of `k` products. Matrices lie
    column by column; a stride is the distance between columns, in numbers.
    """

    a: int
    b: int
    c: int
    m: int
    n: int
    k: int
    strides: tuple[int, int, int]
    alpha: float
    beta: float


class _Piece(Struct, frozen=True):
    """A part of a result: its rows and columns, and a mask of the wanted numbers, None for all."""

    rows: slice
    columns: slice
    wanted: Any = None


class HostNumpy:
    """The products and sorts of one guest. Only the guest's thread uses it."""

    def __init__(self, guest: Instance) -> None:
        self._guest = guest
        self._memory = guest.memory
        self._numpy: Any = _import_numpy()

    def answer(self, request: int, first: int, second: int, third: int) -> int:
        """Serves a request of the guest; returns 0 if it is done, or if the guest's call ends.

        `first` is the address of a product's arguments, or of the numbers to sort. `second` is the
        count of numbers, or the address of their order; then `third` is the count.
        """
        kind, variant = divmod(request, 16)
        if self._numpy is None or kind not in _KINDS:
            return _NOT_DONE
        try:
            with self._numpy.errstate(all="ignore"):
                _KINDS[kind](self, variant, first, second, third)
        except _CallEnded:
            return _DONE
        except (_Refused, OutOfBounds, IndexError, MemoryError):  # an order may name any index
            return _NOT_DONE
        except Exception:
            _LOG.exception("the host's numpy failed")
            return _NOT_DONE
        return _DONE

    def _count(self, fuel: int) -> None:
        if not self._guest.count_work(fuel):
            raise _CallEnded

    # -- products

    def _product(self, variant: int, at: int, *_: int) -> None:
        kind, asked = self._arguments(variant, at)
        m, n, k = asked.m, asked.n, asked.k
        a = self._matrix(kind, asked.a, (m, k), asked.strides[0], variant & _A_TRANSPOSED)
        b = self._matrix(kind, asked.b, (k, n), asked.strides[1], variant & _B_TRANSPOSED)
        height = min(m, _side(k))
        width = min(n, max(_SIDE, min(_PIECE // k, _ASIDE) // height))
        pieces = (_Piece(i, j) for j in _steps(n, width) for i in _steps(m, height))
        self._multiply(asked, a, b, self._matrix(kind, asked.c, (m, n), asked.strides[2]), pieces)

    def _triangle(self, variant: int, at: int, *_: int) -> None:
        """Computes one triangle of a matrix times itself; writes nothing to the other triangle."""
        kind, asked = self._arguments(variant, at)
        n, k = asked.n, asked.k
        a = self._matrix(kind, asked.a, (n, k), asked.strides[0], variant & _TRANSPOSED)
        c = self._matrix(kind, asked.c, (n, n), asked.strides[2])
        side = min(_TRIANGLE_SIDE, _side(k))
        half = self._numpy.tri(side, dtype=bool)
        if variant & _LOWER:
            pieces = _pieces_of_triangle(n, side, half, lower=True)
        else:
            pieces = _pieces_of_triangle(n, side, half.T, lower=False)
        self._multiply(asked, a, a.T, c, pieces)

    def _multiply(self, asked: _Product, a: Any, b: Any, c: Any, pieces: Iterable[_Piece]) -> None:
        numpy = self._numpy
        if numpy.may_share_memory(a, c) or numpy.may_share_memory(b, c):
            raise _Refused
        plain = asked.alpha == 1 and asked.beta == 0
        aside = numpy.empty((2, 0), c.dtype)
        for piece in pieces:
            into = c[piece.rows, piece.columns].T  # row by row, as numpy's results are
            self._count(into.size * asked.k * into.itemsize)
            factors = b[:, piece.columns].T, a[piece.rows].T
            if plain and piece.wanted is None:
                with _one_thread():
                    numpy.matmul(*factors, out=into)
                continue
            if not aside.size:  # the first piece is the largest, and nothing is written yet
                aside = numpy.empty((2, into.size), c.dtype)
            product, before = (row[: into.size].reshape(into.shape) for row in aside)
            with _one_thread():
                numpy.matmul(*factors, out=product)
            if asked.alpha != 1:
                product *= asked.alpha
            if asked.beta != 0:
                product += numpy.multiply(into, asked.beta, out=before)
            wanted = True if piece.wanted is None else piece.wanted.T
            numpy.copyto(into, product, where=wanted)

    def _arguments(self, variant: int, at: int) -> tuple[str, _Product]:
        """Returns the type of a product's numbers, and its arguments."""
        kind = _FLOATS[variant // 4] if variant < 4 * len(_FLOATS) else ""
        if not kind:
            raise _Refused
        a, b, c, alpha_at, beta_at, m, n, k, *strides = _ARGUMENTS.unpack(
            self._memory.read(at, _ARGUMENTS.size)
        )
        alpha = self._number(kind, alpha_at)
        beta = self._number(kind, beta_at) if beta_at else 1.0
        if not alpha_at or alpha == 0:  # BLAS computes no product for alpha 0
            raise _Refused
        return kind, _Product(a, b, c, m, n, k, (strides[0], strides[1], strides[2]), alpha, beta)

    def _number(self, kind: str, at: int) -> float:
        unpack = struct.Struct("<f" if kind == "<f4" else "<d")
        return float(unpack.unpack(self._memory.read(at, unpack.size))[0])

    def _matrix(
        self, kind: str, at: int, shape: tuple[int, int], stride: int, transposed: int = 0
    ) -> Any:
        """Returns the matrix in the guest's memory at an address, or its transpose."""
        rows, columns = shape[::-1] if transposed else shape
        item = int(kind[2])
        if rows < 1 or columns < 1 or stride < rows or at % item:
            raise _Refused
        memory = self._memory.view(at, ((columns - 1) * stride + rows) * item)
        matrix = self._numpy.ndarray((rows, columns), kind, memory, 0, (item, stride * item))
        return matrix.T if transposed else matrix

    # -- sorts

    def _sort(self, variant: int, at: int, count: int, *_: int) -> None:
        """Sorts numbers; many are partitioned first, so that no piece takes too long."""
        parts = [self._numbers(variant, at, count, _SORTED_MOST)]
        while parts:
            part = parts.pop()
            if part.size <= _SORTED_AT_ONCE:
                self._count_sort(part.size)
                part.sort()
            else:
                self._count(part.size * _COMPARISON_FUEL)
                middle = part.size // 2
                part.partition(middle)
                parts += part[:middle], part[middle:]

    def _stable_sort(self, variant: int, at: int, count: int, *_: int) -> None:
        numbers = self._numbers(variant, at, count, _SORTED_AT_ONCE)
        self._count_sort(count)
        numbers.sort(kind="stable")

    def _argsort(
        self, variant: int, at: int, order_at: int, count: int, how: str = "quicksort"
    ) -> None:
        """Sorts indexes by their numbers. The indexes may have another order before."""
        numpy = self._numpy
        numbers = self._numbers(variant, at, count, _SORTED_AT_ONCE)
        order = self._numbers(_SORTED.index("<i4"), order_at, count, _SORTED_AT_ONCE)
        self._count_sort(count)
        if numpy.array_equal(order, numpy.arange(count, dtype="<i4")):
            order[...] = numbers.argsort(kind=how)
        else:
            order[...] = order[numbers[order].argsort(kind=how)]

    def _numbers(self, variant: int, at: int, count: int, most: int) -> Any:
        if variant >= len(_SORTED) or not 1 <= count <= most:
            raise _Refused
        kind = _SORTED[variant]
        item = int(kind[2])
        if at % item:
            raise _Refused
        return self._numpy.ndarray((count,), kind, self._memory.view(at, count * item))

    def _count_sort(self, count: int) -> None:
        self._count(count * count.bit_length() * _COMPARISON_FUEL)


_KINDS: Mapping[int, Callable[[HostNumpy, int, int, int, int], None]] = {
    _PRODUCT: HostNumpy._product,
    _TRIANGLE: HostNumpy._triangle,
    _SORT: HostNumpy._sort,
    _STABLE_SORT: HostNumpy._stable_sort,
    _ARGSORT: HostNumpy._argsort,
    _STABLE_ARGSORT: partial(HostNumpy._argsort, how="stable"),
}


def _side(k: int) -> int:
    """The side of a square whose numbers, each a sum of `k`, make a piece."""
    if k < 1:
        raise _Refused
    return max(_SIDE, math.isqrt(min(_PIECE // k, _ASIDE)) // _SIDE * _SIDE)


def _steps(count: int, step: int) -> Iterator[slice]:
    for begin in range(0, count, step):
        yield slice(begin, min(begin + step, count))


def _pieces_of_triangle(n: int, side: int, half: Any, *, lower: bool) -> Iterator[_Piece]:
    """Yields the squares of a triangle; `half` is the mask of the wanted half on the diagonal."""
    for columns in _steps(n, side):
        for rows in _steps(n, side):
            if rows == columns:
                size = rows.stop - rows.start
                yield _Piece(rows, columns, half[:size, :size])
            elif (rows.start > columns.start) == lower:
                yield _Piece(rows, columns)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Lets BLAS compute with one thread for a guest, and then restores the program's number.

    BLAS has one number of threads for the whole process, so guests in other threads wait. The
    program's number stays if the program limits it in a thread of its own at that moment.
    """
    with _COMPUTING:
        blas = _blas()
        if all(library.num_threads == 1 for library in blas.lib_controllers):
            yield
        else:
            with blas.limit(limits=1):
                yield


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def _import_numpy() -> Any:
    """Returns numpy, or None if numpy or a package that is used with it here is not installed."""
    try:
        import numpy
        import threadpoolctl  # noqa: F401 - needed later
    except ImportError:
        return None
    return numpy
