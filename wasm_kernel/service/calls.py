"""The calls of a session that wait for their worker, and the tasks that a worker waits for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from wasm_kernel.errors import CellTimeout, FrameError, GuestStopped, WasmKernelError, WorkerLost
from wasm_kernel.execution.cell_future import CellFuture, CellOutput, as_error
from wasm_kernel.execution.interfaces import InputInterrupted, InputRefused, Listener, NoListener
from wasm_kernel.guests.protocol import Stream
from wasm_kernel.linux.broker import log_failure
from wasm_kernel.policy import MIB, ExecutionPolicy
from wasm_kernel.result import CellError, SandboxResult
from wasm_kernel.service import messages
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.messages import CellResult, Failed, Figures, Report

_ENDED = "ended before this cell began"
_NOT_RUN = "The cell was not run; send it again."
_MARGIN_BYTES = 128 * MIB  # of a call's messages, beyond what the policy lets a cell show
_LATE_SECONDS = 30.0  # for a worker to end a cell whose time is over, beyond its grace
_CHARACTER_BYTES = 6  # that a character takes in JSON


def most_bytes(policy: ExecutionPolicy) -> int:
    """Returns what the messages of one call may have in all: a worker that sends more is lost."""
    text = policy.stdout_bytes + policy.stderr_bytes
    return _MARGIN_BYTES + _CHARACTER_BYTES * text + 2 * (policy.display_bytes + policy.comm_bytes)


class PendingCall:
    """A call that its worker has not answered yet. The session's thread ends it.

    Args:
        future: Gets its value.
        kind: The type of the value.
        left: How many bytes its messages may have.
        listener: Gets what the guest shows meanwhile.
        progress: Gets sentences about a start that takes long.

    Attributes:
        future: Gets its value.
        listener: Gets what the guest shows meanwhile.
    """

    def __init__(
        self,
        future: Future[Any],
        kind: Any,
        left: int,
        listener: Listener | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.future = future
        self.listener = listener or NoListener()
        self._kind = kind
        self._left = left
        self._progress = progress

    @property
    def is_cell(self) -> bool:
        """True if it is a cell."""
        return isinstance(self.future, CellFuture)

    def begin(self) -> None:
        """Notes that no call is before it any more."""

    def is_overdue(self) -> bool:
        """Returns whether it has gone on for longer than the worker should have let it."""
        return False

    def take(self, report: Report, size: int) -> messages.Line | None:
        """Takes a message about it, of so many bytes; returns the answer, if it is a question.

        Raises:
            FrameError: it sends more than it may.
        """
        self._left -= size
        if self._left < 0:
            raise FrameError("it sends more than a cell may show")
        try:
            return self._heard(report)
        except FrameError:
            raise
        except Exception as problem:  # the application's own code
            log_failure("a listener", problem)
            return None

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
            case messages.Progress():
                self._progress(report.text)
            case messages.Asked():
                return self._ask(report)
        return None

    def _ask(self, question: messages.Asked) -> messages.Line:
        try:
            return messages.Line(self.listener.ask(question.prompt, question.password))
        except InputInterrupted:
            return messages.Line(interrupted=True)
        except InputRefused as refusal:
            return messages.Line(refused=str(refusal) or "input was refused")

    def ended(self, ended: messages.Ended) -> None:
        """Ends it with its value.

        Raises:
            FrameError: it is not of the type that it should be.
        """
        self._finish(messages.read_value(ended.value, self._kind))

    def failed(self, failed: Failed) -> None:
        """Ends it with the worker's error.

        Raises:
            FrameError: it is not an error of this package.
        """
        self.refuse(messages.error_of(failed))

    def refuse(self, problem: WasmKernelError) -> None:
        """Ends it with an error."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(problem)

    def lost(self, problem: GuestStopped, *, began: bool) -> None:
        """Ends it, as its worker is gone.

        Args:
            problem: How it was lost.
            began: Whether it may have begun.
        """
        self.refuse(problem)

    def _finish(self, value: Any) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(value)


class PendingCell(PendingCall):
    """A cell; its result holds what it showed, if its listener wants that.

    Args:
        future: Gets its result.
        listener: Gets what it shows.
        policy: Its limits.
        timeout: The limit in seconds that its caller set, if any.
        nothing: Its result if nothing is known of it.
    """

    def __init__(
        self,
        future: CellFuture,
        listener: Listener | None,
        policy: ExecutionPolicy,
        timeout: float | None,
        nothing: SandboxResult,
    ) -> None:
        super().__init__(future, CellResult, most_bytes(policy), listener)
        self._output = CellOutput(wanted=self.listener.collects)
        self._timeout = timeout
        limits = [limit for limit in (policy.cell_timeout, timeout) if limit is not None]
        late = 2 * policy.grace_seconds + _LATE_SECONDS
        self._limit = min(limits) + late if limits else None
        self._overdue_at: float | None = None
        self._nothing = nothing
        self.figures = Figures()

    def begin(self) -> None:
        """Begins to count its time."""
        if self._limit is not None and self._overdue_at is None:
            self._overdue_at = time.monotonic() + self._limit

    def is_overdue(self) -> bool:
        """As `PendingCall` has it."""
        return self._overdue_at is not None and time.monotonic() > self._overdue_at

    def _heard(self, report: Report) -> messages.Line | None:
        match report:
            case messages.Text():
                self._output.add_text(report.name, report.text)
            case messages.Shown():
                self._output.add(report.output)
        began = time.monotonic()
        try:
            return super()._heard(report)
        finally:
            if self._overdue_at is not None:  # what its caller takes does not count
                self._overdue_at += time.monotonic() - began

    def ended(self, ended: messages.Ended) -> None:
        """Ends it with its result."""
        self.figures = ended.figures
        super().ended(ended)

    def _finish(self, value: CellResult) -> None:
        fields = {name: getattr(value, name) for name in CellResult.__struct_fields__}
        memory = self.figures.memory_bytes
        super()._finish(self._with_output(memory_used_bytes=memory, **fields))

    def lost(self, problem: GuestStopped, *, began: bool) -> None:
        """Ends it with a result that says what is kept."""
        if isinstance(problem, CellTimeout) and problem.seconds == self._timeout:
            problem.setting = "timeout"
        shown = as_error(problem if began else WorkerLost(_ENDED, _NOT_RUN))
        try:
            self.listener.emit(shown)
        except Exception as failure:
            log_failure("a listener", failure)
        error = CellError(shown.ename, shown.evalue, shown.traceback)
        super()._finish(self._with_output(error=error))

    def _with_output(self, **fields: Any) -> SandboxResult:
        fields |= {name: self._output.text(name) for name in ("stdout", "stderr")}
        return replace(self._nothing, outputs=tuple(self._output.outputs), **fields)


class RemoteTask:
    """A task whose owner waits in a worker.

    Attributes:
        cancelled: Whether nobody waits any more.
    """

    def __init__(self, worker: Worker, number: int) -> None:
        self.cancelled = False
        self._worker = worker
        self._number = number

    def tell(self, answer: messages.Answer) -> None:
        """Sends an answer, if the worker is still there."""
        with contextlib.suppress(OSError):
            self._worker.channel.send(answer)

    def report(self, text: str) -> None:
        """Tells the worker how far it is."""
        self.tell(messages.Answer(self._number, progress=text))
