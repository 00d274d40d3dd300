"""The guest's clocks, and its sleeping.

The guest's monotonic clock goes on where that of the earlier instance stopped. wasmtime's clock
begins at zero with every instance, but restored memory holds times of the earlier instance and
waits for later ones. So after a restore the host answers the clock itself, and adds the earlier
time.

The guest sleeps through the turn's clock, which an interrupt or a deadline ends. A sleep that is
cut short answers success: the interrupt is then pending in the guest, which raises it at once.
wasmtime's own `poll_oneoff` would block in the host, where no interrupt reaches it.

Source of the layouts: `subscription` (48 bytes) and `event` (32 bytes) of WASI preview 1.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Mapping
from typing import Any

from wasm_kernel.engine import abi
from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.host_calls import Handler, Import
from wasm_kernel.engine.streams import OutputStreams

REALTIME, MONOTONIC = 0, 1
CLOCKS = 4
"""The number of clocks that WASI knows. Its two clocks of processor time are not provided."""
_CLOCK, _ABSOLUTE = 0, 1  # a subscription's kind, and its flag
_EVENT = struct.Struct("<QHBxxxxxQHxxxxxx")
_SUBSCRIPTION = struct.Struct("<QB7xI4xQ8xH6x")
_MOST = 1024
_SLEEP_MAX = 10.0**9  # seconds; threading refuses longer waits

STEP_NS = 1_000_000
"""The nanoseconds by which each reading moves the clock."""

BEGAN_NS = 946_684_800 * 1_000_000_000
"""The real time when the clock is at zero: the beginning of the year 2000, in UTC."""

_LAST_NS = 2**62
_RANDOM_MOST = 1024 * 1024
_RANDOM = (abi.WASI, "random_get")

FIRST: Mapping[Import, str] = {(abi.WASI, "poll_oneoff"): abi.SHAPES["poll_oneoff"]}
LATER = {**FIRST, (abi.WASI, "clock_time_get"): abi.SHAPES["clock_time_get"]}
"""The clock's imports: `FIRST` for a new guest, `LATER` for one that goes on from another."""


class GuestClock:
    """The time of one instance, and its calls for the time and for sleep: a `HostFunctions`.

    `before` is the monotonic time at which the earlier instance ended, in nanoseconds. Only the
    guest's thread uses it. It hands on printed text before a sleep.
    """

    def __init__(self, clock: Clock, streams: OutputStreams, before: int) -> None:
        self._clock, self._streams = clock, streams
        self._before = before
        self._earliest = self._latest = time.monotonic_ns()

    @property
    def imports(self) -> Mapping[Import, str]:
        """The sleep function; and the clock, if wasmtime's faster one would be wrong."""
        return LATER if self._before else FIRST

    def bind(self, guest: Any) -> Mapping[Import, Handler]:
        """Returns the handlers for an `Instance`."""
        self._memory = guest.memory
        return {(abi.WASI, "poll_oneoff"): self._poll, (abi.WASI, "clock_time_get"): self._tell}

    def started(self, earliest: int) -> None:
        """Notes that wasmtime's clock began between `earliest` and now, on the host's clock."""
        self._earliest, self._latest = earliest, time.monotonic_ns()

    def monotonic(self) -> int:
        """Returns the guest's monotonic time in nanoseconds, or a slightly later one."""
        return self._before + time.monotonic_ns() - self._earliest

    def sleep(self, nanoseconds: int) -> None:
        """Sleeps in the guest's place; an interrupt or the turn's end cuts the sleep short."""
        self._streams.flush()
        self._wait(nanoseconds)

    def _wait(self, nanoseconds: int) -> None:
        self._clock.wait(time.monotonic() + min(nanoseconds / 1e9, _SLEEP_MAX))

    def _read(self, clock: int) -> int:
        """Returns the time of a clock for the guest."""
        return self.monotonic() if clock == MONOTONIC else time.time_ns()

    def _left(self, clock: int, moment: int) -> int:
        """Returns the nanoseconds until a clock shows a moment: a sleep must not end early."""
        if clock == REALTIME:
            return moment - time.time_ns()
        began = self._earliest if self._before else self._latest
        shown = self._before + time.monotonic_ns() - began if clock == MONOTONIC else 0
        return moment - shown

    def _tell(self, clock: int, _precision: int, out: int) -> int:
        if clock not in (REALTIME, MONOTONIC):
            return abi.EBADF if clock < CLOCKS else abi.EINVAL
        self._memory.write(out, self._read(clock).to_bytes(8, "little"))
        return abi.SUCCESS

    def _poll(self, subscriptions: int, events: int, count: int, ready_at: int) -> int:
        """Waits until a subscription is ready. The other arguments than `count` are addresses."""
        if not 0 < count <= _MOST:
            return abi.EINVAL
        raw = self._memory.read(subscriptions, _SUBSCRIPTION.size * count)
        asked = [self._asked(*fields) for fields in _SUBSCRIPTION.iter_unpack(raw)]
        ready = [(user, kind) for user, kind, _ in asked if kind != _CLOCK]
        if not ready:
            shortest = min(left for _, _, left in asked)
            self.sleep(shortest)
            ready = [(user, kind) for user, kind, left in asked if left <= shortest]
        written = b"".join(_EVENT.pack(user, 0, kind, 0, 0) for user, kind in ready)
        self._memory.write(events, written)
        self._memory.write_word(ready_at, len(ready))
        return abi.SUCCESS

    def _asked(
        self, user: int, kind: int, clock: int, timeout: int, flags: int
    ) -> tuple[int, int, int]:
        """Returns a subscription's userdata, its kind, and the nanoseconds that it waits."""
        if kind == _CLOCK and flags & _ABSOLUTE:
            timeout = max(0, self._left(clock, timeout))
        return user, kind, timeout


class SteppedClock(GuestClock):
    """The time and the random numbers of one instance, the same wherever the same cells run.

    The clock does not run by itself: each reading moves it on by one step, and a sleep by its
    length, without waiting. So its times depend on what a cell does, and not on the machine.
    """

    def __init__(self, clock: Clock, streams: OutputStreams, before: int) -> None:
        super().__init__(clock, streams, before)
        self._now = self._began = before
        self._drawn = 0

    @property
    def imports(self) -> Mapping[Import, str]:
        """The clock, the sleep and the random numbers."""
        return {**LATER, _RANDOM: "ii"}

    def bind(self, guest: Any) -> Mapping[Import, Handler]:
        """Returns the handlers for an `Instance`."""
        return {**super().bind(guest), _RANDOM: self._draw}

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
