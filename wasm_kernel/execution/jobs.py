"""`GuestJobs`: the jobs on a guest's thread, one after another; `QueuedCell` is one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.thread import GuestThread
from wasm_kernel.errors import HostFailed, SandboxClosed, WasmKernelError, describe
from wasm_kernel.execution.cell_future import CellFuture
from wasm_kernel.result import SandboxResult

T = TypeVar("T")
JOIN_SECONDS = 5.0  # for a guest to stop
SAVE_SECONDS = 120.0  # for the last states to be written to disk
_POLL_SECONDS = 0.05


class GuestJobs:
    """The jobs of one guest; the first, `begin`, is its start. Any thread may call."""

    def __init__(self, name: str, begin: Callable[[], None]) -> None:
        self._name = name
        self._begin = begin
        self._guard = threading.RLock()
        self._thread: GuestThread | None = None
        self._started: Future[None] | None = None
        self._cells: dict[Future[Any], CellFuture] = {}
        self._jobs = 0
        self._why_closed = ""

    def start(self) -> Future[None]:
        """Returns the future of the guest's start; after a failure, a later call tries again."""
        with self._guard:
            self._check_open()
            if self._thread is None:
                self._thread = GuestThread(self._name)
            started = self._started
            if started is None or (started.done() and started.exception() is not None):
                started = self._started = self._thread.submit(self._begin)
            return started

    def submit(
        self,
        job: Callable[[], T],
        then: Callable[[], object] | None = None,
        *,
        cell: CellFuture | None = None,
    ) -> Future[T]:
        """Queues a job and returns its future; raises `SandboxClosed`.

        If the host's system fails the job, its future has a `HostFailed`. `then` runs once the
        future is done, before the next job. The job may run a `cell`.
        """
        with self._guard:
            self._check_open()
            assert self._thread is not None, "it was started before"
            self._jobs += 1
            future = self._thread.submit(_in_words(job), then)
            if cell is not None:
                self._cells[future] = cell
        future.add_done_callback(self._ended)
        return future

    def _ended(self, job: Future[Any]) -> None:
        with self._guard:
            self._jobs -= 1
            self._cells.pop(job, None)

    def _check_open(self) -> None:
        if self._why_closed:
            raise SandboxClosed(self._why_closed)

    @property
    def is_started(self) -> bool:
        """True if `start` was ever called."""
        return self._thread is not None

    @property
    def is_starting(self) -> bool:
        """True if `start` was called and the guest is not ready yet."""
        return self._started is not None and not self._started.done()

    @property
    def is_busy(self) -> bool:
        """True if a job runs or waits, or the guest is still starting."""
        with self._guard:
            return self.is_starting or self._jobs > 0

    def refuse_further(self, why: str) -> None:
        """Refuses further jobs from now on; `why` is the error text of later calls."""
        with self._guard:
            self._why_closed = self._why_closed or why

    def cancel_cells(self) -> bool:
        """Cancels the waiting cells; returns False if there was none."""
        with self._guard:
            waiting = list(self._cells)
        cancelled = [cell.cancel() for cell in waiting]
        return any(cancelled)

    def interrupt_first(self) -> bool:
        """Interrupts the first cell that is not over; returns False if there is none."""
        with self._guard:
            first = next(iter(self._cells.values()), None)
        return first is not None and first.interrupt()

    def end(self, last: Callable[[], None], is_in_guest: Callable[[], bool]) -> bool:
        """Runs `last` after all jobs, and waits for it; False without a thread.

        Waits only `JOIN_SECONDS` for a guest that does not stop, or that still starts and has
        nothing to save; waits `SAVE_SECONDS` for other work of the host.
        """
        thread = self._thread
        if thread is None:
            return False
        thread.close(last)
        begun = time.monotonic()
        while not thread.join(_POLL_SECONDS):
            waited, is_brief = time.monotonic() - begun, is_in_guest() or self.is_starting
            if waited > (JOIN_SECONDS if is_brief else SAVE_SECONDS):
                break
        return True


class QueuedCell(CellFuture):
    """A cell of a guest in this process; `never_ran` makes the result if it does not begin."""

    def __init__(self, clock: Clock, never_ran: Callable[[], SandboxResult]) -> None:
        super().__init__()
        self._clock = clock
        self._never_ran = never_ran
        self._job: Future[SandboxResult] | None = None
        self.is_interrupted = False

    def queue(
        self,
        jobs: GuestJobs,
        run: Callable[[], SandboxResult],
        then: Callable[[], object] | None = None,
    ) -> None:
        """Queues the job that runs the cell; `then` runs once its result is known."""
        self._job = jobs.submit(lambda: self._run(run), then, cell=self)
        self._job.add_done_callback(self._finish)

    def _run(self, run: Callable[[], SandboxResult]) -> SandboxResult:
        with self._clock.serving(self):
            return run()

    def interrupt(self) -> bool:
        """Interrupts as `CellFuture` says."""
        job = self._job
        if job is None or job.done():
            return False
        self.is_interrupted = True  # before the next line: the job may be about to begin
        return job.cancel() or self._clock.interrupt(self) or not job.done()

    def _finish(self, job: Future[SandboxResult]) -> None:
        self._job = None  # a reference cycle would keep the result
        if not self.set_running_or_notify_cancel():
            return
        try:
            self.set_result(job.result())
        except CancelledError:
            self.set_result(self._never_ran())
        except BaseException as problem:
            self.set_exception(problem)


def _in_words(job: Callable[[], T]) -> Callable[[], T]:
    """Returns a job that raises `HostFailed` instead of `OSError` and `MemoryError`."""

    def run() -> T:
        try:
            return job()
        except (OSError, MemoryError) as problem:
            if isinstance(problem, WasmKernelError):
                raise
            raise HostFailed(describe(problem)) from problem

    return run
