"""The guest's sleep, which ends on time or earlier if it must; its clock across instances."""

from __future__ import annotations

import struct
import threading
import time

import pytest

from tests.engine.tiny import Guest
from tests.faces import PATIENCE
from wasm_kernel.engine import abi
from wasm_kernel.engine.clock import NO_SIGNALS

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


def test_the_earliest_of_several_timers_wakes(guest: Guest) -> None:
    errno, ready = poll(guest, timer(2**64 - 1, user=1), timer(10 * MS, user=2))
    assert (errno, ready) == (abi.SUCCESS, [2])


def test_an_interrupt_ends_the_longest_sleep(guest: Guest) -> None:
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


def test_printed_text_is_seen_before_a_sleep(guest: Guest) -> None:
    guest.write(1, b"before")
    poll(guest, timer(1))
    assert guest.said == [("stdout", "before")]


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
def test_subscriptions_out_of_range_are_refused(
    guest: Guest, at: int, count: int, errno: int
) -> None:
    assert guest.call("poll_oneoff", at, OUT, count, COUNT) == errno


@pytest.mark.parametrize("clock", [2, 3])
def test_clocks_of_processor_time_are_not_there(guest: Guest, clock: int) -> None:
    assert guest.call("clock_time_get", clock, 1, 96) == abi.EBADF
