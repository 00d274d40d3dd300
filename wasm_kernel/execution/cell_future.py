"""`CellFuture`: one cell of a sandbox, from its queue to its result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

from wasm_kernel.engine.clock import Clock
from wasm_kernel.errors import SandboxClosed
from wasm_kernel.execution.jobs import GuestJobs
from wasm_kernel.result import SandboxResult


class CellFuture(Future[SandboxResult]):
    """The future of one cell. Cancelling it interrupts that cell, and no other. Any thread may.

    Args:
        clock: That of the sandbox.
        never_ran: Makes the result of a cell that was interrupted before it began.
    """

    def __init__(self, clock: Clock, never_ran: Callable[[], SandboxResult]) -> None:
        super().__init__()
        self._clock = clock
        self._never_ran = never_ran
        self._job: Future[SandboxResult] | None = None
        self._guard = threading.Lock()
        self._is_interrupted = self._is_over = False

    def queue(self, jobs: GuestJobs, run: Callable[[], SandboxResult]) -> None:
        """Queues the job that runs the cell.

        Raises:
            SandboxClosed: the sandbox is closed.
        """
        self._clock.expect(1)
        try:
            self._job = jobs.submit(lambda: self._run(run), is_cell=True)
        except SandboxClosed:
            self._clock.expect(-1)
            raise
        self._job.add_done_callback(self._finish)

    def _run(self, run: Callable[[], SandboxResult]) -> SandboxResult:
        try:
            return run()
        finally:
            with self._guard:
                self._is_over = True
                if self._is_interrupted:
                    self._clock.forget_early_interrupt()  # the next cell is none of its business

    def interrupt(self) -> bool:
        """Interrupts the cell if it runs; takes it out of the queue if it waits.

        Returns:
            Whether it did: False if the cell is over.
        """
        job = self._job
        if job is not None and job.cancel():
            return True
        with self._guard:
            self._is_interrupted = not self._is_over
            return self._is_interrupted and self._clock.interrupt(also_next=True)

    def cancel(self) -> bool:
        """Interrupts the cell and drops its result; False if there is a result already.

        It does not wait: what runs after it in the sandbox begins when the cell has ended.
        """
        is_cancelled = super().cancel()
        if is_cancelled:
            self.interrupt()
        return is_cancelled

    def wait(self) -> SandboxResult:
        """Waits for the result. Ctrl-C interrupts the cell, and its result says so."""
        while True:
            try:
                return self.result()
            except KeyboardInterrupt:
                if not self.interrupt():
                    raise

    async def ended(self) -> SandboxResult:
        """Awaits the result. If it is cancelled, it interrupts the cell and waits until it ends."""
        import asyncio

        result, cancelled = asyncio.wrap_future(self), None
        while not result.done():
            try:
                await asyncio.wait((result,))
            except asyncio.CancelledError as request:
                cancelled = request
                self.interrupt()
        if cancelled is not None:
            result.exception()  # nobody else will ask
            raise cancelled
        return result.result()

    def _finish(self, job: Future[SandboxResult]) -> None:
        with self._guard:
            self._is_over, self._job = True, None  # a circle would keep the result
        if job.cancelled():
            self._clock.expect(-1)
        if not self.set_running_or_notify_cancel():
            return
        try:
            self.set_result(job.result())
        except CancelledError:
            self.set_result(self._never_ran())
        except BaseException as problem:
            self.set_exception(problem)
