"""`SessionWorker`: the worker of one session, while it is awake, and the calls that wait for it.

A session is asleep until a call wakes it: a thread gets a forked worker, sends it the waiting
calls, and reads its messages. An idle session's worker is closed; memory is on disk by then. A
worker that ends by itself is lost, and so is the cell that ran in it; the next call gets another.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from wasm_kernel.errors import (
    FrameError,
    GuestStopped,
    HostFailed,
    SandboxClosed,
    WasmKernelError,
    WorkerLost,
    describe,
    out_of_threads,
)
from wasm_kernel.events import SandboxLogger
from wasm_kernel.guests.broker_handlers import FetchedBytes
from wasm_kernel.linux.broker import BrokerCancel, BrokerRequest, Handlers, log_failure
from wasm_kernel.service import messages
from wasm_kernel.service.call_queue import CallQueue
from wasm_kernel.service.calls import LAST_KEPT, START_SECONDS, PendingCall, most_memory, stuck
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.messages import FromCell, Report
from wasm_kernel.service.open_message import Open
from wasm_kernel.service.page_offers import PageOffers, PendingOffer
from wasm_kernel.service.session_calls import NO_CALLS, SessionCalls, SessionNetwork
from wasm_kernel.service.usage import Usage
from wasm_kernel.service.worker_line import Leaving, WorkerLine, log_lost, log_report

State = Literal["starting", "idle", "busy", "asleep"]

_LOG = logging.getLogger("wasm_kernel.service")
_LEAVE_SECONDS = 5.0  # for a killed worker to be gone
_LOOK_SECONDS, _LOOK_MOST = 0.25, 2.0  # seconds between two looks, and the most that count
_KILLED_MOST = 2  # workers in a row that may be killed before they begin a call
_OF_NO_CALL = messages.Pong | messages.Event | messages.Logged | messages.Noted | messages.Waiting
_LARGE = "took more memory than its session's limits allow, and was ended"
_OWN_THREAD = "a listener or a callback can't wait for its own session; use another thread"
_RESET = "this session was put away before the call began; try again"


class WorkerHome(Protocol):
    """The methods that a session's worker calls. Any thread may call them."""

    def release(self, session: SessionWorker) -> None:
        """Notes that a session is asleep."""

    def spawn(self, session: SessionWorker, progress: Callable[[str], None]) -> Worker:
        """Returns a new worker, as soon as there is room for it."""

    def opening(self, session: SessionWorker) -> Open:
        """Returns the message with which a new worker opens the session; `release` follows."""
        return session.opened

    def handlers(self, session: SessionWorker) -> Handlers:
        """Returns the handlers of requests beyond the walls; each checks its request."""


