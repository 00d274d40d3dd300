"""Deadlines, interrupts and waits, without a guest."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tests.faces import PATIENCE
from wasm_kernel.engine.clock import NO_SIGNALS, Clock, Signals, StopReason, Ticker


class Noted(Signals):
    """A guest's interpreter: an interrupt is pending until it is taken."""

    def __init__(self) -> None:
        self.is_pending = False
        self.raised = 0

    def raise_(self) -> None:
        self.is_pending, self.raised = True, self.raised + 1

    def pending(self) -> bool:
        return self.is_pending

    def clear(self) -> None:
        self.is_pending = False


class Time:
    """The host's clock, as a test moves it."""

    def __init__(self) -> None:
        self.now, self.is_busy = 1000.0, True

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now if self.is_busy else 0.0


class Timed(Clock):
    """A clock whose time stands still until the test moves it, and its interpreter."""

    def __init__(self, at: Time) -> None:
        super().__init__()
        self.at, self.signals = at, Noted()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    made = Timed(Time())
    monkeypatch.setattr("wasm_kernel.engine.clock.time.monotonic", made.at.monotonic)
    monkeypatch.setattr("wasm_kernel.engine.clock.time.process_time", made.at.process_time)
    return made


@pytest.fixture
def signals() -> Noted:
    """The interpreter behind the clock."""
    return Noted()


@pytest.fixture
def clock() -> Clock:
    """A clock that is not armed."""
    return Clock()


def must_end(clock: Clock) -> bool:
    """Checks the time, as the ticker does; returns whether the guest's call must end."""
    clock.watch()
    return clock.reason is not None


def test_at_a_hard_deadline_the_guest_must_end_and_is_killed_after_its_grace(timed: Timed) -> None:
    timed.arm(timed.signals, 5.0, 2.0)
    timed.at.now += 5.0
    assert (timed.watch(), timed.signals.raised) == (None, 1)
    assert timed.reason == StopReason("deadline", 5.0)
    timed.at.now += 1.9
    assert timed.watch() is None
    timed.at.now += 0.1
    assert killed(timed) == StopReason("deadline", 5.0)


def test_a_guest_that_was_suspended_in_its_grace_may_still_take_the_interrupt(timed: Timed) -> None:
    """Before, it was lost with the variables of its cell at the first look afterwards."""
    timed.arm(timed.signals, 5.0, 2.0)
    timed.interrupt()
    timed.watch()
    timed.at.now += 4.0
    assert not must_end(timed)
    timed.signals.is_pending = False
    assert not overdue(timed)
    timed.at.now += 1.0
    assert must_end(timed)
    timed.at.now += 1e6
    assert timed.watch() is None


def killed(clock: Clock) -> StopReason | None:
    """Returns why the guest's process is ended within this number of ticks."""
    return next((reason for _ in range(25) if (reason := clock.watch()) is not None), None)


def overdue(clock: Clock) -> bool:
    """Returns whether the guest is stopped within this number of ticks."""
    return any(must_end(clock) for _ in range(25))


def test_f7_a_guest_that_does_not_begin_is_stopped_long_before_its_limit(timed: Timed) -> None:
    timed.arm(timed.signals, 3600.0, 2.0, begins=True)
    timed.at.now += 4.9
    assert not overdue(timed)
    timed.at.now += 0.1
    assert overdue(timed)
    assert timed.reason == StopReason("begin", 5.0)


def test_f7_a_guest_that_gets_no_processor_has_longer_to_begin(timed: Timed) -> None:
    timed.at.is_busy = False
    timed.arm(timed.signals, None, 2.0, begins=True)
    timed.at.now += 5.0
    assert not overdue(timed)
    timed.wait(timed.at.now)  # now it waits by its own will
    assert overdue(timed)


def test_f7_a_guest_that_has_begun_has_its_whole_limit(timed: Timed) -> None:
    timed.arm(timed.signals, 0.5, 2.0, begins=True)
    timed.at.now += 0.9
    assert not overdue(timed)
    timed.request_taken()
    timed.at.now += 0.4
    assert not overdue(timed)
    timed.at.now += 0.1
    assert must_end(timed)
    assert timed.reason == StopReason("deadline", 0.5)


