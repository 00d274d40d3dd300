"""`SessionWorker`: the worker of one session, while it is awake, and the calls that wait for it.

A session is asleep until a call wakes it: a thread has a worker forked, sends it what waits, and
hears it. When nobody needs the session the worker is closed; memory is on disk by then. A worker
that ends by itself is lost, and so is the cell that ran in it; the next call gets another one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel import events
from wasm_kernel.engine.clock import StopReason
from wasm_kernel.errors import (
    FrameError,
    GuestClosed,
    GuestStopped,
    LimitReached,
    SandboxClosed,
    WasmKernelError,
    WorkerLost,
    describe,
)
from wasm_kernel.events import SandboxLogger
from wasm_kernel.linux.broker import INTERNAL_ERROR, Handlers, log_failure
from wasm_kernel.linux.task import Cancelled
from wasm_kernel.policy import MIB
from wasm_kernel.service import messages
from wasm_kernel.service.calls import PendingCall, RemoteTask
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.messages import Figures, Open, Report

State = Literal["starting", "idle", "busy", "asleep"]

_LOG = logging.getLogger("wasm_kernel.service")
_CLOSE_SECONDS = 130.0  # for a worker to write what is left of its session
_NOTES_BYTES = 4 * MIB  # of events and what it logs, from one answer to the next
_WANTED_MOST = 4  # things beyond the walls that a worker may ask for at once
_EVENTS = frozenset(
    value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)
)
_ENDED = "has ended, or was killed"
_SILENT = "did not answer for {seconds:g} seconds, and was ended"
_OVERDUE = "went on after the cell's time was over, and was ended"
_BROKE = "sent what it must not, and was ended"
_KEPT = (
    "The variables are as they were after the last cell that was kept: the next cell gets another "
    "process, and says which one that was. The files in /app are as the cell left them."
)


class SandboxHome(Protocol):
    """What a service does for the sessions in it. Any thread may call it."""

    def admit(self, session: SessionWorker) -> None:
        """Makes room for a worker of a session, or says that there is none.

        Raises:
            LimitReached: there is none.
        """

    def release(self, session: SessionWorker) -> None:
        """Notes that a session is asleep."""

    def spawn(self, session: SessionWorker, progress: Callable[[str], None]) -> Worker:
        """Returns a new worker.

        Raises:
            WasmKernelError: there can't be one.
        """

    def handlers(self, session: SessionWorker) -> Handlers:
        """Returns what is done for a session beyond the walls; each checks its request."""


class Usage(Struct):
    """What a session has used since the service knows it.

    Attributes:
        cells: How many cells have ended.
        fuel: The fuel that they burnt, if it was counted.
        ended_seconds: The processor time of its workers that have ended.
        cpu_seconds: That of all of them, as of the last call that ended.
        figures: What the worker said last.
    """

    cells: int = 0
    fuel: int = 0
    ended_seconds: float = 0.0
    cpu_seconds: float = 0.0
    figures: Figures = Figures()


class SessionWorker:
    """The worker of one session, if it is awake. Any thread may use it.

    Args:
        opened: The session.
        home: The service that it is in.
        logger: Gets the session's events.
        queue: How many cells may wait.
        answer_seconds: How long a worker may be silent while somebody waits for it.

    Attributes:
        opened: The session.
        usage: What it has used.
        last_used: When it was used last, in seconds since 1970.
    """

    def __init__(
        self,
        opened: Open,
        home: SandboxHome,
        logger: SandboxLogger,
        *,
        queue: int,
        answer_seconds: float,
    ) -> None:
        self.opened = opened
        self.usage = Usage()
        self.last_used = time.time()
        self._home = home
        self._logger = logger
        self._queue = queue
        self._answer_seconds = answer_seconds
        self._changed = threading.Condition()
        self._calls: dict[int, PendingCall] = {}
        self._unsent: deque[Struct] = deque()
        self._number = 0
        self._interrupted = 0  # the number of the call that was interrupted last
        self._thread: threading.Thread | None = None
        self._worker: Worker | None = None
        self._is_leaving = self._is_hearing = False
        self._leave_by = 0.0
        self._notes_left = _NOTES_BYTES
        self._silent_since: float | None = None
        self._condemned = ""
        self._why_closed = ""
        self._wanted: dict[int, RemoteTask] = {}
        self._sending = threading.Lock()

    def tell(self, notice: str) -> None:
        """Has the first cell say something; for a session that no worker has opened yet."""
        self.opened = replace(self.opened, notices=(notice,))

    # -- calls

    def call(self, make: Callable[[int], Struct], pending: PendingCall) -> int:
        """Sends a call to the worker, which is forked if there is none; does not wait for it.

        Args:
            make: Makes its message from its number.
            pending: Gets what becomes of it.

        Returns:
            Its number.

        Raises:
            SandboxClosed: the session was closed.
            LimitReached: there is no room for it.
        """
        self._home.admit(self)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_leaving or self._why_closed)
            if self._why_closed:
                if self._thread is None:
                    self._home.release(self)
                raise SandboxClosed(self._why_closed)
            if pending.is_cell:
                self._check_queue()
            self._number += 1
            number = self._number
            self._calls[number] = pending
            if len(self._calls) == 1:
                pending.begin()
            self._unsent.append(make(number))
            self.last_used = time.time()
            if self._thread is None:
                name = f"session {self.opened.session_id}"
                self._thread = threading.Thread(target=self._live, name=name, daemon=True)
                self._thread.start()
        self._flush()
        return number

    def _check_queue(self) -> None:
        if sum(call.is_cell for call in self._calls.values()) > self._queue:
            raise LimitReached(
                "queue",
                f"{self._queue:,} cells of this session wait already.",
                "Wait for one of them, interrupt the running one, or raise queue.",
            )

    def interrupt(self, call: int = 0) -> bool:
        """Interrupts a cell by its call's number, or the one that runs; returns whether there is.

        Args:
            call: The number; 0 for the one that runs.
        """
        with self._changed:
            if not (call in self._calls if call else self._calls):
                return False
            self._interrupted = call or next(iter(self._calls))
            self._unsent.append(messages.Interrupt(call))
        self._flush()
        return True

    @property
    def is_interrupted(self) -> bool:
        """True if a wait on behalf of the running cell should end now."""
        with self._changed:
            first = next(iter(self._calls), 0)
            return bool(self._why_closed) or first in (0, self._interrupted)

    def _flush(self) -> None:
        """Sends what waits, in its order."""
        while self._unsent and (worker := self._worker) is not None:
            with self._sending:
                try:
                    message = self._unsent.popleft()
                except IndexError:
                    return
                try:
                    worker.channel.send(message)
                except OSError:
                    return  # the thread hears of it, too
                except FrameError as problem:
                    self._refuse(message, problem)
                except (ValueError, TypeError, RecursionError) as problem:  # it is no JSON
                    self._refuse(message, FrameError(describe(problem)))

    def _refuse(self, message: Struct, problem: FrameError) -> None:
        with self._changed:
            pending = self._calls.pop(getattr(message, "call", 0), None)
        if pending is not None:
            pending.refuse(problem)

    # -- the thread of a session that is awake

    def _live(self) -> None:
        problem: WasmKernelError | None = None
        try:
            worker = self._home.spawn(self, self._progress)
        except WasmKernelError as failure:
            self._asleep(failure)
            return
        try:
            worker.channel.send(self.opened)
            self._worker = worker
            self._flush()
            self._hear(worker)
        except (EOFError, OSError):
            if not self._is_leaving:
                problem = WorkerLost(self._condemned or _ENDED, _KEPT)
        except FrameError as broken:
            _LOG.error("a worker broke the protocol: %s", ascii(str(broken)))
            problem = WorkerLost(_BROKE, _KEPT)
        except WasmKernelError as failure:  # stuck, or the session can't be opened
            problem = failure
        finally:
            self.usage.ended_seconds = self.usage.cpu_seconds
            worker.close()
            self._asleep(problem)

    def _progress(self, text: str) -> None:
        for pending in [*self._calls.values()]:
            pending.take(messages.Progress(0, text), 0)

    def _hear(self, worker: Worker) -> None:
        """Takes the worker's messages until it ends.

        Raises:
            EOFError, OSError: it has ended.
            FrameError: it breaks the protocol.
            WasmKernelError: it could not open the session.
        """
        while True:
            self._is_hearing = True
            data = worker.channel.receive()
            self._is_hearing, self._silent_since = False, None
            self._take(messages.read_report(data), len(data), worker)

    def _take(self, report: Report, size: int, worker: Worker) -> None:
        match report:
            case messages.Pong():
                pass
            case messages.Stuck():
                raise self._stopped(report.reason)
            case messages.Closed():
                self.opened = replace(self.opened, verified=report.verified)
            case messages.Ended() | messages.Failed():
                self._ended(report, worker)
            case messages.Event() | messages.Logged():
                self._notes_left -= size
                if self._notes_left < 0:
                    raise FrameError("it logs more than anybody reads")
                self._log(report)
            case messages.Wanted():
                self._do(report, worker)
            case messages.Unwanted():
                if (task := self._wanted.get(report.number)) is not None:
                    task.cancelled = True
            case _:
                pending = self._calls.get(report.call)
                if pending is not None and (answer := pending.take(report, size)) is not None:
                    self._is_hearing = True  # whoever asks has to read the answer
                    worker.channel.send(answer)

    def _ended(self, report: messages.Ended | messages.Failed, worker: Worker) -> None:
        if isinstance(report, messages.Failed) and report.call == 0:
            raise messages.error_of(report)
        self.usage.cpu_seconds = self.usage.ended_seconds + worker.cpu_seconds
        with self._changed:
            pending = self._calls.pop(report.call, None)
            if pending is None:
                return
            self._notes_left = _NOTES_BYTES
            for first in [*self._calls.values()][:1]:
                first.begin()
            self.last_used = time.time()
        try:
            if isinstance(report, messages.Ended):
                self.usage.figures = report.figures
                self.opened = replace(self.opened, notices=())
                self.usage.cells += pending.is_cell
                self.usage.fuel += report.figures.fuel
                pending.ended(report)
            else:
                pending.failed(report)
        except FrameError:  # the worker is lost, and this call with it
            with self._changed:
                self._calls = {report.call: pending, **self._calls}
            raise

    def _stopped(self, reason: StopReason) -> GuestStopped:
        """Returns the error of a guest that only the end of its worker could stop."""
        from wasm_kernel.state import texts

        error = reason.error()
        error.kept = texts.FILES_KEPT if isinstance(error, GuestClosed) else texts.KEPT
        return error

    def _log(self, event: messages.Event | messages.Logged) -> None:
        """Sends an event on, if it is one of ours, or logs what the worker logged."""
        if isinstance(event, messages.Logged):
            _LOG.log(event.level, "a worker: %s", ascii(event.text))
            return
        fields = {name: value for name, value in event.fields.items() if name.isidentifier()}
        if event.name in _EVENTS and "event" not in fields:
            self._logger.log_event(event.name, **{**fields, "session_id": self.opened.session_id})

    def _asleep(self, problem: WasmKernelError | None) -> None:
        """Ends the thread's calls, and lets the next call have another worker.

        Args:
            problem: Why the worker is gone; None if it was closed.
        """
        self._home.release(self)
        with self._changed:
            left, self._calls = [*self._calls.values()], {}
            self._unsent.clear()
            self._worker = self._thread = self._silent_since = None
            self._is_leaving, self._condemned = False, ""
            self._notes_left = _NOTES_BYTES
            for task in self._wanted.values():
                task.cancelled = True
            self._wanted = {}
            self._changed.notify_all()
        for number, pending in enumerate(left):
            if isinstance(problem, GuestStopped):
                pending.lost(problem, began=number == 0)
            else:
                pending.refuse(problem or SandboxClosed(self._why_closed))

    # -- beyond the walls

    def _do(self, wanted: messages.Wanted, worker: Worker) -> None:
        if len(self._wanted) >= _WANTED_MOST or wanted.number in self._wanted:
            raise FrameError("it asks for too much at once")
        task = RemoteTask(worker, wanted.number)
        self._wanted[wanted.number] = task
        threading.Thread(target=lambda: self._handle(wanted, task), daemon=True).start()

    def _handle(self, wanted: messages.Wanted, task: RemoteTask) -> None:
        try:
            answer = self._answered(wanted, task)
        except Cancelled:
            answer = messages.Answer(wanted.number, cancelled=True)
        except WasmKernelError as problem:
            answer = messages.Answer(wanted.number, why=str(problem) or INTERNAL_ERROR)
        except Exception as problem:
            log_failure(wanted.name, problem)
            answer = messages.Answer(wanted.number, why=INTERNAL_ERROR)
        with self._changed:
            if self._wanted.get(wanted.number) is task:
                del self._wanted[wanted.number]
        task.tell(answer)

    def _answered(self, wanted: messages.Wanted, task: RemoteTask) -> messages.Answer:
        for kind, handler in self._home.handlers(self).items():
            if kind.__name__ == wanted.name:
                reply = handler(messages.read_value(wanted.request, kind), task)
                return messages.Answer(wanted.number, msgspec.Raw(msgspec.json.encode(reply)))
        raise FrameError("there is no handler for this request")

    # -- sleeping, closing, looking after it

    @property
    def state(self) -> State:
        """Whether it is asleep, starting, busy or idle."""
        with self._changed:
            if self._thread is None:
                return "asleep"
            if self._worker is None:
                return "starting"
            return "busy" if self._calls else "idle"

    @property
    def worker(self) -> Worker | None:
        """The worker; None if there is none."""
        return self._worker

    @property
    def why_closed(self) -> str:
        """Why no further call is taken; empty if they are."""
        return self._why_closed

    def sleep(self, why: str = "", *, anew: bool = False) -> bool:
        """Has the worker close the session, if no call waits for it; returns whether it does so.

        Args:
            why: Why no further call is taken; empty if the next one may wake it. Calls that wait
                do not matter then.
            anew: Whether whoever opens the session next begins without its variables.
        """
        with self._changed:
            self._why_closed = self._why_closed or why
            if self._thread is None or (self._calls and not why):
                return False
            self._changed.notify_all()
            if self._is_leaving:
                return True
            self._is_leaving, self._leave_by = True, time.monotonic() + _CLOSE_SECONDS
            self._unsent.append(messages.Close(anew))
        threading.Thread(target=self._flush, daemon=True).start()  # the worker may not read
        return True

    def wait_asleep(self) -> None:
        """Waits until the worker has ended; kills it if it takes too long."""
        with self._changed:  # the next call may wake it at once: its thread says nothing
            left = self._leave_by - time.monotonic()
            if not self._changed.wait_for(lambda: not self._is_leaving, left):
                self._kill(_SILENT.format(seconds=_CLOSE_SECONDS))
                self._changed.wait_for(lambda: not self._is_leaving)

    def look_after(self) -> None:
        """Ends a worker that does not answer, or goes on for too long; called every second."""
        with self._changed:
            worker, first = self._worker, next(iter(self._calls.values()), None)
            is_hearing, since = self._is_hearing, self._silent_since
            is_leaving = self._is_leaving
        if is_leaving and time.monotonic() > self._leave_by:
            self._kill(_SILENT.format(seconds=_CLOSE_SECONDS))
        if worker is None or first is None or is_leaving or not is_hearing:
            return
        if first.is_overdue():
            self._kill(_OVERDUE)
        elif since is None:
            self._silent_since = time.monotonic()
            with contextlib.suppress(OSError):  # the thread hears of it
                worker.channel.send_at_once(messages.Ping())
        elif time.monotonic() - since > self._answer_seconds:
            self._kill(_SILENT.format(seconds=self._answer_seconds))

    def _kill(self, why: str) -> None:
        self._condemned = why
        if self._worker is not None:
            self._worker.kill()
