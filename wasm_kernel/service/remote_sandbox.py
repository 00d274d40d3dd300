"""`RemoteSandbox`: a sandbox whose guest lives in a worker of its own, behind both walls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Self

from wasm_kernel.execution.cell_future import CellFuture, never_ran
from wasm_kernel.execution.interfaces import Listener, OfferedMessage
from wasm_kernel.guests.protocol import without_surrogates
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import Checkpoint, CommMessage, SandboxResult, Travelled
from wasm_kernel.service import messages
from wasm_kernel.service.calls import PendingCall, PendingCell
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.sessions import files

_CLOSED = "this sandbox is closed; the service can open its session again"
ForkSession = Callable[[int, bool], "Sequence[RemoteSandbox]"]


class RemoteCell(CellFuture):
    """A cell that runs in a worker."""

    def __init__(self, session: SessionWorker) -> None:
        super().__init__()
        self._session = session
        self.call = 0

    def interrupt(self) -> bool:
        """As `CellFuture` has it."""
        return self.call > 0 and self._session.interrupt(self.call)


class RemoteSandbox:
    """The sandbox of a session in a service. `Service` makes it; any thread may call it.

    It has the members of `BaseSandbox`, with the same results and errors. When nobody has used it
    for some time, its session is put to sleep, and the next call wakes it. If its worker is lost,
    the cell that ran says so (`WorkerLost`), and the next call goes on with the variables of the
    last cell that was kept.

    Args:
        session: Its session.
        policy: The limits.
        fork: Makes forks of it.

    Attributes:
        policy: The limits.
        session_id: The session's id.
        workspace: The host folder that the guest sees as `/app`.
        worker: The worker that it lives in, if there is one.
    """

    def __init__(self, session: SessionWorker, policy: ExecutionPolicy, fork: ForkSession) -> None:
        self.policy = policy
        self.session_id = session.opened.session_id
        self.workspace = Path(session.opened.root) / self.session_id
        self.worker = session
        self._fork = fork
        self._place = (session.opened.root, session.opened.private_root)

    # -- cells, and what a front end asks

    def start(self, progress: Callable[[str], None] | None = None) -> Future[None]:
        """Wakes the session; the future ends when its guest is ready.

        As for all calls, it ends with `LimitReached` if the service has no room to wake it.

        Args:
            progress: Gets plain sentences about what takes long, from any thread.

        Raises:
            SandboxClosed: the sandbox is closed.
        """
        future: Future[None] = Future()
        tell = progress or (lambda text: None)
        pending = PendingCall(future, None, self.policy, progress=tell)
        self.worker.call(messages.Start, pending)
        return future

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
        """Queues a cell, as `BaseSandbox.submit`; the listener is called on the session's thread.

        Raises:
            SandboxClosed: the sandbox is closed.
            LimitReached: the queue is full.
            TypeError: `code` is no text.
            ValueError: `timeout_seconds` is not above 0.
        """
        if not isinstance(code, str):
            raise TypeError(f"a cell's code is a str, not {type(code).__name__}")
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds is above 0, not {timeout_seconds!r}")
        cell = RemoteCell(self.worker)
        nothing = never_ran(self.workspace, self.session_id)
        pending = PendingCell(cell, listener, self.policy, timeout_seconds, nothing)

        def make(call: int) -> messages.Execute:
            cell.call = call
            return messages.Execute(
                call,
                without_surrogates(code),
                silent=silent,
                store_history=store_history and not silent,
                allow_stdin=allow_stdin,
                user_expressions=dict(user_expressions or {}),
                cell_id=cell_id,
                parent=dict(parent or {}),
                timeout_seconds=timeout_seconds,
            )

        self.worker.call(make, pending)
        return cell

    def execute(self, code: str, **options: Any) -> SandboxResult:
        """Runs a cell and waits for it; the options and errors are those of `submit`.

        Ctrl-C interrupts the cell, and its result says so.

        Raises:
            WasmKernelError: the guest could not be started.
        """
        return self.submit(code, **options).wait()

    async def aexecute(self, code: str, **options: Any) -> SandboxResult:
        """Runs a cell and awaits it; cancelling it interrupts the cell and waits for its end."""
        return await self.submit(code, **options).ended()

    def query(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
        """Asks the guest something: `complete`, `inspect`, `is_complete` or `history`."""
        make = partial(messages.Query, request=dict(request))
        return self._call(make, dict[str, Any], seconds=self.policy.query_seconds)

    def comm(
        self,
        message: CommMessage,
        *,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Future[None]:
        """Hands a message of the front end to the guest; the future ends when it was served."""
        make = partial(messages.Comm, message=message, parent=dict(parent or {}))
        return self._call(make, None, listener, seconds=self.policy.comm_seconds)

    def offer(self, offered: OfferedMessage) -> None:
        """Leaves a message for its own turn: a cell in a worker takes none while it runs."""

    def comms(self, listener: Listener | None = None) -> Future[dict[str, str]]:
        """Returns the target of each comm that is open, by the comm's id."""
        return self._call(messages.Comms, dict[str, str], listener)

    def interrupt(self) -> bool:
        """Interrupts the running cell, or those that wait for the guest to start. Any thread.

        Returns:
            Whether there was something to interrupt.
        """
        return self.worker.interrupt()

    @property
    def interrupted(self) -> bool:
        """True if a wait of the running cell in the host should end now."""
        return self.worker.is_interrupted

    @property
    def next_count(self) -> int:
        """The execution count that the next cell will have."""
        return self.worker.usage.figures.next_count

    # -- its history

    def checkpoint(self, name: str) -> None:
        """Names the state that memory is in now; it is kept as long as the session.

        Raises:
            TravelError: the name can't be used.
        """
        self._call(lambda call: messages.Name(call, name), None).result()

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the states that memory can be brought back to, oldest first."""
        found: list[Checkpoint] = self._call(messages.Checkpoints, list[Checkpoint]).result()
        return found

    def undo(self, cells: int = 1, *, files: bool = False) -> Travelled:
        """Takes back what the last cells did to variables, and to files if `files` is set.

        Raises:
            TravelError: there are not so many; nothing was changed.
        """
        return self._travel(lambda call: messages.Travel(call, "undo", files, cells))

    def redo(self, *, files: bool = False) -> Travelled:
        """Takes back the last undo or restore, as long as no cell ran since.

        Raises:
            TravelError: there is nothing to redo.
        """
        return self._travel(lambda call: messages.Travel(call, "redo", files))

    def restore(self, where: str | int, *, files: bool = False) -> Travelled:
        """Brings variables back as they were at a named checkpoint, or after a cell's number.

        Raises:
            TravelError: there is no such state; nothing was changed.
        """
        return self._travel(lambda call: messages.Travel(call, "restore", files, 1, str(where)))

    def rollback(self, *, files: bool = False) -> Travelled:
        """Brings variables back as they were after the last cell, in a new guest."""
        return self._travel(lambda call: messages.Travel(call, "rollback", files))

    def _travel(self, make: Callable[[int], messages.Travel]) -> Travelled:
        travelled: Travelled = self._call(make, Travelled).result()
        return travelled

    def fork(self, n: int = 1, *, deterministic: bool = False) -> list[RemoteSandbox]:
        """Makes further sessions with the same variables and copies of the files.

        They are asleep until they are called, and belong to the same owner. What could not be
        copied is named in the stderr of a fork's first cell. Waits until the running cell is over.

        Args:
            n: How many.
            deterministic: Keep the state of every random generator.

        Raises:
            ForkError: a fork can't be made; none was.
            LimitReached: the service takes no more sessions; none was made.
            ValueError: `n` is less than 1.
        """
        if n < 1:
            raise ValueError(f"fork makes one sandbox or more, not {n}")
        return [*self._fork(n, not deterministic)]

    def fork_into(self, names: Sequence[str], *, reseed: bool) -> list[str]:
        """Has sessions of these ids made, which begin where this one is. For the service.

        Returns:
            What the first cell of each has to say, such as which files were left out.

        Raises:
            ForkError: one can't be made.
        """
        make = partial(messages.Fork, ids=tuple(names), reseed=reseed)
        notices: list[str] = self._call(make, list[str], forks=len(names)).result()
        return notices

    def reset(self) -> None:
        """Begins anew: variables and history go, files stay. What runs or waits is stopped.

        Raises:
            SandboxClosed: the sandbox is closed.
            WasmKernelError: the session can't be woken for that; it is as it was.
        """
        self.start().result()  # only one that is awake can tell the next one
        if self.worker.sleep(anew=True):
            self.worker.wait_asleep()

    # -- its files

    def list_files(self, pattern: str | None = None) -> list[str]:
        """Returns the paths of its files, as `list_session_files`."""
        root, private = self._place
        return files.list_session_files(self.session_id, root, pattern, private_root=private)

    def read_file(self, path: str, *, max_bytes: int = files.READ_BYTES) -> bytes:
        """Returns the content of one of its files, as `read_session_file`."""
        root, private = self._place
        return files.read_session_file(
            self.session_id, path, root, max_bytes=max_bytes, private_root=private
        )

    def write_file(self, path: str, data: bytes | str, *, overwrite: bool = True) -> None:
        """Writes one of its files, as `write_session_file`."""
        root, private = self._place
        files.write_session_file(self.session_id, path, data, root, overwrite, private_root=private)

    def delete_file(self, path: str, *, recursive: bool = False) -> None:
        """Deletes one of its files or folders, as `delete_session_path`."""
        root, private = self._place
        files.delete_session_path(self.session_id, path, root, recursive, private_root=private)

    # -- its end

    @property
    def closed(self) -> bool:
        """True if `close` was called, or the service closed the session."""
        return bool(self.worker.why_closed)

    @property
    def busy(self) -> bool:
        """True if a cell or another call runs or waits."""
        return self.worker.state in ("busy", "starting")

    def close(self, *, anew: bool = False, why: str = _CLOSED) -> None:
        """Stops what runs and puts the session to sleep for good. Safe to call twice.

        Its files and variables stay: the service can open it again.

        Args:
            anew: Whether whoever opens the session next begins without its variables.
            why: The error text of later calls.

        Raises:
            WasmKernelError: with `anew`, the session can't be woken for that; it is as it was.
        """
        if anew and not self.closed:
            self.start().result()  # only one that is awake can tell the next one
        if self.worker.sleep(why, anew=anew):
            self.worker.wait_asleep()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self,
        make: Callable[[int], Any],
        kind: Any,
        listener: Listener | None = None,
        **options: Any,
    ) -> Future[Any]:
        future: Future[Any] = Future()
        self.worker.call(make, PendingCall(future, kind, self.policy, listener, **options))
        return future
