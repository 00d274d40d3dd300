"""The guest's monotonic clock over instances."""

from __future__ import annotations

import time
from pathlib import Path

from tests.engine.tiny import Guest

HOUR = 3_600_000_000_000


def guest_after(folder: Path, before: int) -> Guest:
    """A guest whose clock goes on from `before`."""
    return Guest(folder, clock_before=before)


def test_a_new_guest_goes_on_where_the_one_before_stopped(tmp_path: Path) -> None:
    first = Guest(tmp_path)
    time.sleep(0.01)
    stopped = first.instance.monotonic()
    first.close()
    second = guest_after(tmp_path, stopped)
    assert stopped > 10_000_000
    assert stopped <= second.instance.monotonic() < stopped + HOUR
    second.close()


def test_it_goes_on_over_many_instances(tmp_path: Path) -> None:
    shown = 0
    for _ in range(5):
        guest = guest_after(tmp_path, shown)
        now = guest.instance.monotonic()
        assert now >= shown
        shown = now
        guest.close()
