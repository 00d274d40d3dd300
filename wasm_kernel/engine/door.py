"""The door: the guest hands over bytes and gets bytes back. It never raises across."""

from __future__ import annotations

from collections.abc import Callable

from wasm_kernel.engine import abi
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call

MODULE, NAME, SHAPE = "host", "call", "iiii"
REQUEST_BYTES = 80 * 1024 * 1024
REFUSED = 1  # the guest's `_host.call` raises OSError for any answer but 0

Handler = Callable[[bytes], bytes]


class Door:
    """`host.call` of one instance, answered by `handler` on the guest's thread."""

    def __init__(self, handler: Handler, reach: Reach, allocate: Callable[[int], int]) -> None:
        self._handler = handler
        self._reach = reach
        self._allocate = allocate

    def call(self, call: Call) -> int:
        """Read the request, ask the handler, put the answer into memory the guest allocates."""
        at, length, answer_at, answer_length_at = call.args
        if length > REQUEST_BYTES:
            return REFUSED
        answer = self._handler(self._reach.read(at, length))
        place = self._allocate(max(1, len(answer)))
        if place == 0:
            return REFUSED
        self._reach.write(place, answer)
        self._reach.write_word(answer_at, place)
        self._reach.write_word(answer_length_at, len(answer))
        return abi.SUCCESS
