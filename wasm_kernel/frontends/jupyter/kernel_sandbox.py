"""The sandbox of a kernel: its guest lives in a worker; the broker does work beyond the walls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

from wasm_kernel.execution.interfaces import NewSession, Sandbox
from wasm_kernel.frontends.jupyter.settings import SessionSettings
from wasm_kernel.linux.broker import Broker, Handlers
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.publishing.names import PublishableNames
from wasm_kernel.publishing.place import AdoptFiles, PublishFiles, WriteFiles, Written
from wasm_kernel.publishing.publish import log_published
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.open_message import KernelSession, NotebookFolder, Open
from wasm_kernel.service.own_sandbox import OwnHome, OwnSandbox
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.service.worker_supply import WorkerSource
from wasm_kernel.sessions.forking import ForkSession, log_fork
from wasm_kernel.sessions.notebooks import Opening
from wasm_kernel.sessions.session import Session

Note = Callable[[str], None]


class KernelSandboxFactory(Protocol):
    """Makes the sandbox of a kernel; tests have one without a guest."""

    def __call__(
        self, opened: Open, session: Session, policy: ExecutionPolicy, home: KernelHome, note: Note
    ) -> Sandbox:
        """Returns the sandbox, which closes the session's folders. `note` gets quiet notices."""


class KernelHome(OwnHome):
    """The `SandboxHome` of a kernel, whose broker handles the requests of its worker."""

    def __init__(self, session: Session, source: WorkerSource, handlers: Handlers) -> None:
        super().__init__(NewSession(session.folders, session.id, session))
        self._session = session
        self._source = source
        self._outside = handlers

    def spawn(self, session: SessionWorker, progress: Callable[[str], None]) -> Worker:
        """Returns a new worker for the session."""
        self._workers.add(session)
        return self._source.spawn(session.opened, progress)

    def handlers(self, session: SessionWorker) -> Handlers:
        """Returns the handlers of the worker's requests, which log what they did."""
        put = self._put_beside
        logged: Handlers = {ForkSession: self._make_fork, PublishFiles: put}
        logged = {**logged, WriteFiles: put, AdoptFiles: put}
        own = {kind: handler for kind, handler in logged.items() if kind in self._outside}
        return {**self._outside, **own}

    def _make_fork(self, request: ForkSession, task: Task) -> Struct:
        made = self._outside[ForkSession](request, task)
        log_fork(self._session.logger, self._session.root, self._session.id, request.session_id)
        return made

    def _put_beside(self, request: Struct, task: Task) -> Written:
        found: Any = self._outside[type(request)](request, task)
        is_read = isinstance(found, Written)  # it comes from a handler in this process
        done = found if is_read else msgspec.json.decode(found, type=Written)
        log_published(self._session, done)
        return done


def relayed(broker: Broker, handlers: Handlers) -> Handlers:
    """Returns handlers with which a confined front end passes requests on to its broker.

    The broker has the given handlers, and checks each request as untrusted input.
    """

    def relay(request: Struct, task: Task) -> Any:
        return broker.call(request, Raw, task)  # type: ignore[type-var]

    return dict.fromkeys(handlers, relay)


def create(
    opened: Open, session: Session, policy: ExecutionPolicy, home: KernelHome, note: Note
) -> Sandbox:
    """Makes the sandbox of a real kernel."""
    return OwnSandbox(home.new, opened, policy, session.logger, home=home, noted=note)


def kernel_session(
    settings: SessionSettings,
    session: Session,
    opening: Opening,
    names: PublishableNames,
    *,
    results: tuple[str, ...],
    publishes_at_end: bool,
    notebook: NotebookFolder | None,
    logs: bool,
) -> KernelSession:
    """Returns what a kernel's cells may ask of the host, by its settings."""
    return KernelSession(
        workspace=str(session.workspace),
        tomorrow=opening.tomorrow,
        of_notebook=opening.is_of_notebook,
        reopened=session.folders.reopened,
        fork=settings.fork,
        prune=settings.prune_sessions,
        suffixes=names.suffixes,
        results=results,
        collects=settings.is_batch,
        publishes_at_end=publishes_at_end,
        notebook=notebook,
        logs=logs,
    )


def notebook_folder(secret: Path, kept: tuple[Path, ...], *, writes: bool) -> NotebookFolder | None:
    """Returns the folder that this process was started in; None if it is gone."""
    try:
        here = Path.cwd()
        found = here.stat()
    except OSError:
        return None
    return NotebookFolder(
        path=str(here),
        identity=(found.st_dev, found.st_ino),
        secret=str(secret),
        kept=tuple(map(str, kept)),
        writes=writes,
    )
