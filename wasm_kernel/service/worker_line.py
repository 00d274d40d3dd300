"""`WorkerLine`: the messages of one worker, checked and counted, and a watch on its silence.
`Leaving` is the time that a worker has for closing its session.

A worker that was taken over may send anything: rubbish, too much, or nothing. Its time passes from
look to look, so that none passes while this process itself is stopped, or gets no processor.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from msgspec import Struct

from wasm_kernel import events
from wasm_kernel.errors import FrameError, GuestStopped, WasmKernelError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.linux.broker import BrokerCancel, BrokerRequest, BrokerServer, Handlers
from wasm_kernel.linux.memory import oom_kills
from wasm_kernel.policy import MIB
from wasm_kernel.service import messages
from wasm_kernel.service.calls import PendingCall
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.messages import Report

_LOG = logging.getLogger("wasm_kernel.service")
_STRAY_BYTES = 4 * MIB  # bytes of messages that belong to no call, from one answer to the next
_STRAY_LEAST = 256  # added to the size of each of them
_REQUESTS_MOST = 256  # with cancels, from one answered call to the next; a `%pip` is one
_REQUEST_BYTES = 16 * MIB  # bytes of one request, which may name a thousand paths
_EVENTS = frozenset(
    value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)
)
SLOW_SECONDS = 60.0
"""Seconds of silence after which a worker that falls asleep is ended."""

_CLOSE_SECONDS = 150.0  # for a worker to close its session, beside its grace and writing
_TELL_SECONDS = 2.0  # the silent part of the wait for its end
_DISK_SPEED = 4 * MIB  # bytes a second; the worker's own memory is the most that is left to write
SILENT = "did not answer for {seconds:g} seconds, and was ended"
_KILLED = "has ended, or was killed"
_OUT_OF_MEMORY = (
    "was killed, probably by the system, which has just ended processes because the machine, or a "
    "container on it, had no memory left"
)
_SLOW = "did not close its session within {seconds:.0f} seconds, and was ended"


class WorkerLine:
    """The line to one worker. The session's thread reads it; any thread may check on the worker.

    `why_ended` says in words why the worker was ended; empty if it was not. `has_guest` is true if
    the worker may have begun a call, `is_up` if its guest has started. While it `is_hearing`, the
    session's thread waits for the worker; otherwise that thread handles a message. `handlers` serve
    the worker's requests for work beyond its walls.
    """

    def __init__(self, worker: Worker, handlers: Callable[[], Handlers]) -> None:
        self.worker = worker
        self.outside = BrokerServer(worker.channel, handlers)
        self.why_ended = ""
        self.is_hearing = False  # the first message, which opens the session, has not been sent
        self.has_guest = False
        self.is_up = False
        self._has_waited = False
        self._silence: float | None = None  # seconds since a ping
        self._guard = threading.Lock()
        self._pings = 0  # unanswered
        self._stray_left = _STRAY_BYTES
        self._requests = 0
        self._oom_kills = oom_kills()

    @property
    def why_lost(self) -> str:
        """The reason why the worker is gone, as the end of a sentence about its process."""
        return self.why_ended or (_KILLED if oom_kills() == self._oom_kills else _OUT_OF_MEMORY)

    def hear(self) -> tuple[Report, int]:
        """Waits for a message; returns it with its size.

        Raises `EOFError` or `OSError` if the worker has ended, `FrameError` if the message is bad.
        """
        self.is_hearing = True
        data = self.worker.channel.receive()
        self.is_hearing, self._silence = False, None
        report = messages.read_report(data)
        if isinstance(report, messages.Pong) and self._expect(-1) < 0:
            raise FrameError("it answered a ping that was not sent")
        return report, len(data)

    def answer(self, message: Struct) -> None:
        """Sends an answer; from now on the worker's silence counts."""
        self.is_hearing = True
        self.worker.channel.send(message)

    def count(self, size: int) -> None:
        """Counts a message of `size` bytes that belongs to no call; `FrameError` if too many."""
        self._stray_left -= size + _STRAY_LEAST
        if self._stray_left < 0:
            raise FrameError("it sends too many messages beside its calls")

    def waits(self, size: int) -> bool:
        """Counts a worker's message that it waits; returns whether it is the first one."""
        self.count(size)
        is_first, self._has_waited = not self._has_waited, True
        return is_first

    def serve(self, message: BrokerRequest | BrokerCancel, size: int, more: int) -> None:
        """Begins to serve a request for work beyond the walls, or cancels one.

        Raises `FrameError` if it is too large, or the worker makes `more` than a cell may.
        """
        self._requests += 1
        if size > _REQUEST_BYTES or self._requests > _REQUESTS_MOST + more:
            raise FrameError("it asks for too much")
        self.outside.handle(message)

    def renew(self) -> None:
        """Notes that a call has ended: the counts of messages without a call begin at 0."""
        self._stray_left, self._requests = _STRAY_BYTES, 0

    def check_leaving(self, leaving: Leaving, passed: float) -> bool:
        """Ends a worker that takes too long to close its session.

        Returns whether those who wait should hear of it now, once.
        """
        leaving.passed += passed
        self._ping(SLOW_SECONDS, passed)
        if leaving.passed > leaving.seconds:
            self.end(_SLOW.format(seconds=leaving.seconds))
        is_news = leaving.passed > _TELL_SECONDS and not leaving.is_told
        leaving.is_told = leaving.is_told or is_news
        return is_news

    def check_call(self, running: PendingCall, silence: float, passed: float) -> None:
        """Ends a worker that is silent for `silence` seconds, or whose call takes too long."""
        if self.is_hearing:  # otherwise the caller's own code takes the time
            self._ping(silence, passed)
            if running.is_overdue(passed):
                self.end("went on after the call's time was over, and was ended")

    def _ping(self, seconds: float, passed: float) -> None:
        """Sends the worker a ping; ends it if it has been silent for `seconds`."""
        if not self.is_hearing:
            return
        if (silence := self._silence) is None:
            self._silence = 0.0
            self._expect(1)
            with contextlib.suppress(OSError):  # the session's thread gets the error
                if not self.worker.channel.send_at_once(messages.Ping()):
                    self._expect(-1)
        else:
            self._silence = silence + passed
            if self._silence > seconds:
                self.end(SILENT.format(seconds=seconds))

    def _expect(self, pongs: int) -> int:
        """Changes the number of expected answers by `pongs`; returns the number."""
        with self._guard:
            self._pings += pongs
            return self._pings

    def end(self, why: str) -> None:
        """Kills the worker; the session's thread notices.

        `why` is the end of a sentence about the session's process.
        """
        if not self.why_ended:
            self.why_ended = why
            _LOG.warning("process %d of a session %s", self.worker.process, why)
        self.worker.kill()


