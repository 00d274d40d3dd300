"""`Sandbox`: a guest with a workspace, as programs, services and front ends use it."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

import wasm_kernel
from wasm_kernel.errors import GuestClosed, SandboxClosed, WasmKernelError, WorkerLost
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.interfaces import (
    Cell,
    Listener,
    OfferedMessage,
    ProcessUsage,
    TravelRequest,
    check_count,
    check_type,
    checked_cell,
    checked_query,
)
from wasm_kernel.guests.protocol import without_surrogates
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import Checkpoint, CommMessage, SandboxResult, Travelled
from wasm_kernel.service import messages
from wasm_kernel.service.calls import PendingCall, PendingCell, done
from wasm_kernel.service.cell_future import CellFuture
from wasm_kernel.service.functions import Functions
from wasm_kernel.service.open_message import plain_policy
from wasm_kernel.service.page_offers import PendingOffer
from wasm_kernel.service.sandbox_home import SandboxHome
from wasm_kernel.service.session_worker import SessionWorker

CLOSED = "this sandbox is closed; a session can be opened again"
_DROPPED = "the program no longer has this sandbox, so its cells were ended; keep it until they end"
_COPY = "this process was forked from the one whose sandbox it is; make another one"
_LOST = "ended each time before it could put its variables away"
_AS_IT_WAS = "The session may be as it was. Try again, or delete it."
_TRIES = 3
_NETWORK = ("network", "network_mode", "network_record_bytes")


class Sandbox:
    """A guest with a workspace. Make one with `create_sandbox`. Any thread may call it.

    Its guest lives in a process of its own, a worker, behind both walls. The first call forks the
    worker, and so does a call that finds the session asleep. If the worker is lost, the cell that
    ran says so (`WorkerLost`), and the next call goes on with the variables of the last cell that
    was kept.

    Cells and questions are served one after another; `interrupt` and `close` act at once. Listeners
    are called on a thread of the session. A `with` block closes it at its end, unless another
    caller in this process uses the same session.

    Attributes:
        workspace: The host folder that the guest sees as `/app`, by the path that the caller gave.
        policy: The limits.
        session_id: The session's id; empty outside of sessions.
    """

    def __init__(
        self,
        worker: SessionWorker,
        home: SandboxHome[Sandbox],
        workspace: Path,
        policy: ExecutionPolicy,
    ) -> None:
        self.workspace, self.policy = workspace, policy
        self.session_id = worker.opened.session_id
        self.worker = worker
        self._home = home
        self._process = os.getpid()
        self._changing = threading.RLock()
        self._functions = Functions()
        if policy.uses_exchanges:
            worker.network = home.network(worker, policy)
            self.take_functions(self._functions)

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
        env: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> CellFuture:
        """Queues a cell; its future ends with a result, whatever the code does.

        Cancelling the future, as `asyncio.wait_for` does, interrupts this cell and no other.

        Args:
            code: The cell's source, with its magics.
            silent: Run it without history, counting or results.
            store_history: Count it and keep it in `In`.
            allow_stdin: Whether `input()` may ask the listener.
            user_expressions: Expressions to evaluate afterwards, by name.
            cell_id: The front end's id of the cell, for tracebacks.
            parent: The fields of the carrying message that the guest may know: `msg_id`,
                `msg_type`.
            listener: Gets its output while it runs.
            timeout_seconds: How long it may run, if `policy.cell_timeout` does not allow less.
            env: Environment variables for this cell alone.
            progress: Gets plain sentences about slow steps before it begins, from any thread.

        Raises:
            SandboxClosed: the sandbox is closed.
            LimitReached: too many cells of a service's session wait.
            TypeError: `code` is not a string.
            ValueError: `timeout_seconds` is not above 0, or `env` can't be the guest's.
        """
        cell = Cell(
            code=code,
            silent=silent,
            store_history=store_history and not silent,
            allow_stdin=allow_stdin,
            user_expressions=user_expressions or {},
            cell_id=cell_id,
            parent=parent or {},
            timeout_seconds=timeout_seconds,
            env=env or {},
        )
        return self.queue(checked_cell(cell), listener, progress)

    def queue(
        self, cell: Cell, listener: Listener | None, progress: Callable[[str], None] | None = None
    ) -> CellFuture:
        """Queues a cell that was checked already, like `submit`."""
        sent = replace(cell, code=without_surrogates(cell.code))
        worker, grace = self.worker, self.policy.grace_seconds
        future = CellFuture(worker.interrupt, worker.check_may_wait, grace)
        pending = PendingCell(sent, future, self.policy, worker.opened, listener, progress=progress)
        future.call = self._send(pending)
        return future

    def execute(self, code: str, **options: Any) -> SandboxResult:
        """Runs a cell and waits for it; the options are those of `submit`.

        Ctrl-C interrupts the cell, whose result then says so.

        Raises:
            SandboxClosed, LimitReached, TypeError, ValueError: as for `submit`.
            WasmKernelError: the guest could not be started.
        """
        return self.submit(code, **options).wait()

    async def aexecute(self, code: str, **options: Any) -> SandboxResult:
        """Runs a cell and awaits it; the options and errors are those of `execute`.

        Cancelling it interrupts the cell, and again after `grace_seconds`, and waits for its end.
        """
        return await self.submit(code, **options).ended()

    def interrupt(self) -> bool:
        """Interrupts the running cell, or the cells that wait for the guest's start.

        The cell gets a `KeyboardInterrupt`. As in other kernels, one that catches it may go on; the
        next interrupt gives it `policy.grace_seconds` to end. A guest that does not take one within
        these seconds is stopped. Returns False if there was no cell to interrupt.
        """
        return not self._is_copy and self.worker.interrupt()

    @property
    def interrupted(self) -> bool:
        """True if a wait of the running cell in the host should end now."""
        return self.worker.is_interrupted

    @property
    def busy(self) -> bool:
        """True if a cell or another call runs or waits, or the guest is still starting."""
        return self.worker.state in ("busy", "starting")

    @property
    def next_count(self) -> int:
        """The execution count that the next cell will have."""
        return self.worker.usage.figures.next_count

    # -- calls of a front end

    def start(self, progress: Callable[[str], None] | None = None) -> Future[None]:
        """Gets the guest ready: compiles it and builds its image, if missing. Wakes a session.

        Args:
            progress: Gets plain sentences about slow steps, from any thread.

        Returns:
            A future that ends when the guest is ready, or with a `WasmKernelError`, such as
            `LimitReached` if a service has no room. After a failure, a later call tries again.

        Raises:
            SandboxClosed: the sandbox is closed.
        """
        is_ready = self.worker.is_up and not self.worker.is_changing
        return done() if is_ready else self.call(messages.Start(), progress=progress)

    def query(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
        """Asks the guest a question: `complete`, `inspect`, `is_complete` or `history`.

        The request and the reply are as in `runtimes/PROTOCOL.md`. A query leaves nothing behind.
        After `policy.query_seconds` it is interrupted, and stopped if it goes on.
        """
        return self.call(messages.Query(checked_query(request)))

    def comm(
        self,
        message: CommMessage,
        *,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Future[None]:
        """Hands a message of the front end to the guest; the future ends when it was served.

        A message to an unknown comm is dropped; an `open` to an unknown target gets a `close`.
        Changes by callbacks are kept like a cell's effects, and an undo of the cell before takes
        them back. After `policy.comm_seconds` they are interrupted. `parent` is that of `submit`.
        """
        return self.call(messages.Comm(message, dict(parent or {})), listener)

    def offer(self, offered: OfferedMessage) -> None:
        """Lets the running cell take a message while it awaits something.

        When the message's turn comes, the caller claims it, and calls `comm` if that succeeds.
        """
        self.worker.offer(PendingOffer(offered, self.policy))

    def comms(self, listener: Listener | None = None) -> Future[dict[str, str]]:
        """Returns the target of each open comm, by the comm's id."""
        return self.call(messages.OpenComms(), listener)

    def process_usage(self) -> ProcessUsage:
        """Returns the resources that its workers use, and have used."""
        usage, worker = self.worker.usage, self.worker.worker
        if worker is None:
            return ProcessUsage(0, usage.ended_seconds)
        return ProcessUsage(worker.shared_bytes, usage.ended_seconds + worker.cpu_seconds)

    # -- its history and its options

    def checkpoint(self, name: str) -> None:
        """Names the current state of memory, which is kept as long as the session.

        Returns when the state is on disk. This method and those that go back wait until the running
        cell is over. Raises `TravelError` if the name can't be used.
        """
        self.call(messages.NameState(name)).result()

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the states that memory can be brought back to, oldest first."""
        return [*self.call(messages.Timeline()).result().states]

    def undo(self, cells: int = 1, *, files: bool = False) -> Travelled:
        """Takes back the changes of the last cells to variables.

        Args:
            cells: The number of cells.
            files: Whether to bring the files in the workspace back, too.

        Raises:
            TravelError: there are fewer cells to undo; nothing was changed.
        """
        return self._travel(TravelRequest("undo", cells, files=files))

    def redo(self, *, files: bool = False) -> Travelled:
        """Takes back the last undo or restore, as long as no cell ran since.

        With `files`, files in the workspace are brought back, too. Raises `TravelError` if there is
        nothing to redo.
        """
        return self._travel(TravelRequest("redo", files=files))

    def restore(self, where: str | int | Checkpoint, *, files: bool = False) -> Travelled:
        """Brings variables back as they were at a named checkpoint, or after a cell.

        Args:
            where: The checkpoint, its name, or the cell's number. Cells can move a name.
            files: Whether to bring the files in the workspace back, too.

        Raises:
            TravelError: there is no such state; nothing was changed.
        """
        place = f"#{where.id}" if isinstance(where, Checkpoint) else str(where)
        return self._travel(TravelRequest("restore", where=place, files=files))

    def rollback(self, *, files: bool = False) -> Travelled:
        """Brings variables back as they were after the last cell, in a new guest.

        With `files`, files in the workspace are brought back, too, if a cell that failed or another
        program has changed them since.
        """
        return self._travel(TravelRequest("rollback", files=files))

    def _travel(self, request: TravelRequest) -> Travelled:
        done: Travelled = self.call(request).result()
        return done

    def fork(self, n: int = 1, *, deterministic: bool = False) -> Sequence[Sandbox]:
        """Makes further sandboxes with the same variables and copies of the files.

        Each fork of a session is a session with an id of its own, in a service one of the same
        owner. A fork of a sandbox outside of sessions lives in a folder beside this one's:
        `NAME-fork-1` and so on. Neither sees the other's later variables or files, except in
        mounts. Waits until the running cell is over; a fork's guest starts with its first call.

        Args:
            n: The number of forks.
            deterministic: Keep the state of every random generator. Otherwise all generators,
                seeded or not, and the sources of UUIDs and temporary names begin anew in a fork,
                even if it goes back to a state from before it was forked.

        Returns:
            The forks; close each. The stderr of a fork's first cell names the files that could not
            be copied (a file without permission to read, a socket).

        Raises:
            ForkError, LimitReached: for lack of space, or of room in the service; none was made.
            WasmKernelError: a session can't be made, or a guest can't be started.
        """
        check_count("n", n)
        forks = self._home.fork(self, n, reseed=not deterministic)
        for fork in forks:
            fork.take_functions(self._functions)
        return forks

    def fork_into(self, names: Sequence[str], *, reseed: bool) -> list[str]:
        """Forks this session into new sessions of these ids. For its home.

        Returns the notice for each one's first cell, such as files left out. Raises `ForkError`.
        """
        notices: list[str] = self.call(messages.Fork(tuple(names), reseed)).result()
        return notices

    def reconfigure(self, policy: ExecutionPolicy | None, logger: SandboxLogger | None) -> None:
        """Replaces the limits, for cells that are sent from now on, and the logger at once.

        Such cells have another worker; the variables stay. Earlier ones keep all their limits, and
        their network. With None, the current policy or logger stays. Raises `PolicyError` if a
        folder can't be mounted, or if a session is needed, and `TypeError`; nothing changed then.
        """
        bound, name = SandboxLogger.of(logger), self.session_id
        with self._changing:
            if self.closed or self._is_copy:
                raise SandboxClosed(self.worker.why_closed or _COPY)
            if policy is not None:
                check_type("policy", policy, ExecutionPolicy)
                changes = self._home.check_mounts(self.worker, policy)
                if any(getattr(policy, each) != getattr(self.policy, each) for each in _NETWORK):
                    self.worker.network = self._home.network(self.worker, policy)
                    self.take_functions(self._functions)
                self.worker.change(**changes, policy=plain_policy(policy), door=policy.door)
                self.policy = policy
            if logger is not None:
                self.worker.logger = bound.bind(session_id=name) if name else bound
                self._home.hooks.logger_changed(bound)

    def offer_pip(self) -> None:
        """Lets cells install pure-Python packages with `%pip`, from the next cell on.

        Packages are kept in the sandbox's private folder, which the guest can read but not change.
        Their code runs only in the guest. The pip that is installed beside this package fetches
        them, with the configuration of the user it runs as. Forks may install packages, too.
        """
        self.worker.change(pip=True)

    def offer_functions(
        self, functions: Iterable[Callable[..., Any] | wasm_kernel.HostFunction]
    ) -> None:
        """Lets cells call functions of this program, not earlier ones, from the next cell on.

        They are builtins in cells. Arguments and results are plain data; `HostFunction` sets limits
        and another name. Forks that this program makes have the same functions. Raises `TypeError`
        or `ValueError` as `HostFunction`, and changes nothing then.
        """
        self.take_functions(Functions(functions))

    def take_functions(self, functions: Functions) -> None:
        """Does the work of `offer_functions`, once the functions are checked."""
        with self._changing:
            functions.serve(self.worker)
            self._functions = functions

    # -- its life

    @property
    def closed(self) -> bool:
        """True if `close` was called, also by the service."""
        return bool(self.worker.why_closed)

    def close_if_idle(self, why: str) -> bool:
        """Closes the sandbox, for the reason `why`, unless it is busy; returns whether it did."""
        if not self.worker.refuse_if_idle(why):
            return False
        self.close(why=why)
        return True

    def close(self, *, discard_variables: bool = False, why: str = CLOSED) -> None:
        """Stops running code and frees the sandbox's resources. Safe to call twice.

        Files stay, and so do the variables of a session; a service no longer counts it.

        Args:
            discard_variables: Whether the session's next opening begins without its variables.
            why: The error text of later calls.

        Raises:
            WasmKernelError: the session can't be woken to discard them; nothing has changed.
        """
        if discard_variables and not (self.closed or self._is_copy):
            self._put_away_anew(why)
        try:
            if not self._is_copy and self.worker.sleep(why):
                self.worker.wait_asleep()
        finally:  # Ctrl-C may cut the waiting short
            self._home.closed(self)

    def reset(self) -> None:
        """Discards the variables; files and named checkpoints stay. Running and waiting calls end.

        Raises a `WasmKernelError` if the session can't be woken for that; nothing has changed then.
        """
        self._put_away_anew()
        if self.closed:
            raise SandboxClosed(self.worker.why_closed)

    def _put_away_anew(self, why: str = "") -> None:
        """Closes the worker so that the next one begins without variables.

        Tries again if the worker falls asleep or dies before it has noted that. With `why`, no
        further call is taken; otherwise the next one wakes the session.
        """
        if self._is_copy:
            raise SandboxClosed(_COPY)
        resets = self.worker.resets
        for _ in range(_TRIES):
            with suppress(GuestClosed, SandboxClosed):  # another reset, or a close, was faster
                if not self.worker.is_up:
                    self.start().result()
                self.worker.sleep(why, discard_variables=True)
            self.worker.wait_asleep()
            if self.worker.resets > resets or self.closed:
                return
        raise WorkerLost(_LOST, _AS_IT_WAS)

    def __enter__(self) -> Self:
        self._home.hooks.entered()
        return self

    def __exit__(self, *_: object) -> None:
        if self._home.hooks.left():
            self.close()

    def __reduce__(self) -> str:
        raise TypeError("a sandbox can't be copied or pickled; fork() makes another one like it")

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # a program that ends has no module's names any more, and its workers end by themselves
        if not (is_finalizing() or self._is_copy or self.closed or self.worker.state == "asleep"):
            warnings.warn("a sandbox was not closed", ResourceWarning, stacklevel=2)
            with suppress(WasmKernelError, RuntimeError):  # the interpreter may be shutting down
                self.worker.sleep(_DROPPED)

    @property
    def _is_copy(self) -> bool:
        """True in a process that was forked from the sandbox's own."""
        return os.getpid() != self._process

    def call(
        self,
        request: messages.CallRequest,
        listener: Listener | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Future[Any]:
        """Sends a request to the worker; the future has its reply. For front ends and homes."""
        pending = PendingCall(request, self.policy, listener, progress)
        self._send(pending)
        return pending.future

    def _send(self, pending: PendingCall) -> int:
        """Sends a call to the worker, without waiting for it; returns its number."""
        if self._is_copy:
            raise SandboxClosed(_COPY)
        return self.worker.call(pending)


BaseSandbox = Sandbox
"""The name that the requirements have for `Sandbox`."""
