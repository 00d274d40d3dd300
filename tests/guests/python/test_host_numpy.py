"""Products and sorts by the host's numpy: their results, and that they touch only their operands.

Protected pages surround the guest's memory: an access to them ends the test's process.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from msgspec import Struct

from tests.sampled import lasting
from wasm_kernel.engine.host_calls import GuestMemory
from wasm_kernel.guests.python.host_numpy import HostNumpy

GUARD, SIZE = 1 << 20, 1 << 21
PRODUCT, TRIANGLE, SORT, STABLE_SORT, ARGSORT, STABLE_ARGSORT = (16 * n for n in range(1, 7))
DOUBLE = 4
TYPES = ("<f4", "<f8", "<i4", "<u4", "<i8", "<u8")
ARGUMENTS = struct.Struct("<6I6i")
ARGUMENTS_AT, SCALE_AT = 64, 128
DONE, NOT_DONE = 0, 1


class Block(Struct, frozen=True):
    """A part of the process's memory."""

    start: int
    length: int

    def address(self) -> int:
        return self.start

    def size(self) -> int:
        return self.length


@dataclass
class GuardedGuest:
    """A guest whose code is never run."""

    memory: GuestMemory
    pieces: int = 1 << 30  # the fuel until its call ends
    counted: list[int] = field(default_factory=list)

    def count_work(self, fuel: int) -> bool:
        self.counted.append(fuel)
        self.pieces -= 1
        return self.pieces >= 0

    def put(self, at: int, numbers: Any) -> int:
        self.memory.write(at, numbers.tobytes(order="F"))
        return at

    def get(self, at: int, kind: str, *shape: int) -> Any:
        data = self.memory.read(at, int(np.prod(shape)) * np.dtype(kind).itemsize)
        return np.frombuffer(data, kind).reshape(shape, order="F")

    def ask(self, request: int, first: int, second: int = 0, third: int = 0) -> int:
        guest: Any = self
        return HostNumpy(guest).answer(request, first, second, third)

    def multiply(self, request: int, *values: int, alpha: float = 1.0, beta: float = 0.0) -> int:
        """Asks for a product; `values`: the addresses of a, b, c, then m, n, k, and 3 strides."""
        kind = "d" if request & DOUBLE else "f"
        item = struct.calcsize(kind)
        self.memory.write(SCALE_AT, struct.pack(f"<2{kind}", alpha, beta))
        arguments = (*values[:3], 0, SCALE_AT, SCALE_AT + item, *values[3:])
        self.memory.write(ARGUMENTS_AT, ARGUMENTS.pack(*arguments))
        return self.ask(request, ARGUMENTS_AT)


@pytest.fixture
def guest() -> Iterator[GuardedGuest]:
    whole = mmap.mmap(-1, SIZE + 2 * GUARD)
    held = ctypes.c_char.from_buffer(whole)
    start = ctypes.addressof(held)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for guard in (start, start + GUARD + SIZE):
        assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(GUARD), 0) == 0
    yield GuardedGuest(GuestMemory(Block(start + GUARD, SIZE)))  # type: ignore[arg-type]
    del held


def stored(matrix: Any, stride: int) -> Any:
    """A matrix as it lies in memory, with other numbers between its columns."""
    padded = np.full((stride, matrix.shape[1]), 7.0, matrix.dtype)
    padded[: matrix.shape[0]] = matrix
    return padded


SCALES = ((1.0, 0.0), (1.0, 1.0), (-2.5, 0.0), (0.5, 3.0))


