"""Guests in the test's own process, for tests that look or reach inside them.

Other tests use the public functions, whose guests live in workers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.interfaces import (
    Cell,
    Listener,
    NewSession,
    NoListener,
    TravelRequest,
)
from wasm_kernel.execution.jobs import QueuedCell
from wasm_kernel.execution.session_guest import SessionGuest
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests.base import GuestLanguage, load
from wasm_kernel.guests.broker_handlers import broker_handlers
from wasm_kernel.linux.broker import LocalBroker
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.result import Checkpoint, SandboxResult, Travelled
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
        logger: SandboxLogger | None = None,
        *,
        quiet: bool = False,
        pip: bool = False,
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
            broker=LocalBroker(broker_handlers(language.name, new.folders.open_private)),
            hooks=new.hooks,
            quiet=quiet,
            pip=pip,
            **options,
        )

    def start(self, progress: Callable[[str], None] | None = None) -> Future[None]:
        return super().start()

    def queue(self, cell: Cell, listener: Listener | None = None) -> QueuedCell:
        return super().queue(cell, listener or NoListener())

    def submit(
        self,
        code: str,
        *,
        listener: Listener | None = None,
        silent: bool = False,
        store_history: bool = True,
        **options: Any,
    ) -> QueuedCell:
        is_kept = store_history and not silent
        cell = Cell(code=code, silent=silent, store_history=is_kept, **options)
        return self.queue(cell, listener)

    def execute(self, code: str, **options: Any) -> SandboxResult:
        return self.submit(code, **options).result()

    def checkpoint(self, name: str) -> None:
        self.name_state(name).result()

    def checkpoints(self) -> list[Checkpoint]:
        return self.states().result()

    def undo(self, cells: int = 1, *, files: bool = False) -> Travelled:
        return self.travel(TravelRequest("undo", cells, files=files)).result()

    def restore(self, where: str | int, *, files: bool = False) -> Travelled:
        return self.travel(TravelRequest("restore", where=str(where), files=files)).result()

    def rollback(self, *, files: bool = False) -> Travelled:
        return self.travel(TravelRequest("rollback", files=files)).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Inside = Callable[..., LocalSandbox]


def create_sandbox(
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    workspace: Path | str = "workspace",
    policy: ExecutionPolicy | None = None,
    *,
    session_id: str = "",
    resume: Resume | str = Resume.NEVER,
    language: GuestLanguage | None = None,
    **options: Any,
) -> LocalSandbox:
    policy = policy or ExecutionPolicy()
    new = open_workspace(workspace, policy, None)
    return LocalSandbox(
        NewSession(new.folders, session_id, new.hooks),
        policy,
        language or load(RuntimeType.checked(runtime)),
        resume=Resume.checked(resume),
        **options,
    )


def get_session_sandbox(
    session_id: str, workspace_root: Path | str, logger: SandboxLogger | None = None
) -> LocalSandbox:
    session = Session(SessionsRoot(workspace_root), session_id, SandboxLogger.of(logger))
    return LocalSandbox(
        NewSession(session.folders, session.id, session),
        ExecutionPolicy(),
        load(RuntimeType.PYTHON),
        logger,
        resume=Resume.ALWAYS,
        quiet=True,
    )
