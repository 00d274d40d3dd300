"""`AsyncSession`: a session of a service for programs that use asyncio."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from wasm_kernel.engine.thread import JobThread
from wasm_kernel.execution.interfaces import NoListener
from wasm_kernel.guests.protocol import Output
from wasm_kernel.result import SandboxResult
from wasm_kernel.service.cell_future import CellFuture
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.sessions.files import READ_BYTES, SessionFiles

if TYPE_CHECKING:
    import asyncio  # slow to import; a program that awaits something has imported it

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
Sync_co = TypeVar("Sync_co", covariant=True)


class Async(Generic[Sync_co]):
    """An object whose methods are awaited; `sync` is its counterpart without asyncio."""

    def __init__(self, sync: Sync_co) -> None:
        self.sync = sync


def awaited(
    method: Callable[Concatenate[Sync_co, P], T],
) -> Callable[Concatenate[Async[Sync_co], P], Coroutine[Any, Any, T]]:
    """Returns the awaited form of a method; arguments, value and errors are the same."""
    return awaited_as(lambda value: value, method)


def awaited_as(
    make: Callable[[T], R], method: Callable[Concatenate[Sync_co, P], T]
) -> Callable[Concatenate[Async[Sync_co], P], Coroutine[Any, Any, R]]:
    """Returns the awaited form of a method, whose value is passed through `make`."""

    @wraps(method)
    async def call(own: Async[Sync_co], /, *args: P.args, **options: P.kwargs) -> R:
        return make(await on_thread(method, own.sync, *args, **options))

    return call


def on_thread(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> asyncio.Future[T]:
    """Runs `work`, which may wait, on a thread of its own."""
    import asyncio

    thread = JobThread("service call", stack=0)
    future = thread.submit(partial(work, *args, **options))
    thread.close()
    return asyncio.wrap_future(future)


class AsyncSession(Async[Sandbox]):
    """A session of a service. `AsyncService` makes it; its event loop uses it.

    Its methods are those of `Sandbox`, awaited, and those for its files. Cancelling the await of a
    cell interrupts the cell. Any other call is completed, even if its await is cancelled.

    Attributes:
        session_id: The session's id.
        workspace: The host folder that the guest sees as `/app`.
        files: The files from outside, for threads; other callers await `read_file` and its like.
    """

    def __init__(self, sync: Sandbox) -> None:
        from asyncio import Lock

        super().__init__(sync)
        self._submitting = Lock()  # cells run in the order in which they are called
        self.session_id = sync.session_id
        self.workspace = sync.workspace
        opened = sync.worker.opened
        self.files = SessionFiles(sync.session_id, opened.root, opened.private_root)

    async def execute(
        self,
        code: str,
        *,
        on_output: Callable[[Output], object] | None = None,
        progress: Callable[[str], object] | None = None,
        **options: Any,
    ) -> SandboxResult:
        """Runs a cell, and returns its result, whatever the code does.

        Cancelling the await interrupts the cell, and again after `grace_seconds`, and waits for its
        end.

        Args:
            code: The cell's source, with its magics.
            on_output: Called in the event loop with each output of the cell, as it happens.
            progress: Called in the event loop with sentences about slow steps before it begins.
            options: Those of `Sandbox.submit`, such as `timeout_seconds`.

        Raises:
            SandboxClosed, LimitReached, TypeError, ValueError: as `Sandbox.submit`.
            WasmKernelError: the guest could not be started.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        if on_output is not None:
            options["listener"] = _LoopListener(loop, on_output)
        if progress is not None:
            options["progress"] = lambda text: loop.call_soon_threadsafe(progress, text)
        async with self._submitting:
            submitting = on_thread(self.sync.submit, code, **options)
            try:
                cell = await asyncio.shield(submitting)
            except asyncio.CancelledError:
                submitting.add_done_callback(_interrupt)
                raise
        return await cell.ended()

    async def start(self, progress: Callable[[str], object] | None = None) -> None:
        """Wakes the session, and returns when its guest is ready.

        Args:
            progress: Called in the event loop with sentences about steps that take long.

        Raises:
            SandboxClosed, LimitReached: as `Sandbox.start`.
            WasmKernelError: the guest could not be started.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        tell: Any = progress and (lambda text: loop.call_soon_threadsafe(progress, text))
        await asyncio.wrap_future(await on_thread(self.sync.start, tell))

    fork = awaited_as(lambda made: [AsyncSession(each) for each in made], Sandbox.fork)
    interrupt = awaited(Sandbox.interrupt)
    checkpoint = awaited(Sandbox.checkpoint)
    checkpoints = awaited(Sandbox.checkpoints)
    undo = awaited(Sandbox.undo)
    redo = awaited(Sandbox.redo)
    restore = awaited(Sandbox.restore)
    rollback = awaited(Sandbox.rollback)
    reset = awaited(Sandbox.reset)
    close = awaited(Sandbox.close)

    async def list_files(self, pattern: str | None = None) -> list[str]:
        """Returns the paths of its files, as `list_session_files`."""
        return await on_thread(self.files.list, pattern)

    async def read_file(self, path: str, *, max_bytes: int = READ_BYTES) -> bytes:
        """Returns the content of one of its files, as `read_session_file`."""
        return await on_thread(self.files.read, path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes | str, *, overwrite: bool = True) -> None:
        """Writes one of its files, as `write_session_file`."""
        await on_thread(self.files.write, path, data, overwrite=overwrite)

    async def delete_file(self, path: str, *, recursive: bool = False) -> None:
        """Deletes one of its files or folders, as `delete_session_path`."""
        await on_thread(self.files.delete, path, recursive=recursive)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _LoopListener(NoListener):
    """Calls a function in an event loop with each output of a cell."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_output: Callable[[Output], object]
    ) -> None:
        self._loop = loop
        self._on_output = on_output

    def emit(self, output: Output) -> None:
        """Schedules the function; the loop calls it before it hears of the cell's end."""
        self._loop.call_soon_threadsafe(self._on_output, output)


def _interrupt(submitting: asyncio.Future[CellFuture]) -> None:
    if submitting.exception() is None:
        submitting.result().interrupt()
