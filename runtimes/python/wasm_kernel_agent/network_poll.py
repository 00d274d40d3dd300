"""`select` for a guest with a network: waits for its sockets."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from wasm_kernel_agent.network import FIRST, WAIT_SECONDS, Host, Wire


class Poll:
    """`select.poll` for sockets; other descriptors are the system's."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}

    def register(self, fd: Any, eventmask: int = select.POLLIN | select.POLLOUT) -> None:
        """Adds a socket or a descriptor."""
        self._masks[fd if isinstance(fd, int) else fd.fileno()] = eventmask

    modify = register

    def unregister(self, fd: Any) -> None:
        """Removes a socket or a descriptor."""
        del self._masks[fd if isinstance(fd, int) else fd.fileno()]

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Waits, up to `timeout` milliseconds; returns the sockets that are ready."""
        wires = {number: _wire_of(number) for number in self._masks if number >= FIRST}
        others = _make_poll()
        for number in self._masks.keys() - wires.keys():
            others.register(number, self._masks[number])
        end = None if timeout is None or timeout < 0 else time.monotonic() + timeout / 1000
        while True:
            ready = others.poll(0) if len(wires) < len(self._masks) else []
            left = WAIT_SECONDS if end is None else max(0.0, end - time.monotonic())
            for number, wire in wires.items():
                mask = self._masks[number]
                found = mask & select.POLLOUT
                wait = 0.0 if found or ready or len(self._masks) > 1 else min(left, WAIT_SECONDS)
                if mask & select.POLLIN and (wire is None or _is_readable(wire, wait)):
                    found |= select.POLLIN
                if found:
                    ready.append((number, found))
            if ready or (end is not None and time.monotonic() >= end):
                return ready
            time.sleep(min(left, 0.05))


def _is_readable(wire: Wire, seconds: float) -> bool:
    try:
        return wire.fill(seconds)
    except OSError:
        return True  # reading it raises the error


def _wire_of(number: int) -> Wire | None:
    """Returns the open connection of a number."""
    found = Host.wires.get(number)
    return found if found is not None and found.number else None


_make_poll: Callable[[], Any] = select.poll


def select_ready(
    readers: Any, writers: Any, others: Any, timeout: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Waits for sockets or descriptors, as `select.select` does."""
    poll = Poll()
    masks: dict[Any, int] = {}
    for each in readers:
        masks[each] = select.POLLIN
    for each in writers:
        masks[each] = masks.get(each, 0) | select.POLLOUT
    numbers = {each: each if isinstance(each, int) else each.fileno() for each in masks}
    for each, mask in masks.items():
        poll.register(numbers[each], mask)
    ready = dict(poll.poll(None if timeout is None else timeout * 1000))
    of = {each: ready.get(number, 0) for each, number in numbers.items()}
    return (
        [each for each in readers if of[each] & ~select.POLLOUT],
        [each for each in writers if of[each] & select.POLLOUT],
        [],
    )
