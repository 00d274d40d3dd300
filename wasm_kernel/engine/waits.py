"""The guest's `poll_oneoff`: sleeping that an interrupt or a deadline can end.

wasmtime's own would block in the host, where neither fuel nor epochs fire. A sleep that is cut
short answers success: the interrupt is then pending in the interpreter, which raises it at once.
Source of the layouts: `subscription` (48 bytes) and `event` (32 bytes) of WASI preview 1.
"""

from __future__ import annotations

import struct
import time

from wasm_kernel.engine import abi
from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.output import Streams
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call
from wasm_kernel.engine.time import GuestTime

_CLOCK, _FD_READ, _FD_WRITE = 0, 1, 2
_ABSOLUTE = 1
_MOST = 1024
_SLEEP_MAX = 10.0**9  # seconds; threading refuses longer waits


class Waits:
    """Answers `poll_oneoff` for one instance, on the guest's thread."""

    def __init__(self, clock: Clock, streams: Streams, reach: Reach, guest_time: GuestTime) -> None:
        self._clock = clock
        self._time = guest_time
        self._streams = streams
        self._reach = reach

    def poll(self, call: Call) -> int:
        """Wait for the earliest of the subscriptions. Files are always ready."""
        subscriptions, events, count, ready_at = call.args
        if not 0 < count <= _MOST:
            return abi.EINVAL
        self._streams.flush()
        raw = [self._reach.read(subscriptions + 48 * i, 48) for i in range(count)]
        asked = [self._subscription(data, events) for data in raw]
        ready = [(user, kind) for user, kind, _ in asked if kind != _CLOCK]
        if not ready:
            until = min(until for _, _, until in asked)
            self._clock.wait(until)
            ready = [(user, kind) for user, kind, at in asked if at <= until]
        for i, (user, kind) in enumerate(ready):
            self._reach.write(
                events + 32 * i, struct.pack("<QHBxxxxxQHxxxxxx", user, 0, kind, 0, 0)
            )
        self._reach.write_word(ready_at, len(ready))
        return abi.SUCCESS

    def _subscription(self, data: bytes, spare: int) -> tuple[int, int, float]:
        """Userdata, kind, and until when on the host's monotonic clock."""
        user, kind, clock, timeout, flags = struct.unpack("<QB7xI4xQ8xH6x", data)
        if kind != _CLOCK:
            return user, kind, 0.0
        if flags & _ABSOLUTE:
            timeout = max(0, timeout - self._time.ask(clock, spare))
        return user, kind, time.monotonic() + min(timeout / 1e9, _SLEEP_MAX)