@pytest.mark.parametrize("variant", range(8))
def test_products_are_those_of_numpy(guest: GuardedGuest, variant: int) -> None:
    kind = "<f8" if variant & DOUBLE else "<f4"
    draw = np.random.default_rng(variant)
    m, n, k = 37, 50, 23
    a, b, c = (draw.random(shape).astype(kind) for shape in ((m, k), (k, n), (m, n)))
    lying_a, lying_b = a.T if variant & 2 else a, b.T if variant & 1 else b
    strides = (lying_a.shape[0] + 3, lying_b.shape[0], m + 5)
    a_at = guest.put(4096, stored(lying_a, strides[0]))
    b_at = guest.put(65536, stored(lying_b, strides[1]))
    for alpha, beta in SCALES:
        before = stored(c if beta else np.full_like(c, np.nan), strides[2])
        c_at = guest.put(262_144, before)
        values = (a_at, b_at, c_at, m, n, k, *strides)
        assert guest.multiply(PRODUCT + variant, *values, alpha=alpha, beta=beta) == DONE
        expected = before.copy()
        expected[:m] = alpha * (a @ b) + (beta * c if beta else 0)
        got = guest.get(c_at, kind, *before.shape)
        np.testing.assert_allclose(got, expected, rtol=1e-4 if kind == "<f4" else 1e-12)


@pytest.mark.parametrize("variant", range(8))
def test_a_triangle_is_computed_and_the_other_left_alone(guest: GuardedGuest, variant: int) -> None:
    kind = "<f8" if variant & DOUBLE else "<f4"
    n, k = 300, 20  # more than one block
    a = np.random.default_rng(variant).random((n, k)).astype(kind)
    lying = a.T if variant & 1 else a
    a_at = guest.put(4096, stored(lying, lying.shape[0]))
    inside = np.tri(n, dtype=bool) if variant & 2 else np.tri(n, dtype=bool).T
    for alpha, beta in SCALES:
        c_at = guest.put(1 << 19, np.full((n, n), 2.0, kind))
        values = (a_at, 0, c_at, 0, n, k, lying.shape[0], 0, n)
        assert guest.multiply(TRIANGLE + variant, *values, alpha=alpha, beta=beta) == DONE
        expected = np.where(inside, alpha * (a @ a.T) + beta * 2, 2)
        got = guest.get(c_at, kind, n, n)
        np.testing.assert_allclose(got, expected, rtol=1e-4 if kind == "<f4" else 1e-12)


@pytest.mark.parametrize("kind", TYPES)
def test_sorts_are_those_of_numpy(guest: GuardedGuest, kind: str) -> None:
    variant, draw = TYPES.index(kind), np.random.default_rng(1)
    numbers = draw.integers(0, 500, 2000).astype(kind)
    if "f" in kind:
        numbers[::97] = np.nan
    for request in (SORT, STABLE_SORT):
        at = guest.put(4096, numbers)
        assert guest.ask(request + variant, at, numbers.size) == DONE
        np.testing.assert_array_equal(guest.get(at, kind, 2000), np.sort(numbers))
    at, plain = guest.put(4096, numbers), np.arange(2000, dtype="<i4")
    shuffled = draw.permutation(plain)
    for order in (plain, shuffled):
        order_at = guest.put(65536, order)
        assert guest.ask(STABLE_ARGSORT + variant, at, order_at, 2000) == DONE
        expected = order[np.argsort(numbers[order], kind="stable")]
        np.testing.assert_array_equal(guest.get(order_at, "<i4", 2000), expected)
        assert guest.ask(ARGSORT + variant, at, order_at, 2000) == DONE
        got = guest.get(order_at, "<i4", 2000)
        np.testing.assert_array_equal(numbers[got], np.sort(numbers))
        assert set(got) == set(range(2000))