class Leaving(Struct, eq=False):
    """A session that is falling asleep, which may take `seconds` in all.

    Calls later than `last_call` wait for the next worker. With `discard_variables` the next worker
    begins without variables. `passed` are the seconds since it began to fall asleep. `is_told` says
    whether those who wait know of it.
    """

    seconds: float
    last_call: int
    discard_variables: bool
    passed: float = 0.0
    is_told: bool = False

    @classmethod
    def of(cls, line: WorkerLine | None, grace: float, last: int, *, discard: bool) -> Leaving:
        """Returns the time for a worker with a grace, measured by the system, to close."""
        memory = 0 if line is None else line.worker.resident_bytes
        return cls(_CLOSE_SECONDS + grace + memory / _DISK_SPEED, last, discard)


def log_report(
    report: messages.Event | messages.Logged, logger: SandboxLogger, session_id: str | None
) -> None:
    """Logs a worker's records and events; leaves out events that are not ours."""
    if isinstance(report, messages.Logged):
        _LOG.log(report.level, "a worker: %s", ascii(report.text))
    elif report.name in _EVENTS and "event" not in report.fields:
        fields = {name: value for name, value in report.fields.items() if name.isidentifier()}
        logger.log_event(report.name, **{**fields, "session_id": session_id})


def log_lost(problem: WasmKernelError | None, logger: SandboxLogger, runtime: str) -> None:
    """Logs that a call has lost its guest together with the worker, which can't log it."""
    if isinstance(problem, GuestStopped):
        logger.log_event(events.EXECUTION_TRAP, runtime=runtime, trap=type(problem).__name__)
        if problem.setting:
            logger.log_event(events.EXECUTION_LIMIT, runtime=runtime, limit=problem.setting)
