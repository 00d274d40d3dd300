"""Deadlines, interrupts and waits without a guest; the guest's sleep, and its clock."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.engine.tiny import Guest
from tests.faces import PATIENCE
from wasm_kernel.engine import abi
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


STORIES = {
    "at its deadline a guest must end and is killed after its grace": "arm 5; later 5; spares; "
    "raised 1; reason deadline 5; later 1.9; spares; later 0.1; kills; reason deadline 5",
    # formerly, the guest was lost with its cell's variables at the first look afterwards
    "a guest that was suspended in its grace may still take the interrupt": "arm 5; interrupt; "
    "watch; later 4; lives; takes; goes on; later 1; ends; later 1e6; spares",
    "F7: a guest that does not begin is stopped long before its limit": "arm 3600 begins; "
    "later 4.9; goes on; later 0.1; is stopped; reason begin 5",
    "F7: a guest that gets no processor has longer to begin": "no processor; arm none begins; "
    "later 5; goes on; waits; is stopped",
    "F7: a guest that has begun has its whole limit": "arm 0.5 begins; later 0.9; goes on; "
    "request_taken; later 0.4; goes on; later 0.1; ends; reason deadline 0.5",
    "F7: a process that was suspended while its guest began is forgiven": "arm none begins; "
    "later 1e6; lives; request_taken; later 1e6; goes on",
    "an interrupt that came too late is taken back": "arm none; interrupt; watch; disarm; calm",
    "an interrupt that was never put before the guest dies with its turn": "arm none; interrupt; "
    "disarm; arm none; watch; raised 0",
    "an interrupt reaches a guest that waits for its user": "arm 5; pause; interrupt; interrupted",
    "the user's time does not count and all other time does": "arm 5; pause; later 100; lives; "
    "resume; later 4.9; lives; later 0.1; ends",
    "closing stops every later turn": "close; arm none; ends",
    # the agent ignored the interrupt as a stale one
    "an interrupt before the guest has its request is raised again": "arm none; interrupt; watch; "
    "takes; request_taken; watch; raised 2; pending",
    # formerly, the guest seemed unable to begin a cell, and the last cell was taken back
    "an interrupt before the guest has its request waits for that": "arm none begins; interrupt; "
    "later 3; goes on; request_taken; later 1; goes on; later 2; is stopped; reason grace 2",
    "an interrupt that is still pending when the request comes is raised once": "arm none; "
    "interrupt; watch; request_taken; calm; watch; takes; watch; later 100; lives",
    "a guest that swallows the interrupt of a soft deadline is stopped": "arm 5 soft; later 5; "
    "lives; raised 1; takes; later 1.9; lives; later 0.1; ends; reason grace 2",
    "one interrupt is raised once": "arm none; interrupt; goes on; raised 1",
    "an interrupt that the guest ignores stops it": "arm none; interrupt; watch; later 2; kills; "
    "reason grace 2",
    "a third interrupt does not take back what the second asked for": "arm none; interrupt; watch; "
    "takes; watch; interrupt; watch; watch; interrupt; watch; takes; watch; later 2; is stopped",
    "a cell lowers its deadline and does not raise it": "arm 100; lower_deadline 1; "
    "lower_deadline 50; later 1; ends; reason deadline 1 own",
    "an interrupt delivered by other means is not raised again": "arm none; interrupt; "
    "interrupt_delivered; watch; raised 0",
}
"""Stories: the steps of a turn in order. Words that `HAPPENS` lacks are methods of the clock."""


TICKS = range(25)


def must_end(timed: Timed) -> bool:
    """Checks the time, as the ticker does; returns whether the guest's call must end."""
    timed.watch()
    return timed.reason is not None


