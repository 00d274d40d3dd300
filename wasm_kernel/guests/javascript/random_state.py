"""The state of `Math.random`, by which the host gives each session numbers of its own.

The interpreter has no call that seeds it. Its state is part of a base image, so it would give the
same numbers in every session. It is one word of 64 bits, found by a look at memory before and one
after a number is drawn.

Source of the rule: `xorshift64star` in QuickJS-NG's quickjs.c.
"""

from __future__ import annotations

import struct

from wasm_kernel.engine.instance import Instance

_MASK = (1 << 64) - 1


def reseed_random(instance: Instance, address: int) -> None:
    """Seeds the generator anew, between two turns."""
    instance.memory.write(address, struct.pack("<Q", int.from_bytes(instance.random(8)) or 1))


def find_random(before: bytes, after: bytes) -> list[int]:
    """Returns where the generator's state can lie: it took one step of the rule between."""
    size = min(len(before), len(after)) // 8 * 8
    words = zip(
        memoryview(before[:size]).cast("Q"), memoryview(after[:size]).cast("Q"), strict=True
    )
    return [8 * index for index, (was, is_) in enumerate(words) if was != is_ == _next(was)]


def _next(state: int) -> int:
    state ^= state >> 12
    state ^= state << 25 & _MASK
    return state ^ state >> 27
