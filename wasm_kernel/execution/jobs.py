"""`GuestJobs`: the jobs on a guest's thread, one after another; `QueuedCell` is one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.thread import JobThread
from wasm_kernel.errors import SandboxClosed, host_failures
from wasm_kernel.result import CellResult

T = TypeVar("T")
JOIN_SECONDS = 5.0  # for a guest to stop
SAVE_SECONDS = 120.0  # for the last states to be written to disk
_POLL_SECONDS = 0.05


class GuestJobs:
    """The jobs of one guest; the first, `begin`, is its start. Any thread may call.

    Interrupts of cells go through its `clock`.
    """

    def __init__(self, name: str, clock: Clock, begin: Callable[[], None]) -> None:
        self._name = name
        self._clock = clock
        self._begin = begin
        self._guard = threading.RLock()
        self._thread: JobThread | None = None
        self._started: Future[None] | None = None
        self._cells: dict[QueuedCell, None] = {}  # in their order
        self._jobs = 0
        self._why_closed = ""

    def start(self) -> Future[None]:
        """Returns the future of the guest's start; after a failure, a later call tries again."""
        with self._guard:
            self._check_open()
            if self._thread is None:
                self._thread = JobThread(self._name)
            started = self._started
            if started is None or (started.done() and started.exception() is not None):
                started = self._started = self._thread.submit(self._begin)
            return started

    def submit(
        self,
        job: Callable[[], T],
        then: Callable[[], object] | None = None,
        future: Future[T] | None = None,
    ) -> Future[T]:
        """Queues a job and returns its future, that of a `QueuedCell` or a new one.

        If the host's system fails the job, its future has a `HostFailed`. `then` runs once the
        future is done, before the next job. Raises `SandboxClosed`.
        """
        with self._guard:
            self._check_open()
            assert self._thread is not None, "it was started before"
            self._jobs += 1
            future = self._thread.submit(host_failures()(job), then, future)
            if isinstance(future, QueuedCell):
                self._cells[future] = None
        future.add_done_callback(self._ended)
        return future

    def queue(
        self, run: Callable[[], CellResult], then: Callable[[], object] | None = None
    ) -> QueuedCell:
        """Queues the job that runs a cell, like `submit`."""
        cell = QueuedCell(self._clock)

        def serve() -> CellResult:
            with self._clock.serving(cell):
                return run()

        self.submit(serve, then, cell)
        return cell

    def _ended(self, job: Future[Any]) -> None:
        with self._guard:
            self._jobs -= 1
            if isinstance(job, QueuedCell):
                del self._cells[job]

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
            self._why_closed = why

    def cancel_cells(self) -> bool:
        """Cancels the waiting cells; returns False if there was none."""
        with self._guard:
            waiting = list(self._cells)
        cancelled = [cell.cancel() for cell in waiting]
        return any(cancelled)

    def interrupt(self) -> bool:
        """Interrupts the running cell, or all cells that wait for the start; False without a cell.

        An interrupt that comes between two cells, while effects are kept, is for the next one.
        """
        if self.is_starting and self.cancel_cells():
            return True
        # also if the start has ended just now: the first cell may have begun
        if self._clock.interrupt():
            return True
        with self._guard:
            first = next(iter(self._cells), None)
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
        waited = 0.0  # counted in steps: the time while the process is stopped does not count
        while not thread.join(_POLL_SECONDS):
            waited += _POLL_SECONDS
            if waited > (JOIN_SECONDS if is_in_guest() or self.is_starting else SAVE_SECONDS):
                break
        return True


class QueuedCell(Future[CellResult]):
    """A cell that waits for its turn on the guest's thread, or has it.

    It is cancelled if it was interrupted before it began.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.is_interrupted = False

    def interrupt(self) -> bool:
        """Interrupts the cell if it runs, or removes it from the queue; False if it is over."""
        if self.done():
            return False
        self.is_interrupted = True  # before the next line: the cell may be about to begin
        return self.cancel() or self._clock.interrupt(self) or not self.done()