def test_f7_a_process_that_was_suspended_while_its_guest_began_is_forgiven(timed: Timed) -> None:
    timed.arm(timed.signals, None, 2.0, begins=True)
    timed.at.now += 1e6
    assert not must_end(timed)
    timed.request_taken()
    timed.at.now += 1e6
    assert not overdue(timed)


def test_an_interrupt_that_came_too_late_is_taken_back(timed: Timed) -> None:
    timed.arm(timed.signals, None, 2.0)
    timed.interrupt()
    timed.watch()
    timed.disarm()
    assert not timed.signals.pending()


def test_an_interrupt_that_was_never_put_before_the_guest_dies_with_its_turn(timed: Timed) -> None:
    timed.arm(timed.signals, None, 2.0)
    timed.interrupt()
    timed.disarm()
    timed.arm(timed.signals, None, 2.0)
    timed.watch()
    assert timed.signals.raised == 0


class Served:
    """A cell."""

    def __init__(self, *, is_interrupted: bool = False) -> None:
        self.is_interrupted = is_interrupted


def test_an_early_interrupt_is_for_one_cell_only(timed: Timed) -> None:
    first, second = Served(), Served()
    with timed.serving(first):
        assert timed.interrupt(first)
    assert not timed.interrupt(first)
    with timed.serving(second):
        assert not timed.interrupt(first)
        timed.arm(timed.signals, None, 2.0, for_cell=True)
        assert not timed.interrupt(first)
        timed.watch()
    assert timed.signals.raised == 0


def test_an_interrupt_reaches_a_guest_that_waits_for_its_user(timed: Timed) -> None:
    timed.arm(timed.signals, 5.0, 2.0)
    timed.pause()
    timed.interrupt()
    assert timed.interrupted


def test_the_users_time_does_not_count_and_all_other_time_does(timed: Timed) -> None:
    timed.arm(timed.signals, 5.0, 2.0)
    timed.pause()
    timed.at.now += 100
    assert not must_end(timed)
    timed.resume()
    timed.at.now += 4.9
    assert not must_end(timed)
    timed.at.now += 0.1
    assert must_end(timed)


def test_closing_stops_every_later_turn(timed: Timed) -> None:
    timed.close()
    timed.arm(timed.signals, None, 2.0)
    assert must_end(timed)


def test_closing_ends_a_wait(clock: Clock, signals: Noted) -> None:
    clock.arm(signals, None, 2.0)
    threading.Timer(0.05, clock.close).start()
    clock.wait(None)
    assert clock.reason is not None


def test_a_guest_that_sleeps_on_after_an_interrupt_is_stopped(clock: Clock, signals: Noted) -> None:
    clock.arm(signals, None, 0.05)
    clock.interrupt()
    clock.wait(None)
    clock.wait(None)  # the interpreter slept again without a check of its signals
    assert clock.reason == StopReason("grace", 0.05)


def test_the_ticker_ticks_only_while_a_guest_runs() -> None:
    ticker, ticks = Ticker(), threading.Semaphore(0)
    ticker.add(1, ticks.release)
    assert ticks.acquire(timeout=PATIENCE)
    ticker.remove(1)
    until = time.monotonic() + PATIENCE
    while ticks.acquire(timeout=0.1):  # one tick may still come
        assert time.monotonic() < until, "it goes on"


