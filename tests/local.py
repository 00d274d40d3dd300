"""Guests in the test's own process, for tests that look or reach inside them.

Other tests use the public functions, whose guests live in workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.cell_future import CellFuture
from wasm_kernel.execution.interfaces import (
    Cell,
    Listener,
    NewSession,
    NoListener,
    SessionHooks,
    TravelRequest,
)
from wasm_kernel.execution.session_guest import SessionGuest
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests.base import GuestLanguage, load
from wasm_kernel.guests.broker_handlers import broker_handlers
from wasm_kernel.linux.broker import Broker, LocalBroker
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.result import Checkpoint, CommMessage, SandboxResult, Travelled
from wasm_kernel.service.workspace import open_workspace
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

__all__ = ["Inside", "LocalSandbox", "create_sandbox", "get_session_sandbox"]


class LocalSandbox(SessionGuest):
    """A guest in this process, with the methods of `Sandbox` that tests call."""

    def __init__(
        self,
        new: NewSession,
        policy: ExecutionPolicy,
        language: GuestLanguage,
        logger: SandboxLogger | None,
        broker: Broker | None,
        **options: Any,
    ) -> None:
        self.workspace = new.folders.path
        self.policy = policy
        self.session_id = new.session_id
        new.folders.mounted(policy.mounts)
        super().__init__(
            language,
            new.folders,
            policy,
            SandboxLogger.of(logger),
            new.session_id,
            broker=broker or LocalBroker(broker_handlers(language.name, new.folders.open_private)),
            hooks=new.hooks,
            **options,
        )

    def start(self, progress: Callable[[str], None] | None = None) -> Future[None]:
        return super().start()

    def queue(self, cell: Cell, listener: Listener | None = None) -> CellFuture:
        return super().queue(cell, listener or NoListener())

    def submit(
        self,
        code: str,
        *,
        listener: Listener | None = None,
        silent: bool = False,
        store_history: bool = True,
        **options: Any,
    ) -> CellFuture:
        is_kept = store_history and not silent
        cell = Cell(code=code, silent=silent, store_history=is_kept, **options)
        return self.queue(cell, listener)

    def execute(self, code: str, **options: Any) -> SandboxResult:
        return self.submit(code, **options).wait()

    def comm(
        self,
        message: CommMessage,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Future[None]:
        return super().comm(message, parent or {}, listener or NoListener())

    def comms(self, listener: Listener | None = None) -> Future[dict[str, str]]:
        return super().comms(listener or NoListener())

    def checkpoint(self, name: str) -> None:
        self.name_state(name).result()

    def checkpoints(self) -> list[Checkpoint]:
        return self.states().result()

    def undo(self, cells: int = 1, *, files: bool = False) -> Travelled:
        return self.travel(TravelRequest("undo", cells, files=files)).result()

    def redo(self, *, files: bool = False) -> Travelled:
        return self.travel(TravelRequest("redo", files=files)).result()

    def restore(self, where: str | int, *, files: bool = False) -> Travelled:
        return self.travel(TravelRequest("restore", where=str(where), files=files)).result()

    def rollback(self, *, files: bool = False) -> Travelled:
        return self.travel(TravelRequest("rollback", files=files)).result()

    @property
    def busy(self) -> bool:
        return self._jobs.is_busy

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Inside = Callable[..., LocalSandbox]


def create_sandbox(
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    workspace: Path | str = "workspace",
    policy: ExecutionPolicy | None = None,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
    session_id: str = "",
    resume: Resume | str = Resume.NEVER,
    hooks: SessionHooks | None = None,
    language: GuestLanguage | None = None,
    broker: Broker | None = None,
    quiet: bool = False,
    pip: bool = False,
    note: Callable[[str], None] | None = None,
) -> LocalSandbox:
    policy = policy or ExecutionPolicy()
    new = open_workspace(workspace, policy, private_root)
    return LocalSandbox(
        NewSession(new.folders, session_id, hooks or new.hooks),
        policy,
        language or load(RuntimeType.checked(runtime)),
        logger,
        broker,
        resume=Resume.checked(resume),
        quiet=quiet,
        pip=pip,
        note=note,
    )


def get_session_sandbox(
    session_id: str,
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    policy: ExecutionPolicy | None = None,
    workspace_root: Path | str = "workspace",
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
    pip: bool = False,
) -> LocalSandbox:
    policy = policy or ExecutionPolicy()
    root = SessionsRoot(workspace_root, private_root)
    session = Session(root, session_id, SandboxLogger.of(logger), mounts=policy.mounts)
    return LocalSandbox(
        NewSession(session.folders, session.id, session),
        policy,
        load(RuntimeType.checked(runtime)),
        logger,
        None,
        resume=Resume.ALWAYS,
        quiet=True,
        pip=pip,
    )
