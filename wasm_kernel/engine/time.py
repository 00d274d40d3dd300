"""The guest's monotonic clock, which goes on where an earlier instance's stopped.

wasmtime's begins at zero with every instance. Memory that is brought back knows times of the
instance before, and waits for later ones; so what the clock showed then is added to what it shows
now.
"""

from __future__ import annotations

import ctypes

from wasm_kernel.engine import abi
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.seams import RawFunc
from wasm_kernel.engine.shadow import Call

_MONOTONIC = 1


class GuestTime:
    """The clocks of one instance. Only the guest's thread uses it."""

    def __init__(self, reach: Reach, clock_time_get: RawFunc, before: int) -> None:
        self._reach = reach
        self._clock_time_get = clock_time_get
        self._before = before

    def get(self, call: Call) -> int:
        """The guest's `clock_time_get`."""
        clock, _, out = call.args
        answer = call.forward()
        if answer == abi.SUCCESS and clock == _MONOTONIC:
            self._write(out, self._read(out) + self._before)
        return answer

    def ask(self, clock: int, spare: int) -> int:
        """What a clock of the guest shows, in nanoseconds; `spare` is 8 bytes of guest memory."""
        slots = (ctypes.c_uint64 * 6)(clock, 0, 1, 0, spare, 0)
        if self._clock_time_get(ctypes.addressof(slots), 3) or slots[0] & 0xFFFFFFFF:
            return 0
        return self._read(spare) + (self._before if clock == _MONOTONIC else 0)

    def monotonic(self, spare: int) -> int:
        """What the guest's monotonic clock shows, in nanoseconds."""
        return self.ask(_MONOTONIC, spare)

    def _read(self, at: int) -> int:
        return int.from_bytes(self._reach.read(at, 8), "little")

    def _write(self, at: int, value: int) -> None:
        self._reach.write(at, value.to_bytes(8, "little"))