class SessionWorker:
    """The worker of one session, if it is awake. Any thread may use it; no call waits for a worker.

    `queue` cells may wait. `answer_seconds` is the allowed silence while a call waits. `resets`
    counts the resets that workers have acknowledged. `why_closed` is the reason why no further call
    is taken; it is empty while calls are taken. `noted` takes sentences to show beside the output
    of cells. `function_calls` serve cells, with those of the `network`, if there is one, that later
    cells have.
    """

    def __init__(
        self,
        opened: Open,
        home: WorkerHome,
        logger: SandboxLogger,
        *,
        queue: int,
        answer_seconds: float,
        noted: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.opened = opened
        self.function_calls: SessionCalls = NO_CALLS
        self.network: SessionNetwork | None = None
        self.noted = noted
        self.usage, self.fetched = Usage(), FetchedBytes()
        self.last_used, self.resets, self._looked = time.time(), 0, time.monotonic()
        self._home = home
        self.logger = logger
        self._answer_seconds = answer_seconds
        self._changed = threading.Condition()
        self._calls = CallQueue(queue, self._changed)
        self._offers = PageOffers()
        self._thread: threading.Thread | None = None
        self._line: WorkerLine | None = None
        self._leaving: Leaving | None = None
        self.why_closed = ""
        self._killed = 0  # workers in a row, before they had a guest

    @property
    def running_cell(self) -> int:
        """The number of the call that is the running cell; 0 if none runs."""
        with self._changed:
            return self._calls.running_cell

    # -- calls

    def call(self, pending: PendingCall) -> int:
        """Sends a call to the worker; returns its number.

        Forks a worker if the session has none, and does not wait for it. Raises `SandboxClosed`,
        `LimitReached`, or `HostFailed` if the system allows no further thread.
        """
        if not pending.is_cell:  # a cell is submitted, and then waited for or not
            self.check_may_wait()
        with self._changed:
            if self.why_closed:
                raise SandboxClosed(self.why_closed)
            number = self._calls.add(pending)
            if self._calls.worker is not None:
                self._calls.begin()
            self.last_used = time.time()
            if self._thread is None:
                name = f"session {self.opened.session_id}"
                thread = threading.Thread(target=self._live, name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as problem:
                    self._calls.take_until(number)  # it is the only call
                    raise out_of_threads() from problem
                self._thread = thread
        self._change_over()
        self._calls.flush()
        return number

    def check_may_wait(self) -> None:
        """Raises `RuntimeError` on the session's own thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(_OWN_THREAD)

    def change(self, **changes: Any) -> int:
        """Changes options of the session, fields of `Open`, for the calls from now on.

        They get another worker, once the calls before them have ended. Returns the number of the
        last call before them.
        """
        with self._changed:
            self._calls.change(self.opened, changes)
            if self._thread is None:
                self._take_changes()
            return self._calls.last

    def _take_changes(self) -> None:
        if changes := self._calls.take_changes():
            self.opened = replace(self.opened, verified={}, **changes)

    def _change_over(self) -> None:
        """Makes the worker close the session if the next call needs a worker with other options."""
        with self._changed:
            is_due = self._calls.is_held(0)
        if is_due:
            self.sleep()

    @property
    def is_changing(self) -> bool:
        """True if options were changed that no worker has yet."""
        return bool(self._calls.changes)

    def interrupt(self, call: int = 0) -> bool:
        """Interrupts a cell (0: the running one, or all that wait); False without a cell."""
        with self._changed:
            has_worker = self._line is not None and not self._calls.is_held(call)
            waits = self._thread is not None and not has_worker
            cells = self._calls.take_cells(call) if waits else []
            if not (waits or self._calls.interrupt(call)):
                return False
        for cell in cells:  # none was sent, and the worker's start may take a minute
            cell.cancel()
        self._calls.flush()
        return not waits or bool(cells)

    def offer(self, offered: PendingOffer) -> None:
        """Offers a message to the running cell, if there is one."""
        with self._changed:
            if self._calls.worker is None:
                return
            self._offers[self._calls.tell(offered.offer)] = offered
        self._calls.flush()

    @property
    def is_interrupted(self) -> bool:
        """True if a wait on behalf of the running cell should end now."""
        with self._changed:
            is_lost = self._line is not None and self._line.worker.has_ended
            return is_lost or bool(self.why_closed) or self._calls.is_interrupted

    # -- the thread of a session that is awake

    def _live(self) -> None:
        """Serves the session with one worker after the other, until no call is left."""
        is_called = True
        while is_called:
            try:
                worker = self._home.spawn(self, self._progress)
            except WasmKernelError as failure:
                is_called = self._asleep(failure)
            except Exception as failure:  # such as a lack of descriptors
                log_failure("a session's start", failure)
                is_called = self._asleep(HostFailed(describe(failure)))
            else:
                line = WorkerLine(
                    worker, lambda: {**self._home.handlers(self), **self.function_calls.handlers}
                )
                problem = self._serve(line)
                line.outside.cancel_all()
                self._offers.end()
                self.usage.ended_seconds = self.usage.cpu_seconds
                worker.close()
                is_called = self._begins_again(line, problem) or self._asleep(problem)

    def _begins_again(self, line: WorkerLine, problem: WasmKernelError | None) -> bool:
        """Leaves the calls to another worker if this one was killed before it began any of them.

        Returns whether it left them; it does not if too many workers in a row were killed.
        """
        if not isinstance(problem, WorkerLost) or line.has_guest or line.why_ended:
            return False  # the worker has a known reason, or might have begun a call
        self._killed += 1
        with self._changed:
            if self._killed > _KILLED_MOST or self._leaving or not self._calls.send_again():
                return False
            self._line = self._calls.worker = None
        self._home.release(self)
        return True

    def _serve(self, line: WorkerLine) -> WasmKernelError | None:
        """Serves the session with a worker until it ends; returns the reason, if it was lost."""
        try:
            with self._calls.sending:
                with self._changed:
                    if self._leaving is not None:
                        return None
                    self._line, self._calls.worker = line, line.worker
                    self._calls.begin(START_SECONDS)
                line.worker.open(self._home.opening(self))
            self._calls.flush()
            while True:
                self._handle(*line.hear(), line)
        except (EOFError, OSError):
            if self._leaving is not None:
                return None
        except FrameError as broken:
            _LOG.error("a worker broke the protocol: %s", ascii(str(broken)))
            line.why_ended = "sent what it must not, and was ended"
        except WasmKernelError as failure:  # stuck, or the session can't be opened
            return failure
        except Exception as failure:
            log_failure("a session", failure)
            line.why_ended = "was ended, as its service failed; the log says more"
        return WorkerLost(line.why_lost, LAST_KEPT)

    def _progress(self, text: str) -> None:
        for pending in [*self._calls.calls.values()]:
            pending.tell(text)

    def _tell_wait(self, text: str) -> None:
        self._progress(text)
        _LOG.warning("waiting for a session: %s", text)

    def _handle(self, report: Report, size: int, line: WorkerLine) -> None:
        """Handles a message of the worker.

        Raises `FrameError` if the message breaks the protocol, `WasmKernelError` if the worker
        could not open the session, or can't stop its guest.
        """
        line.has_guest = line.has_guest or not isinstance(report, _OF_NO_CALL)
        match report:
            case messages.Pong():
                pass
            case messages.Stuck():
                self.opened = replace(self.opened, told=report.is_kept)
                raise stuck(report)
            case messages.Opened():
                line.count(size)
                line.is_up = True
                self.usage.opened(report.count)
                self._killed = 0
            case messages.Waiting():
                if line.waits(size):
                    most = f"{report.seconds:.0f} s at most"
                    self._tell_wait(f"an earlier process still saves: {most}")
            case messages.MaySleep():
                line.count(size)
                self.sleep()
            case messages.Closed():
                if self._leaving is None:
                    raise FrameError("it was not closed")
                self.resets += self._leaving.discard_variables
                self.opened = self.opened.verified_by(report.verified)
            case messages.Ended() | messages.Failed():
                self._ended(report, line)
            case messages.Event() | messages.Logged():
                line.count(size)
                log_report(report, self.logger, self.opened.session_id or None)
            case _:
                self._handle_of_call(report, size, line)

    def _handle_of_call(self, report: FromCell, size: int, line: WorkerLine) -> None:
        """Handles a message that belongs to the running call."""
        match report:
            case messages.Noted():
                line.count(size)
                self.noted(report.text)
            case messages.Claim() | messages.Served():
                line.count(size)
                self._offers.handle(report, line)
            case BrokerRequest() | BrokerCancel():
                with self._changed:
                    forks = self._calls.forks
                line.serve(report, size, forks + self.function_calls.requests_a_cell)
            case _:
                pending = self._pending_call(report.call) or self._offers.get(report.call)
                if pending is None:
                    line.count(size)
                elif (answer := pending.handle(report, size)) is not None:
                    line.answer(answer)

    @property
    def _last(self) -> int:
        """The number of the worker's last call; later ones wait for the next worker."""
        return self._calls.last_of_worker if self._leaving is None else self._leaving.last_call

    def _pending_call(self, number: int) -> PendingCall | None:
        """Returns a call of the worker by its number; None if it has no such call."""
        with self._changed:
            return self._calls.calls.get(number) if number <= self._last else None

    def _ended(self, report: messages.Ended | messages.Failed, line: WorkerLine) -> None:
        if isinstance(report, messages.Failed) and report.call == 0:
            raise messages.error_of(report)
        self.usage.cpu_seconds = self.usage.ended_seconds + line.worker.cpu_seconds
        if (pending := self._pending_call(report.call)) is None:
            raise FrameError("it answers a call that was not made")
        end = pending.outcome(report)  # a bad answer loses this call with the worker
        if isinstance(report, messages.Ended):
            budget = self.opened.policy["fuel_budget"]
            self.usage.add(report.figures, budget, is_cell=pending.is_cell)
            self.opened = self.opened.for_next_worker
        line.renew()
        if pending.is_cell:
            self._offers.end()
            line.outside.cancel_all()  # a worker that was taken over does not wait for its requests
            self.function_calls.end_cell()
        with self._changed:
            self._calls.remove(report.call)
            self.last_used = time.time()
        self._change_over()
        end()

    def _asleep(self, problem: WasmKernelError | None) -> bool:
        """Ends the calls that the worker did not end; returns whether more came as it was closing.

        `problem` is the reason why the worker is gone; None if it was closed.
        """
        self._home.release(self)
        self.function_calls.close()
        with self._changed:
            left = self._calls.take_until(self._calls.last if self.why_closed else self._last)
            self._take_changes()
            is_lost = isinstance(problem, GuestStopped)
            count = self._use_number() if is_lost and left and left[0].is_counted else 0
            if not self._calls:
                self._thread = None
            self._line = self._leaving = self._calls.worker = None
            is_called = self._thread is not None
            self._changed.notify_all()
        log_lost(problem if left else None, self.logger, self.opened.language)
        for number, pending in enumerate(left):
            if isinstance(problem, GuestStopped):
                pending.lost(problem, began=number == 0, number=0 if number else count)
            else:
                pending.refuse(problem or SandboxClosed(self.why_closed or _RESET))
        return is_called

    def _use_number(self) -> int:
        """Returns the number of a lost cell; the next worker does not use it again."""
        number = self.usage.figures.next_count
        self.usage.count_on(number + 1)
        self.opened = replace(self.opened, count=self.usage.figures.next_count)
        return number

    # -- sleeping, closing, looking after it

    def refuse_if_idle(self, why: str) -> bool:
        """Takes no further call, for the reason `why`, unless a call waits or the guest starts.

        Returns whether it takes none.
        """
        with self._changed:
            if self.state in ("asleep", "idle"):
                self.why_closed = self.why_closed or why
            return bool(self.why_closed)

    @property
    def state(self) -> State:
        """The state: asleep, starting, busy or idle."""
        with self._changed:
            if self._thread is None:
                return "asleep"
            if self._line is None:
                return "starting"
            return "busy" if self._calls else "idle"

    @property
    def is_up(self) -> bool:
        """True if a worker has a guest that takes calls."""
        with self._changed:
            return self._line is not None and self._line.is_up and self._leaving is None

    @property
    def worker(self) -> Worker | None:
        """The worker; None if there is none."""
        return None if (line := self._line) is None else line.worker

    @property
    def leaving_seconds(self) -> float:
        """The seconds since the worker began to fall asleep; below 0 if it does not."""
        return -1.0 if (leaving := self._leaving) is None else leaving.passed

    def sleep(self, why: str = "", *, discard_variables: bool = False) -> bool:
        """Makes the worker close the session, if no call waits for it; returns whether it will.

        Later calls wait for the next worker; with `why`, they are refused. Waiting calls don't
        prevent a refusal, nor `discard_variables`, which a worker that falls asleep can't note.
        """
        is_final = bool(why) or discard_variables
        with self._changed:
            if discard_variables and (self._thread is None or self._leaving is not None):
                return False
            self.why_closed = self.why_closed or why
            if self._thread is None or (self._calls.running is not None and not is_final):
                return False
            self._changed.notify_all()
            if self._leaving is not None:
                return True
            line, grace = self._line, self.opened.policy["grace_seconds"]
            last = self._calls.last if is_final else self._calls.last_of_worker
            self._leaving = Leaving.of(line, grace, last, discard=discard_variables)
            self._calls.worker = None
            self._calls.unsent.clear()  # no worker reads them any more
            waiting = self._calls.take_until(last) if line is None else []
        for pending in waiting:  # no worker ends them
            pending.refuse(SandboxClosed(why or _RESET))
        if line is not None:
            closing = messages.Close(discard_variables, asleep=not is_final)
            self._calls.send_past(line.worker, closing)
        return True

    def wait_asleep(self) -> None:
        """Waits until the worker has ended; kills it if that takes too long.

        Returns at once on the session's own thread, where a listener may close the session.
        """
        if (leaving := self._leaving) is None or threading.current_thread() is self._thread:
            return

        def is_gone() -> bool:
            return self._leaving is not leaving or self._line is None

        while leaving.passed < leaving.seconds + _LEAVE_SECONDS:
            with self._changed:
                if self._changed.wait_for(is_gone, _LOOK_SECONDS):
                    return
            self.look_after()

    def look_after(self) -> None:
        """Ends a worker that is silent, or takes too much memory or time; called every second."""
        self._change_over()  # the call before a held one may have been refused
        with self._changed:
            line, leaving, running = self._line, self._leaving, self._calls.running
            now = time.monotonic()
            passed, self._looked = min(now - self._looked, _LOOK_MOST), now
        if line is None:
            return
        if line.worker.resident_bytes > most_memory(self.opened.policy):
            line.end(_LARGE)
        elif leaving is not None:
            if line.check_leaving(leaving, passed):
                self._tell_wait(f"its process still saves it: {leaving.seconds:.0f} s at most")
        elif running is not None:
            line.check_call(running, self._answer_seconds, passed)
