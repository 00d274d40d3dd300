"""`CallQueue`: the calls of a session that wait for its worker, and the sending of them."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct, structs

from wasm_kernel.errors import FrameError, LimitReached, describe
from wasm_kernel.guests.protocol import check_request
from wasm_kernel.service import messages
from wasm_kernel.service.calls import PendingCall, PendingCell
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.open_message import Open

_PLACE = re.compile(r"(.+) - at `\$\.(?:.+\.)?(\w+).*`")  # msgspec's words for a wrong value


class CallQueue:
    """The calls that wait for a session's worker, and the messages that it was not sent yet.

    The worker serves calls in order, so the first call is the running one. At most `most` cells may
    wait. Calls after a change of the session's options wait for the next worker. The queue's owner
    guards all methods except `flush` with a lock.

    Attributes:
        guard: The lock.
        calls: All calls by their numbers; `last` is the last number.
        unsent: The messages that the worker was not sent yet.
        changes: The options that differ after each change, and the number of the call before it.
        worker: The worker that takes messages; None if there is none, or if it falls asleep.
        sending: Held while a message is sent.
    """

    def __init__(self, most: int, guard: threading.Condition) -> None:
        self.last = 0
        self._most = most
        self.guard, self.sending = guard, threading.Lock()
        self.worker: Worker | None = None
        self.calls: dict[int, PendingCall] = {}
        self.unsent: deque[Struct] = deque()
        self.changes: deque[tuple[int, Mapping[str, Any]]] = deque()
        self._interrupted = 0  # the number of the last interrupted call

    # -- calls come

    def add(self, pending: PendingCall) -> int:
        """Adds a call and returns its number; raises `LimitReached` if too many cells wait."""
        cells = sum(call.is_cell for call in self.calls.values())
        if pending.is_cell and cells > self._most:
            raise LimitReached(
                "queue",
                f"{self._most:,} cells of this session wait already.",
                "Wait for one of them, or interrupt the running one; a service may raise queue.",
            )
        self.last += 1
        if not self.changes:
            self.unsent.append(messages.Call(self.last, pending.request))
        self.calls[self.last] = pending
        return self.last

    def change(self, opened: Open, changes: Mapping[str, Any]) -> None:
        """Changes options of a session, `opened` now, for the calls that are added from now on."""
        known = self.changes[-1][1] if self.changes else {}
        wanted = {**known, **changes}
        if structs.replace(opened, **wanted) != structs.replace(opened, **known):
            self.changes.append((self.last, wanted))

    def tell(self, message: Callable[[int], Struct]) -> int:
        """Sends a message that has a number, and no answer of its own; returns the number."""
        self.last += 1
        self.unsent.append(message(self.last))
        return self.last

    def interrupt(self, number: int) -> bool:
        """Interrupts a call (0: the running one); returns whether there is one."""
        found = number or self._first
        if (pending := self.calls.get(found)) is None:
            return False
        pending.interrupted()
        self._interrupted = found
        self.unsent.append(messages.Interrupt(number))
        return True

    # -- state
    def __len__(self) -> int:
        return len(self.calls)

    @property
    def _first(self) -> int:
        return next(iter(self.calls), 0)

    @property
    def last_of_worker(self) -> int:
        """The number of the last call before the next change of options."""
        return self.changes[0][0] if self.changes else self.last

    def is_held(self, number: int) -> bool:
        """Returns whether a call (0: the first one) waits for a worker with other options."""
        return (number or self._first) > self.last_of_worker

    @property
    def running(self) -> PendingCall | None:
        """The first call; None if there is none, or if it waits for a worker with other options."""
        return None if self.is_held(0) else self.calls.get(self._first)

    @property
    def running_cell(self) -> int:
        """The number of the running call, if it is a cell; otherwise 0."""
        return self._first if (running := self.running) is not None and running.is_cell else 0

    @property
    def is_interrupted(self) -> bool:
        """True if a wait on behalf of the first call should end now, or if there is none."""
        return self._first in (0, self._interrupted)

    @property
    def forks(self) -> int:
        """The number of forks that the calls make."""
        return sum(call.forks for call in self.calls.values())

    # -- calls are sent, begin and end

    def send_again(self) -> bool:
        """Sends all calls again, to another worker; returns whether there are any.

        Resends nothing after an interrupt: a waiting call may be the interrupted one, and must end
        as interrupted.
        """
        if self._interrupted in self.calls:
            return False
        self.unsent.clear()
        self._send_after(0)
        return bool(self.unsent)

    def _send_after(self, last: int) -> None:
        """Sends the calls after a number, up to the next change of options."""
        for number, call in self.calls.items():
            if last < number <= self.last_of_worker:
                self.unsent.append(messages.Call(number, call.request))

    def take_changes(self) -> Mapping[str, Any]:
        """Takes the changes of options before the first call; there is no worker."""
        last = self.last_of_worker
        taken: Mapping[str, Any] = {}
        while self.changes and (self.is_held(0) or not self.calls):
            taken = self.changes.popleft()[1]
        self._send_after(last)
        return taken

    def begin(self, more: float = 0.0) -> None:
        """Begins to count the time of the first call, which gets `more` seconds in addition."""
        if (running := self.running) is not None:
            running.begin(more)

    def remove(self, number: int) -> PendingCall | None:
        """Removes and returns a call, None if there is none; the next one begins."""
        found = self.calls.pop(number, None)
        self.begin()
        return found

    def take_cells(self, number: int) -> list[PendingCell]:
        """Removes a cell (0: all cells) that was not sent; returns the removed ones."""
        cells = {n: call for n, call in self.calls.items() if isinstance(call, PendingCell)}
        taken = {n: call for n, call in cells.items() if number in (0, n)}
        for each in taken:
            del self.calls[each]
        self.unsent = deque(
            message
            for message in self.unsent
            if not (isinstance(message, messages.Call) and message.call in taken)
        )
        return [*taken.values()]

    def take_until(self, last: int) -> list[PendingCall]:
        """Removes the calls up to a number, and returns them in order."""
        taken = [call for number, call in self.calls.items() if number <= last]
        self.calls = {number: call for number, call in self.calls.items() if number > last}
        if not self.calls:
            self.unsent.clear()
        return taken

    # -- messages are sent

    def flush(self, *, waits: bool = False) -> None:
        """Sends the waiting messages, in order, unless another thread already sends them.

        Only a thread that `waits` sends a message for which the worker has no room yet: a caller
        may be a front end's only thread.
        """
        while self.unsent and self.sending.acquire(blocking=waits):
            try:
                while (found := self._next_unsent()) is not None:
                    if not self._send(*found, waits=waits):
                        with self.guard:
                            if self.worker is found[0]:
                                self.unsent.appendleft(found[1])
                        later = partial(self.flush, waits=True)
                        threading.Thread(target=later, daemon=True).start()
                        return
                if self.worker is None:
                    return
            except OSError:
                return  # the session's thread gets the error, too
            finally:
                self.sending.release()

    def send_past(self, worker: Worker, message: Struct, *, waits: bool = False) -> None:
        """Sends a message past the queue; if that needs a wait, on a thread of its own.

        It uses no other thread, as Python 3.12.0 to 3.12.2 can start none while the program ends.
        """
        if self.sending.acquire(blocking=waits):
            try:
                if self._send(worker, message, waits=waits):
                    return
            except OSError:
                return  # the session's thread gets the error, too
            finally:
                self.sending.release()
        later = partial(self.send_past, worker, message, waits=True)
        threading.Thread(target=later, daemon=True).start()

    def _next_unsent(self) -> tuple[Worker, Struct] | None:
        with self.guard:
            if self.worker is None or not self.unsent:
                return None
            return self.worker, self.unsent.popleft()

    def _send(self, worker: Worker, message: Struct, *, waits: bool) -> bool:
        """Sends a message, or refuses it; returns False if that needs a wait that is not wanted."""
        try:
            check_request(message)  # the worker would be lost
            if not waits:
                return worker.channel.send_at_once(message)
            worker.channel.send(message)
            return True
        except FrameError as problem:
            why = problem.why
        except (ValueError, TypeError, RecursionError) as problem:  # a caller's wrong type
            why = _PLACE.sub(r"\2: \1", describe(problem))
        with self.guard:
            pending = self.remove(message.call if isinstance(message, messages.Call) else 0)
        if pending is not None:
            refused = FrameError(why)
            refused.args = (f"The call can't be sent: {why}. Nothing was run.",)
            pending.refuse(refused)
        return True