def test_a_guest_that_can_not_be_checked_leaves_the_others_their_limits() -> None:
    ticker, ticks = Ticker(), threading.Semaphore(0)
    ticker.add(1, lambda: 1 // 0)  # type: ignore[arg-type]
    ticker.add(2, ticks.release)
    for _ in range(3):
        assert ticks.acquire(timeout=PATIENCE)
    ticker.remove(1)
    ticker.remove(2)


def test_a_forked_process_has_a_ticker_of_its_own() -> None:
    """Before, the guests in a program's forked children ran without limits."""
    code = (
        "import os, threading\n"
        "from wasm_kernel.engine.clock import TICKER\n"
        "ticks = threading.Semaphore(0)\n"
        "TICKER.add(1, ticks.release)\n"
        "ticks.acquire()\n"
        "if child := os.fork():\n"
        "    print(os.waitpid(child, 0)[1])\n"
        "else:\n"
        "    own = threading.Semaphore(0)\n"
        "    TICKER.add(2, own.release)\n"
        "    os._exit(not own.acquire(timeout=60))\n"
    )
    said = subprocess.run([sys.executable, "-W", "ignore", "-c", code], stdout=-1, check=True)
    assert said.stdout == b"0\n"


def test_an_interrupt_before_the_guest_has_its_request_is_raised_again(timed: Timed) -> None:
    timed.arm(timed.signals, None, 2.0)
    timed.interrupt()
    timed.watch()
    timed.signals.is_pending = False  # the agent took it as a stale one
    timed.request_taken()
    timed.watch()
    assert (timed.signals.raised, timed.signals.pending()) == (2, True)


def test_an_interrupt_before_the_guest_has_its_request_waits_for_that(timed: Timed) -> None:
    """Before, the guest seemed unable to begin a cell, and the cell before was taken back."""
    timed.arm(timed.signals, None, 2.0, begins=True)
    timed.interrupt()
    timed.at.now += 3.0
    assert not overdue(timed)
    timed.request_taken()
    timed.at.now += 1.0
    assert not overdue(timed)
    timed.at.now += 2.0
    assert overdue(timed)
    assert timed.reason == StopReason("grace", 2.0)


def test_an_interrupt_that_is_still_pending_when_the_request_comes_is_raised_once(
    timed: Timed,
) -> None:
    timed.arm(timed.signals, None, 2.0)
    timed.interrupt()
    timed.watch()
    timed.request_taken()
    assert not timed.signals.pending()
    timed.watch()
    timed.signals.is_pending = False
    timed.watch()
    timed.at.now += 100
    assert not must_end(timed)


def test_a_guest_that_swallows_the_interrupt_of_a_soft_deadline_is_stopped(timed: Timed) -> None:
    timed.arm(timed.signals, 5.0, 2.0, soft=True)
    timed.at.now += 5.0
    assert not must_end(timed)
    assert timed.signals.raised == 1
    timed.signals.is_pending = False
    timed.at.now += 1.9
    assert not must_end(timed)
    timed.at.now += 0.1
    assert must_end(timed)
    assert timed.reason == StopReason("grace", 2.0)


def test_one_interrupt_is_raised_once(timed: Timed) -> None:
    timed.arm(timed.signals, None, 2.0)
    timed.interrupt()
    for _ in range(5):
        timed.watch()
    assert timed.signals.raised == 1


def test_an_interrupt_that_the_guest_ignores_stops_it(timed: Timed) -> None:
    timed.arm(timed.signals, None, 2.0)
    timed.interrupt()
    timed.watch()
    timed.at.now += 2.0
    assert killed(timed) == StopReason("grace", 2.0)


def test_a_third_interrupt_does_not_take_back_what_the_second_asked_for(timed: Timed) -> None:
    timed.arm(timed.signals, None, 2.0)
    for is_taken in (True, False, True):
        timed.interrupt()
        timed.watch()
        timed.signals.is_pending = not is_taken
        timed.watch()
    timed.at.now += 2.0
    assert overdue(timed)


def test_a_cell_lowers_its_deadline_and_does_not_raise_it(timed: Timed) -> None:
    timed.arm(timed.signals, 100.0, 2.0)
    for seconds in (1.0, 50.0):
        timed.lower_deadline(seconds)
    timed.at.now += 1.0
    assert must_end(timed)
    assert timed.reason == StopReason("deadline", 1.0, own=True)


def test_a_cell_that_was_interrupted_before_it_is_served_stops_at_once(timed: Timed) -> None:
    with timed.serving(Served(is_interrupted=True)):
        timed.arm(NO_SIGNALS, None, 2.0)
        assert not timed.interrupted  # the turn is not the cell's
        timed.arm(timed.signals, None, 2.0, for_cell=True)
        timed.watch()
        assert timed.signals.raised == 1


def test_an_interrupt_of_what_prepares_for_a_cell_stops_the_cell_as_well(timed: Timed) -> None:
    with timed.serving(Served()):
        timed.arm(NO_SIGNALS, None, 2.0)
        timed.interrupt()
        assert timed.interrupted
        timed.disarm()
        timed.arm(timed.signals, None, 2.0, for_cell=True)
        timed.watch()
        assert timed.signals.raised == 1


def test_an_interrupt_delivered_by_other_means_is_not_raised_again(timed: Timed) -> None:
    timed.arm(timed.signals, None, 2.0)
    timed.interrupt()
    timed.interrupt_delivered()
    timed.watch()
    assert timed.signals.raised == 0
