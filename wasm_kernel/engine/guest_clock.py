"""The guest's clocks, and its sleeping.

The guest's monotonic clock goes on where an earlier instance's stopped. wasmtime's begins at zero
with every instance; memory that is brought back knows times of the instance before, and waits for
later ones. So the host answers the clock itself then, and adds what it showed before.

wasmtime's own `poll_oneoff` would block in the host, where neither fuel nor epochs fire. The host
waits through the turn's clock instead, which an interrupt or a deadline ends. A sleep that is cut
short answers success: the interrupt is then pending in the guest, which raises it at once.

Source of the layouts: `subscription` (48 bytes) and `event` (32 bytes) of WASI preview 1.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping

from wasm_kernel.engine import abi
from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.host_calls import BoundGuest, Handler, Import
from wasm_kernel.engine.streams import OutputStreams

_REALTIME, _MONOTONIC = 0, 1
_CLOCKS = 4  # WASI knows two more, of processor time, which are not there
_CLOCK, _ABSOLUTE = 0, 1  # a subscription's kind, and its flag
_EVENT = struct.Struct("<QHBxxxxxQHxxxxxx")
_SUBSCRIPTION = struct.Struct("<QB7xI4xQ8xH6x")
_MOST = 1024
_SLEEP_MAX = 10.0**9  # seconds; threading refuses longer waits


class GuestClock:
    """The time of one instance: a `HostFunctions`. Only the guest's thread uses it.

    Args:
        clock: What the guest's sleeps wait through.
        streams: What was printed is handed on before a sleep.
        before: What the monotonic clock showed in the instance before, in nanoseconds.
    """

    def __init__(self, clock: Clock, streams: OutputStreams, before: int) -> None:
        self._clock = clock
        self._streams = streams
        self._before = before
        self._earliest = self._latest = time.monotonic_ns()

    @property
    def imports(self) -> Mapping[Import, str]:
        """The sleep; the clock only if wasmtime's own is not the right one: it is faster."""
        names = ("poll_oneoff", "clock_time_get") if self._before else ("poll_oneoff",)
        return {(abi.WASI, name): abi.SHAPES[name] for name in names}

    def bind(self, guest: BoundGuest) -> Mapping[Import, Handler]:
        """Returns the handlers for a guest."""
        self._memory = guest.memory
        handlers: dict[str, Handler] = {"poll_oneoff": self._poll, "clock_time_get": self._tell}
        return {key: handlers[key[1]] for key in self.imports}

    def started(self, earliest: int) -> None:
        """Notes that wasmtime's clock began between `earliest` and now, on the host's clock."""
        self._earliest, self._latest = earliest, time.monotonic_ns()

    def monotonic(self) -> int:
        """Returns what the guest's monotonic clock shows, in nanoseconds; never less than it."""
        return self._before + time.monotonic_ns() - self._earliest

    def sleep(self, seconds: float) -> None:
        """Sleeps in the guest's place, until an interrupt or the turn's end at most."""
        self._streams.flush()
        self._clock.wait(time.monotonic() + min(seconds, _SLEEP_MAX))

    def _tell(self, clock: int, _precision: int, out: int) -> int:
        if clock not in (_REALTIME, _MONOTONIC):
            return abi.EBADF if clock < _CLOCKS else abi.EINVAL
        now = self.monotonic() if clock == _MONOTONIC else time.time_ns()
        self._memory.write(out, now.to_bytes(8, "little"))
        return abi.SUCCESS

    def _poll(self, subscriptions: int, events: int, count: int, ready_at: int) -> int:
        """Waits for the earliest of the subscriptions. Files are always ready."""
        if not 0 < count <= _MOST:
            return abi.EINVAL
        self._streams.flush()
        raw = self._memory.read(subscriptions, _SUBSCRIPTION.size * count)
        asked = [self._subscription(*fields) for fields in _SUBSCRIPTION.iter_unpack(raw)]
        ready = [(user, kind) for user, kind, _ in asked if kind != _CLOCK]
        if not ready:
            until = min(until for _, _, until in asked)
            self._clock.wait(until)
            ready = [(user, kind) for user, kind, at in asked if at <= until]
        written = b"".join(_EVENT.pack(user, 0, kind, 0, 0) for user, kind in ready)
        self._memory.write(events, written)
        self._memory.write_word(ready_at, len(ready))
        return abi.SUCCESS

    def _subscription(
        self, user: int, kind: int, clock: int, timeout: int, flags: int
    ) -> tuple[int, int, float]:
        """Returns userdata, kind, and until when on the host's monotonic clock."""
        if kind != _CLOCK:
            return user, kind, 0.0
        if flags & _ABSOLUTE:
            timeout = max(0, timeout - self._shown(clock))
        return user, kind, time.monotonic() + min(timeout / 1e9, _SLEEP_MAX)

    def _shown(self, clock: int) -> int:
        """Returns what a clock shows in nanoseconds, and never more: a sleep must not end early."""
        if clock == _REALTIME:
            return time.time_ns()
        began = self._earliest if self._before else self._latest
        return self._before + time.monotonic_ns() - began if clock == _MONOTONIC else 0
