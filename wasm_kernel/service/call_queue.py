"""`CallQueue`: the unanswered calls of one session, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from wasm_kernel.errors import LimitReached
from wasm_kernel.service import messages
from wasm_kernel.service.calls import PendingCall, PendingCell


class CallQueue:
    """The calls that wait for a session's worker, and the messages that it was not sent yet.

    The worker serves calls in order, so the first call is the running one. At most `most` cells may
    wait. The queue's owner guards it with a lock.
    """

    def __init__(self, most: int) -> None:
        self.last = 0
        self._most = most
        self._calls: dict[int, PendingCall] = {}
        self._unsent: deque[Struct] = deque()
        self._interrupted = 0  # the number of the last interrupted call

    # -- calls come

    def add(self, pending: PendingCall) -> int:
        """Adds a call and returns its number; raises `LimitReached` if too many cells wait."""
        cells = sum(call.is_cell for call in self._calls.values())
        if pending.is_cell and cells > self._most:
            raise LimitReached(
                "queue",
                f"{self._most:,} cells of this session wait already.",
                "Wait for one of them, interrupt the running one, or raise queue.",
            )
        self.last += 1
        self._unsent.append(messages.Call(self.last, pending.request))
        self._calls[self.last] = pending
        return self.last

    def tell(self, message: Callable[[int], Struct]) -> int:
        """Sends a message that has a number, and no answer of its own; returns the number."""
        self.last += 1
        self._unsent.append(message(self.last))
        return self.last

    def interrupt(self, number: int) -> bool:
        """Interrupts a call (0: the running one); returns whether there is one."""
        found = number or self._first
        if (pending := self._calls.get(found)) is None:
            return False
        pending.interrupted()
        self._interrupted = found
        self._unsent.append(messages.Interrupt(number))
        return True

    # -- state
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
    def running_cell(self) -> int:
        """The number of the first call, if it is a cell; otherwise 0."""
        return self._first if (running := self.running) is not None and running.is_cell else 0

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
        """True if a message was not sent yet."""
        return bool(self._unsent)

    def next_unsent(self) -> Struct | None:
        """Takes the next message to send; None if all are sent."""
        return self._unsent.popleft() if self._unsent else None

    def put_back(self, message: Struct) -> None:
        """Makes a message the next one to send again."""
        self._unsent.appendleft(message)

    def send_again(self) -> bool:
        """Has all calls sent again, to another worker; returns whether there are any.

        Resends nothing after an interrupt: a waiting call may be the interrupted one, and must end
        as interrupted.
        """
        if self._interrupted in self._calls:
            return False
        calls = self._calls.items()
        self._unsent = deque(messages.Call(number, call.request) for number, call in calls)
        return self.has_unsent

    def forget_unsent(self) -> None:
        """Drops the unsent messages, since no worker reads them any more."""
        self._unsent.clear()

    def begin(self, more: float = 0.0) -> None:
        """Begins to count the time of the first call, which gets `more` seconds in addition."""
        if (running := self.running) is not None:
            running.begin(more)

    def remove(self, number: int) -> PendingCall | None:
        """Removes and returns a call, None if there is none; the next one begins."""
        found = self._calls.pop(number, None)
        self.begin()
        return found

    def take_cells(self, number: int) -> list[PendingCell]:
        """Removes a cell (0: all cells), none of which was sent; returns what was removed."""
        cells = {n: call for n, call in self._calls.items() if isinstance(call, PendingCell)}
        taken = {n: call for n, call in cells.items() if number in (0, n)}
        for each in taken:
            del self._calls[each]
        self._unsent = deque(
            message
            for message in self._unsent
            if not (isinstance(message, messages.Call) and message.call in taken)
        )
        return [*taken.values()]

    def take_until(self, last: int) -> list[PendingCall]:
        """Removes the calls up to a number, and returns them in order."""
        taken = [call for number, call in self._calls.items() if number <= last]
        self._calls = {number: call for number, call in self._calls.items() if number > last}
        if not self._calls:
            self._unsent.clear()
        return taken
