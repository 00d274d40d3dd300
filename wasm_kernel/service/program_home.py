"""`ProgramHome`: the home of a sandbox that a program makes for itself, without a service.

This process has its folders open, which tells other processes that they are in use; the worker
opens them again. One fork server makes the workers of all such sandboxes of a process.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from wasm_kernel.errors import ForkError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.execution.functions import Offered
from wasm_kernel.execution.interfaces import SessionHooks, check_type
from wasm_kernel.folders.folders import EXCHANGES, SandboxFolders
from wasm_kernel.folders.locks import Resume
from wasm_kernel.folders.places import state_folder
from wasm_kernel.folders.private import OpenFolder, opening_in
from wasm_kernel.guests.broker_handlers import broker_handlers
from wasm_kernel.linux.broker import Handlers, log_failure
from wasm_kernel.linux.confinement import AUTO
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.service import fork_process
from wasm_kernel.service.fork_server import ForkServer, Worker, flavours_of
from wasm_kernel.service.functions import Functions
from wasm_kernel.service.open_message import KernelSession, Open, plain_policy
from wasm_kernel.service.sandbox import CLOSED, Sandbox
from wasm_kernel.service.sandbox_home import SandboxHome
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.service.workspace import check_unrecorded
from wasm_kernel.sessions.forking import ForkSession, ForkSessionReply

_ROUND_SECONDS = 1.0
_ANSWER_SECONDS = 60.0
OF_WORKER = 16  # this process's descriptors for each such sandbox, including brief ones


class WorkerPool:
    """The workers of this process's sandboxes, and the thread that watches them. Any thread."""

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


def get_ready(
    runtime: RuntimeType | str,
    policy: ExecutionPolicy | None,
    logger: SandboxLogger | None,
    *,
    pip: bool,
) -> SandboxLogger:
    """Checks a sandbox's options before anything is made; returns the logger for its events.

    Starts the fork server, which loads while folders are opened. Raises as `create_sandbox`.
    """
    RuntimeType.checked(runtime)
    if policy is not None:
        check_type("policy", policy, ExecutionPolicy)
    check_type("pip", pip, bool)
    bound = SandboxLogger.of(logger)
    make_room(None, OF_WORKER)
    own_workers().fork_server.start()
    return bound


def create_in(
    hooks: SessionHooks,
    runtime: RuntimeType | str,
    policy: ExecutionPolicy,
    logger: SandboxLogger,
    *,
    pip: bool,
    functions: Functions,
) -> Sandbox:
    """Returns the sandbox of these hooks; the options are those of `create_sandbox`."""
    is_session = bool(hooks.id)
    resume = Resume.ALWAYS if is_session else Resume.NEVER
    opened = opened_in(hooks, runtime, policy, resume=resume, pip=pip, quiet=is_session)
    bound = logger.bind(session_id=hooks.id) if is_session else logger
    made = ProgramHome(hooks).sandbox(opened, policy, bound)
    made.take_functions(functions)
    return made


