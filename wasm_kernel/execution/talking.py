"""What a front end has to say between cells: questions, and messages to widgets over comms.

Each is a turn of its own with limits of its own. A question leaves nothing behind; what a widget's
callback changes is kept.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from wasm_kernel.errors import GuestStopped
from wasm_kernel.execution import outcome
from wasm_kernel.execution.comms import OfferedMessage
from wasm_kernel.execution.listener import Listener, NoListener
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.guests.protocol import Stream
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import CommMessage

T = TypeVar("T")

AGREE_SECONDS = 10.0  # for all widgets to say their state; what was not said by then is not
_TOO_LONG = (
    "\n[wasm-kernel] A widget's callback ran longer than its limit of {seconds:g} seconds and was "
    "interrupted. Raise comm_seconds to allow more.\n"
)
_IN_A_CALLBACK = "[wasm-kernel] This happened in a widget's callback, not in a cell:\n"


class Talking(abc.ABC):
    """A sandbox whose guest can be talked to between cells. Any thread may call."""

    policy: ExecutionPolicy
    _runner: GuestRunner

    @abc.abstractmethod
    def _later(self, job: Callable[[], T]) -> Future[T]:
        """Run a job on the guest's thread, once the guest is there and no cell runs."""

    def query(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
        """Ask the guest something: `complete`, `inspect`, `is_complete` or `history`.

        The request and the reply are those of `runtimes/PROTOCOL.md`. A query has
        `policy.query_seconds`; it is then interrupted, and stopped if it goes on.
        """

        def ask() -> Mapping[str, Any]:
            turn, stopped = self._runner.run(
                request, NoListener(), seconds=self.policy.query_seconds
            )
            if stopped is not None:
                raise stopped
            return turn.reply or {}

        return self._later(ask)

    def comm(
        self,
        message: CommMessage,
        *,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Future[None]:
        """Hand a message of the front end to the guest; the future ends when it was served.

        A message for which there is nobody is dropped; such an `open` is answered with a `close`.
        What the guest's callbacks change is kept like a cell's effects, and taken back together
        with the cell before. They have `policy.comm_seconds`; then they are interrupted.

        Args:
            message: The message.
            parent: What the guest may know of the message that carried it: `msg_id`, `msg_type`.
            listener: Hears what the callbacks say.
        """
        heard = listener or NoListener()
        return self._later(lambda: self._comm(message, parent or {}, heard))

    def offer(self, offer: OfferedMessage) -> None:
        """Let the running cell take a message while it awaits something.

        Whoever offers it claims it when its turn has come, and calls `comm` if that succeeds.
        """
        self._runner.comms.offer(offer)

    def comms(self, listener: Listener | None = None) -> Future[dict[str, str]]:
        """The target of each comm that is open, by the comm's id."""

        def ask() -> dict[str, str]:
            self._settle(listener or NoListener())
            return self._runner.comms.open

        return self._later(ask)

    def _comm(self, message: CommMessage, parent: Mapping[str, str], listener: Listener) -> None:
        stuck = self._settle(listener)
        request = self._runner.comms.from_page(message, parent, listener)
        if request is not None and stuck is None:
            self._serve(request, listener)

    def _serve(self, request: Mapping[str, Any], listener: Listener) -> None:
        begun, limit = time.monotonic(), self.policy.comm_seconds
        turn, stopped = self._runner.run(request, listener, seconds=limit)
        interrupted = turn.error is not None and turn.error.ename == "KeyboardInterrupt"
        if time.monotonic() - begun >= limit and (interrupted or stopped):
            listener.emit(Stream("stderr", _TOO_LONG.format(seconds=limit)))
        if stopped is not None:
            listener.emit(Stream("stderr", _IN_A_CALLBACK))
            listener.emit(outcome.as_error(stopped))
        self._settle(listener)

    def _settle(
        self, listener: Listener, *, most: float = AGREE_SECONDS, for_cell: bool = False
    ) -> GuestStopped | None:
        """If memory was brought elsewhere, bring front end and guest to agree again.

        Comms that the guest knows no more are closed at the front end. Those of widgets that the
        front end had closed since are opened again, and all are sent the state they are in now.

        Args:
            listener: Hears what the guest says.
            most: The seconds that it may take.
            for_cell: Whether a cell waits for it, which is refused if the guest can't begin.

        Returns:
            How the guest was lost before it began; None if it did begin.
        """
        comms, policy = self._runner.comms, self.policy
        if not comms.out_of_sync:
            return None
        seconds = min(most, policy.comm_seconds, max(1.0, policy.cell_timeout or most))
        turn, stopped = self._runner.run(
            comms.sync_request, listener, seconds=seconds, for_cell=for_cell
        )
        if stopped is not None and not turn.request_taken:
            return stopped
        reply = {} if stopped is not None else turn.reply or {}
        for stale in comms.sync(reply):
            listener.comm(CommMessage("close", stale))
        return None
