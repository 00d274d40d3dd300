"""Time limits of a running guest: deadlines, interrupts, waits that can be woken.

One `Clock` belongs to one sandbox and outlives its instances. The guest's thread arms it for a
turn and waits through `wait`; any thread may call `interrupt` and `close`. The ticker is one thread
per process; it calls `watch` for each guest that runs.

`watch` passes interrupts to the guest, also the one that tells it that its time is over. A guest
that does not react within its grace ends with its process, which its owner kills.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from msgspec import Struct

from wasm_kernel.errors import CellTimeout, GuestClosed, GuestStopped, Interrupted, NeverBegan

_LOG = logging.getLogger("wasm_kernel.engine")
TICK_SECONDS = 0.01
BEGIN_SECONDS = 5.0  # until a guest must ask for its request, which takes it milliseconds
BEGIN_LEAST = 1.0  # the least such limit; this much of the start does not count to the turn's limit
_BEGIN_TICKS = 20  # further ticks: after a suspension of the process a guest is not stuck
_STARVED_TICKS = 4000  # the same for a process that hardly gets a processor, or waits for the disk
_GRACE_TICKS = 5  # further ticks of a grace, in which a guest that was suspended can react
_BUSY_PART = 0.8  # a share of the limit: a guest that used it is not starved, but stuck


class StopReason(Struct, frozen=True):
    """The reason why the clock stops a call, and the limit in seconds.

    `cause` is `begin`, `deadline`, `grace` or `closed`; `own` is true if the cell lowered the limit
    itself.
    """

    cause: str
    seconds: float
    own: bool = False

    def error(self) -> GuestStopped:
        """Returns the error of a call that was stopped for this reason."""
        if self.cause == "begin":
            return NeverBegan(self.seconds)
        if self.cause == "deadline":
            return CellTimeout(self.seconds, own=self.own)
        if self.cause == "grace":
            return Interrupted(self.seconds)
        return GuestClosed()


class Signals:
    """A way to pass interrupts to a guest. Each language has its own; this one does nothing."""

    def raise_(self) -> None:
        """Makes the interrupt pending in the guest."""

    def pending(self) -> bool:
        """Returns whether the guest has not taken the interrupt yet."""
        return False

    def complete(self) -> None:
        """Repairs a pending interrupt that the guest's own writes have partly overwritten.

        Only needed if a thread other than the guest's called `raise_`.
        """

    def clear(self) -> None:
        """Takes the interrupt back."""

    def answered(self) -> None:
        """Notes that the guest learns of the interrupt by the answer to its call."""
        self.clear()


NO_SIGNALS = Signals()


class Interruptible(Protocol):
    """A cell that waits or runs; `is_interrupted` if it must stop as soon as its turn begins."""

    is_interrupted: bool


class Clock:
    """The deadline and the interrupts of the running turn; `closed` is true after `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._signals: Signals | None = None
        self._deadline: float | None = None
        self._armed = 0.0
        self._begin_by: float | None = None
        self._overdue = 0  # ticks since `_begin_by`
        self._late = 0  # ticks since the end of a grace
        self._busy_at = 0.0  # processor time after which a guest that has not begun is stuck
        self._limit = 0.0
        self._own = False
        self._grace = 0.0
        self._soft = self._warned = False
        self._paused_at: float | None = None
        self._asked = 0  # interrupts of this turn
        self._signalled = 0  # interrupts passed to the guest
        self._grace_until: float | None = None  # when an interrupted guest is stopped
        self._second_interrupt = False
        self._woken = False  # a wait ended for an interrupt of this turn
        self._kill_at: float | None = None  # when a guest whose time is over must be killed
        self.reason: StopReason | None = None
        self._cell: Interruptible | None = None  # the cell that is served
        self._early = False  # the cell was interrupted before its own turn
        self.closed = False

    @contextmanager
    def serving(self, cell: Interruptible) -> Iterator[None]:
        """Serves a cell: an interrupt during the block ends this cell, and no other one."""
        with self._changed:
            self._cell, self._early = cell, cell.is_interrupted
        try:
            yield
        finally:
            with self._changed:
                self._cell = None

    def arm(
        self,
        signals: Signals,
        seconds: float | None,
        grace: float,
        *,
        soft: bool = False,
        for_cell: bool = False,
        begins: bool = False,
    ) -> None:
        """Begins a turn.

        Args:
            seconds: Its deadline, or None for no limit.
            signals: How an interrupt reaches its guest.
            grace: Seconds that a guest has to react to an interrupt.
            soft: Whether the deadline interrupts the guest first, and stops it after `grace`.
            for_cell: Whether it is the turn of the served cell, which may be interrupted already.
            begins: Whether its guest must take its request soon, or else counts as unable to run.
        """
        with self._changed:
            self._signals, self._grace, self._limit = signals, grace, seconds or 0.0
            self._armed = time.monotonic()
            self._deadline = None if seconds is None else self._armed + seconds
            most = max(BEGIN_LEAST, min(BEGIN_SECONDS, seconds or BEGIN_SECONDS))
            self._begin_by, self._overdue = self._armed + most if begins else None, 0
            self._busy_at = time.process_time() + most * _BUSY_PART
            self._soft, self._paused_at, self._own = soft, None, False
            self._warned = False
            self._asked = self._signalled = 0
            if for_cell:
                self._asked, self._early = int(self._early), False
            self._grace_until, self._second_interrupt = None, False
            self._woken, self._kill_at, self._late = False, None, 0
            self.reason = StopReason("closed", 0.0) if self.closed else None

    def disarm(self) -> None:
        """Ends the turn; takes back an interrupt that came too late."""
        with self._changed:
            if self._signals is not None and (self._signalled or self._kill_at is not None):
                self._signals.clear()
            self._signals = self._begin_by = None

    def interrupt(self, cell: Interruptible | None = None) -> bool:
        """Asks the running turn, and the served cell, to stop; returns whether there is one.

        Any thread may call it. With `cell`, does nothing unless this is the served one.
        """
        with self._changed:
            if cell is not None and cell is not self._cell:
                return False
            self._early = self._cell is not None
            if self._signals is None:
                return self._early
            self._asked += 1
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Stops the running turn now, and every later one before it begins."""
        with self._changed:
            self.closed = True
            self.reason = self.reason or StopReason("closed", 0.0)
            self._changed.notify_all()

    @property
    def interrupted(self) -> bool:
        """True if a wait in the host should end: for an interrupt, or because the turn must."""
        return self._asked > self._signalled or self.reason is not None or self._is_pending

    @property
    def _is_pending(self) -> bool:
        """True if the guest has not yet taken an interrupt that was passed to it."""
        return self._signalled > 0 and self._signals is not None and self._signals.pending()

    def request_taken(self) -> None:
        """Notes that the guest has its request: now it can tell an interrupt from a stale one.

        Interrupts passed to the guest earlier in this turn are taken back and passed once more. The
        time that the guest took to begin, up to a second, does not count to the turn's limit.
        """
        with self._changed:
            if self._deadline is not None and self._begin_by is not None:
                self._deadline += min(BEGIN_LEAST, time.monotonic() - self._armed)
            self._begin_by = None
            if self._signals is not None and self._signalled:
                self._signals.clear()
                self._signalled, self._grace_until, self._second_interrupt = 0, None, False

    def interrupt_delivered(self) -> None:
        """Notes that the interrupt was delivered by other means: the guest raises it itself."""
        with self._changed:
            self._signalled = self._asked
            if self._signals is not None:
                self._signals.answered()

    def lower_deadline(self, seconds: float) -> None:
        """Brings the running turn's deadline nearer: `seconds` from now, if that is earlier."""
        with self._changed:
            nearer = time.monotonic() + seconds
            if self._deadline is None or nearer < self._deadline:
                self._deadline, self._limit, self._own = nearer, seconds, True

    def pause(self) -> None:
        """Stops counting time: the user is asked for input."""
        with self._changed:
            self._paused_at = time.monotonic()

    def resume(self) -> None:
        """Counts time again: the answer came."""
        with self._changed:
            if self._paused_at is not None and self._deadline is not None:
                self._deadline += time.monotonic() - self._paused_at
            self._paused_at = None

    def should_stop(self) -> bool:
        """Returns whether a wait in the host must end: for an interrupt or the deadline.

        While the guest waits for the host nothing calls `watch`, so the deadline is checked here.
        """
        with self._changed:
            if self.reason is None:
                self._check_ends(time.monotonic())
            return self.interrupted

    def _check_ends(self, now: float) -> None:
        if self._begin_by is not None:  # the deadline does not count before that
            self._overdue += now >= self._begin_by
            is_stuck = time.process_time() >= self._busy_at
            if self._overdue > (_BEGIN_TICKS if is_stuck else _STARVED_TICKS):
                self.reason = StopReason("begin", self._begin_by - self._armed)
        elif self._deadline is not None and self._paused_at is None and now >= self._deadline:
            self._at_deadline()

    def watch(self) -> StopReason | None:
        """Checks the time of a guest while it runs.

        The ticker's thread calls this, or the guest's after a host call. A guest whose time is over
        gets an interrupt, and its grace to return. If it does not, `watch` returns the reason why
        the process must end.
        """
        with self._changed:
            signals, now = self._signals, time.monotonic()
            if signals is None:
                return None
            signals.complete()
            self._check_call(now)
            if self.reason is None:
                return None
            if self._kill_at is None:
                self._kill_at = now + (0.0 if self.reason.cause == "grace" else self._grace)
                signals.raise_()
            return self.reason if self._is_over(self._kill_at, now) else None

    def _is_over(self, grace_end: float, now: float) -> bool:
        """Returns whether a grace is over, also in ticks."""
        self._late = self._late + 1 if now >= grace_end else 0
        return self._late > _GRACE_TICKS

    def wait(self, until: float | None) -> None:
        """Waits on the guest's thread for a monotonic time, an interrupt or the turn's end."""
        with self._changed:
            self._busy_at = 0.0  # a guest that waits is not starved
            # an interrupt that reached the guest just before this call ends one wait, too
            before = self._signalled if self._woken or not self._is_pending else 0
            while True:
                now = time.monotonic()
                self._check_call(now)
                if self.reason is not None:
                    return
                if self._signalled != before:
                    self._woken = True
                    return
                if until is not None and now >= until:
                    return
                ends = (until, self._begin_by, self._deadline, self._grace_until)
                left = [end - now for end in ends if end is not None]
                self._changed.wait(max(0.0, min(left)) if left else None)

    def _check_call(self, now: float) -> None:
        """Ends the call when its time is over, and passes interrupts to the guest.

        A guest is stopped if it has not taken an interrupt within its grace. A guest that took the
        first interrupt and gets a second one must end within its grace, even if it takes that, too.
        """
        signals = self._signals
        if signals is None or self.reason is not None:
            return
        self._check_ends(now)
        if self._asked > self._signalled:
            if self._signalled > 0 and not signals.pending():
                self._second_interrupt = True  # a third one does not take that back
            self._signalled = self._asked
            if self._begin_by is None:  # until then, only that limit ends the call
                self._grace_until = self._grace_until or now + self._grace
            signals.raise_()
        elif self._grace_until is not None and not self._second_interrupt and not signals.pending():
            self._grace_until = None  # taken: the guest decides what to do with it
        elif self._grace_until is not None and self._is_over(self._grace_until, now):
            self.reason = StopReason("grace", self._grace)

    def _at_deadline(self) -> None:
        if self._soft and not self._warned:
            # taken or not: a guest that goes on has no more than its grace
            self._deadline, self._warned = time.monotonic() + self._grace, True
            self._asked += 1
        elif self._soft:
            self.reason = StopReason("grace", self._grace)
        else:
            self.reason = StopReason("deadline", self._limit, self._own)


class ThisProcess:
    """This process, which its owner kills when the guest in it does not stop.

    `ask_owner` asks for that; until the kill other threads go on, and may finish writing the last
    commit. Without an owner, as while a base image is made, only our own code runs, which always
    returns.
    """

    def __init__(self) -> None:
        self.ask_owner: Callable[[StopReason], None] | None = None
        self._is_ending = False

    def kill(self, reason: StopReason) -> None:
        """Asks the owner to kill this process, once."""
        if self.ask_owner is not None and not self._is_ending:
            self._is_ending = True
            self.ask_owner(reason)


THIS_PROCESS = ThisProcess()


class Ticker:
    """The thread that checks each running guest every `TICK_SECONDS`; one per process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[int, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None

    def add(self, key: int, check: Callable[[], None]) -> None:
        """Adds a guest that starts to run, and the function that checks it."""
        with self._changed:
            self._running[key] = check
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._tick, name="ticker", daemon=True)
                thread.start()
                self._thread = thread  # only once it runs: otherwise the next guest tries again
            self._changed.notify()

    def remove(self, key: int) -> None:
        """Removes a guest that no longer runs."""
        with self._changed:
            self._running.pop(key, None)

    def after_fork(self) -> None:
        """Resets the ticker in a forked process, which has neither its thread nor its guests."""
        self._changed, self._running, self._thread = threading.Condition(), {}, None

    def _tick(self) -> None:
        while True:
            with self._changed:
                while not self._running:
                    self._changed.wait()
                checks = set(self._running.values())
            for check in checks:
                try:
                    check()
                except Exception:  # all other guests would run without limits
                    _LOG.exception("a guest's time can't be checked")
            time.sleep(TICK_SECONDS)


TICKER = Ticker()
os.register_at_fork(after_in_child=TICKER.after_fork)
