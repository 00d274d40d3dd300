"""`OwnSandbox`: a sandbox that a program makes for itself, with its guest in a worker.

This process has its folders open, which tells other processes that they are in use; the worker
opens them again. One fork server makes the workers of all such sandboxes of a process.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from wasm_kernel.errors import ForkError, WasmKernelError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.base_sandbox import at_least_one
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.execution.interfaces import NewSession
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.locks import Resume
from wasm_kernel.folders.places import state_folder
from wasm_kernel.guests.broker_handlers import broker_handlers
from wasm_kernel.linux.broker import Handlers, log_failure
from wasm_kernel.linux.confinement import AUTO
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.service import fork_process
from wasm_kernel.service.fork_server import ForkServer, Worker, flavours_of
from wasm_kernel.service.open_message import KernelSession, Open, plain_policy
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.service.worker_sandbox import CLOSED, WorkerSandbox
from wasm_kernel.sessions.forking import Forked, ForkSession

_ROUND_SECONDS = 1.0
_ANSWER_SECONDS = 60.0
OF_WORKER = 16  # descriptors of this process that such a sandbox needs, if only for a moment
_NOT_ASKED = "nobody has asked for it"


class WorkerPool:
    """The workers of this process's own sandboxes, and the thread that looks after them.

    Any thread may use it.
    """

    def __init__(self) -> None:
        self.fork_server = ForkServer(fork_process.take_early())
        self._guard = threading.Lock()
        self._awake: set[SessionWorker] = set()
        self._rounds: threading.Thread | None = None

    def add(self, session: SessionWorker) -> None:
        """Begins to look after a session."""
        with self._guard:
            self._awake.add(session)
            if self._rounds is None:
                self._rounds = threading.Thread(
                    target=self._look_after, name="workers", daemon=True
                )
                self._rounds.start()

    def remove(self, session: SessionWorker) -> None:
        """Stops looking after a session."""
        with self._guard:
            self._awake.discard(session)

    def _look_after(self) -> None:
        while True:
            time.sleep(_ROUND_SECONDS)
            with self._guard:
                awake = [*self._awake]
            for session in awake:
                try:
                    session.look_after()
                except Exception as problem:  # go on with the other sessions
                    log_failure("looking after sandboxes", problem)

    def close(self) -> None:
        """Closes the remaining sessions at the end of the program, and ends the fork server."""
        with self._guard:
            left = [session for session in self._awake if session.sleep(CLOSED)]
        for session in left:
            session.wait_asleep()
        self.fork_server.close()


_OF_PROCESS = [WorkerPool()]  # the last is this process's; a forked process appends its own


def own_workers() -> WorkerPool:
    """Returns the workers of this process's own sandboxes."""
    return _OF_PROCESS[-1]


os.register_at_fork(after_in_child=lambda: _OF_PROCESS.append(WorkerPool()))
atexit.register(lambda: own_workers().close())


class OwnHome:
    """The `SandboxHome` of a sandbox of this process. Any thread may use it."""

    def __init__(self, new: NewSession) -> None:
        self.new = new
        self._workers = own_workers()
        self._forks: dict[str, SandboxFolders] = {}

    def release(self, session: SessionWorker) -> None:
        """Notes that the session is asleep."""
        self._workers.remove(session)

    def spawn(self, session: SessionWorker, progress: Callable[[str], None]) -> Worker:
        """Returns a new worker for the session."""
        opened = session.opened
        self._workers.add(session)
        return self._workers.fork_server.spawn(opened.language, flavours_of(opened), progress)

    def handlers(self, session: SessionWorker) -> Handlers:
        """Returns the handlers of the session's requests beyond its worker's walls."""
        handlers: Handlers = {ForkSession: self._fork}
        if session.opened.pip:
            private = self.new.folders.open_private
            own = broker_handlers(session.opened.language, private, fetched=session.fetched)
            handlers = {**handlers, **own}
        return handlers

    def expecting(self, forks: Sequence[NewSession]) -> list[str]:
        """Lets the worker ask for forks into these folders; returns the folders' names."""
        named = {fork.folders.real.name: fork.folders for fork in forks}
        self._forks.update(named)
        return [*named]

    def forget(self, fork: NewSession) -> None:
        """Gives up a fork, and deletes its folders."""
        self._forks.pop(fork.folders.real.name, None)
        fork.hooks.closed()
        fork.folders.discard()

    def _fork(self, request: ForkSession, task: Task) -> Forked:
        from wasm_kernel.state import texts
        from wasm_kernel.state.fork import fork_stored

        target = self._forks.pop(request.session_id, None)
        if target is None:
            raise ForkError(_NOT_ASKED)
        left_out = fork_stored(self.new.folders, target, reseed=request.reseed, task=task)
        return Forked(texts.left_out(left_out) if left_out else "")


