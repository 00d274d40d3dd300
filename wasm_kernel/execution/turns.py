"""`GuestTurns`: cells, questions and the page's messages, each run as turns of the guest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from wasm_kernel.errors import GuestStopped
from wasm_kernel.execution import outcome
from wasm_kernel.execution.face import Listener, NoListener
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.execution.turn import Turn
from wasm_kernel.guests.protocol import Stream
from wasm_kernel.result import CommMessage

_SYNC_SECONDS = 10.0  # for all widgets to say their state; what was not said by then is not
_SYNC_SECONDS_AFTER_LOSS = 1.0
_TOO_LONG = (
    "\n[wasm-kernel] A widget's callback ran longer than its limit of {seconds:g} seconds and was "
    "interrupted. Raise comm_seconds to allow more.\n"
)
_IN_A_CALLBACK = "[wasm-kernel] This happened in a widget's callback, not in a cell:\n"


class GuestTurns:
    """Runs turns, and keeps page and guest agreed on comms. Lives on the guest's thread."""

    def __init__(self, runner: GuestRunner) -> None:
        self._runner = runner

    def run_cell(
        self, request: Mapping[str, Any], listener: Listener
    ) -> tuple[Turn, GuestStopped | None]:
        """Runs a cell. If the guest is lost before the cell can begin, the cell is refused.

        Returns:
            The cell's turn, and how the guest was lost, or None if it came back.
        """
        try:
            needs_guest = self._runner.only_travels(request["code"]) is None
            stopped = self.sync(listener, for_cell=True) if needs_guest else None
        except BaseException:
            self._runner.clock.expect(-1)
            raise
        if stopped is None:
            turn, stopped = self._runner.run(request, listener)
        else:
            turn = self._runner.refuse(request, listener)
        if stopped is not None:
            turn.error = outcome.as_error(stopped)
            listener.emit(turn.error)
        return turn, stopped

    def sync_after_cell(self, listener: Listener, stopped: GuestStopped | None) -> None:
        """Shows widgets as they are, after a cell that travelled or was stopped."""
        self.sync(listener, most=_SYNC_SECONDS_AFTER_LOSS if stopped else _SYNC_SECONDS)

    def query(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the guest's answer to a question.

        Raises:
            GuestStopped: the guest was lost over it.
        """
        limit = self._runner.policy.query_seconds
        turn, stopped = self._runner.run(request, NoListener(), seconds=limit)
        if stopped is not None:
            raise stopped
        return turn.reply or {}

    def open_comms(self, listener: Listener) -> dict[str, str]:
        """Returns the target of each comm that is open, by the comm's id."""
        self.sync(listener)
        return self._runner.comms.open

    def serve(self, message: CommMessage, parent: Mapping[str, str], listener: Listener) -> None:
        """Hands a message of the page to the guest, and waits until its callbacks have run.

        Args:
            message: The message.
            parent: What the guest may know of the message that carried it.
            listener: Hears what the callbacks say.
        """
        stopped = self.sync(listener)
        request = self._runner.comms.from_page(message, parent, listener)
        if request is not None and stopped is None:
            self._run_callbacks(request, listener)

    def _run_callbacks(self, request: Mapping[str, Any], listener: Listener) -> None:
        begun, limit = time.monotonic(), self._runner.policy.comm_seconds
        turn, stopped = self._runner.run(request, listener, seconds=limit)
        interrupted = turn.error is not None and turn.error.ename == "KeyboardInterrupt"
        if time.monotonic() - begun >= limit and (interrupted or stopped):
            listener.emit(Stream("stderr", _TOO_LONG.format(seconds=limit)))
        if stopped is not None:
            listener.emit(Stream("stderr", _IN_A_CALLBACK))
            listener.emit(outcome.as_error(stopped))
        self.sync(listener)

    def sync(
        self, listener: Listener, *, most: float = _SYNC_SECONDS, for_cell: bool = False
    ) -> GuestStopped | None:
        """Brings page and guest to agree again, if memory was brought elsewhere.

        Comms that the guest knows no more are closed at the page. Those of widgets that the page
        had closed since are opened again, and all are sent the state they are in now.

        Args:
            listener: Hears what the guest says.
            most: The seconds that it may take.
            for_cell: Whether a cell waits for it, which is refused if the guest can't begin.

        Returns:
            How the guest was lost before it began; None if it did begin.
        """
        comms, policy = self._runner.comms, self._runner.policy
        if not comms.out_of_sync:
            return None
        seconds = min(most, policy.comm_seconds, max(1.0, policy.cell_timeout or most))
        request = comms.sync_request
        turn, stopped = self._runner.run(request, listener, seconds=seconds, for_cell=for_cell)
        if stopped is not None and not turn.request_taken:
            return stopped
        reply = {} if stopped is not None else turn.reply or {}
        for stale in comms.sync(reply):
            listener.comm(CommMessage("close", stale))
        return None
