"""`CellFuture`: one cell of a sandbox, from its queue to its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from wasm_kernel.result import SandboxResult


class CellFuture(Future[SandboxResult]):
    """The future of one cell. Any thread may cancel it, which interrupts that cell and no other.

    `interrupt` interrupts a call of the cell's worker, by its number; `call` is the cell's number.
    `grace` are the seconds that an interrupted cell has.
    """

    def __init__(self, interrupt: Callable[[int], bool], grace: float) -> None:
        super().__init__()
        self._interrupt, self._grace = interrupt, grace
        self.call = 0

    def interrupt(self) -> bool:
        """Interrupts the cell if it runs, or removes it from the queue; False if it is over."""
        return self.call > 0 and self._interrupt(self.call)

    def cancel(self) -> bool:
        """Interrupts the cell and drops its result; False if there is a result already.

        Does not wait for the cell's end. The sandbox's next job begins only after that.
        """
        is_cancelled = super().cancel()
        if is_cancelled:
            self.interrupt()
        return is_cancelled

    def wait(self) -> SandboxResult:
        """Waits for the result. Ctrl-C interrupts the cell, whose result then says so."""
        while True:
            try:
                return self.result()
            except KeyboardInterrupt:
                if not self.interrupt():
                    raise

    async def ended(self) -> SandboxResult:
        """Awaits the result. If this is cancelled, interrupts the cell and waits for its end.

        A cell that catches the interrupt, and goes on for its grace, is interrupted again.
        """
        import asyncio

        result, cancelled, due = asyncio.wrap_future(self), None, 0.0
        while not result.done():
            left = due - time.monotonic() if cancelled else None
            try:
                await asyncio.wait((result,), timeout=left)
            except asyncio.CancelledError as request:
                cancelled = request
            # anyio cancels again and again until the task has ended
            if cancelled is not None and time.monotonic() >= due:
                self.interrupt()
                due = time.monotonic() + self._grace
        if cancelled is not None:
            result.exception()  # marks it as retrieved: no caller reads it any more
            raise cancelled
        return result.result()