def opened_in(
    new: NewSession,
    runtime: RuntimeType | str,
    policy: ExecutionPolicy,
    *,
    resume: Resume,
    pip: bool,
    quiet: bool,
    confinement: str = AUTO,
    kernel: KernelSession | None = None,
) -> Open:
    """Returns the message that opens the folders of `new` in a worker.

    Raises `PolicyError` if a folder can't be mounted.
    """
    folders, state = new.folders, state_folder()
    folders.mounted(policy.mounts)
    return Open(
        language=RuntimeType.checked(runtime).value,
        session_id=new.session_id or "",
        workspace=str(folders.real),
        private_root=None,
        policy=plain_policy(policy),
        pip=pip,
        confinement=confinement,
        state_home=None if state is None else str(state.parent),
        folders=folders.opened,
        resume=resume.value,
        quiet=quiet,
        notices=folders.notices,
        door=policy.door,
        kernel=kernel,
    )


class OwnSandbox(WorkerSandbox):
    """A sandbox of a program's own, with its guest in a worker. `create_sandbox` makes it.

    The folders of `new` are closed with it; `opened` is the message that opens it in its worker.
    The `home` gets it workers; `noted` takes sentences to show beside the output of cells.
    """

    def __init__(
        self,
        new: NewSession,
        opened: Open,
        policy: ExecutionPolicy,
        logger: SandboxLogger,
        *,
        home: OwnHome | None = None,
        noted: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._home = home or OwnHome(new)
        worker = SessionWorker(
            opened,
            self._home,
            logger,
            queue=sys.maxsize,
            answer_seconds=_ANSWER_SECONDS,
            noted=noted,
        )
        super().__init__(worker, new.folders.path, policy, new.hooks)
        self._folders = new.folders
        new.hooks.opened(self)

    @classmethod
    def made(
        cls,
        new: NewSession,
        runtime: RuntimeType | str,
        policy: ExecutionPolicy,
        logger: SandboxLogger,
        *,
        resume: Resume,
        pip: bool,
    ) -> OwnSandbox:
        """Returns the sandbox in the open folders of `new`; the options are `create_sandbox`'s."""
        quiet = new.session_id is not None
        opened = opened_in(new, runtime, policy, resume=resume, pip=pip, quiet=quiet)
        return cls(new, opened, policy, logger)

    def adopt(self, policy: ExecutionPolicy | None, logger: SandboxLogger | None) -> None:
        """As `BaseSandbox`."""
        with self._sending:
            if policy is not None:
                self._folders.mounted(policy.mounts)
                self._changes["folders"] = self._folders.opened
            super().adopt(policy, logger)
        if logger is not None:
            self._hooks.logger_changed(logger)

    def fork(self, n: int = 1, *, deterministic: bool = False) -> list[OwnSandbox]:
        """As `BaseSandbox`; a fork's guest starts with its first call."""
        make_room(None, at_least_one(n) * OF_WORKER)
        made: list[NewSession] = []
        try:
            while len(made) < n:
                made.append(self._hooks.new_session())
            notices = [
                *self.fork_into(self._home.expecting(made), reseed=not deterministic),
                *[""] * n,
            ]
        except BaseException:
            for new in made:
                self._home.forget(new)
            raise
        return [self._forked(new, notice) for new, notice in zip(made, notices, strict=False)]

    def _forked(self, new: NewSession, notice: str) -> OwnSandbox:
        own = self.worker.opened.folders
        assert own is not None, "only a service's worker looks for its folders"
        opened = replace(
            self.worker.opened,
            session_id=new.session_id or "",
            workspace=str(new.folders.real),
            folders=replace(new.folders.opened, mounts=own.mounts),  # a fork's are the same folders
            resume=Resume.ALWAYS.value,
            quiet=True,
            verified={},
            notices=(*new.folders.notices, *([notice] if notice else [])),
        )
        logger = self.worker.logger
        if new.session_id is not None:
            logger = logger.bind(session_id=new.session_id)
        return type(self)(new, opened, self.policy, logger)

    def close(self, *, anew: bool = False, why: str = CLOSED) -> None:
        """As `BaseSandbox`."""
        try:
            super().close(anew=anew, why=why)
        finally:
            self._folders.close()

    def __del__(self) -> None:
        worker = getattr(self, "worker", None)
        if (
            worker is not None
            and not self._is_copy
            and not worker.why_closed
            and worker.state != "asleep"
        ):
            warnings.warn("a sandbox was not closed", ResourceWarning, stacklevel=2)
            with suppress(WasmKernelError, RuntimeError):  # the interpreter may be shutting down
                worker.sleep(CLOSED)
