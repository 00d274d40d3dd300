"""The calls of a session that wait for their worker: `PendingCall`, `PendingCell`.

Each call must be answered within a time limit, so that a worker that was taken over, or hangs,
can't keep its caller waiting.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, astuple

from wasm_kernel.errors import (
    CALL_SECONDS,
    CellTimeout,
    FrameError,
    GuestClosed,
    GuestStopped,
    WasmKernelError,
    WorkerLost,
)
from wasm_kernel.execution.cell_output import CellOutput, as_error, never_ran
from wasm_kernel.execution.interfaces import (
    Cell,
    InputInterrupted,
    InputRefused,
    Listener,
    NoListener,
)
from wasm_kernel.guests.protocol import (
    TEXT_CHARACTERS,
    RichOutput,
    Stream,
    memory_size,
    without_surrogates,
)
from wasm_kernel.linux.broker import log_failure
from wasm_kernel.policy import MIB, ExecutionPolicy
from wasm_kernel.result import CellError, CellResult
from wasm_kernel.service import messages
from wasm_kernel.service.cell_future import CellFuture
from wasm_kernel.service.messages import Figures, Report
from wasm_kernel.service.open_message import Open

LAST_KEPT = (
    "The variables are as they were after the last cell that was kept: the next cell gets another "
    "process, and says which one that was. The files in /app are as the cell left them."
)
_ENDED = "ended before this cell began"
_NOT_RUN = "The cell was not run; send it again."
_NO_ANSWER = "The program that takes input failed; its log says how."
_MARGIN_BYTES = 128 * MIB  # for a call's messages, beyond the policy's limits of output
_OVERHEAD = 4096  # uncounted bytes around an output; the worker allows the same
_MARGIN_OUTPUTS = 2_000  # for errors, which have a limit of their own
_OWN_BYTES = 512 * MIB  # the most that a worker takes for itself and a single output
_CALL_SECONDS = 300.0  # beside the guest's own time: some GiB of state may be read or written
_LATE_SECONDS = 30.0  # for a worker to end a call that was interrupted twice, beyond its grace
START_SECONDS = 120.0
"""Additional seconds for the first call of a worker, which reads the state."""

_CHARACTER_BYTES = 6  # the most that a character takes in JSON


def _most_bytes(policy: ExecutionPolicy) -> int:
    """Returns the most bytes of one call's messages; a worker that sends more is ended."""
    text = policy.stdout_bytes + policy.stderr_bytes
    return _MARGIN_BYTES + _CHARACTER_BYTES * text + 2 * (policy.display_bytes + policy.comm_bytes)


def _seconds(request: messages.CallRequest, policy: ExecutionPolicy) -> float:
    """Returns a request's time limit, which the worker enforces; infinite for a cell without one.

    It is 0 for other requests.
    """
    match request:
        case Cell():
            limits = (policy.cell_timeout, request.timeout_seconds)
            return min((limit for limit in limits if limit), default=math.inf)
        case messages.Query():
            return policy.query_seconds
        case messages.Comm():
            return policy.comm_seconds
    return 0.0


def most_memory(policy: Mapping[str, Any]) -> int:
    """Returns the most memory that a worker may take; a worker that takes more is ended.

    The current memory, the one before a rollback, and unwritten pages may exist at once.
    """
    text = policy["stdout_bytes"] + policy["stderr_bytes"]
    return int(3 * policy["memory_bytes"] + policy["display_bytes"] + 4 * text + _OWN_BYTES)


