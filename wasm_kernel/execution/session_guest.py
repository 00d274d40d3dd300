"""`SessionGuest`: the object that runs the cells of a session inside its worker.

All work with the guest runs on the guest's thread, one job after another; `interrupt` and `close`
act at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, TypeVar

from msgspec import structs

from wasm_kernel.errors import ForkError, HistoryError
from wasm_kernel.events import Notices, SandboxLogger
from wasm_kernel.execution.cell_result import log_outcome, result_of
from wasm_kernel.execution.facts import offer_facts
from wasm_kernel.execution.interfaces import (
    Cell,
    Listener,
    OfferedMessage,
    SessionHooks,
    TravelRequest,
)
from wasm_kernel.execution.jobs import GuestJobs, QueuedCell
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.execution.turns import GuestTurns
from wasm_kernel.execution.variables import changes_between
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests.base import GuestLanguage, switched_off
from wasm_kernel.linux import memory
from wasm_kernel.linux.broker import Broker
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import CellResult, Checkpoint, CommMessage, Ran, Travelled, VariableChanges
from wasm_kernel.state.history import NOT_SAVED
from wasm_kernel.state.tree import checked_name

T = TypeVar("T")
_NOT_ALLOWED = (
    "%{name} is not allowed in this sandbox. The program that makes it can allow it, with pip=True."
)


class SessionGuest:
    """One long-lived guest in the folders of a session, and its thread. Any thread may call it.

    A worker has one, and answers its owner's calls with it. `commands` are the host commands for
    magics in a cell's own text; without `pip`, those in `language_commands` are refused. `note`
    gets notices that no cell should print, `on_wait` the most seconds for which the start waits for
    another process.

    `count` is the least number of the next cell. `told` is true if an error has named the variables
    that are kept, so that no notice needs to repeat it.
    """

    def __init__(
        self,
        language: GuestLanguage,
        hooks: SessionHooks,
        policy: ExecutionPolicy,
        logger: SandboxLogger,
        *,
        broker: Broker,
        resume: Resume,
        pip: bool,
        quiet: bool = False,
        count: int = 1,
        told: bool = False,
        note: Callable[[str], None] | None = None,
        on_wait: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.folders, session_id = hooks.folders, hooks.id
        self._hooks = hooks
        self._language = language
        self._logger = logger.bind(session_id=session_id) if session_id else logger
        self._notices = Notices(
            self._logger, quiet=quiet, crash_is_told=told, page=note, on_wait=on_wait
        )
        self._runner = GuestRunner(
            language,
            self.folders,
            policy,
            resume=resume,
            broker=broker,
            notices=self._notices,
            count=count,
        )
        self._turns = GuestTurns(self._runner, self._notices)
        own = {"session_id": session_id or None, "runtime": language.name, "workspace": "/app"}
        self.commands = self._runner.commands
        self.language_commands = language.commands(self.folders)
        for name, handler in self.language_commands.items():
            refused = switched_off(_NOT_ALLOWED.format(name=name))
            self.commands.add(name, handler if pip else refused)
        self.facts = offer_facts(self._runner, own)
        self.facts.add(hooks.facts)
        name = f"guest {session_id or self.folders.path.name}"
        self._jobs = GuestJobs(name, self._runner.clock, self._runner.open)

    def start(self) -> Future[None]:
        """Begins to start the guest; after a failure, a later call tries again."""
        return self._jobs.start()

    def queue(self, cell: Cell, listener: Listener) -> QueuedCell:
        """Queues a cell, which ends with a result if it begins, whatever the code does."""
        run = partial(self._execute, self.start(), cell, listener)
        return self._jobs.queue(run, self._runner.keep)

    def _execute(self, started: Future[None], cell: Cell, listener: Listener) -> CellResult:
        started.result()
        self._runner.ensure_guest()
        self._logger.log_execution_start(self._language.name, self._runner.policy)
        turn = self._turns.run_cell(cell, listener)
        result = result_of(turn, self._runner)
        self._turns.sync(listener, is_after_loss=turn.stopped is not None)
        self._hooks.executed()
        log_outcome(self._logger, self._language.name, turn, result)
        return result

    def between_cells(self, job: Callable[[], T]) -> Future[T]:
        """Runs a job on the guest's thread, once the guest is ready and no cell runs."""
        started = self.start()

        def run() -> T:
            started.result()
            self._runner.ensure_guest()
            return job()

        return self._jobs.submit(run)

    def query(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
        """Asks the guest a question, as `Sandbox.query`."""
        return self.between_cells(lambda: self._turns.query(request))

    def comm(
        self, message: CommMessage, parent: Mapping[str, str], listener: Listener
    ) -> Future[None]:
        """Hands a message of the page to the guest, as `Sandbox.comm`."""
        return self.between_cells(lambda: self._turns.serve(message, parent, listener))

    def offer(self, offered: OfferedMessage) -> None:
        """Lets the running cell take a message while it awaits something."""
        self._runner.comms.offer(offered)

    def comms(self, listener: Listener) -> Future[dict[str, str]]:
        """Returns the target of each open comm, by the comm's id."""
        return self.between_cells(lambda: self._turns.open_comms(listener))

    def name_state(self, name: str) -> Future[None]:
        """Names the current state of memory, as `Sandbox.checkpoint`."""
        return self.between_cells(lambda: self._runner.name(checked_name(name)))

    def forget_name(self, name: str) -> Future[None]:
        """Takes a name from its state."""
        return self.between_cells(lambda: self._runner.state.forget_name(name))

    def states(self) -> Future[list[Checkpoint]]:
        """Returns the states that memory can be brought back to, oldest first."""
        return self.between_cells(lambda: self.states_now()[0])

    def states_now(self) -> tuple[list[Checkpoint], tuple[int, ...], dict[int, Ran]]:
        """Returns the states, the numbers of redoable states, latest last, and how cells ran."""
        tree = self._runner.state.tree
        return [Checkpoint(**row) for row in tree.rows()], tree.undone, tree.ran

    def take_resumed(self) -> str:
        """Returns the sentence that the session goes on; no cell prints it then."""
        return self._notices.pop_resumed()

    def changes(self, state: int, since: int) -> Future[VariableChanges]:
        """Returns the variables that differ between two states."""
        return self.between_cells(lambda: changes_between(self._runner, since, state))

    def travel(self, request: TravelRequest) -> Future[Travelled]:
        """Brings memory to another state."""
        how, cells, where, files = structs.astuple(request)
        return self.between_cells(lambda: self._runner.go(how, cells, where, files=files))

    def check_fork(self) -> None:
        """Raises `ForkError` if no fork can be planned. For host commands in a cell."""
        if not self._runner.state.history.on_disk:
            raise ForkError(NOT_SAVED)

    def frozen(self) -> AbstractContextManager[None]:
        """Keeps the state on disk unchanged during a block, in which another process forks it.

        For actions after a cell, on the guest's thread. May raise `ForkError`.
        """
        return self._runner.wait_saved().history.frozen()

    def interrupt(self) -> bool:
        """Interrupts the running cell, or all that wait for the start, as `Sandbox.interrupt`."""
        return self._jobs.interrupt()

    @property
    def interrupted(self) -> bool:
        """True if a wait of the running cell in the host should end now."""
        return self._runner.clock.should_stop()

    @property
    def next_count(self) -> int:
        """The execution count that the next cell will have."""
        return self._runner.next_count

    @property
    def memory_bytes(self) -> int:
        """The size of the guest's memory."""
        return self._runner.memory_bytes

    @property
    def is_saved(self) -> bool | None:
        """Returns whether the states are on disk; None if they can't be written there."""
        state = self._runner.state
        return state.wait_written(0) if state.saved else None

    @property
    def history_states(self) -> int:
        """The number of states that memory can be brought back to."""
        return self._runner.state.states + self._runner.unkept

    def rest(self) -> bool:
        """Gives the guest's memory back to the system until the next call, if all is on disk.

        Waits some milliseconds for the disk. The next call takes some milliseconds more. Returns
        True if the guest has no memory to give back any more.
        """
        if (
            not self._jobs.is_started
            or self._jobs.is_busy
            or self._runner.is_keeping
            or not self._jobs.submit(self._runner.rest).result()
        ):
            return False
        memory.trim()
        return True

    def may_sleep(self) -> bool:
        """Returns whether another process could go on where the guest is, as all is on disk.

        Waits some milliseconds for the disk.
        """
        return (
            self._jobs.is_started
            and not (self._jobs.is_busy or self._runner.is_keeping)
            and self._jobs.submit(self._is_portable).result()
        )

    def _is_portable(self) -> bool:
        runner = self._runner  # a file without a name can't always be opened again
        return runner.is_on_disk() and not runner.guest.files.has_nameless

    def leave_spoilt_state(self) -> bool:
        """Goes to the state before the current one, if no guest comes to a cell in this one.

        For the owner of a guest that only the end of this process can stop: the guest's thread is
        stuck in it. Returns whether it went; `wait_written` then waits for that.
        """
        if self._runner.clock.closed or not self._runner.is_before_cell:
            return False
        with suppress(HistoryError):
            self._runner.state.move_before_head()
            return True
        return False

    def wait_written(self, seconds: float) -> bool:
        """Waits for the state before the running cell to be on disk; returns whether it is."""
        return self._runner.state.wait_written(seconds)

    def close(
        self, *, discard_variables: bool = False, crashed: bool = False, asleep: bool = False
    ) -> None:
        """Stops running code, writes the state, and closes the folders. Safe to call twice.

        With `discard_variables`, the session's next holder begins without its variables; with
        `crashed`, it finds the session as after a crash. With `asleep`, another process goes on
        with it.
        """
        self._jobs.refuse_further("the guest was closed")
        if discard_variables:
            self._runner.state.forget_at_end()
        self._runner.state.ends_in_crash, self._runner.state.ends_asleep = crashed, asleep
        self._jobs.cancel_cells()
        self._runner.clock.close()
        try:
            if not self._jobs.end(self._runner.close, lambda: self._runner.turn is not None):
                self._runner.close()  # no thread was ever started
        finally:
            self._hooks.closed()
