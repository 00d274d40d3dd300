"""What a sandbox tells of itself: events to the application's log, and to its user, in the next
cell's stderr, what happened to the variables since the last one.
"""

from __future__ import annotations

from collections.abc import Callable

from wasm_kernel import events
from wasm_kernel.errors import GuestStopped
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.turn import Turn
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import SandboxResult
from wasm_kernel.state import told
from wasm_kernel.state.commit import Commit
from wasm_kernel.state.travel import Journey

_TRAVELLED = {
    "undo": events.MEMORY_UNDO,
    "redo": events.MEMORY_REDO,
    "restore": events.MEMORY_RESTORE,
}


class Diary:
    """Of one sandbox; its thread owns it.

    Attributes:
        logger: Hears the events.
        troubles: What the user has not been told yet.
    """

    def __init__(self, logger: SandboxLogger, runtime: str, *, quiet: bool = False) -> None:
        """An empty one.

        Args:
            logger: Hears the events.
            runtime: The guest's language.
            quiet: Whether a session that goes on just as it was left is not worth a word.
        """
        self.logger = logger
        self._runtime = runtime
        self._quiet = quiet
        self.troubles: list[str] = []

    def begin_cell(self, policy: ExecutionPolicy) -> None:
        """A cell begins."""
        self.logger.log_execution_start(self._runtime, policy)

    def end_cell(self, turn: Turn, stopped: GuestStopped | None, result: SandboxResult) -> None:
        """A cell has ended."""
        limits = set(turn.limits)
        if stopped is not None:
            if stopped.setting:
                limits.add(stopped.setting)
            name = type(stopped).__name__
            self.logger.log_event(events.EXECUTION_TRAP, runtime=self._runtime, trap=name)
        for limit in sorted(limits):
            self.logger.log_event(events.EXECUTION_LIMIT, runtime=self._runtime, limit=limit)
        self.logger.log_execution_complete(self._runtime, result)

    def go_on(self, head: Commit, *, forked: bool, crashed: bool) -> None:
        """The variables are those that an earlier process left."""
        self.logger.log_event(events.MEMORY_RESUME, cell=head.cell, crashed=crashed)
        if forked or crashed or not self._quiet:
            self.troubles.append(told.going_on(head, forked=forked, crashed=crashed))

    def trouble(self, words: str, error: str) -> None:
        """Something is lost, or can't be kept. Any thread.

        Args:
            words: What the user is told.
            error: What the log is told, which has nothing of the cell's text in it.
        """
        self.troubles.append(words)
        self.logger.log_event(events.MEMORY_TROUBLE, error=error)

    def take_back(self) -> str:
        """The last trouble, which the user is told in another way."""
        return self.troubles.pop()

    def fall_back(self, head: Commit | None) -> None:
        """The guest is lost: memory goes back to where the head is."""
        if head is not None:
            self.logger.log_event(events.MEMORY_ROLLBACK, to_cell=head.cell)

    def name(self, name: str, head: Commit | None) -> None:
        """A state has a name now."""
        cell = head.cell if head is not None else 0
        self.logger.log_event(events.MEMORY_CHECKPOINT, name=name, cell=cell)

    def travel(self, journey: Journey, head: Commit | None) -> None:
        """Memory stands elsewhere, at this head."""
        if journey.how not in _TRAVELLED:
            self.fall_back(head)
            return
        cell = head.cell if head is not None else 0
        self.logger.log_event(_TRAVELLED[journey.how], to_cell=cell, cells=len(journey.cells))

    def tell(self, hear: Callable[[str, str], None]) -> None:
        """Tell the user, once."""
        while self.troubles:
            hear("stderr", self.troubles.pop(0))
