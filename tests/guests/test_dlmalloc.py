"""Tests of reading the guest's allocator: right if it is honest, and harmless if it lies."""

from __future__ import annotations

import random
import struct

from wasm_kernel.engine.host_calls import OutOfBounds
from wasm_kernel.guests.dlmalloc import Dlmalloc
from wasm_kernel.state.pages import PAGE

STATE, IMAGE, SIZE = 1000 * 8, 16 * PAGE, 2000 * PAGE
LEAST = 16 * PAGE


class FakeMemory:
    """A guest's memory, at first as large as the base image."""

    def __init__(self) -> None:
        self.data = bytearray(SIZE)
        self.size = IMAGE

    def read(self, at: int, length: int) -> bytes:
        if at < 0 or at + length > self.size:
            raise OutOfBounds
        return bytes(self.data[at : at + length])

    def words(self, at: int, *words: int) -> None:
        struct.pack_into(f"<{len(words)}I", self.data, at, *words)

    def chunk(
        self, page: int, pages: int, following: int = 0, *children: int, flags: int = 1
    ) -> int:
        """A free chunk that begins in the middle of a page, linked in a ring and a tree."""
        at = page * PAGE + 2048
        ends = (following or at, at, *children, *[0] * (2 - len(children)))
        self.words(at, 0, pages * PAGE | flags, *ends)
        return at


def allocator(memory: FakeMemory) -> Dlmalloc:
    made = Dlmalloc(STATE, memory)  # type: ignore[arg-type]
    memory.size = SIZE
    return made


def whole(page: int, pages: int) -> tuple[int, int]:
    """The whole pages of such a chunk."""
    return (page + 1) * PAGE, (page + pages) * PAGE


def test_nothing_but_whole_pages_of_free_chunks_above_the_image_is_told() -> None:
    memory = FakeMemory()
    unknown, heap = Dlmalloc(0, memory), allocator(memory)  # type: ignore[arg-type]
    for state in (0, STATE):
        memory.words(state + 8, 30 * PAGE, 100 * PAGE, 0, 700 * PAGE, memory.chunk(8, 100))
    below = memory.chunk(500, 40), memory.chunk(600, 50)
    memory.words(STATE + 304 + 4 * 31, memory.chunk(300, 30, 0, *below, flags=3))
    free = [(IMAGE, 108 * PAGE), whole(500, 40), whole(600, 50), (701 * PAGE, 730 * PAGE)]
    assert heap.free(LEAST) == free
    assert unknown.free(LEAST) == []


def test_words_of_a_hostile_guest_lead_nowhere_outside_of_its_memory() -> None:
    chance = random.Random(5)
    for _ in range(200):
        memory = FakeMemory()
        heap = allocator(memory)
        places = [chance.randrange(0, SIZE + PAGE, 8) for _ in range(8)]
        for at in places:
            if at <= SIZE - 32:
                size = chance.choice([0, 8, 30 * PAGE, SIZE, 2**32 - 8])
                memory.words(at, 0, size | 1, *chance.choices([0, 2**32 - 4, *places], k=4))
        memory.words(STATE + 8, *chance.choices([*places, 2**32 - 1, SIZE], k=5))
        memory.words(STATE + 304, *chance.choices([0, *places], k=32))
        for start, end in heap.free(LEAST):
            assert IMAGE <= start < end <= SIZE
            assert start % PAGE == end % PAGE == 0


def test_a_ring_without_end_is_left() -> None:
    memory = FakeMemory()
    heap = allocator(memory)
    other = memory.chunk(300, 30)  # follows itself, so the ring has no end
    memory.words(STATE + 304 + 4 * 31, memory.chunk(400, 30, other))
    assert heap.free(LEAST) == [whole(300, 30), whole(400, 30)]
