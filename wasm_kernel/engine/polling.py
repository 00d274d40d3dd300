"""`Polling`: a guest waits for the earliest of some moments. Files are always ready.

wasmtime's own would block in the host, where neither fuel nor epochs fire.

Source of the layouts: `subscription` (48 bytes) and `event` (32 bytes) of WASI preview 1.
"""

from __future__ import annotations

import struct
from typing import Protocol

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import GuestMemory

REALTIME, MONOTONIC = 0, 1
CLOCKS = 4
"""How many clocks WASI knows: two more, of processor time, are not there."""
_CLOCK, _ABSOLUTE = 0, 1  # a subscription's kind, and its flag
_EVENT = struct.Struct("<QHBxxxxxQHxxxxxx")
_SUBSCRIPTION = struct.Struct("<QB7xI4xQ8xH6x")
_MOST = 1024


class Waiting(Protocol):
    """A clock that can be waited for."""

    def left(self, clock: int, moment: int) -> int:
        """Returns the nanoseconds until a clock shows a moment, and never fewer; 0 if it has."""

    def wait(self, nanoseconds: int) -> None:
        """Waits so long, once what was printed is handed on."""


class Polling:
    """Answers the guest's calls of `poll_oneoff`.

    Args:
        memory: Where subscriptions lie, and events go.
        clock: What is waited for.
    """

    def __init__(self, memory: GuestMemory, clock: Waiting) -> None:
        self._memory, self._clock = memory, clock

    def answer(self, subscriptions: int, events: int, count: int, ready_at: int) -> int:
        """Waits; the arguments are three addresses and the number of subscriptions."""
        if not 0 < count <= _MOST:
            return abi.EINVAL
        raw = self._memory.read(subscriptions, _SUBSCRIPTION.size * count)
        asked = [self._asked(*fields) for fields in _SUBSCRIPTION.iter_unpack(raw)]
        ready = [(user, kind) for user, kind, _ in asked if kind != _CLOCK]
        if not ready:
            shortest = min(left for _, _, left in asked)
            self._clock.wait(shortest)
            ready = [(user, kind) for user, kind, left in asked if left <= shortest]
        written = b"".join(_EVENT.pack(user, 0, kind, 0, 0) for user, kind in ready)
        self._memory.write(events, written)
        self._memory.write_word(ready_at, len(ready))
        return abi.SUCCESS

    def _asked(
        self, user: int, kind: int, clock: int, timeout: int, flags: int
    ) -> tuple[int, int, int]:
        """Returns userdata, kind, and for how many nanoseconds it waits."""
        if kind == _CLOCK and flags & _ABSOLUTE:
            timeout = self._clock.left(clock, timeout)
        return user, kind, timeout
