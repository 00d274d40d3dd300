"""`GuestTurns`: runs cells, questions and the page's messages as turns of the guest."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import asdict

from wasm_kernel.engine.clock import NO_SIGNALS
from wasm_kernel.errors import Door, GuestClosed, GuestStopped
from wasm_kernel.events import Notices
from wasm_kernel.execution.cell_output import as_error
from wasm_kernel.execution.cell_result import ran_of
from wasm_kernel.execution.commands import TRAVELS
from wasm_kernel.execution.interfaces import NO_CELL, Cell, Listener, NoListener
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.execution.turn import Turn, left_unusable, what_remains
from wasm_kernel.guests.base import CommandLine, ParsedCell
from wasm_kernel.guests.protocol import ErrorOutput, Stream
from wasm_kernel.result import CommMessage
from wasm_kernel.state import texts

_LOG = logging.getLogger("wasm_kernel.execution")
_MISSED_CELLS, _MISSED_CHARACTERS = 100, 1_000  # the most that the guest gets later
_SYNC_SECONDS = 10.0  # for all widgets to send their state; later ones are skipped
_SYNC_SECONDS_AFTER_LOSS = 5.0
_TOO_LONG = (
    "\n[wasm-kernel] A widget's callback ran longer than its limit of {seconds:g} seconds and was "
    "interrupted. {advice}\n"
)
_IN_A_CALLBACK = "[wasm-kernel] This happened in a widget's callback, not in a cell:\n"


class GuestTurns:
    """Runs turns, keeps their effects, and keeps the comms of page and guest in sync.

    If the guest is lost in a turn, a new one is ready afterwards. Lives on the guest's thread.
    """

    def __init__(self, runner: GuestRunner, notices: Notices) -> None:
        self._runner = runner
        self._notices = notices
        self._missed: deque[tuple[int, str]] = deque(maxlen=_MISSED_CELLS)

    # -- cells

    def run_cell(self, cell: Cell, listener: Listener) -> Turn:
        """Runs a cell. If the guest is lost before the cell can begin, the cell is refused."""
        runner, began = self._runner, time.monotonic()
        text = runner.language.parse_cell(cell.code)
        travels = text.only_commands(TRAVELS)
        refused = self.sync(listener, for_cell=True) if travels is None else None
        turn = self._new_turn(self._request_of(cell), listener, cell, text)
        self._tell_notices(turn)
        if refused is None:
            self._run_and_keep(turn, travels)
        else:
            turn.stopped = refused
        if turn.stopped is not None:
            turn.error = as_error(turn.stopped, runner.policy.door)
            listener.emit(turn.error)
            self._count_alone(turn)
        turn.seconds = time.monotonic() - began
        return turn

    def _new_turn(
        self,
        request: Mapping[str, Any],
        listener: Listener,
        cell: Cell = NO_CELL,
        text: ParsedCell | None = None,
    ) -> Turn:
        """Returns a new turn to run; forgets the changes and requests of the one before."""
        runner = self._runner
        runner.changes.clear()
        runner.commands.begin_cell(runner.next_count)
        return Turn(request, listener, runner, cell, text=text, number=runner.next_count)

    def _request_of(self, cell: Cell) -> dict[str, Any]:
        """Returns the request that hands a cell to the guest."""
        policy = self._runner.policy
        request = {
            **asdict(cell),
            "op": "execute",
            "execution_count": self._runner.next_count,
            "memory_bytes": policy.memory_bytes,
            "advice": _advice(policy.door),
            "alone": [*self._missed],
        }
        del request["timeout_seconds"]
        return request

    def _run_and_keep(self, turn: Turn, travels: list[CommandLine] | None) -> None:
        is_wanted = self._runner.commands.cell_begins(turn, self._runner.clock)
        try:
            if not is_wanted:
                self._end_unrun(turn)
            elif travels is None:
                turn.run(self._runner.guest)
            else:
                self._run_without_guest(turn, travels)
        except GuestStopped as stopped:
            self._recover(turn, stopped, for_cell=True)
            return
        began = time.monotonic()
        self._finish_cell(turn, ran=is_wanted and travels is None)
        _LOG.debug("%.1f ms: the cell's requests are done", (time.monotonic() - began) * 1000)
        self._tell_notices(turn)

    def _run_without_guest(self, turn: Turn, travels: list[CommandLine]) -> None:
        """Runs a cell that holds only travels, in the host alone: a broken guest does no harm.

        The guest gets the cell's text with its next cell, for `In`.
        """
        clock = self._runner.clock
        self._runner.fuel.skip()
        clock.arm(NO_SIGNALS, None, 0.0, for_cell=True)
        interrupted = clock.interrupted
        clock.disarm()
        if interrupted:
            self._end_unrun(turn)
            return
        refused = self._runner.commands.travel.run_from_text(travels, turn)
        ename = "UsageError" if refused else ""
        turn.end(turn.number, ename=ename, evalue=refused)

    def _count_alone(self, turn: Turn) -> None:
        """Uses up the number of a cell that left no commit; the next guest gets its text.

        The number is written to disk at once, as no commit records it.
        """
        if turn.cell.store_history:
            code = turn.cell.code if len(turn.cell.code) <= _MISSED_CHARACTERS else ""
            self._missed.append((turn.number, code))
            self._runner.use_number(turn.number)
            self._runner.state.use_count(self._runner.next_count)

    def _end_unrun(self, turn: Turn) -> None:
        """Ends a cell that was interrupted before it ran."""
        if self._runner.clock.closed:
            raise GuestClosed
        turn.show(ErrorOutput("KeyboardInterrupt", "", ("KeyboardInterrupt",)), 0)
        turn.end(self._runner.next_count, ename="KeyboardInterrupt")

    def _finish_cell(self, turn: Turn, *, ran: bool) -> None:
        """Serves the cell's requests: checkpoints, a travel, actions.

        The cell's effects are committed after its result was sent, unless a request needs the
        commit first. A cell that ran without the guest has no effects: the state is still that of
        the cell before.
        """
        runner, travel = self._runner, self._runner.commands.travel
        is_kept = ran and (travel.target is None or bool(travel.here))
        if turn.cell.store_history:
            runner.use_number(max(turn.count, turn.number))
        if is_kept:
            runner.keep_later(turn, turn.number, partial(ran_of, turn, runner))
        if runner.commands.wants_state and runner.keep():
            travel.give_names(travel.here, turn)
        runner.state.tell_files()
        if ran:
            self._missed.clear()
        if travel.target is not None:
            texts.tell_restored(runner.travel(travel.target), turn.on_text)
            travel.give_names(travel.there, turn)
        if not is_kept:
            self._count_alone(turn)
        runner.commands.run_actions(turn, runner.clock)
        runner.commands.files_changed(runner.changes, turn, runner.clock)
        runner.commands.begin_cell(runner.next_count)

    def _recover(self, turn: Turn, stopped: GuestStopped, *, for_cell: bool) -> None:
        """Starts another guest with the state before the turn, or an earlier one if no cell can
        begin in that.
        """
        _LOG.debug("the guest was lost", exc_info=stopped)
        runner, turn.stopped = self._runner, stopped
        runner.close_guest(keep=True)
        runner.commands.cell_lost(turn, runner.clock)
        is_kept = runner.state.roll_back()
        if for_cell and not runner.clock.closed and left_unusable(turn, stopped):
            has_earlier = runner.state.move_before_head()
            stopped.setting = ""
            stopped.kept = texts.SPOILT if has_earlier else texts.SPOILT_FROM_THE_START
        elif not is_kept:
            stopped.kept = texts.lost_untaken(runner.state.head)
            notice = f"[wasm-kernel] {stopped.kept}\n"  # an error of the start would hide the other
            self._notices.tell(notice, error="a state that was not kept is lost")
        else:
            changed = runner.state.files.keeps and runner.changes.any
            stopped.kept = what_remains(turn, stopped, changed_files=changed)
        runner.commands.files_changed(runner.changes, turn, runner.clock)
        runner.start_guest()

    def _tell_notices(self, turn: Turn) -> None:
        """Prints notices about the variables in the cell, or in the next visible one."""
        if not turn.cell.silent:
            for text in self._notices.pop_unseen():
                turn.on_text("stderr", text)

    # -- questions and messages

    def _ask(
        self,
        request: Mapping[str, Any],
        listener: Listener,
        seconds: float,
        *,
        for_cell: bool = False,
    ) -> Turn:
        """Runs a turn that is not a cell, and interrupts it after `seconds`.

        With `for_cell`, a cell waits for it, and is refused if the guest can't begin the turn.
        """
        self._runner.keep()
        turn = self._new_turn(request, listener)
        try:
            turn.run(self._runner.guest, seconds)
        except GuestStopped as stopped:
            self._recover(turn, stopped, for_cell=for_cell)
        else:
            if turn.is_comm:
                self._runner.state.commit_between(self._runner.guest.instance)
            self._runner.commands.files_changed(self._runner.changes, turn, self._runner.clock)
        return turn

    def query(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the guest's answer to a question; `GuestStopped` if the guest was lost in it."""
        limit = self._runner.policy.query_seconds
        turn = self._ask(request, NoListener(), limit)
        if turn.stopped is not None:
            raise turn.stopped
        return turn.reply or {}

    def open_comms(self, listener: Listener) -> dict[str, str]:
        """Returns the target of each open comm, by the comm's id."""
        self.sync(listener)
        return self._runner.comms.open

    def serve(self, message: CommMessage, parent: Mapping[str, str], listener: Listener) -> None:
        """Hands a page's message to the guest, and waits until its callbacks have run."""
        stopped = self.sync(listener)
        request = self._runner.comms.from_page(message, parent, listener)
        if request is not None and stopped is None:
            self._run_callbacks(request, listener)

    def _run_callbacks(self, request: Mapping[str, Any], listener: Listener) -> None:
        begun, limit = time.monotonic(), self._runner.policy.comm_seconds
        turn = self._ask(request, listener, limit)
        interrupted = turn.error is not None and turn.error.ename == "KeyboardInterrupt"
        if time.monotonic() - begun >= limit and (interrupted or turn.stopped):
            advice = self._runner.policy.door.raising("comm_seconds")
            listener.emit(Stream("stderr", _TOO_LONG.format(seconds=limit, advice=advice)))
        if turn.stopped is not None:
            listener.emit(Stream("stderr", _IN_A_CALLBACK))
            listener.emit(as_error(turn.stopped, self._runner.policy.door))
        self.sync(listener)

    def sync(
        self, listener: Listener, *, for_cell: bool = False, is_after_loss: bool = False
    ) -> GuestStopped | None:
        """Brings the comms of page and guest in sync again, if memory has travelled.

        Closes comms at the page that the guest does not know any more. The guest opens those of its
        widgets again that the page has closed since, and sends the state of all. After the loss of
        a guest, it has less time for that. Returns the error of a guest that was lost before it
        could begin.
        """
        comms, policy = self._runner.comms, self._runner.policy
        if not comms.out_of_sync:
            return None
        most = _SYNC_SECONDS_AFTER_LOSS if is_after_loss else _SYNC_SECONDS
        seconds = min(most, policy.comm_seconds, max(1.0, policy.cell_timeout or most))
        turn = self._ask(comms.sync_request, listener, seconds, for_cell=for_cell)
        if turn.stopped is not None and not turn.request_taken:
            return turn.stopped
        reply = {} if turn.stopped is not None else turn.reply or {}
        for stale in comms.sync(reply):
            listener.comm(CommMessage("close", stale))
        return None


def _advice(door: Door) -> dict[str, str]:
    """Returns advice on the guest's own errors, for the user of a door."""
    return {
        "memory": door.raising("memory_bytes"),
        "disk": door.raising("workspace_bytes", "workspace_files"),
        "files": door.bringing_files,
    }