def done() -> Future[None]:
    """Returns the future of a call that has nothing to do."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


def stuck(report: messages.Stuck) -> GuestStopped:
    """Returns the error of a guest that only the end of its worker could stop."""
    from wasm_kernel.state import texts

    error, kept = report.reason.error(), texts.KEPT if report.is_kept else LAST_KEPT
    error.kept = texts.FILES_KEPT if isinstance(error, GuestClosed) else kept
    if report.is_spoilt:
        error.setting, error.kept = "", texts.SPOILT
    return error


class PendingCall:
    """A call that its worker has not answered yet. The session's thread ends it.

    Args:
        request: The request for the worker.
        policy: The limits of its session.
        listener: Gets what the guest shows during the call.
        progress: Gets sentences about a start that takes long.

    Attributes:
        future: Gets the call's value.
        forks: How many forks it makes.
        is_counted: Whether it is a cell that gets a number.
    """

    is_counted = False

    def __init__(
        self,
        request: messages.CallRequest,
        policy: ExecutionPolicy,
        listener: Listener | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.request = request
        self.future: Future[Any] = Future()
        if listener is not None and not hasattr(listener, "emit"):
            raise TypeError(f"a listener has the methods of Listener; {listener!r} has none")
        if not (progress is None or callable(progress)):
            raise TypeError(f"progress is a function that takes a sentence, not {progress!r}")
        self.listener = NoListener() if listener is None else listener
        self.forks = len(request.ids) if isinstance(request, messages.Fork) else 0
        self._left = _most_bytes(policy)
        self._fuel_budget, self._made = policy.fuel_budget, time.monotonic()
        self._progress = progress or (lambda text: None)
        self._late = 2 * policy.grace_seconds + _LATE_SECONDS
        self._seconds_left = _seconds(request, policy) + (1 + self.forks) * _CALL_SECONDS
        self._has_begun, self._interrupts = False, 0

    @property
    def is_cell(self) -> bool:
        """True if the call is a cell."""
        return isinstance(self.request, Cell)

    def begin(self, more: float = 0.0) -> None:
        """Begins to count the first call's time, with `more` additional seconds."""
        if not self._has_begun:
            self._has_begun = True
            self._seconds_left += more

    def interrupted(self) -> None:
        """Notes an interrupt. After a second one, no cell may go on for longer than its grace."""
        self._interrupts += 1
        if self._interrupts > 1:
            self._seconds_left = min(self._seconds_left, self._late)

    def is_overdue(self, passed: float) -> bool:
        """Returns whether the worker should have ended the call, after `passed` more seconds."""
        self._seconds_left -= passed if self._has_begun else 0.0
        return self._seconds_left < 0

    def handle(self, report: Report, size: int) -> messages.InputReply | None:
        """Takes a message of `size` bytes about it; returns the answer, if it is a question.

        Raises `FrameError` if the worker sends more than it may.
        """
        self._left -= size
        if self._left < 0:
            raise FrameError("it sends more than a cell may show")
        try:
            return self._heard(report)
        except FrameError:
            raise
        except BaseException as problem:  # the application's own code, which may exit
            log_failure("a listener", problem)
            return None

    def tell(self, text: str) -> None:
        """Passes on a sentence about the worker's start."""
        try:
            self._progress(text)
        except BaseException as problem:  # the application's own code, which may exit
            log_failure("a listener", problem)

    def _heard(self, report: Report) -> messages.InputReply | None:
        match report:
            case messages.OutputShown():
                self.listener.emit(report.output)
            case messages.CommOut():
                self.listener.comm(report.message)
            case messages.Terminating():
                self.listener.terminate()
            case messages.InputRequest():
                return self._ask(report)
        return None

    def _ask(self, asked: messages.InputRequest) -> messages.InputReply:
        number = asked.question
        try:
            line = without_surrogates(self.listener.ask(asked.prompt, asked.password))
        except InputInterrupted:
            return messages.InputReply(number, interrupted=True)
        except InputRefused as refusal:
            why = without_surrogates(str(refusal)) or "input was refused"
            return messages.InputReply(number, refused=why)
        except BaseException as problem:  # without an answer, the cell would wait for ever
            log_failure("a listener", problem)
            return messages.InputReply(number, refused=_NO_ANSWER)
        if len(line) > TEXT_CHARACTERS:
            return messages.InputReply(number, refused="the line is too long")
        return messages.InputReply(number, line)

    def outcome(self, report: messages.Ended | messages.Failed) -> Callable[[], None]:
        """Reads the worker's answer, and returns a function that ends the call with it.

        Raises `FrameError` if the answer is of another type.
        """
        if isinstance(report, messages.Failed):
            error = messages.error_of(report)
            return lambda: self.refuse(error)
        kind, figures = messages.REPLIES[type(self.request)], report.figures
        value = messages.read_value(report.value, kind)
        return lambda: self._finish(value, figures)

    def refuse(self, problem: WasmKernelError) -> None:
        """Ends the call with an error."""
        self._settle(self.future.set_exception, problem)

    def lost(self, problem: GuestStopped, *, began: bool, number: int = 0) -> None:
        """Ends the call because its worker is gone, for the reason `problem`.

        `began` is true if it may have begun. A counted cell that has begun has a `number`.
        """
        self.refuse(problem)

    def _finish(self, value: Any, figures: Figures) -> None:
        self._settle(self.future.set_result, value)

    def _settle(self, settle: Callable[[Any], None], outcome: Any) -> None:
        """Ends the future. An application's callback that exits does not end the session."""
        if self.future.set_running_or_notify_cancel():
            try:
                settle(outcome)
            except BaseException as problem:
                log_failure("a callback", problem)


