"""`CallQueue`: the calls of one session that are not answered yet, in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from wasm_kernel.errors import LimitReached
from wasm_kernel.service import messages
from wasm_kernel.service.calls import PendingCall


class CallQueue:
    """The calls that wait for a session's worker, and what is still to be sent to it.

    The worker serves one after the other, so the first is the one that runs, while `most` cells may
    wait. Whoever owns the queue has a lock over it.
    """

    def __init__(self, most: int) -> None:
        self.last = 0
        self._most = most
        self._calls: dict[int, PendingCall] = {}
        self._unsent: deque[Struct] = deque()
        self._interrupted = 0  # the number of the call that was interrupted last

    # -- calls come

    def add(self, make: Callable[[int], Struct], pending: PendingCall) -> int:
        """Adds a call, whose message `make` makes of its number; returns the number.

        Raises `LimitReached` if too many cells wait.
        """
        cells = sum(call.is_cell for call in self._calls.values())
        if pending.is_cell and cells > self._most:
            raise LimitReached(
                "queue",
                f"{self._most:,} cells of this session wait already.",
                "Wait for one of them, interrupt the running one, or raise queue.",
            )
        pending.message = make(self.last + 1)
        self.last += 1
        self._unsent.append(pending.message)
        self._calls[self.last] = pending
        return self.last

    def interrupt(self, number: int) -> bool:
        """Has a call (0: the one that runs) interrupted; returns whether there is one."""
        found = number or self._first
        if (pending := self._calls.get(found)) is None:
            return False
        pending.interrupted()
        self._interrupted = found
        self._unsent.append(messages.Interrupt(number))
        return True

    # -- what is there

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def _first(self) -> int:
        return next(iter(self._calls), 0)

    @property
    def running(self) -> PendingCall | None:
        """The first call; None if there is none."""
        return self._calls.get(self._first)

    @property
    def is_interrupted(self) -> bool:
        """True if a wait on behalf of the first call should end now, or if there is none."""
        return self._first in (0, self._interrupted)

    @property
    def forks(self) -> int:
        """The number of forks that the calls make."""
        return sum(call.forks for call in self._calls.values())

    def find(self, number: int) -> PendingCall | None:
        """Returns a call by its number; None if there is none."""
        return self._calls.get(number)

    def all(self) -> list[PendingCall]:
        """Returns all calls."""
        return [*self._calls.values()]

    # -- calls are sent, begin and end

    @property
    def has_unsent(self) -> bool:
        """True if something is still to be sent."""
        return bool(self._unsent)

    def next_unsent(self) -> Struct | None:
        """Takes what is to be sent next; None if all is sent."""
        return self._unsent.popleft() if self._unsent else None

    def send_again(self) -> bool:
        """Has all calls sent again, to another worker; returns whether there are any.

        None is if one was interrupted: that may be one that waits, and it must end as interrupted.
        """
        if self._interrupted in self._calls:
            return False
        self._unsent = deque(call.message for call in self._calls.values())
        return self.has_unsent

    def forget_unsent(self) -> None:
        """Gives up what is still to be sent: nobody hears it any more."""
        self._unsent.clear()

    def begin(self, more: float = 0.0) -> None:
        """Begins to count the time of the first call, with some seconds in addition."""
        if (running := self.running) is not None:
            running.begin(more)

    def remove(self, number: int) -> PendingCall | None:
        """Removes a call, and returns it, if it is there; the next one begins."""
        found = self._calls.pop(number, None)
        self.begin()
        return found

    def take_until(self, last: int) -> list[PendingCall]:
        """Removes the calls up to a number, and returns them in their order."""
        taken = [call for number, call in self._calls.items() if number <= last]
        self._calls = {number: call for number, call in self._calls.items() if number > last}
        if not self._calls:
            self._unsent.clear()
        return taken
