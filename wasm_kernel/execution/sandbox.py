"""`LocalSandbox`: a workspace, one long-lived guest in this process, and the guest's thread.

All work with the guest runs on that thread, one job after another; `interrupt` and `close` act at
once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any, Self, TypeVar

from msgspec import structs

from wasm_kernel.errors import ForkError, HistoryError
from wasm_kernel.events import Notices, SandboxLogger
from wasm_kernel.execution.base_sandbox import CLOSED, BaseSandbox, at_least_one
from wasm_kernel.execution.cell_future import CellFuture, never_ran
from wasm_kernel.execution.descriptors import OF_ONE, make_room
from wasm_kernel.execution.facts import offer_facts
from wasm_kernel.execution.interfaces import (
    Cell,
    Listener,
    NoListener,
    NoSession,
    OfferedMessage,
    ProcessUsage,
    SessionHooks,
    TravelRequest,
)
from wasm_kernel.execution.jobs import GuestJobs, QueuedCell
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.execution.turns import GuestTurns, log_outcome, result_of
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests.base import GuestLanguage
from wasm_kernel.guests.broker_handlers import broker_handlers
from wasm_kernel.linux import memory
from wasm_kernel.linux.broker import Broker, LocalBroker
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import Checkpoint, CommMessage, SandboxResult, Travelled
from wasm_kernel.state.fork import Fork, fork_history
from wasm_kernel.state.history import NOT_SAVED
from wasm_kernel.state.tree import checked_name

T = TypeVar("T")


class LocalSandbox(BaseSandbox):
    """A sandbox whose guest lives in this process. `create_local_sandbox` makes it.

    `folders` are all its folders, open. `commands` are the host commands for magics in a cell's own
    text. `language_commands` are those of the guest's language, which can be added to `commands`.
    """

    def __init__(
        self,
        language: GuestLanguage,
        folders: SandboxFolders,
        policy: ExecutionPolicy,
        logger: SandboxLogger,
        session_id: str | None,
        *,
        resume: Resume = Resume.NEVER,
        hooks: SessionHooks | None = None,
        inherited: Fork | None = None,
        broker: Broker | None = None,
        quiet: bool = False,
    ) -> None:
        super().__init__(folders.path, policy, session_id, hooks or NoSession(folders))
        self.folders = folders
        self._language = language
        self._logger = logger
        self._next_logger: SandboxLogger | None = None
        self._notices = Notices(logger, quiet=quiet)
        self._runner = GuestRunner(
            language,
            folders,
            policy,
            resume=resume,
            broker=broker or LocalBroker(broker_handlers(language.name, folders.open_private)),
            notices=self._notices,
            inherited=inherited,
        )
        self._turns = GuestTurns(self._runner, self._notices)
        own = {"session_id": session_id, "runtime": language.name, "workspace": "/app"}
        self.commands = self._runner.commands
        self.language_commands = language.commands(folders)
        self.facts = offer_facts(self._runner, own)
        self.facts.add(self._hooks.facts)
        self._jobs = GuestJobs(f"guest {session_id or folders.path.name}", self._begin)
        self._hooks.opened(self)

    def go_on(self, count: int, *, told: bool) -> None:
        """Goes on for a process that has ended: sets the lowest number of the next cell.

        `told` is true if an error has named the variables that are kept, so that no notice needs to
        repeat it. Call it before `start`.
        """
        self._runner.next_count = count
        self._notices.crash_is_told = told

    def show_notes(self, page: Callable[[str], None]) -> None:
        """Calls `page` with notices that no cell should print. Call it before `start`."""
        self._notices.page = page

    def start(self, progress: Callable[[str], None] | None = None) -> Future[None]:
        """Starts as `BaseSandbox` says, on the guest's own thread."""
        return self._jobs.start(progress)

    def queue(self, cell: Cell, listener: Listener | None = None) -> CellFuture:
        """As `BaseSandbox`."""
        started = self.start()
        page = listener or NoListener()
        queued = QueuedCell(
            self._runner.clock, lambda: never_ran(self.folders.real, self.session_id)
        )
        queued.queue(self._jobs, lambda: self._execute(started, cell, page), self._runner.keep)
        return queued

    def _execute(
        self,
        started: Future[None],
        cell: Cell,
        listener: Listener,
    ) -> SandboxResult:
        started.result()
        self._take_adopted()
        self._runner.ensure_guest()
        self._logger.log_execution_start(self._language.name, self._runner.policy)
        turn = self._turns.run_cell(cell, listener)
        result = result_of(turn, self._runner, self.session_id)
        self._turns.sync(listener, is_after_loss=turn.stopped is not None)
        self._hooks.executed()
        log_outcome(self._logger, self._language.name, turn, result)
        return result

    def adopt(self, policy: ExecutionPolicy | None, logger: SandboxLogger | None) -> None:
        """As `BaseSandbox`."""
        if policy is not None:
            self.folders.mounted(policy.mounts)
            self.policy = policy
        if logger is not None:
            self._next_logger = logger

    def _begin(self, progress: Callable[[str], None]) -> None:
        self._take_adopted()
        self._runner.open(progress)

    def _take_adopted(self) -> None:
        """Applies the policy and logger that `adopt` got. Runs on the guest's thread."""
        logger, self._next_logger = self._next_logger, None
        if logger is not None:
            name = self.session_id
            self._logger = logger if name is None else logger.bind(session_id=name)
            self._notices.logger = self._logger
            self._hooks.logger_changed(logger)
        if self._runner.policy != self.policy:
            self._runner.adopt(self.policy)

    def offer_pip(self) -> None:
        """As `BaseSandbox`."""
        for name, handler in self.language_commands.items():
            self.commands.add(name, handler)

    def between_cells(self, job: Callable[[], T]) -> Future[T]:
        """Runs a job on the guest's thread, once the guest is ready and no cell runs."""
        started = self.start()

        def run() -> T:
            started.result()
            self._runner.ensure_guest()
            return job()

        return self._jobs.submit(run)

    def query(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
        """As `BaseSandbox`."""
        return self.between_cells(lambda: self._turns.query(request))

    def comm(
        self,
        message: CommMessage,
        *,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Future[None]:
        """As `BaseSandbox`."""
        page = listener or NoListener()
        return self.between_cells(lambda: self._turns.serve(message, parent or {}, page))

    def offer(self, offered: OfferedMessage) -> None:
        """As `BaseSandbox`."""
        self._runner.comms.offer(offered)

    def comms(self, listener: Listener | None = None) -> Future[dict[str, str]]:
        """As `BaseSandbox`."""
        return self.between_cells(lambda: self._turns.open_comms(listener or NoListener()))

    def naming(self, name: str) -> Future[None]:
        """As `BaseSandbox`."""
        return self.between_cells(lambda: self._runner.name(checked_name(name)))

    def listing(self) -> Future[list[Checkpoint]]:
        """As `BaseSandbox`."""
        runner = self._runner
        return self.between_cells(lambda: [Checkpoint(**row) for row in runner.state.tree.rows()])

    def travel(self, request: TravelRequest) -> Future[Travelled]:
        """As `BaseSandbox`."""
        how, cells, where, files = structs.astuple(request)
        return self.between_cells(lambda: self._runner.go(how, cells, where, files=files))

    def fork(self, n: int = 1, *, deterministic: bool = False) -> list[Self]:
        """Makes forks as `BaseSandbox` says; they are ready for a cell."""
        make_room(self.policy, at_least_one(n) * OF_ONE)
        made: list[Self] = []

        def make() -> None:
            for number in range(n):
                fork = self._fork_one(copies=n - number, reseed=not deterministic)
                made.append(fork)

        try:
            self.between_cells(make).result()
            for started in [fork.start() for fork in made]:
                started.result()
        except BaseException:
            for fork in made:
                fork.close()
                fork.folders.discard()
            raise
        return made

    def _fork_one(self, *, copies: int, reseed: bool) -> Self:
        """Makes one fork, on the guest's thread; after a failure, nothing is left of it."""
        new = self._hooks.new_session()
        own = (self._language, new.folders, self.policy)
        logger = self._logger.bind(session_id=new.session_id or None)
        try:
            history = self._runner.wait_saved(copies).history
            past = fork_history(history, self.folders, new.folders, reseed=reseed)
            fork = type(self)(*own, logger, new.session_id or None, hooks=new.hooks, inherited=past)
            if self.commands.offered(self.language_commands):
                fork.offer_pip()
            return fork
        except BaseException:
            new.hooks.closed()
            new.folders.discard()
            raise

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
        """As `BaseSandbox`."""
        if self._jobs.is_starting and self._jobs.cancel_cells():
            return True
        # also if the start has ended just now: the first cell may have begun
        return self._runner.clock.interrupt() or self._jobs.interrupt_first()

    @property
    def next_count(self) -> int:
        """As `BaseSandbox`."""
        return self._runner.next_count

    @property
    def memory_bytes(self) -> int:
        """The size of the guest's memory; any thread."""
        return self._runner.memory_bytes

    @property
    def history_states(self) -> int:
        """The number of states that memory can be brought back to; any thread."""
        return self._runner.state.states + self._runner.unkept

    @property
    def interrupted(self) -> bool:
        """As `BaseSandbox`."""
        return self._runner.clock.should_stop()

    @property
    def closed(self) -> bool:
        """As `BaseSandbox`."""
        return self._jobs.is_closed

    @property
    def busy(self) -> bool:
        """As `BaseSandbox`."""
        return self._jobs.is_busy

    def rest(self) -> bool:
        """Gives the guest's memory back to the system until the next call, if all is on disk.

        Waits some milliseconds for the disk. The next call takes some milliseconds more. Returns
        True if the guest has no memory to give back any more.
        """
        if (
            not self._jobs.is_started
            or self.busy
            or self._runner.is_keeping
            or not self._jobs.submit(self._runner.rest).result()
        ):
            return False
        memory.trim()
        return True

    def process_usage(self) -> ProcessUsage:
        """Returns zeros: the guest has no process of its own."""
        return ProcessUsage()

    def leave_spoilt_state(self) -> bool:
        """Goes to the state before the current one, if the guest never began the running cell.

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

    def close_if_idle(self, why: str) -> bool:
        """As `BaseSandbox`."""
        if not self._jobs.refuse_further(why, unless_busy=True):
            return False
        self.close()
        return True

    def close(self, *, anew: bool = False, why: str = CLOSED, crashed: bool = False) -> None:
        """As `BaseSandbox`; with `crashed`, the session's next holder finds it as after a crash."""
        self._jobs.refuse_further(why)
        if anew:
            self._runner.state.forget_at_end()
        if crashed:
            self._runner.state.crash_at_end()
        self._jobs.cancel_cells()
        self._runner.clock.close()
        try:
            if not self._jobs.end(self._runner.close, lambda: self._runner.is_in_turn):
                self._runner.close()  # no thread was ever started
        finally:  # Ctrl-C may cut the waiting short
            self._hooks.closed()

    def __del__(self) -> None:
        jobs = getattr(self, "_jobs", None)
        if jobs is not None and jobs.is_started and not jobs.is_closed:
            warnings.warn("a sandbox was not closed", ResourceWarning, stacklevel=2)