def test_large_sorts_come_in_pieces(guest: GuardedGuest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wasm_kernel.guests.python.host_numpy._SORTED_AT_ONCE", 1000)
    numbers = np.random.default_rng(1).random(50_000)
    at = guest.put(4096, numbers)
    assert guest.ask(SORT + 1, at, numbers.size) == DONE
    np.testing.assert_array_equal(guest.get(at, "<f8", numbers.size), np.sort(numbers))
    assert len(guest.counted) > 50
    assert guest.ask(STABLE_SORT + 1, at, numbers.size) == NOT_DONE


def test_work_broken_off_is_called_done_and_a_refused_one_is_not(guest: GuardedGuest) -> None:
    numbers = np.arange(20_000.0)
    at, guest.pieces = guest.put(4096, numbers), 0
    assert guest.ask(SORT + 1, at, numbers.size) == DONE
    values = (4096, 65536, 1 << 20, 16, 16, 16, 16, 16, 16)
    assert guest.multiply(PRODUCT + DOUBLE, *values) == DONE
    assert guest.get(1 << 20, "<f8", 16, 16).max() == 0
    guest.pieces = 100
    assert guest.multiply(PRODUCT + DOUBLE, *values, alpha=0.0) == NOT_DONE
    for c_at in (4096 + 8, 65536 + 8):  # the addresses of a and b
        overlapping = (4096, 65536, c_at, *values[3:])
        assert guest.multiply(PRODUCT + DOUBLE, *overlapping) == NOT_DONE
    for stride in (15, 0, -1):  # columns that share numbers, or lie before the first
        assert guest.multiply(PRODUCT + DOUBLE, *values[:-1], stride) == NOT_DONE
    assert guest.counted[-1] == 8 * 16**3
    assert {guest.ask(request, at, 20, 20) for request in (*range(16), 15 * 16, 1023)} == {NOT_DONE}


def test_an_order_that_names_no_number_is_refused_and_not_logged(
    guest: GuardedGuest, caplog: pytest.LogCaptureFixture
) -> None:
    at = guest.put(4096, np.arange(20.0))
    order_at = guest.put(8192, np.full(20, 1 << 20, "<i4"))
    assert guest.ask(ARGSORT + 1, at, order_at, 20) == NOT_DONE
    assert not caplog.records


def test_arguments_stay_in_memory(guest: GuardedGuest, caplog: pytest.LogCaptureFixture) -> None:
    fuzz(guest, random.Random(1), 400)
    assert not caplog.records  # our own checks refused them all, before numpy saw them


@pytest.mark.soak
def test_no_argument_reaches_beside_the_memory_at_length(guest: GuardedGuest) -> None:
    for seed in lasting(2):
        fuzz(guest, random.Random(seed), 1_000)


def fuzz(guest: GuardedGuest, draw: random.Random, rounds: int) -> None:
    """Requests that are right or end with the memory; in some, a number or two are at a limit."""
    edges = (0, 1, -1, 8, SIZE, SIZE - 8, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, -(1 << 31))
    answers = set()
    for _ in range(rounds):
        m, n, k = (draw.choice((1, 2, 16, 33, 200)) for _ in range(3))
        ends = (SIZE - 8 * size for size in (m * k, k * n, m * n))
        places = [draw.choice((4096, 4097, 1 << 19, 1 << 20, end, end)) for end in ends]
        values = [*places, m, n, k, *draw.choices((m, n, k, 200, 256), k=3)]
        for _ in range(draw.choice((0, 0, 1, 2))):
            values[draw.randrange(9)] = draw.choice(edges) + draw.choice((-1, 0, 0, 1))
        words = [value & 0xFFFFFFFF for value in values]
        alpha_at = draw.choice((SCALE_AT, SCALE_AT, SCALE_AT, SIZE - 8, SIZE - 4, 0xFFFFFFFF))
        words[3:3] = 0, alpha_at, draw.choice((SCALE_AT, alpha_at, 0))
        guest.memory.write(SCALE_AT, struct.pack("<d", draw.choice((1.0, 1.0, 0.5))))
        guest.memory.write(ARGUMENTS_AT, struct.pack("<12I", *words))
        at = draw.choice((ARGUMENTS_AT, ARGUMENTS_AT, SIZE - 44, 0xFFFFFFFF))
        answers.add(guest.ask(draw.randrange(PRODUCT, SORT), at))
        count = draw.choice((m * n, m * n, *edges)) & 0xFFFFFFFF
        second = draw.choice((words[1], count))
        answers.add(guest.ask(draw.randrange(SORT, STABLE_ARGSORT + 16), words[0], second, count))
    assert answers == {DONE, NOT_DONE}
