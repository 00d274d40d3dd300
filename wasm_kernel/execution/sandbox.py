"""`BaseSandbox`: a workspace, one long-lived guest, and the thread it lives on.

Any thread may call a sandbox. What touches the guest runs on the sandbox's own thread, one job
after another; `interrupt` and `close` act at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

from wasm_kernel.errors import ForkError
from wasm_kernel.events import Notices, SandboxLogger
from wasm_kernel.execution.cell_future import CellFuture, QueuedCell, never_ran
from wasm_kernel.execution.descriptors import OF_ONE, make_room
from wasm_kernel.execution.facts import offer_facts
from wasm_kernel.execution.interfaces import (
    Listener,
    NoListener,
    NoSession,
    OfferedMessage,
    SessionHooks,
)
from wasm_kernel.execution.jobs import GuestJobs
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.execution.turns import GuestTurns, log_outcome, result_of
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests.base import GuestLanguage, broker_handlers
from wasm_kernel.linux.broker import Broker, LocalBroker
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import Checkpoint, CommMessage, SandboxResult, Travelled
from wasm_kernel.state.fork import Fork, fork_history
from wasm_kernel.state.history import NOT_SAVED
from wasm_kernel.state.tree import checked_name

T = TypeVar("T")
_CLOSED, _SAVE_SECONDS = "this sandbox is closed; make another one", 120.0


class BaseSandbox:
    """A guest with a workspace. Make one with `create_sandbox`.

    Attributes:
        workspace: The host folder that the guest sees as `/app`, by the path that was asked for.
        folders: This and all others of the sandbox, open.
        policy: The limits.
        session_id: The session's id, or None outside of sessions.
        commands: What the host does for magics that stand in a cell's own text.
        language_commands: Those of the guest's language, which `commands` need not have.
        facts: What a cell may know of its session.
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
        self.workspace = folders.path
        self.folders = folders
        self.policy = policy
        self.session_id = session_id
        self._language = language
        self._hooks = hooks or NoSession(folders)
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
        self._jobs = GuestJobs(f"guest {session_id or folders.path.name}", self._begin)
        self._hooks.opened(self)

    def start(self, progress: Callable[[str], None] | None = None) -> Future[None]:
        """Gets the guest ready, on its own thread: compiles it and builds its image, if missing.

        Args:
            progress: Gets plain sentences about what takes long, from any thread.

        Returns:
            A future that ends when it is, or with a `WasmKernelError`; a later call tries again.

        Raises:
            SandboxClosed: the sandbox is closed.
        """
        return self._jobs.start(progress)

    def submit(
        self,
        code: str,
        *,
        silent: bool = False,
        store_history: bool = True,
        allow_stdin: bool = False,
        user_expressions: Mapping[str, str] | None = None,
        cell_id: str | None = None,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
        timeout_seconds: float | None = None,
    ) -> CellFuture:
        """Queues a cell; its future ends with its result, whatever the code does.

        Cancelling the future, as `asyncio.wait_for` does, interrupts this cell alone.

        Args:
            code: The cell's source, with its magics.
            silent: Run it without history, counting or results.
            store_history: Count it and keep it in `In`.
            allow_stdin: Whether `input()` may ask the listener.
            user_expressions: Expressions to evaluate afterwards, by name.
            cell_id: The front end's id of the cell, for tracebacks.
            parent: What the guest may know of the message that carried it: `msg_id`, `msg_type`.
            listener: Gets its output while it runs.
            timeout_seconds: How long it may run, if `policy.cell_timeout` does not allow less.

        Raises:
            SandboxClosed: the sandbox is closed.
            TypeError: `code` is no text.
            ValueError: `timeout_seconds` is not above 0.
        """
        if not isinstance(code, str):
            raise TypeError(f"a cell's code is a str, not {type(code).__name__}")
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds is above 0, not {timeout_seconds!r}")
        request = {
            "op": "execute",
            "code": code,
            "silent": silent,
            "store_history": store_history and not silent,
            "allow_stdin": allow_stdin,
            "user_expressions": dict(user_expressions or {}),
            "cell_id": cell_id,
            "parent": dict(parent or {}),
        }
        started = self.start()
        page = listener or NoListener()
        cell = QueuedCell(self._runner.clock, lambda: never_ran(self.folders.real, self.session_id))
        cell.queue(self._jobs, lambda: self._execute(started, request, page, timeout_seconds))
        return cell

    def execute(self, code: str, **options: Any) -> SandboxResult:
        """Runs a cell and waits for it; the options are those of `submit`.

        Ctrl-C interrupts the cell, and its result says so.

        Raises:
            SandboxClosed, TypeError, ValueError: as `submit`.
            WasmKernelError: the guest could not be started.
        """
        return self.submit(code, **options).wait()

    async def aexecute(self, code: str, **options: Any) -> SandboxResult:
        """Runs a cell and awaits it; the options and errors are those of `execute`.

        Cancelling it interrupts the cell and waits for its end, which may take `grace_seconds`.
        """
        return await self.submit(code, **options).ended()

    def _execute(
        self,
        started: Future[None],
        request: Mapping[str, Any],
        listener: Listener,
        timeout: float | None,
    ) -> SandboxResult:
        try:
            started.result()
            self._take_adopted()
            self._runner.ensure_guest()
            self._logger.log_execution_start(self._language.name, self._runner.policy)
        except BaseException:
            self._runner.clock.expect(-1)
            raise
        turn = self._turns.run_cell(request, listener, timeout)
        result = result_of(turn, self._runner, self.session_id)
        self._turns.sync(listener, is_after_loss=turn.stopped is not None)
        self._hooks.executed()
        log_outcome(self._logger, self._language.name, turn, result)
        return result

    def adopt(self, policy: ExecutionPolicy | None, logger: SandboxLogger | None) -> None:
        """Takes other limits and another logger, which hold from the next cell on.

        The variables stay. None leaves what is there.
        """
        if policy is not None:
            self.policy = policy
        if logger is not None:
            self._next_logger = logger

    def _begin(self, progress: Callable[[str], None]) -> None:
        self._take_adopted()
        self._runner.open(progress)

    def _take_adopted(self) -> None:
        """Lets what `adopt` was given hold from here on; on the guest's thread."""
        logger, self._next_logger = self._next_logger, None
        if logger is not None:
            name = self.session_id
            self._logger = logger if name is None else logger.bind(session_id=name)
            self._notices.logger = self._logger
            self._hooks.logger_changed(logger)
        if self._runner.policy != self.policy:
            self._runner.adopt(self.policy)

    def between_cells(self, job: Callable[[], T]) -> Future[T]:
        """Runs a job on the guest's thread, once the guest is there and no cell runs."""
        started = self.start()

        def run() -> T:
            started.result()
            self._runner.ensure_guest()
            return job()

        return self._jobs.submit(run)

    def query(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
        """Asks the guest something: `complete`, `inspect`, `is_complete` or `history`.

        The request and the reply are those of `runtimes/PROTOCOL.md`. A query has
        `policy.query_seconds`; it is then interrupted, and stopped if it goes on. It leaves nothing
        behind.
        """
        return self.between_cells(lambda: self._turns.query(request))

    def comm(
        self,
        message: CommMessage,
        *,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Future[None]:
        """Hands a message of the front end to the guest; the future ends when it was served.

        A message for which there is nobody is dropped; such an `open` is answered with a `close`.
        What the guest's callbacks change is kept like a cell's effects, and taken back together
        with the cell before. They have `policy.comm_seconds`; then they are interrupted.

        Args:
            message: The message.
            parent: What the guest may know of the message that carried it: `msg_id`, `msg_type`.
            listener: Gets what the callbacks say.
        """
        page = listener or NoListener()
        return self.between_cells(lambda: self._turns.serve(message, parent or {}, page))

    def offer(self, offered: OfferedMessage) -> None:
        """Lets the running cell take a message while it awaits something.

        Whoever offers it claims it when its turn has come, and calls `comm` if that succeeds.
        """
        self._runner.comms.offer(offered)

    def comms(self, listener: Listener | None = None) -> Future[dict[str, str]]:
        """Returns the target of each comm that is open, by the comm's id."""
        return self.between_cells(lambda: self._turns.open_comms(listener or NoListener()))

    def checkpoint(self, name: str) -> None:
        """Names the state that memory is in now; it is kept as long as the session.

        This and all that go back wait until the running cell is over.

        Raises:
            TravelError: the name can't be used.
        """
        self.naming(name).result()

    def naming(self, name: str) -> Future[None]:
        """As `checkpoint`, without waiting for it."""
        return self.between_cells(lambda: self._runner.state.name(checked_name(name)))

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the states that memory can be brought back to, oldest first."""
        return self.listing().result()

    def listing(self) -> Future[list[Checkpoint]]:
        """As `checkpoints`, without waiting for it."""
        runner = self._runner
        return self.between_cells(lambda: [Checkpoint(**row) for row in runner.state.tree.rows()])

    def undo(self, cells: int = 1, *, files: bool = False) -> Travelled:
        """Takes back what the last cells did to variables, and to files if `files` is set.

        Raises:
            TravelError: there are not so many; nothing was changed.
        """
        return self.travel("undo", cells, files=files).result()

    def redo(self, *, files: bool = False) -> Travelled:
        """Takes back the last undo or restore, as long as no cell ran since.

        Raises:
            TravelError: there is nothing to redo.
        """
        return self.travel("redo", files=files).result()

    def restore(self, where: str | int, *, files: bool = False) -> Travelled:
        """Brings variables back as they were at a named checkpoint, or after a cell's number.

        Raises:
            TravelError: there is no such state; nothing was changed.
        """
        return self.travel("restore", 1, str(where), files=files).result()

    def rollback(self, *, files: bool = False) -> Travelled:
        """Brings variables back as they were after the last cell, in a new guest.

        Args:
            files: Whether the files in the workspace are to be as they were, too: those that a cell
                that failed, or somebody else, has changed since.
        """
        return self.travel("rollback", files=files).result()

    def travel(
        self, how: str, cells: int = 1, where: str = "", *, files: bool = False
    ) -> Future[Travelled]:
        """As `undo`, `redo`, `restore` or `rollback`, by its name, without waiting for it."""
        return self.between_cells(lambda: self._runner.go(how, cells, where, files=files))

    def fork(self, n: int = 1, *, deterministic: bool = False) -> list[Self]:
        """Makes further sandboxes with the same variables and copies of the files.

        Each fork of a session is a session with an id of its own; that of a sandbox outside of
        sessions lives in a folder beside this one's, `NAME-fork-1` and so on. Both go their own
        ways from here: no variable and no file of the one is seen by the other, but for mounted
        folders. A fork has its parent's past, too: `undo`, `redo` and named checkpoints lead to the
        same states. Waits until the running cell is over.

        Args:
            n: How many.
            deterministic: Keep the state of every random generator. Otherwise all of them, seeded
                or not, and what UUIDs and temporary names are made of begin anew in a fork, also if
                it goes back to a state from before it was forked.

        Returns:
            The forks, ready for a cell; close each. What could not be copied (a file without
            permission to read, a socket) is named in the stderr of a fork's first cell.

        Raises:
            ForkError: a fork can't be made, such as for lack of disk space; none was.
            ValueError: `n` is less than 1.
            WasmKernelError: a session can't be made, or a guest not be started.
        """
        if n < 1:
            raise ValueError(f"fork makes one sandbox or more, not {n}")
        make_room(self.policy, n * OF_ONE)
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
        """Makes one fork, on the guest's thread; if it can't, nothing is left of it."""
        new = self._hooks.new_session()
        own = (self._language, new.folders, self.policy)
        logger = self._logger.bind(session_id=new.session_id)
        try:
            history = self._runner.wait_saved(copies).history
            past = fork_history(history, self.folders, new.folders, reseed=reseed)
            fork = type(self)(*own, logger, new.session_id, hooks=new.hooks, inherited=past)
            for name in self.commands.offered(self.language_commands):
                fork.commands.add(name, fork.language_commands[name])
            return fork
        except BaseException:
            new.hooks.closed()
            new.folders.discard()
            raise

    def check_fork(self) -> None:
        """Checks that a fork could be planned. For host commands: in the midst of a cell.

        Raises:
            ForkError: this session's variables have no place on disk.
        """
        if not self._runner.state.history.on_disk:
            raise ForkError(NOT_SAVED)

    def frozen(self) -> AbstractContextManager[None]:
        """Keeps all that is on disk as it is while a block lasts, for somebody who forks it.

        For what runs after a cell: on the guest's thread.

        Raises:
            ForkError: the session can't be forked.
        """
        return self._runner.wait_saved().history.frozen()

    def interrupt(self) -> bool:
        """Interrupts the running cell, or those that wait for the guest; returns whether any did.

        The cell ends with `KeyboardInterrupt`; if it does not within `policy.grace_seconds`, its
        guest is stopped. Any thread.
        """
        if self._jobs.is_starting:
            return self._jobs.cancel_cells()
        return self._runner.clock.interrupt()

    @property
    def next_count(self) -> int:
        """The execution count that the next cell will have."""
        return self._runner.next_count

    @property
    def interrupted(self) -> bool:
        """True if a wait of the running cell in the host should end now."""
        return self._runner.clock.should_stop()

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._jobs.is_closed

    @property
    def busy(self) -> bool:
        """True if a cell or another job runs or waits, or the guest is still starting."""
        return self._jobs.is_busy

    def rest(self) -> bool:
        """Gives the guest's memory back until the next call, if it can; returns whether it did."""
        can_rest = self._jobs.is_started and not self.busy
        return can_rest and self._jobs.submit(self._runner.rest).result()

    def retire(self, why: str) -> bool:
        """Closes the sandbox unless it is busy, and returns whether; later calls are told `why`."""
        if not self._jobs.refuse_further(why, unless_busy=True):
            return False
        self.close()
        return True

    def close(self, *, anew: bool = False, why: str = _CLOSED) -> None:
        """Stops what runs and frees the sandbox's resources. Safe to call twice, from any thread.

        Args:
            anew: Whether whoever opens the session next begins without its variables, always.
            why: The error text of later calls.
        """
        self._jobs.refuse_further(why)
        if anew:
            self._runner.state.forget_at_end()
        self._jobs.cancel_cells()
        self._runner.clock.close()
        try:
            if not self._jobs.end(self._runner.close):
                self._runner.close()  # no thread was ever started
            elif self._runner.state.is_saving:
                self._jobs.join(_SAVE_SECONDS)
        finally:  # Ctrl-C may cut the waiting short
            self._hooks.closed()

    def __enter__(self) -> BaseSandbox:
        self._hooks.entered()
        return self

    def __exit__(self, *_: object) -> None:
        if self._hooks.left():
            self.close()

    def __del__(self) -> None:
        jobs = getattr(self, "_jobs", None)
        if jobs is not None and jobs.is_started and not jobs.is_closed:
            warnings.warn("a sandbox was not closed", ResourceWarning, stacklevel=2)
