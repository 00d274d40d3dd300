"""`AwakeSessions`: the sessions that have a worker, within the workers' limit of memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from wasm_kernel.errors import LimitReached
from wasm_kernel.result import readable
from wasm_kernel.service.limits import WORKER_BYTES
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.service.worker_line import SLOW_SECONDS

_LOOK_SECONDS = 0.25
ROOM_SECONDS = 30.0
"""The time that a call waits for room while all awake sessions are busy."""


class AwakeSessions:
    """The sessions that are awake; their workers take at most `most` bytes. Any thread may use it.

    A session that needs room waits on its own thread, without a lock. So a session that is slow to
    fall asleep does not delay others that find room elsewhere.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._awake: dict[SessionWorker, int] = {}
        self._waiting: dict[SessionWorker, int] = {}  # in the order of arrival

    def has_room(self, memory_bytes: int) -> bool:
        """Returns whether a session with this policy's `memory_bytes` finds room at once."""
        with self._changed:
            taken = sum(self._awake.values()) + sum(self._waiting.values())
            return self._most is None or taken + memory_bytes + WORKER_BYTES <= self._most

    def admit(self, session: SessionWorker) -> None:
        """Makes room for a session's worker, if need be by putting idle sessions to sleep.

        Raises `LimitReached` if all of them stay busy for `ROOM_SECONDS`.
        """
        need = int(session.opened.policy["memory_bytes"]) + WORKER_BYTES
        until = time.monotonic() + ROOM_SECONDS
        with self._changed:
            self._waiting[session] = need
            try:
                while self._missing(session) > 0:
                    if need > (self._most or need):
                        raise self._full(need)
                    if not self._make_room(session) and time.monotonic() > until:
                        raise self._full(need)
                    self._changed.wait(_LOOK_SECONDS)
                self._awake[session] = need
            finally:
                del self._waiting[session]

    def release(self, session: SessionWorker) -> None:
        """Notes that a session is asleep."""
        with self._changed:
            self._awake.pop(session, None)
            self._changed.notify_all()

    def _missing(self, session: SessionWorker) -> int:
        """The bytes that are missing for a session and for those that waited before it."""
        if self._most is None:
            return 0
        ahead = 0
        for each, need in self._waiting.items():
            ahead += need
            if each is session:
                break
        return sum(self._awake.values()) + ahead - self._most

    def _make_room(self, session: SessionWorker) -> bool:
        """Puts the least recently used sessions to sleep; returns whether that frees enough."""
        for each in self._awake:
            if each.leaving_seconds >= 0:
                each.look_after()
        missing = self._missing(session)
        missing -= self._bytes_of(lambda each: 0 <= each.leaving_seconds < SLOW_SECONDS)
        for each in sorted(self._awake, key=lambda one: one.last_used):
            if missing <= 0:
                return True
            if each.leaving_seconds < 0 and each.sleep():
                missing -= self._awake[each]
        return missing <= self._bytes_of(lambda each: each.leaving_seconds >= SLOW_SECONDS)

    def _bytes_of(self, chosen: Callable[[SessionWorker], bool]) -> int:
        return sum(need for each, need in self._awake.items() if chosen(each))

    def _full(self, need: int) -> LimitReached:
        most, others = self._most or 0, ", which busy sessions have"
        advice = "Try again when one of them is idle, or raise the service's memory_bytes."
        if need > most:
            others, advice = "", "Raise the service's memory_bytes, or lower the policy's."
        return LimitReached(
            "memory_bytes",
            f"The workers of this service may take {readable(most)} together, and this session "
            f"needs {readable(need)} of it{others}.",
            advice,
        )
