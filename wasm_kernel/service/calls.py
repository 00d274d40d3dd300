"""The calls of a session that wait for their worker. Each has a time in which it must be answered:
a worker that was taken over, or hangs, keeps nobody waiting.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from wasm_kernel.errors import (
    CALL_SECONDS,
    CellTimeout,
    FrameError,
    GuestClosed,
    GuestStopped,
    WasmKernelError,
    WorkerLost,
)
from wasm_kernel.execution.cell_future import CellFuture, CellOutput, as_error
from wasm_kernel.execution.interfaces import InputInterrupted, InputRefused, Listener, NoListener
from wasm_kernel.guests.protocol import Stream, memory_size, without_surrogates
from wasm_kernel.linux.broker import log_failure
from wasm_kernel.policy import MIB, ExecutionPolicy
from wasm_kernel.result import CellError, SandboxResult
from wasm_kernel.service import messages
from wasm_kernel.service.messages import CellResult, Figures, Report

LAST_KEPT = (
    "The variables are as they were after the last cell that was kept: the next cell gets another "
    "process, and says which one that was. The files in /app are as the cell left them."
)
_ENDED = "ended before this cell began"
_NOT_RUN = "The cell was not run; send it again."
_MARGIN_BYTES = 128 * MIB  # of a call's messages, beyond what the policy lets a cell show
_OVERHEAD = 4096  # bytes around an output that are not counted, as the worker has it
_MARGIN_OUTPUTS = 2_000  # errors among them, which have a limit of their own
_OWN_BYTES = 512 * MIB  # that a worker takes for itself and a single output, at most
_CALL_SECONDS = 300.0  # for what is no cell: a state of some GiB may be read or written
_LATE_SECONDS = 30.0  # for a worker to end a call whose time is over, beyond its grace
START_SECONDS = 120.0
"""Seconds that the first call of a worker has in addition, as the state is read."""

_CHARACTER_BYTES = 6  # that a character takes in JSON


def _most_bytes(policy: ExecutionPolicy) -> int:
    """Returns what the messages of one call may have in all: a worker that sends more is lost."""
    text = policy.stdout_bytes + policy.stderr_bytes
    return _MARGIN_BYTES + _CHARACTER_BYTES * text + 2 * (policy.display_bytes + policy.comm_bytes)


def most_memory(policy: Mapping[str, Any]) -> int:
    """Returns what a worker may take in all: one that takes more has lost count of it.

    Its guest's memory may be there three times for a moment: as it is, as it was before a
    rollback, and as pages that are still to be written.
    """
    text = policy["stdout_bytes"] + policy["stderr_bytes"]
    return int(3 * policy["memory_bytes"] + policy["display_bytes"] + 4 * text + _OWN_BYTES)


def stuck(report: messages.Stuck) -> GuestStopped:
    """Returns the error of a guest that only the end of its worker could stop."""
    from wasm_kernel.state import texts

    error, kept = report.reason.error(), texts.KEPT if report.is_kept else LAST_KEPT
    error.kept = texts.FILES_KEPT if isinstance(error, GuestClosed) else kept
    return error


class PendingCall:
    """A call that its worker has not answered yet. The session's thread ends it.

    Args:
        future: Gets its value.
        kind: The type of the value.
        policy: The limits of its session.
        listener: Gets what the guest shows meanwhile.
        progress: Gets sentences about a start that takes long.
        seconds: The time that the worker keeps it within; None if it keeps no time.
        forks: How many forks it makes.

    Attributes:
        message: What is sent of it.
    """

    message: Struct

    def __init__(
        self,
        future: Future[Any],
        kind: Any,
        policy: ExecutionPolicy,
        listener: Listener | None = None,
        *,
        progress: Callable[[str], None] = lambda text: None,
        seconds: float | None = None,
        forks: int = 0,
    ) -> None:
        self.future = future
        self.listener = listener or NoListener()
        self.forks = forks
        self._kind = kind
        self._left = _most_bytes(policy)
        self._fuel_budget, self._made = policy.fuel_budget, time.monotonic()
        self._progress = progress
        self._late = 2 * policy.grace_seconds + _LATE_SECONDS
        self._limit = (1 + forks) * _CALL_SECONDS if seconds is None else seconds + self._late
        self._overdue_at = math.inf
        self._has_begun, self._interrupts = False, 0

    is_counted = False
    """True if it is a cell that gets a number."""

    @property
    def is_cell(self) -> bool:
        """True if it is a cell."""
        return isinstance(self.future, CellFuture)

    def begin(self, more: float = 0.0) -> None:
        """Begins to count its time, as no call is before it; it has some seconds in addition."""
        if not self._has_begun:
            self._has_begun = True
            limit = self._limit if self._interrupts < 2 else self._late
            self._overdue_at = time.monotonic() + limit + more

    def interrupted(self) -> None:
        """Notes that it is interrupted: a second time no cell goes on for longer than its grace."""
        self._interrupts += 1
        if self._has_begun and self._interrupts > 1:
            self._overdue_at = min(self._overdue_at, time.monotonic() + self._late)

    def is_overdue(self) -> bool:
        """Returns whether it has gone on for longer than the worker should have let it."""
        return time.monotonic() > self._overdue_at

    def take(self, report: Report, size: int) -> messages.Line | None:
        """Takes a message about it, of so many bytes; returns the answer, if it is a question.

        Raises `FrameError` if it sends more than it may.
        """
        self._left -= size
        if self._left < 0:
            raise FrameError("it sends more than a cell may show")
        began = time.monotonic()
        try:
            return self._heard(report)
        except FrameError:
            raise
        except Exception as problem:  # the application's own code
            log_failure("a listener", problem)
            return None
        finally:  # what its caller takes does not count
            self._overdue_at += time.monotonic() - began

    def tell(self, text: str) -> None:
        """Says that its worker's start takes long."""
        try:
            self._progress(text)
        except Exception as problem:  # the application's own code
            log_failure("a listener", problem)

    def _heard(self, report: Report) -> messages.Line | None:
        match report:
            case messages.Text():
                self.listener.emit(Stream(report.name, report.text))
            case messages.Shown():
                self.listener.emit(report.output)
            case messages.Said():
                self.listener.comm(report.message)
            case messages.Terminating():
                self.listener.terminate()
            case messages.Asked():
                return self._ask(report)
        return None

    def _ask(self, asked: messages.Asked) -> messages.Line:
        number = asked.question
        try:
            line = without_surrogates(self.listener.ask(asked.prompt, asked.password))
        except InputInterrupted:
            return messages.Line(number, interrupted=True)
        except InputRefused as refusal:
            why = without_surrogates(str(refusal)) or "input was refused"
            return messages.Line(number, refused=why)
        if len(line) > messages.TEXT_CHARACTERS:
            return messages.Line(number, refused="the line is too long")
        return messages.Line(number, line)

    def outcome(self, report: messages.Ended | messages.Failed) -> Callable[[], None]:
        """Reads the worker's answer; returns what ends the call with it; or raises `FrameError`."""
        if isinstance(report, messages.Failed):
            error = messages.error_of(report)
            return lambda: self.refuse(error)
        value, figures = messages.read_value(report.value, self._kind), report.figures
        return lambda: self._finish(value, figures)

    def refuse(self, problem: WasmKernelError) -> None:
        """Ends it with an error."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(problem)

    def lost(self, problem: GuestStopped, *, began: bool, number: int = 0) -> None:
        """Ends it, as its worker is gone for this reason; `began` if it may have begun.

        A cell that has has a `number`, if it is counted.
        """
        self.refuse(problem)

    def _finish(self, value: Any, figures: Figures) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(value)


class PendingCell(PendingCall):
    """A cell; its result holds what it showed, if its listener wants that.

    Its result is `nothing` if nothing is known of it. `timeout` is the limit in seconds that its
    caller set, if any. It gets a number if it `is_counted`.
    """

    def __init__(
        self,
        future: CellFuture,
        listener: Listener | None,
        policy: ExecutionPolicy,
        timeout: float | None,
        nothing: SandboxResult,
        *,
        is_counted: bool,
    ) -> None:
        limits = [limit for limit in (policy.cell_timeout, timeout) if limit]
        seconds = min(limits, default=math.inf)
        super().__init__(future, CellResult, policy, listener, seconds=seconds)
        self._output = CellOutput(wanted=self.listener.collects)
        self._outputs_left = policy.display_count + _MARGIN_OUTPUTS
        self._memory_left = policy.display_bytes + _MARGIN_BYTES
        self._timeout = timeout
        self._door = policy.door
        self._nothing = nothing
        self.is_counted = is_counted

    def _heard(self, report: Report) -> messages.Line | None:
        match report:
            case messages.Text():
                self._output.add_text(report.name, report.text)
            case messages.Shown():
                self._count(report.output)
                self._output.add(report.output)
        return super()._heard(report)

    def _count(self, output: messages.RichOutput) -> None:
        """Counts an output as it is kept: few bytes of JSON may stand for many of memory."""
        self._outputs_left -= 1
        self._memory_left -= max(0, memory_size(astuple(output)) - _OVERHEAD)
        if min(self._outputs_left, self._memory_left) < 0:
            raise FrameError("it shows more than a cell may")

    def _finish(self, value: CellResult, figures: Figures) -> None:
        fields = {name: getattr(value, name) for name in CellResult.__struct_fields__}
        # what goes into the sums of a service is no more than it can be
        fields["duration"] = min(value.duration, time.monotonic() - self._made)
        if value.fuel_consumed is not None:
            budget = self._fuel_budget
            fields["fuel_consumed"] = budget and min(value.fuel_consumed, budget)
        self._end(memory_used_bytes=figures.memory_bytes, **fields)

    def lost(self, problem: GuestStopped, *, began: bool, number: int = 0) -> None:
        """Ends it with a result that says what is kept."""
        if isinstance(problem, CellTimeout) and problem.seconds == self._timeout:
            problem.setting = CALL_SECONDS
        shown = as_error(problem if began else WorkerLost(_ENDED, _NOT_RUN), self._door)
        try:
            self.listener.emit(shown)
        except Exception as failure:
            log_failure("a listener", failure)
        error = CellError(shown.ename, shown.evalue, shown.traceback)
        counted = {"execution_count": number} if number else {}
        self._end(error=error, reply={"status": "error", **counted, "payload": []})

    def _end(self, **fields: Any) -> None:
        fields |= {name: self._output.text(name) for name in ("stdout", "stderr")}
        result = replace(self._nothing, outputs=tuple(self._output.outputs), **fields)
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(result)
