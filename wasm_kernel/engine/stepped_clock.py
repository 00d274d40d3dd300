"""A clock and random numbers that are the same in every session that runs the same cells.

The clock does not run by itself: each reading moves it on by one step, and a sleep by its length,
without waiting. So its times depend on what a cell does, and not on the machine.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

from wasm_kernel.engine import abi
from wasm_kernel.engine.guest_clock import CLOCKS, MONOTONIC, REALTIME, Polling
from wasm_kernel.engine.host_calls import BoundGuest, Handler, Import
from wasm_kernel.engine.streams import OutputStreams

STEP_NS = 1_000_000
"""The nanoseconds by which each reading moves the clock."""

BEGAN_NS = 946_684_800 * 1_000_000_000
"""The real time when the clock is at zero: the beginning of the year 2000, in UTC."""

_LAST_NS = 2**62
_RANDOM_MOST = 1024 * 1024
_NAMES = {"clock_time_get": "iIi", "poll_oneoff": "iiii", "random_get": "ii"}


class SteppedClock:
    """The time and the random numbers of one instance; it takes the place of a `GuestClock`."""

    def __init__(self, streams: OutputStreams, before: int) -> None:
        self._streams = streams
        self._now = self._began = before
        self._drawn = 0

    @property
    def imports(self) -> Mapping[Import, str]:
        """The clock, the sleep and the random numbers."""
        return {(abi.WASI, name): shape for name, shape in _NAMES.items()}

    def bind(self, guest: BoundGuest) -> Mapping[Import, Handler]:
        """Returns the handlers for a guest."""
        self._memory = guest.memory
        handlers: dict[str, Handler] = {
            "clock_time_get": self._tell,
            "poll_oneoff": Polling(guest.memory, self).answer,
            "random_get": self._draw,
        }
        return {key: handlers[key[1]] for key in self.imports}

    def started(self, earliest: int) -> None:
        """Does nothing: this clock does not follow the host's."""

    def monotonic(self) -> int:
        """Returns the guest's monotonic time in nanoseconds."""
        return self._now

    def random(self, size: int) -> bytes:
        """Returns the next `size` random bytes."""
        self._drawn += 1
        seed = struct.pack("<QQ", self._began, self._drawn)
        return hashlib.shake_256(seed).digest(size)

    def sleep(self, seconds: float) -> None:
        """Moves the clock on in the guest's place."""
        self._streams.flush()
        self._move(int(seconds * 1e9))

    def _move(self, by: int) -> None:
        self._now = min(self._now + by, _LAST_NS)

    def _tell(self, clock: int, _precision: int, out: int) -> int:
        if clock not in (REALTIME, MONOTONIC):
            return abi.EBADF if clock < CLOCKS else abi.EINVAL
        self._move(STEP_NS)
        now = self._now if clock == MONOTONIC else BEGAN_NS + self._now
        self._memory.write(out, now.to_bytes(8, "little"))
        return abi.SUCCESS

    def _draw(self, at: int, size: int) -> int:
        while size:
            piece = min(size, _RANDOM_MOST)
            self._memory.write(at, self.random(piece))
            at, size = at + piece, size - piece
        return abi.SUCCESS

    def left(self, clock: int, moment: int) -> int:
        """Returns the nanoseconds until a clock shows a moment."""
        return max(0, moment - self._now - (BEGAN_NS if clock == REALTIME else 0))

    def wait(self, nanoseconds: int) -> None:
        """Moves the clock on."""
        self._streams.flush()
        self._move(nanoseconds)
