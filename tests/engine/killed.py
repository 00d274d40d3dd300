"""A process that may be killed, with tiny guests: `test_kills.py` runs it.

Each scene is a function here, which prints facts for the test.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.engine.tiny import Guest
from wasm_kernel.engine.clock import THIS_PROCESS, StopReason
from wasm_kernel.engine.flavours import FLAVOURS, Flavour
from wasm_kernel.errors import GuestStopped
from wasm_kernel.guests.python.guest import SignalWords

AWAITED = 128  # the word that `spin_until` looks at
KILLED = 77
WORKING = threading.Event()
"""Set while the host works for a guest."""
DATA = bytes(1 << 24)


class Owner:
    """Ends the process as if it were killed."""

    def kill(self, reason: StopReason) -> None:
        print("killed for", reason.cause, flush=True)
        os._exit(KILLED)


def once_it_spins(job: Callable[[], object]) -> None:
    """Does a job once this process has used enough processor time for its guest to spin."""

    def wait() -> None:
        begun = time.process_time()
        while time.process_time() - begun < 0.1:
            time.sleep(0.005)
        job()

    threading.Thread(target=wait, daemon=True).start()


class Scenes:
    """A guest's turn, and its result."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._signals = SignalWords({AWAITED: 1, AWAITED + 8: 2}, guest.instance.memory)

    def _ends(self, name: str, *args: int) -> None:
        try:
            self._guest.call(name, *args)
            how = "came back"
        except GuestStopped as stopped:
            how = type(stopped).__name__
        self._guest.clock.disarm()
        print(how, "and is still interrupted" if self._signals.pending() else "", flush=True)

    def interrupt(self) -> None:
        """An interrupt reaches a guest that computes, in its memory."""
        self._guest.clock.arm(self._signals, None, 60.0)
        threading.Timer(0.05, self._guest.clock.interrupt).start()
        self._ends("spin_until")

    def deadline(self) -> None:
        """A guest whose time is over, and that reacts, is stopped without a kill."""
        self._guest.clock.arm(self._signals, 0.05, 60.0)
        self._ends("spin_until")

    def sleep(self) -> None:
        """A deadline ends a sleep in the host."""
        self._guest.clock.arm(self._signals, 0.05, 60.0)
        self._guest.instance.memory.write(1024, bytes(16) + bytes(4) + bytes(4) + b"\xff" * 7)
        self._ends("poll_oneoff", 1024, 2048, 1, 4096)

    def asking(self) -> None:
        """A guest whose time ends while the host works for it ends when that work is done."""
        self._guest.clock.arm(self._signals, 0.05, 60.0)
        self._ends("host_call", 1024, 0, 2048, 2052)

    def output(self) -> None:
        """Printed text is handed on while the guest computes."""
        handed = threading.Event()
        self._guest.streams.begin(lambda *said: handed.set(), self._guest.limits)
        self._guest.clock.arm(self._signals, None, 60.0)
        threading.Thread(target=lambda: handed.wait() and self._guest.clock.interrupt()).start()
        self._guest.streams.feed("stdout", b"hello")
        self._ends("spin_until")

    def deaf(self) -> None:
        """A guest that does not react ends with the process."""
        self._guest.clock.arm(self._signals, None, 0.05)
        self._guest.clock.interrupt()
        self._ends("spin")

    def overdue(self) -> None:
        """A guest that does not react to the end of its time ends with the process."""
        self._guest.clock.arm(self._signals, 60.0, 0.05)
        once_it_spins(lambda: self._guest.clock.lower_deadline(0.0))
        self._ends("spin")

    def closed(self) -> None:
        """A guest whose sandbox is closed and that does not react ends with the process."""
        self._guest.clock.arm(self._signals, None, 0.05)
        once_it_spins(self._guest.clock.close)
        self._ends("spin")

    def work(self) -> None:
        """The work of the host for a guest ends when the guest's time is over."""
        self._guest.clock.arm(self._signals, 60.0, 0.05)
        lower = self._guest.clock.lower_deadline
        threading.Thread(target=lambda: WORKING.wait() and lower(0.0), daemon=True).start()
        self._ends("host_call", 1024, 0, 2048, 2052)


def work_on(guest: Guest) -> bytes:
    WORKING.set()
    while guest.instance.count_work(1):
        time.sleep(0.001)
    return b""


def work_once(_: bytes) -> bytes:
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        hashlib.sha256(DATA)  # lets other threads run, as reading and writing does
    return b""


def guest_in(folder: Path, flavour: Flavour, *, is_short: bool) -> Guest:
    guest = Guest(
        folder, flavour=flavour, handler=work_once if is_short else lambda _: work_on(guest)
    )
    return guest


def main(flavour: Flavour, scenes: list[str]) -> None:
    THIS_PROCESS.owner = Owner()
    for scene in scenes:
        with TemporaryDirectory() as folder:
            guest = guest_in(Path(folder), flavour, is_short=scene == "asking")
            getattr(Scenes(guest), scene)()
            guest.close()


if __name__ == "__main__":
    main(FLAVOURS[sys.argv[1]], sys.argv[2:])
