"""`SessionGuest`: the object that runs the cells of a session inside its worker.

All work with the guest runs on the guest's thread, one job after another; `interrupt` and `close`
act at once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TypeVar

from wasm_kernel.errors import ForkError, HistoryError
from wasm_kernel.events import Notices, SandboxLogger
from wasm_kernel.execution.cell_result import log_outcome, result_of
from wasm_kernel.execution.facts import offer_facts
from wasm_kernel.execution.interfaces import Cell, Listener, SessionHooks
from wasm_kernel.execution.jobs import GuestJobs, QueuedCell
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.execution.turns import GuestTurns
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests.base import GuestLanguage, switched_off
from wasm_kernel.linux import memory
from wasm_kernel.linux.broker import Broker
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import CellResult
from wasm_kernel.state.history import NOT_SAVED

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

    `runner` and `turns` are used on the guest's thread, as by a job `between_cells`.

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
        self.notices = Notices(
            self._logger, quiet=quiet, crash_is_told=told, page=note, on_wait=on_wait
        )
        self.runner = GuestRunner(
            language,
            self.folders,
            policy,
            resume=resume,
            broker=broker,
            notices=self.notices,
            count=count,
        )
        self.turns = GuestTurns(self.runner, self.notices)
        own = {"session_id": session_id or None, "runtime": language.name, "workspace": "/app"}
        self.commands = self.runner.commands
        self.language_commands = language.commands(self.folders)
        for name, handler in self.language_commands.items():
            refused = switched_off(_NOT_ALLOWED.format(name=name))
            self.commands.add(name, handler if pip else refused)
        self.facts = offer_facts(self.runner, own)
        self.facts.add(hooks.facts)
        name = f"guest {session_id or self.folders.path.name}"
        self._jobs = GuestJobs(name, self.runner.clock, self.runner.open)

    def start(self) -> Future[None]:
        """Begins to start the guest; after a failure, a later call tries again."""
        return self._jobs.start()

    def queue(self, cell: Cell, listener: Listener) -> QueuedCell:
        """Queues a cell, which ends with a result if it begins, whatever the code does."""
        run = partial(self._execute, self.start(), cell, listener)
        return self._jobs.queue(run, self.runner.keep)

    def _execute(self, started: Future[None], cell: Cell, listener: Listener) -> CellResult:
        started.result()
        self.runner.ensure_guest()
        self._logger.log_execution_start(self._language.name, self.runner.policy)
        turn = self.turns.run_cell(cell, listener)
        result = result_of(turn, self.runner)
        self.turns.sync(listener, is_after_loss=turn.stopped is not None)
        self._hooks.executed()
        log_outcome(self._logger, self._language.name, turn, result)
        return result

    def between_cells(self, job: Callable[[], T]) -> Future[T]:
        """Runs a job on the guest's thread, once the guest is ready and no cell runs."""
        started = self.start()

        def run() -> T:
            started.result()
            self.runner.ensure_guest()
            return job()

        return self._jobs.submit(run)

    def check_fork(self) -> None:
        """Raises `ForkError` if no fork can be planned. For host commands in a cell."""
        if not self.runner.state.history.on_disk:
            raise ForkError(NOT_SAVED)

    def frozen(self) -> AbstractContextManager[None]:
        """Keeps the state on disk unchanged during a block, in which another process forks it.

        For actions after a cell, on the guest's thread. May raise `ForkError`.
        """
        return self.runner.wait_saved().history.frozen()

    def interrupt(self) -> bool:
        """Interrupts the running cell, or all that wait for the start, as `Sandbox.interrupt`."""
        return self._jobs.interrupt()

    def rest(self) -> bool:
        """Gives the guest's memory back to the system until the next call, if all is on disk.

        Waits some milliseconds for the disk. The next call takes some milliseconds more. Returns
        True if the guest has no memory to give back any more.
        """
        if (
            not self._jobs.is_started
            or self._jobs.is_busy
            or self.runner.is_keeping
            or not self._jobs.submit(self.runner.rest).result()
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
            and not (self._jobs.is_busy or self.runner.is_keeping)
            and self._jobs.submit(self._is_portable).result()
        )

    def _is_portable(self) -> bool:
        runner = self.runner  # a file without a name can't always be opened again
        return runner.is_on_disk() and not runner.guest.files.has_nameless

    def leave_spoilt_state(self) -> bool:
        """Goes to the state before the current one, if no guest can begin a cell in this one.

        For the owner of a guest that only the end of this process can stop: the guest's thread is
        stuck in it. Returns whether it went; `wait_written` then waits for that.
        """
        if self.runner.clock.closed or not self.runner.is_before_cell:
            return False
        with suppress(HistoryError):
            self.runner.state.move_before_head()
            return True
        return False

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
            self.runner.state.forget_at_end()
        self.runner.state.ends_in_crash, self.runner.state.ends_asleep = crashed, asleep
        self._jobs.cancel_cells()
        self.runner.clock.close()
        try:
            if not self._jobs.end(self.runner.close, lambda: self.runner.turn is not None):
                self.runner.close()  # no thread was ever started
        finally:
            self._hooks.closed()
