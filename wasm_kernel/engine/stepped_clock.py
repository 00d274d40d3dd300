"""A clock and random numbers that are the same in every session that runs the same cells.

The clock does not run by itself: each reading moves it on by one step, and a sleep by its length,
without waiting. So its times depend on what a cell does, and not on the machine.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

from wasm_kernel.engine import abi
from wasm_kernel.engine.guest_clock import MONOTONIC, REALTIME, BaseClock
from wasm_kernel.engine.host_calls import BoundGuest, Handler, Import
from wasm_kernel.engine.streams import OutputStreams

STEP_NS = 1_000_000
"""The nanoseconds by which each reading moves the clock."""

BEGAN_NS = 946_684_800 * 1_000_000_000
"""The real time when the clock is at zero: the beginning of the year 2000, in UTC."""

_LAST_NS = 2**62
_RANDOM_MOST = 1024 * 1024
_RANDOM = (abi.WASI, "random_get")


class SteppedClock(BaseClock):
    """The time and the random numbers of one instance; it takes the place of a `GuestClock`."""

    def __init__(self, streams: OutputStreams, before: int) -> None:
        super().__init__(streams)
        self._now = self._began = before
        self._drawn = 0

    @property
    def imports(self) -> Mapping[Import, str]:
        """The clock, the sleep and the random numbers."""
        return {**super().imports, _RANDOM: "ii"}

    def bind(self, guest: BoundGuest) -> Mapping[Import, Handler]:
        """Returns the handlers for a guest."""
        return {**super().bind(guest), _RANDOM: self._draw}

    def started(self, earliest: int) -> None:
        """Does nothing: this clock does not follow the host's clock."""

    def monotonic(self) -> int:
        """Returns the guest's monotonic time in nanoseconds."""
        return self._now

    def random(self, size: int) -> bytes:
        """Returns the next `size` random bytes."""
        self._drawn += 1
        seed = struct.pack("<QQ", self._began, self._drawn)
        return hashlib.shake_256(seed).digest(size)

    def _wait(self, nanoseconds: int) -> None:
        self._now = min(self._now + nanoseconds, _LAST_NS)

    def _read(self, clock: int) -> int:
        self._wait(STEP_NS)
        return self._now if clock == MONOTONIC else BEGAN_NS + self._now

    def _left(self, clock: int, moment: int) -> int:
        return moment - self._now - (BEGAN_NS if clock == REALTIME else 0)

    def _draw(self, at: int, size: int) -> int:
        while size:
            piece = min(size, _RANDOM_MOST)
            self._memory.write(at, self.random(piece))
            at, size = at + piece, size - piece
        return abi.SUCCESS
