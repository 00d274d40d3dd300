"""The sandbox of a kernel: its guest lives in a worker; the broker does work beyond the walls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from wasm_kernel.folders.locks import OwnerLock
from wasm_kernel.linux.broker import Broker, Handlers
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.publishing.place import AdoptFiles, PublishFiles, WriteFiles, WriteOutcome
from wasm_kernel.publishing.publish import log_published
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.open_message import Open
from wasm_kernel.service.program_home import ProgramHome
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.service.session_calls import SessionNetwork
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.service.worker_supply import WorkerSupply
from wasm_kernel.sessions.forking import ForkSession, log_fork
from wasm_kernel.sessions.session import Session

AWAKE_SECONDS = 60.0
"""Seconds without a message after which a kernel sleeps."""

_UNREAD: Any = Raw


class KernelHome(ProgramHome):
    """The home of a kernel's sandbox, whose broker handles its worker's requests of these `kinds`.

    It owns the session: no other process may go on with the variables of a kernel that sleeps. Make
    it before this process is confined.
    """

    def __init__(
        self, session: Session, supply: WorkerSupply, broker: Broker, kinds: Iterable[type[Struct]]
    ) -> None:
        super().__init__(session)
        self._session, self._supply = session, supply
        self._broker, self._kinds = broker, kinds
        self._owner = OwnerLock(session.folders.private)
        self._notebooks: dict[str, str] = {}

    def give_fork(self, session_id: str, notebook: str) -> None:
        """Notes that the fork with this id, once made, is the session of a notebook beside ours."""
        self._notebooks[session_id] = notebook

    def spawn(self, session: SessionWorker, progress: Callable[[str], None]) -> Worker:
        """Returns a new worker for the session."""
        self._workers.add(session)
        session.opened = self.owned(session.opened)
        return self._supply.spawn(session.opened, progress)

    def owned(self, opened: Open) -> Open:
        """Returns the message for the next worker, which says whether the kernel owns the session.

        The kernel may own the session only later, once another kernel of it has ended.
        """
        return replace(opened, is_owned=self._owner.acquire())

    def closed(self, sandbox: Sandbox) -> None:
        """Closes the session and its folders; a kernel that slept has ended, and not crashed."""
        self._owner.note_ended()
        self._owner.close()
        super().closed(sandbox)

    def network(self, session: SessionWorker, policy: ExecutionPolicy) -> SessionNetwork | None:
        """Returns the network of the session, whose sockets the broker has."""
        if not policy.network:
            return None
        from wasm_kernel.frontends.jupyter.kernel_network import RelayedNetwork

        return RelayedNetwork(session, self._broker)

    def handlers(self, session: SessionWorker) -> Handlers:
        """Returns the handlers of the worker's requests, which ask the broker; some log it."""
        put = self._put_beside
        logged: Handlers = {ForkSession: self._make_fork, PublishFiles: put}
        logged = {**logged, WriteFiles: put, AdoptFiles: put}
        return {kind: logged.get(kind, self._pass_on) for kind in self._kinds}

    def _pass_on(self, request: Struct, task: Task) -> Any:
        """Makes the broker handle a request, which it checks as untrusted input; reads no reply."""
        return self._broker.call(request, _UNREAD, task)

    def _make_fork(self, request: ForkSession, task: Task) -> Any:
        notebook = self._notebooks.pop(request.session_id, "")
        made = self._pass_on(replace(request, notebook=notebook), task)
        log_fork(self._session.logger, self._session.root, self._session.id, request.session_id)
        return made

    def _put_beside(self, request: Struct, task: Task) -> WriteOutcome:
        done = self._broker.call(request, WriteOutcome, task)
        log_published(self._session, done)
        return done
