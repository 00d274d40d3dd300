"""The free memory of a guest, as its C library's allocator knows it.

The artifact's C library (wasi-libc) has dlmalloc, and CPython takes all memory from it here. The
allocator keeps freed memory for later and gives nothing back, as a WebAssembly memory can't shrink.
The content of a free chunk has no meaning: code that gets the chunk next writes to it before it
reads, and `calloc` clears it. So the host may clear it, too, between two turns.

The allocator's words are the guest's own, and a cell can write anything there. The ranges found
here lie inside the guest's memory whatever the words say, and finding them takes bounded time: a
guest that lies loses its own data.

Source of the layout: `malloc_state`, `malloc_chunk` and `malloc_tree_chunk` in dlmalloc.c 2.8.6,
with words of 32 bits. Free chunks of 256 bytes and more hang in 32 trees by size, those of one size
in a ring. Two further free chunks are the `top`, which ends the memory, and the `dv`, which was
split last.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

from wasm_kernel.engine.host_calls import GuestMemory, OutOfBounds
from wasm_kernel.engine.instance import Instance
from wasm_kernel.linux.memory import Range
from wasm_kernel.state.pages import PAGE, merge

_STATE_BYTES, _TOP_SIZE, _TOP, _SMALL_BINS, _TREES = 432, 12, 24, 40, 304
_NODE = struct.Struct("<4xII4xII")  # its size and flags, the next of its size, its two children
_HEADER_BYTES = 8  # the header of any chunk
_NODE_BYTES = 32  # the part of a free chunk that the allocator needs
_PREVIOUS_IN_USE, _IN_USE, _FLAGS = 1, 2, 7
_TREE_SHIFT = 8
_LARGE = 64 * 1024 * 1024  # bytes; larger than any free piece of a fresh guest


class Dlmalloc:
    """The allocator of one guest: a `Heap`. Only the guest's thread uses it.

    At `state` 0 the allocator is unknown, and nothing counts as free. The memory must have the size
    of the base image when this is made; `free` reports nothing below that end, as those pages are
    shared with other guests.
    """

    def __init__(self, state: int, memory: GuestMemory) -> None:
        self.state, self._memory = state, memory
        self._begin = memory.size

    def free(self, least: int) -> list[Range]:
        """The whole pages inside free chunks of at least `least` bytes; as `Heap` has it."""
        if not self.state:
            return []
        size = self._memory.size
        found = []
        for at, length in itertools.islice(self._chunks(least), size // least):
            start, end = max(at + _NODE_BYTES, self._begin), min(at + length, size)
            if length >= least:
                found.append((-(-start // PAGE) * PAGE, end // PAGE * PAGE))
        return merge(found)

    def _chunks(self, least: int) -> Iterator[Range]:
        """Yields address and length of free chunks: all of `least` bytes or more, and others."""
        try:
            state = self._memory.read(self.state, _STATE_BYTES)
        except OutOfBounds:
            return
        dv_size, top_size, _, dv, top = struct.unpack_from("<5I", state, 8)
        yield top, top_size
        yield dv, dv_size
        first = 2 * ((least >> _TREE_SHIFT).bit_length() - 1)
        trees = [tree for tree in struct.unpack_from("<32I", state, _TREES)[first:] if tree]
        while trees:
            yield from self._ring(trees.pop(), trees)

    def _ring(self, first: int, trees: list[int]) -> Iterator[Range]:
        """Yields the chunks of one size; appends the trees below the first one."""
        at = first
        while True:
            try:
                head, following, *children = _NODE.unpack(self._memory.read(at, _NODE.size))
            except OutOfBounds:
                return
            yield at, 0 if head & _IN_USE else head & ~_FLAGS
            if at == first:
                trees += filter(None, children)
            at = following
            if at == first:
                return


def find_allocator(instance: Instance, export: str) -> int:
    """Returns the address of a fresh guest's allocator's state; 0 if it is another allocator.

    `export` allocates memory.
    """
    with instance.turn():
        place, memory = instance.call(export, _LARGE), instance.memory
        return find_state(memory.read(0, memory.size), place) if place else 0


def find_state(memory: bytes, place: int) -> int:
    """Returns the address of the allocator's state, right after it gave out fresh memory.

    `place` is the result of `malloc` for more bytes than any free chunk but the top has. The
    address is 0 if the allocator has another layout.
    """
    chunk = place - _HEADER_BYTES
    top = chunk + (struct.unpack_from("<I", memory, chunk + 4)[0] & ~_FLAGS)
    wanted = struct.pack("<Q", top)[:4]
    at = memory.find(wanted)
    while at >= 0:
        state = at - _TOP
        if at % 4 == 0 and state > 0 and _is_state(memory, state, top):
            return state
        at = memory.find(wanted, at + 1)
    return 0


def _is_state(memory: bytes, state: int, top: int) -> bool:
    """Returns whether both copies of the top's size agree, and the unused bins are empty."""
    try:
        (size,) = struct.unpack_from("<I", memory, state + _TOP_SIZE)
        (head,) = struct.unpack_from("<I", memory, top + 4)
        links = struct.unpack_from("<4I", memory, state + _SMALL_BINS + 8)
    except struct.error:
        return False
    bins = state + _SMALL_BINS
    return head == size | _PREVIOUS_IN_USE and links == (bins, bins, bins + 8, bins + 8)
