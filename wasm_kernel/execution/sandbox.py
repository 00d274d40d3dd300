"""`BaseSandbox`: a workspace, one long-lived guest, and the thread it lives on.

Any thread may call a sandbox. What touches the guest runs on the sandbox's own thread, one job
after another; `interrupt` and `close` act at once.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from wasm_kernel.engine.thread import GuestThread
from wasm_kernel.errors import GuestStopped, SandboxClosed
from wasm_kernel.events import Notices, SandboxLogger
from wasm_kernel.execution import facts, outcome
from wasm_kernel.execution.checkpoints import Travelling
from wasm_kernel.execution.errands import Errands
from wasm_kernel.execution.listener import Listener, NoListener
from wasm_kernel.execution.fork import Forking
from wasm_kernel.execution.keeper import Home, Keeper
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.execution.talking import AGREE_SECONDS, Talking
from wasm_kernel.execution.turn import Turn
from wasm_kernel.folders.claim import Resume
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.guests.driver import Driver
from wasm_kernel.guests.python.spoken import only_travels
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import SandboxResult
from wasm_kernel.state.branch import Branch

T = TypeVar("T")
Progress = Callable[[str], None]
_CLOSED = "this sandbox is closed; make another one"
_SETTLE_SECONDS = 1.0  # for widgets to be shown as they are, after a cell that was stopped
_JOIN_SECONDS, _SAVE_SECONDS = 5.0, 120.0  # for a guest to stop; for the last cells to be saved


class BaseSandbox(Travelling, Forking, Talking):
    """A guest with a workspace. Make one with `create_sandbox`.

    Attributes:
        workspace: The host folder that the guest sees as `/app`, by the path that was asked for.
        folders: This and all others of the sandbox, open.
        policy: The limits.
        session_id: The session's id, or None outside of sessions.
        errands: What the host does for magics that stand in a cell's own text.
        facts: What a cell may know of its session.
    """

    def __init__(
        self,
        driver: Driver,
        folders: SandboxFolders,
        policy: ExecutionPolicy,
        logger: SandboxLogger,
        session_id: str | None,
        *,
        resume: Resume = Resume.NEVER,
        keeper: Keeper | None = None,
        inherited: Branch | None = None,
        quiet: bool = False,
    ) -> None:
        self.workspace = folders.path
        self.folders = folders
        self.policy = policy
        self.session_id = session_id
        self._logger = logger
        self._heard_by: SandboxLogger | None = None
        self._driver = driver
        self._keeper = keeper
        self.errands = Errands()
        self._notices = Notices(logger, quiet=quiet)
        self._runner = GuestRunner(
            driver,
            folders,
            policy,
            resume=resume,
            errands=self.errands,
            notices=self._notices,
            inherited=inherited,
        )
        own = {"session_id": session_id, "runtime": driver.name}
        self.facts = facts.offered(self.errands, self._runner, own)
        self._guard = threading.Lock()
        self._thread: GuestThread | None = None
        self._started: Future[None] | None = None
        self._waiting: set[Future[SandboxResult]] = set()
        self._jobs = 0
        self._closed, self._why_closed = False, _CLOSED
        if keeper is not None:
            keeper.opened(self)

    def start(self, progress: Progress | None = None) -> Future[None]:
        """Get the guest ready, on its own thread: compile, build the image, where that is missing.

        Args:
            progress: Hears plain sentences about what takes long, from any thread.

        Returns:
            A future that ends when the guest is ready; it carries a `WasmKernelError` where it
            can't be. A later call asks again after a failure.
        """
        with self._guard:
            if self._closed:
                raise SandboxClosed(self._why_closed)
            if self._thread is None:
                self._thread = GuestThread(f"guest {self.session_id or self.workspace.name}")
            failed = (
                self._started is not None
                and self._started.done()
                and self._started.exception() is not None
            )
            if self._started is None or failed:
                tell = progress or (lambda text: None)
                self._started = self._thread.submit(lambda: self._begin(tell))
            return self._started

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
    ) -> Future[SandboxResult]:
        """Queue a cell; its future ends with its result, whatever the code does.

        Args:
            code: The cell's source, with IPython's magics.
            silent: Run it without history, counting or results.
            store_history: Count it and keep it in `In`.
            allow_stdin: Whether `input()` may ask the listener.
            user_expressions: Expressions to evaluate afterwards, by name.
            cell_id: The front end's id of the cell, for tracebacks.
            parent: What the guest may know of the message that carried it: `msg_id`, `msg_type`.
            listener: Hears the cell while it runs.

        Raises:
            SandboxClosed: the sandbox is closed.
            TypeError: `code` is no text.
        """
        if not isinstance(code, str):
            raise TypeError(f"a cell's code is a str, not {type(code).__name__}")
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
        heard = listener or NoListener()
        self._runner.clock.expect(1)
        try:
            cell = self._queued(lambda: self._execute(started, request, heard))
        except SandboxClosed:
            self._runner.clock.expect(-1)
            raise
        with self._guard:
            self._waiting.add(cell)
        outer: Future[SandboxResult] = Future()
        cell.add_done_callback(lambda done: self._finish(done, outer))
        return outer

    def execute(self, code: str, **options: Any) -> SandboxResult:
        """Run a cell and wait for it; the options are those of `submit`.

        Ctrl-C interrupts the cell, and its result says so.

        Raises:
            SandboxClosed: the sandbox is closed.
            TypeError: `code` is no text.
            WasmKernelError: the guest could not be started.
        """
        future = self.submit(code, **options)
        while True:
            try:
                return future.result()
            except KeyboardInterrupt:
                if not self.interrupt():
                    raise

    def adopt(self, policy: ExecutionPolicy | None, logger: SandboxLogger | None) -> None:
        """Take other limits and another logger, which hold from the next cell on.

        The variables stay. None leaves what is there.
        """
        if policy is not None:
            self.policy = policy
        if logger is not None:
            self._heard_by = logger

    def _begin(self, tell: Progress) -> None:
        self._take_up()
        self._runner.open(tell)

    def _take_up(self) -> None:
        """What `adopt` was given holds from here on; on the guest's thread."""
        logger, self._heard_by = self._heard_by, None
        if logger is not None:
            name = self.session_id
            self._logger = logger if name is None else logger.bind(session_id=name)
            self._notices.logger = self._logger
            if self._keeper is not None:
                self._keeper.heard_by(logger)
        if self._runner.policy != self.policy:
            self._runner.adopt(self.policy)

    def _later(self, job: Callable[[], T]) -> Future[T]:
        started = self.start()

        def run() -> T:
            started.result()
            self._runner.ensure_guest()
            return job()

        return self._queued(run)

    def _queued(self, job: Callable[[], T]) -> Future[T]:
        """The future of a job on the guest's thread."""
        with self._guard:
            if self._closed or self._thread is None:
                raise SandboxClosed(self._why_closed)
            self._jobs += 1
            future = self._thread.submit(outcome.in_words(job))
        future.add_done_callback(lambda done: self._ended())
        return future

    def _ended(self) -> None:
        with self._guard:
            self._jobs -= 1

    def interrupt(self) -> bool:
        """Interrupt the running cell, or those that wait for the guest to start.

        The cell ends with `KeyboardInterrupt`; where it does not within `policy.grace_seconds`, its
        guest is stopped. Any thread may call this. False where there was nothing to interrupt.
        """
        with self._guard:
            starting = self._started is not None and not self._started.done()
            waiting = list(self._waiting) if starting else []
        if starting:
            cancelled = [cell.cancel() for cell in waiting]
            return any(cancelled)
        return self._runner.clock.interrupt()

    @property
    def next_count(self) -> int:
        """The execution count that the next cell will have."""
        return self._runner.next_count

    @property
    def interrupted(self) -> bool:
        """Whether a wait of the running cell in the host should end now."""
        return self._runner.clock.over()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def busy(self) -> bool:
        """Whether a cell or another job runs or waits, or the guest is still starting."""
        with self._guard:
            return self._is_busy()

    def _is_busy(self) -> bool:
        starting = self._started is not None and not self._started.done()
        return starting or self._jobs > 0

    def retire(self, why: str) -> bool:
        """Close the sandbox, unless it is busy; returns whether it is closed.

        Args:
            why: What a later call is told.
        """
        with self._guard:
            if not self._closed:
                if self._is_busy():
                    return False
                self._closed, self._why_closed = True, why
        self.close()
        return True

    def close(self, *, anew: bool = False, why: str = _CLOSED) -> None:
        """Stop what runs and give everything back; idempotent, from any thread.

        Args:
            anew: Whether the variables end here: who opens the session next begins without them,
                also where it would go on.
            why: What a later call is told.
        """
        with self._guard:
            if not self._closed:
                self._closed, self._why_closed = True, why
            thread = self._thread
            waiting = list(self._waiting)
        if anew:
            self._runner.timeline.forsake()
        for cell in waiting:
            cell.cancel()
        self._runner.clock.close()
        try:
            if thread is None:
                self.folders.close()
            else:
                thread.close(self._runner.close)
                thread.join(_JOIN_SECONDS)
                thread.join(_SAVE_SECONDS if self._runner.timeline.saving else 0)
        finally:  # Ctrl-C may cut the waiting short
            if self._keeper is not None:
                self._keeper.closed()

    def _twin(self, home: Home, keeper: Keeper | None, branch: Branch) -> Self:
        name, driver, policy = home.session_id or None, self._driver, self.policy
        told = self._logger.bind(session_id=name)
        return type(self)(driver, home.folders, policy, told, name, keeper=keeper, inherited=branch)

    def __enter__(self) -> BaseSandbox:
        if self._keeper is not None:
            self._keeper.entered()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._keeper is None or self._keeper.left():
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_thread", None) is not None and not self._closed:
            warnings.warn("a sandbox was not closed", ResourceWarning, stacklevel=2)

    def _finish(self, cell: Future[SandboxResult], outer: Future[SandboxResult]) -> None:
        with self._guard:
            self._waiting.discard(cell)
        try:
            outer.set_result(cell.result())
        except CancelledError:
            self._runner.clock.expect(-1)
            outer.set_result(self._never_ran())
        except BaseException as problem:
            outer.set_exception(problem)

    def _execute(
        self, started: Future[None], request: Mapping[str, Any], listener: Listener
    ) -> SandboxResult:
        try:
            started.result()
            self._take_up()
            self._runner.ensure_guest()
            self._logger.log_execution_start(self._driver.name, self._runner.policy)
            begun = time.monotonic()
            alone = only_travels(request["code"]) is not None  # the guest is not asked
            stopped = None if alone else self._settle(listener, for_cell=True)
        except BaseException:
            self._runner.clock.expect(-1)
            raise
        if stopped is None:
            turn, stopped = self._runner.run(request, listener)
        else:
            turn = self._runner.refuse(request, listener)
        duration = time.monotonic() - begun
        if stopped is not None:
            turn.error = outcome.as_error(stopped)
            listener.emit(turn.error)
        result = self._outcome(turn, stopped, duration)
        self._settle(listener, most=AGREE_SECONDS if stopped is None else _SETTLE_SECONDS)
        if self._keeper is not None:
            self._keeper.executed()
        outcome.log(self._logger, self._driver.name, turn, stopped, result)
        return result

    def _never_ran(self) -> SandboxResult:
        """The result of a cell that was interrupted while the guest was still starting."""
        turn = self._runner.unused_turn()
        turn.error = outcome.NEVER_RAN
        return self._outcome(turn, None, 0.0)

    def _outcome(self, turn: Turn, stopped: GuestStopped | None, duration: float) -> SandboxResult:
        runner, place, name = self._runner, self.folders.real, self.session_id
        return outcome.result_of(turn, stopped, runner, duration, workspace=place, session_id=name)
