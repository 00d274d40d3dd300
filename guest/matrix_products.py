"""The patch that computes matrix products in the guest by vector instructions.

OpenBLAS has no kernel of its own for WebAssembly. Its plain one holds 2 x 2 numbers of a product
in variables, which compilers turn into a loop that mostly shuffles, with a check in every round.
Here all tiles of 4 x 4 numbers (of 4 x 8 in `float32`) are computed first. Then the function calls
itself for the remaining rows and columns, which the old code computes, since they are fewer.

The rows of one factor and the columns of the other are packed in pairs. The two numbers of a pair
lie side by side, for each of the `k` products that are added; pairs follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise

from guest.assembler import (
    BLOCK,
    DROP,
    END,
    I32,
    I32_ADD,
    I32_AND,
    I32_EQZ,
    I32_GE_S,
    I32_MUL,
    I32_SUB,
    IF,
    LOOP,
    RETURN,
    V128,
    br,
    br_if,
    call,
    i32_const,
    local_get,
    local_set,
    local_tee,
    unsigned,
    vector,
)
from guest.wasm_module import START, Edit, WasmModule

_WHY = "tiles of a product are computed by vector instructions"
_ROWS = 4  # rows of a tile
_PAIR = 2
_STEPS = 8  # steps of a round of the loop; more gain nothing
_M, _N, _K, _ALPHA, _A, _B, _C, _STRIDE = range(8)  # the function's parameters

_LOAD, _STORE, _ZERO = vector(0), vector(11), vector(12) + bytes(16)
_LOAD_LOW, _LOAD_LANE = vector(93), vector(87)  # 64 bits; the rest of the vector is 0, or stays
_ALIGNED_4 = b"\2"  # the alignment that is known of addresses


def _shuffle(size: int, numbers: str) -> bytes:
    """Takes numbers of `size` bytes out of two vectors, by their places."""
    places = bytes(int(number) * size + byte for number in numbers for byte in range(size))
    return vector(13) + places


@dataclass(frozen=True)
class _Numbers:
    """The numbers of a matrix, and the instructions for vectors of them.

    Attributes:
        kernel: The name of OpenBLAS's function.
        size: The bytes of a number.
        columns: The columns of a tile.
        load_pair: Loads a pair.
        straight: Makes a vector of a pair, given twice.
        turned: The same, with the numbers of each pair swapped.
        mix: Takes numbers of two vectors alternately.
        splat: Puts one number into all places.
        add: Adds two vectors.
        multiply: Multiplies two vectors.
    """

    kernel: str
    size: int
    columns: int
    load_pair: bytes
    straight: bytes
    turned: bytes
    mix: bytes
    splat: bytes
    add: bytes
    multiply: bytes


_DOUBLE = _Numbers(
    kernel="dgemm_kernel",
    size=8,
    columns=4,
    load_pair=_LOAD,
    straight=_shuffle(8, "01"),
    turned=_shuffle(8, "10"),
    mix=_shuffle(8, "03"),
    splat=vector(20),
    add=vector(240),
    multiply=vector(242),
)
_SINGLE = _Numbers(
    kernel="sgemm_kernel",
    size=4,
    columns=8,
    load_pair=_LOAD_LOW,
    straight=_shuffle(4, "0101"),
    turned=_shuffle(4, "1010"),
    mix=_shuffle(4, "0527"),
    splat=vector(19),
    add=vector(228),
    multiply=vector(230),
)


def edits(module: WasmModule) -> Iterator[Edit]:
    """Yields the edits of both kernels."""
    for numbers in (_DOUBLE, _SINGLE):
        vectors = _ROWS * numbers.size // 16
        kinds = I32 * (10 + numbers.columns // _PAIR) + V128 * (vectors * (numbers.columns + 1) + 2)
        first, declared = module.further_locals(numbers.kernel, kinds, _WHY)
        yield from declared
        new = _Tiles(numbers, count(first), module.index(numbers.kernel)).code()
        yield Edit(numbers.kernel, START, b"", new, _WHY)


class _Tiles:
    """The code that is put before a kernel's own."""

    def __init__(self, numbers: _Numbers, local: Iterator[int], index: int) -> None:
        self._numbers, self._index = numbers, index
        self._pair, self._column = next(local), next(local)  # bytes of a pair, and of a column of c
        self._rows_left, self._columns_left, self._steps_left = (
            next(local),
            next(local),
            next(local),
        )
        self._a_at, self._c_at = next(local), next(local)  # addresses of a tile
        self._c_column = next(local)
        self._a = [next(local) for _ in range(_ROWS // _PAIR)]  # pairs of rows
        self._b = [next(local) for _ in range(numbers.columns // _PAIR)]  # pairs of columns
        self._rows = [next(local) for _ in range(_ROWS * numbers.size // 16)]
        self._sums = [[next(local) for _ in self._rows] for _ in range(numbers.columns)]
        self._pair_of_b, self._factor = next(local), next(local)

    def code(self) -> bytes:
        """Returns the instructions. They change the parameters b and c, unused afterwards."""
        numbers = self._numbers
        return (
            local_get(_M) + i32_const(_ROWS) + I32_GE_S
            + local_get(_N) + i32_const(numbers.columns) + I32_GE_S + I32_AND
            + local_get(_K) + i32_const(1) + I32_GE_S + I32_AND + IF
            + local_get(_K) + i32_const(_PAIR * numbers.size) + I32_MUL + local_set(self._pair)
            + local_get(_STRIDE) + i32_const(numbers.size) + I32_MUL + local_set(self._column)
            + _whole(_N, numbers.columns) + local_set(self._columns_left)
            + LOOP + self._columns() + _less(self._columns_left, numbers.columns) + br_if(0) + END
            + self._rest(local_get(_M), _left(_N, numbers.columns), _A, _C)
            + i32_const(0) + RETURN + END
        )  # fmt: skip

    def _columns(self) -> bytes:
        """Computes the tiles of some columns, and goes on to the next."""
        numbers = self._numbers
        pairs = local_get(self._pair) + i32_const(numbers.columns // _PAIR) + I32_MUL
        columns = local_get(self._column) + i32_const(numbers.columns) + I32_MUL
        return (
            _copy(_A, self._a_at) + _copy(_C, self._c_at)
            + _whole(_M, _ROWS) + local_set(self._rows_left)
            + LOOP + self._tile()
            + _add(self._a_at, local_get(self._pair) + i32_const(_ROWS // _PAIR) + I32_MUL)
            + _add(self._c_at, i32_const(_ROWS * numbers.size))
            + _less(self._rows_left, _ROWS) + br_if(0) + END
            + self._rest(_left(_M, _ROWS), i32_const(numbers.columns), self._a_at, self._c_at)
            + _add(_B, pairs) + _add(_C, columns)
        )  # fmt: skip

    def _rest(self, rows: bytes, columns: bytes, a: int, c: int) -> bytes:
        """Computes the remaining rows or columns; the kernel does nothing if there are none."""
        places = (_K, _ALPHA, a, _B, c, _STRIDE)
        return rows + columns + b"".join(map(local_get, places)) + call(self._index) + DROP

    def _tile(self) -> bytes:
        """Computes a tile; the last step leaves the loop."""
        places, step = b"", _PAIR * self._numbers.size
        for base, pairs in ((self._a_at, self._a), (_B, self._b)):
            places += local_get(base) + local_set(pairs[0])
            for before, pair in pairwise(pairs):
                places += local_get(before) + local_get(self._pair) + I32_ADD + local_set(pair)
        zeros = b"".join(_ZERO + local_set(each) for column in self._sums for each in column)
        steps = b"".join(
            self._step(number * step) + _less(self._steps_left, 1) + I32_EQZ + br_if(1)
            for number in range(_STEPS)
        )
        advance = b"".join(_add(pair, i32_const(_STEPS * step)) for pair in (*self._a, *self._b))
        return (
            places + zeros + _copy(_K, self._steps_left)
            + BLOCK + LOOP + steps + advance + br(0) + END + END
            + self._add_to_result()
        )  # fmt: skip

    def _step(self, offset: int) -> bytes:
        """Adds the products of some numbers of a and of b.

        Each pair of b is used as it lies, and with its numbers swapped. So every vector of sums has
        numbers of two columns, alternately.
        """
        numbers, place = self._numbers, _ALIGNED_4 + unsigned(offset)
        code = self._load_rows(place)
        for number, pair in enumerate(self._b):
            code += local_get(pair) + numbers.load_pair + place + local_set(self._pair_of_b)
            for shuffle, sums in zip(
                (numbers.straight, numbers.turned), self._sums[2 * number :][:2], strict=True
            ):
                code += 2 * local_get(self._pair_of_b) + shuffle + local_set(self._factor)
                for total, row in zip(sums, self._rows, strict=True):
                    code += local_get(total) + local_get(row) + local_get(self._factor)
                    code += numbers.multiply + numbers.add + local_set(total)
        return code

    def _load_rows(self, place: bytes) -> bytes:
        """Loads two pairs of a, into one vector or into one each."""
        first, second = map(local_get, self._a)
        if len(self._rows) == 1:
            loaded = second + first + _LOAD_LOW + place + _LOAD_LANE + place + b"\1"
            return loaded + local_set(self._rows[0])
        low, high = map(local_set, self._rows)
        return first + _LOAD + place + low + second + _LOAD + place + high

    def _add_to_result(self) -> bytes:
        """Adds a tile to the result, times alpha."""
        numbers = self._numbers
        code = local_get(_ALPHA) + numbers.splat + local_set(self._factor)
        code += _copy(self._c_at, self._c_column)
        for column, sums in enumerate(self._sums):
            for number, (total, other) in enumerate(zip(sums, self._sums[column ^ 1], strict=True)):
                place = _ALIGNED_4 + unsigned(16 * number)
                code += local_get(self._c_column) + local_get(self._c_column) + _LOAD + place
                code += local_get(total) + local_get(other) + numbers.mix
                code += local_get(self._factor) + numbers.multiply + numbers.add + _STORE + place
            code += _add(self._c_column, local_get(self._column))
        return code


def _copy(source: int, target: int) -> bytes:
    return local_get(source) + local_set(target)


def _add(place: int, number: bytes) -> bytes:
    return local_get(place) + number + I32_ADD + local_set(place)


def _less(number: int, by: int) -> bytes:
    """Lowers a local variable by a number, and pushes it."""
    return local_get(number) + i32_const(by) + I32_SUB + local_tee(number)


def _whole(side: int, of_tile: int) -> bytes:
    """Pushes the number of rows or columns in whole tiles."""
    return local_get(side) + i32_const(-of_tile) + I32_AND


def _left(side: int, of_tile: int) -> bytes:
    """Pushes the number of rows or columns outside of whole tiles."""
    return local_get(side) + i32_const(of_tile - 1) + I32_AND