class PendingCell(PendingCall):
    """A cell; its result holds its outputs, if its listener wants that.

    `opened` is the message that opens its session.
    """

    def __init__(
        self,
        cell: Cell,
        future: CellFuture,
        policy: ExecutionPolicy,
        opened: Open,
        listener: Listener | None,
        *,
        progress: Callable[[str], None] | None,
    ) -> None:
        super().__init__(cell, policy, listener, progress)
        self.future = future
        self._output = CellOutput(wanted=self.listener.collects)
        self._outputs_left = policy.display_count + _MARGIN_OUTPUTS
        self._memory_left = policy.display_bytes + _MARGIN_BYTES
        self._timeout = cell.timeout_seconds
        self._door = policy.door
        self._nothing = never_ran(Path(opened.workspace), opened.session_id)
        self.is_counted = cell.store_history

    def _heard(self, report: Report) -> messages.InputReply | None:
        if isinstance(report, messages.OutputShown):
            if not isinstance(report.output, Stream):
                self._count(report.output)
            self._output.add(report.output)
        return super()._heard(report)

    def _count(self, output: RichOutput) -> None:
        """Counts an output by its size in memory, which may be much more than that of its JSON."""
        self._outputs_left -= 1
        self._memory_left -= max(0, memory_size(astuple(output)) - _OVERHEAD)
        if min(self._outputs_left, self._memory_left) < 0:
            raise FrameError("it shows more than a cell may")

    def _finish(self, value: CellResult | None, figures: Figures) -> None:
        if value is None:  # it was interrupted before it began
            self._end(memory_used_bytes=figures.memory_bytes)
            return
        fields = asdict(value)
        # bounded, because the service adds them up and the worker may send any number
        fields["duration"] = min(value.duration, time.monotonic() - self._made)
        if value.fuel_consumed is not None:
            budget = self._fuel_budget
            fields["fuel_consumed"] = budget and min(value.fuel_consumed, budget)
        self._end(**fields)

    def cancel(self) -> None:
        """Ends the cell as interrupted before it began."""
        self._end()

    def lost(self, problem: GuestStopped, *, began: bool, number: int = 0) -> None:
        """Ends the cell with a result that says what is kept."""
        if isinstance(problem, CellTimeout) and problem.seconds == self._timeout:
            problem.setting = CALL_SECONDS
        shown = as_error(problem if began else WorkerLost(_ENDED, _NOT_RUN), self._door)
        try:
            self.listener.emit(shown)
        except BaseException as failure:
            log_failure("a listener", failure)
        error = CellError(shown.ename, shown.evalue, shown.traceback)
        counted = {"execution_count": number} if number else {}
        self._end(error=error, reply={"status": "error", **counted, "payload": []})

    def _end(self, **fields: Any) -> None:
        fields |= {name: self._output.text(name) for name in ("stdout", "stderr")}
        result = replace(self._nothing, outputs=tuple(self._output.outputs), **fields)
        self._settle(self.future.set_result, result)
