"""`CellFuture`: one cell of a sandbox, from its queue to its result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress

from wasm_kernel.result import SandboxResult


class CellFuture(Future[SandboxResult]):
    """The future of one cell. Any thread may cancel it, which interrupts that cell and no other.

    `call` is the cell's number, by which `stop` interrupts it. `check_may_wait` raises
    `RuntimeError` on a thread on which a wait would never end. `grace` are the seconds that an
    interrupted cell has.
    """

    def __init__(
        self, stop: Callable[[int], bool], check_may_wait: Callable[[], None], grace: float
    ) -> None:
        super().__init__()
        self._stop, self._check_may_wait, self._grace = stop, check_may_wait, grace
        self.call = 0

    def interrupt(self) -> bool:
        """Interrupts the cell if it runs, or removes it from the queue; False if it is over."""
        return self.call > 0 and self._stop(self.call)

    def cancel(self) -> bool:
        """Interrupts the cell and drops its result; False if there is a result already.

        Does not wait for the cell's end. The sandbox's next job begins only after that.
        """
        is_cancelled = super().cancel()
        if is_cancelled:
            self.interrupt()
        return is_cancelled

    def result(self, timeout: float | None = None) -> SandboxResult:
        """Returns the result, as soon as there is one; the errors are those of `Future.result`.

        Raises `RuntimeError` in a listener or a callback of the same session, which would wait for
        itself.
        """
        if not self.done():
            self._check_may_wait()
        return super().result(timeout)

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

        result, due = asyncio.wrap_future(self), 0.0
        try:
            await asyncio.wait((result,))
        except asyncio.CancelledError:
            with _cancelled_once():
                while not result.done():
                    if time.monotonic() >= due:
                        self.interrupt()
                        due = time.monotonic() + self._grace
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait((result,), timeout=due - time.monotonic())
            result.exception()  # marks it as retrieved: no caller reads it any more
            raise
        return result.result()


def _cancelled_once() -> AbstractContextManager[object]:
    """Returns a block that a cancelled scope of anyio, if a program uses it, does not reach.

    The scope would cancel the block at each turn of the loop.
    """
    anyio = sys.modules.get("anyio")
    return nullcontext() if anyio is None else anyio.CancelScope(shield=True)