class ProgramHome(SandboxHome[Sandbox]):
    """The home of one sandbox of this process, whose folders it closes with the sandbox."""

    def __init__(self, hooks: SessionHooks) -> None:
        self.hooks = hooks
        self._workers = own_workers()
        self._forks: dict[str, SandboxFolders] = {}
        self._is_closed = False

    def sandbox(
        self,
        opened: Open,
        policy: ExecutionPolicy,
        logger: SandboxLogger,
        noted: Callable[[str], None] = lambda text: None,
    ) -> Sandbox:
        """Makes the sandbox, which `opened` opens in its worker.

        `noted` takes sentences to show beside the output of cells.
        """
        worker = SessionWorker(
            opened, self, logger, queue=sys.maxsize, answer_seconds=_ANSWER_SECONDS, noted=noted
        )
        made = Sandbox(worker, self, self.hooks.folders.path, policy)
        self.hooks.opened(made)
        return made

    # -- as the sandbox uses it

    def release(self, session: SessionWorker) -> None:
        """Notes that the session is asleep."""
        self._workers.remove(session)
        if self._is_closed:
            self._close_folders()

    def spawn(self, session: SessionWorker, progress: Callable[[str], None]) -> Worker:
        """Returns a new worker for the session."""
        opened = session.opened
        self._workers.add(session)
        flavours = flavours_of(opened.policy, opened.confinement)
        return self._workers.fork_server.spawn(opened.language, flavours, progress)

    def handlers(self, session: SessionWorker) -> Handlers:
        """Returns the handlers of the session's requests beyond its worker's walls."""
        opened, private = session.opened, self.hooks.folders.open_private
        own = broker_handlers(opened.language, private, pip=opened.pip, fetched=session.fetched)
        return {**own, ForkSession: self._fork}

    def exchanges(self, session: SessionWorker) -> OpenFolder:
        """Returns the opener of the folder for the recorded requests of the session."""
        return opening_in(self.hooks.folders.open_private, EXCHANGES)

    def check_mounts(self, session: SessionWorker, policy: ExecutionPolicy) -> dict[str, Any]:
        """Opens the policy's mounts; returns the folders for the worker.

        Raises `PolicyError` if a mount can't be opened, or if the policy needs a session and the
        sandbox has none.
        """
        if not self.hooks.id:
            check_unrecorded(policy)
        folders = self.hooks.folders
        folders.open_mounts(policy.mounts)
        in_use = replace(folders.opened_folders, is_left=False)
        return {"folders": in_use, "mounts": folders.mount_identities}

    def closed(self, sandbox: Sandbox) -> None:
        """Closes the session and its folders, once its worker has ended."""
        self._is_closed = True
        if sandbox.worker.state == "asleep":  # its own listener may close it while it runs
            self._close_folders()

    def _close_folders(self) -> None:
        self.hooks.closed()
        self.hooks.folders.close()

    def fork(self, sandbox: Sandbox, n: int, *, reseed: bool) -> list[Sandbox]:
        """Makes forks, each beside this one."""
        make_room(None, n * OF_WORKER)
        made: list[SessionHooks] = []
        try:
            while len(made) < n:
                made.append(self.hooks.new_session())
            names = {fork.folders.real.name: fork.folders for fork in made}
            self._forks.update(names)
            notices = [*sandbox.fork_into([*names], reseed=reseed), *[""] * n]
        except BaseException:
            for new in made:
                self._forks.pop(new.folders.real.name, None)
                new.closed()
                new.folders.discard()
            raise
        return [_forked(sandbox, new, notice) for new, notice in zip(made, notices, strict=False)]

    def _fork(self, request: ForkSession, task: Task) -> ForkSessionReply:
        from wasm_kernel.state import texts
        from wasm_kernel.state.fork import fork_stored

        if (target := self._forks.pop(request.session_id, None)) is None:
            raise ForkError("it was not asked for")
        left_out = fork_stored(self.hooks.folders, target, reseed=request.reseed, task=task)
        return ForkSessionReply(texts.left_out(left_out) if left_out else "")


def _forked(parent: Sandbox, new: SessionHooks, notice: str) -> Sandbox:
    opened = replace(  # a fork's mounts are the same folders
        parent.worker.opened,
        session_id=new.id,
        workspace=str(new.folders.real),
        folders=new.folders.opened_folders,
        resume=Resume.ALWAYS.value,
        quiet=True,
        verified={},
        notices=(*new.folders.notices, *([notice] if notice else [])),
    )
    logger = parent.worker.logger
    if new.id:
        logger = logger.bind(session_id=new.id)
    return ProgramHome(new).sandbox(opened, parent.policy, logger)


def opened_in(
    hooks: SessionHooks,
    runtime: RuntimeType | str,
    policy: ExecutionPolicy,
    *,
    resume: Resume,
    pip: bool,
    quiet: bool,
    confinement: str = AUTO,
    kernel: KernelSession | None = None,
) -> Open:
    """Returns the message that opens the folders of these hooks in a worker.

    Raises `PolicyError` if a folder can't be mounted.
    """
    folders, state = hooks.folders, state_folder()
    folders.open_mounts(policy.mounts)
    return Open(
        language=RuntimeType.checked(runtime).value,
        session_id=hooks.id,
        workspace=str(folders.real),
        private_root=None,
        policy=plain_policy(policy),
        pip=pip,
        confinement=confinement,
        state_home=None if state is None else str(state.parent),
        folders=folders.opened_folders,
        mounts=folders.mount_identities,
        resume=resume.value,
        quiet=quiet,
        notices=folders.notices,
        door=policy.door,
        kernel=kernel,
        functions=_offered(policy, opening_in(folders.open_private, EXCHANGES)),
    )


def _offered(policy: ExecutionPolicy, exchanges: OpenFolder) -> Offered:
    """Returns the functions for the sockets of cells; none without a network."""
    if not policy.network:
        return ()
    from wasm_kernel.service.session_network import HostNetwork

    return HostNetwork(policy, SandboxLogger, exchanges, lambda: (0, 0)).offered
