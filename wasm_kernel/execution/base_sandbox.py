"""`BaseSandbox`: the methods of every sandbox, with its guest in this process (`LocalSandbox`) or
in a worker.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.cell_future import CellFuture
from wasm_kernel.execution.interfaces import Cell, Listener, SessionHooks, TravelRequest
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import Checkpoint, SandboxResult, Travelled

CLOSED = "this sandbox is closed; make another one"


def at_least_one(n: int) -> int:
    """Returns the number of forks to make; `ValueError` if it is less than 1."""
    if n < 1:
        raise ValueError(f"fork makes one sandbox or more, not {n}")
    return n


class BaseSandbox:
    """A guest with a workspace. Make one with `create_sandbox`. Any thread may call it.

    Cells and questions are served one after another; `interrupt` and `close` act at once.

    Attributes:
        workspace: The host folder that the guest sees as `/app`, by the path that the caller gave.
        policy: The limits.
        session_id: The session's id, or None outside of sessions.
    """

    def __init__(
        self,
        workspace: Path,
        policy: ExecutionPolicy,
        session_id: str | None,
        hooks: SessionHooks,
    ) -> None:
        self.workspace = workspace
        self.policy = policy
        self.session_id = session_id
        self._hooks = hooks

    # -- cells

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

        Raises:
            SandboxClosed: the sandbox is closed.
            TypeError: `code` is not a string.
            ValueError: `timeout_seconds` is not above 0.
        """
        if not isinstance(code, str):
            raise TypeError(f"a cell's code is a str, not {type(code).__name__}")
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds is above 0, not {timeout_seconds!r}")
        cell = Cell(
            code=code,
            silent=silent,
            store_history=store_history and not silent,
            allow_stdin=allow_stdin,
            user_expressions=dict(user_expressions or {}),
            cell_id=cell_id,
            parent=dict(parent or {}),
            timeout_seconds=timeout_seconds,
        )
        return self.queue(cell, listener)

    @abstractmethod
    def queue(self, cell: Cell, listener: Listener | None = None) -> CellFuture:
        """Queues a cell that was checked already, like `submit`."""

    def execute(self, code: str, **options: Any) -> SandboxResult:
        """Runs a cell and waits for it; the options are those of `submit`.

        Ctrl-C interrupts the cell, whose result then says so.

        Raises:
            SandboxClosed, TypeError, ValueError: as for `submit`.
            WasmKernelError: the guest could not be started.
        """
        return self.submit(code, **options).wait()

    async def aexecute(self, code: str, **options: Any) -> SandboxResult:
        """Runs a cell and awaits it; the options and errors are those of `execute`.

        Cancelling it interrupts the cell and waits for its end, which may take `grace_seconds`.
        """
        return await self.submit(code, **options).ended()

    @property
    @abstractmethod
    def busy(self) -> bool:
        """True if a cell or another job runs or waits, or the guest is still starting."""

    # -- its history

    def checkpoint(self, name: str) -> None:
        """Names the current state of memory, which is kept as long as the session.

        Returns when the state is on disk; a kill right after that does not lose the name. This
        method and those that go back wait until the running cell is over.

        Raises:
            TravelError: the name can't be used.
        """
        self.naming(name).result()

    @abstractmethod
    def naming(self, name: str) -> Future[None]:
        """Begins `checkpoint`, without waiting for it."""

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the states that memory can be brought back to, oldest first."""
        return self.listing().result()

    @abstractmethod
    def listing(self) -> Future[list[Checkpoint]]:
        """Begins `checkpoints`, without waiting for it."""

    def undo(self, cells: int = 1, *, files: bool = False) -> Travelled:
        """Takes back the changes of the last cells to variables.

        Args:
            cells: The number of cells.
            files: Whether to bring the files in the workspace back, too.

        Raises:
            TravelError: there are fewer cells to undo; nothing was changed.
        """
        return self.travel(TravelRequest("undo", cells, files=files)).result()

    def redo(self, *, files: bool = False) -> Travelled:
        """Takes back the last undo or restore, as long as no cell ran since.

        Args:
            files: Whether to bring the files in the workspace back, too.

        Raises:
            TravelError: there is nothing to redo.
        """
        return self.travel(TravelRequest("redo", files=files)).result()

    def restore(self, where: str | int, *, files: bool = False) -> Travelled:
        """Brings variables back as they were at a named checkpoint, or after a cell.

        Args:
            where: The checkpoint's name or the cell's number.
            files: Whether to bring the files in the workspace back, too.

        Raises:
            TravelError: there is no such state; nothing was changed.
        """
        return self.travel(TravelRequest("restore", where=str(where), files=files)).result()

    def rollback(self, *, files: bool = False) -> Travelled:
        """Brings variables back as they were after the last cell, in a new guest.

        Args:
            files: Whether to bring the files in the workspace back, too, if a cell that failed or
                another program has changed them since.
        """
        return self.travel(TravelRequest("rollback", files=files)).result()

    @abstractmethod
    def travel(self, request: TravelRequest) -> Future[Travelled]:
        """Begins `undo`, `redo`, `restore` or `rollback`, without waiting for it."""

    @abstractmethod
    def fork(self, n: int = 1, *, deterministic: bool = False) -> Sequence[BaseSandbox]:
        """Makes further sandboxes with the same variables and copies of the files.

        Each fork of a session is a session with an id of its own. A fork of a sandbox outside of
        sessions lives in a folder beside this one's: `NAME-fork-1` and so on. Sandbox and fork are
        independent from here on: neither sees the other's variables or files, except in mounted
        folders. A fork has its parent's past, too: `undo`, `redo` and named checkpoints lead to the
        same states. Waits until the running cell is over.

        Args:
            n: The number of forks.
            deterministic: Keep the state of every random generator. Otherwise all generators,
                seeded or not, and the sources of UUIDs and temporary names begin anew in a fork,
                even if it goes back to a state from before it was forked.

        Returns:
            The forks; close each. The stderr of a fork's first cell names the files that could not
            be copied (a file without permission to read, a socket).

        Raises:
            ForkError: a fork can't be made, such as for lack of disk space; none was made.
            ValueError: `n` is less than 1.
            WasmKernelError: a session can't be made, or a guest can't be started.
        """

    # -- its life

    @abstractmethod
    def adopt(self, policy: ExecutionPolicy | None, logger: SandboxLogger | None) -> None:
        """Replaces the limits and the logger, from the next cell on.

        The variables stay. None leaves the current one.

        Raises:
            PolicyError: a folder can't be mounted; nothing was changed.
        """

    @abstractmethod
    def offer_pip(self) -> None:
        """Lets the sandbox's cells install packages; see `Sandbox.offer_pip`."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """True if `close` was called."""

    @abstractmethod
    def close_if_idle(self, why: str) -> bool:
        """Closes the sandbox, unless it is busy; returns whether it is closed.

        Args:
            why: The error text of later calls.
        """

    @abstractmethod
    def close(self, *, anew: bool = False, why: str = CLOSED) -> None:
        """Stops running code and frees the sandbox's resources. Safe to call twice, on any thread.

        Args:
            anew: Whether the session always begins without its variables when it is opened next.
            why: The error text of later calls.
        """

    def __enter__(self) -> Self:
        self._hooks.entered()
        return self

    def __exit__(self, *_: object) -> None:
        if self._hooks.left():
            self.close()