HAPPENS: dict[str, Callable[[Timed], object]] = {
    "calm": lambda timed: not timed.signals.is_pending,
    "ends": must_end,
    "goes on": lambda timed: not any(must_end(timed) for _ in TICKS),
    "interrupted": lambda timed: timed.interrupted,
    "is stopped": lambda timed: any(must_end(timed) for _ in TICKS),
    "kills": lambda timed: any(timed.watch() for _ in TICKS),
    "lives": lambda timed: not must_end(timed),
    "pending": lambda timed: timed.signals.is_pending,
    "spares": lambda timed: timed.watch() is None,
}
"""The checks of a story, by their names."""


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_turn_ends_when_it_must_and_no_sooner(timed: Timed, story: str) -> None:
    for step in story.split("; "):
        match step.split():
            case ["arm", seconds, *options]:
                limit = None if seconds == "none" else float(seconds)
                timed.arm(timed.signals, limit, 2.0, **dict.fromkeys(options, True))
            case ["later", seconds]:
                timed.at.now += float(seconds)
            case ["reason", kind, seconds, *own]:
                assert timed.reason == StopReason(kind, float(seconds), own=bool(own)), step
            case ["raised", times]:
                assert timed.signals.raised == int(times), step
            case ["takes"]:
                timed.signals.is_pending = False
            case ["waits"]:
                timed.wait(timed.at.now)
            case ["no", "processor"]:
                timed.at.is_busy = False
            case [method, *numbers] if step not in HAPPENS:
                getattr(timed, method)(*map(float, numbers))
            case _:
                assert HAPPENS[step](timed), step


class Served:
    """Stands in for a cell that the clock serves."""

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
    """Formerly, the guests in a program's forked children ran without limits."""
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


REALTIME, MONOTONIC = 0, 1
CLOCK, FD_READ, FD_WRITE = 0, 1, 2
IN, OUT, COUNT = 65_536, 131_072, 64
MS = 1_000_000
HOUR = 3_600_000 * MS


def timer(
    nanoseconds: int, *, clock: int = MONOTONIC, absolute: bool = False, user: int = 7
) -> bytes:
    return struct.pack("<QB7xI4xQQH6x", user, CLOCK, clock, nanoseconds, 0, int(absolute))


def file(kind: int, fd: int = 0, user: int = 8) -> bytes:
    return struct.pack("<QB7xI28x", user, kind, fd)


def poll(guest: Guest, *subscriptions: bytes) -> tuple[int, list[int]]:
    """The error number and the userdata of ready subscriptions."""
    guest.instance.memory.write(IN, b"".join(subscriptions))
    errno = guest.call("poll_oneoff", IN, OUT, len(subscriptions), COUNT)
    count = guest.instance.memory.read_word(COUNT)
    events = guest.instance.memory.read(OUT, 32 * count) if errno == abi.SUCCESS else b""
    return errno, [user for (user,) in struct.iter_unpack("<Q24x", events)]


@pytest.mark.parametrize("clock", [REALTIME, MONOTONIC])
def test_a_sleep_until_a_time_of_the_guests_clock(guest: Guest, clock: int) -> None:
    assert guest.call("clock_time_get", clock, 1, 96) == abi.SUCCESS
    now, begun = int.from_bytes(guest.instance.memory.read(96, 8), "little"), time.monotonic()
    poll(guest, timer(now + 50 * MS, clock=clock, absolute=True))
    assert 0.04 <= time.monotonic() - begun < PATIENCE


def test_sleeps_end_on_time_after_printing_or_by_an_interrupt(guest: Guest) -> None:
    errno, ready = poll(guest, timer(2**64 - 1, user=1), timer(10 * MS, user=2))
    assert (errno, ready) == (abi.SUCCESS, [2])
    guest.write(1, b"before")
    poll(guest, timer(1))
    assert guest.said == [("stdout", "before")]
    ended = threading.Event()

    def interrupt() -> None:
        while not ended.wait(0.05):  # an interrupt before the sleep may be taken by then
            guest.clock.interrupt()

    guest.clock.arm(NO_SIGNALS, None, PATIENCE)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert poll(guest, timer(2**64 - 1))[0] == abi.SUCCESS
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("kind", [FD_READ, FD_WRITE])
def test_a_file_is_ready_at_once(guest: Guest, kind: int) -> None:
    begun = time.monotonic()
    assert poll(guest, timer(HOUR), file(kind, 1)) == (abi.SUCCESS, [8])
    assert time.monotonic() - begun < PATIENCE


@pytest.mark.parametrize(
    ("at", "count", "errno"),
    [
        *((IN, count, abi.EINVAL) for count in (0, 1025, 2**32 - 1)),
        *((at, 4, abi.EFAULT) for at in (2**32 - 8, 2**31)),
    ],
)
def test_subscriptions_out_of_range_fail(guest: Guest, at: int, count: int, errno: int) -> None:
    assert guest.call("poll_oneoff", at, OUT, count, COUNT) == errno


@pytest.mark.parametrize("clock", [2, 3])
def test_clocks_of_processor_time_are_not_there(guest: Guest, clock: int) -> None:
    assert guest.call("clock_time_get", clock, 1, 96) == abi.EBADF
