"""`Service`: many sessions, each in a worker of its own, within limits."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from msgspec import Struct

from wasm_kernel.engine.flavours import EPOCH, FUEL, FUEL_EPOCH, UNCHECKED
from wasm_kernel.errors import LimitReached, PolicyError, WasmKernelError
from wasm_kernel.events import EventLogger, SandboxLogger
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.guests.base import broker_handlers
from wasm_kernel.linux.broker import Handlers
from wasm_kernel.linux.folders import real_path
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import MIB, ExecutionPolicy, RuntimeType
from wasm_kernel.result import readable
from wasm_kernel.service.fork_server import ForkServer, Worker
from wasm_kernel.service.messages import Open, plain_policy
from wasm_kernel.service.registry import Entry, SessionInfo
from wasm_kernel.service.remote_sandbox import RemoteSandbox
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.forking import Forked, ForkSession, fork_session
from wasm_kernel.sessions.paths import WORKSPACE_ROOT
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

_LOG = logging.getLogger("wasm_kernel.service")
_ROUND_SECONDS = 1.0
_DESCRIPTORS = 8  # that a worker takes of this process, or needs for a moment
_WORKER_BYTES = 64 * MIB  # that a worker takes beside its guest's memory, at most
_GONE_MOST = 10_000  # deleted sessions whose callers are told so
_STOPPED = "the service is closed; make another one"
_EXPIRED = (
    "This session was deleted, as nobody had used it for {seconds:g} seconds "
    "(ServiceLimits.expire_seconds). Its variables and files are gone. Create another one."
)


class ServiceLimits(Struct, frozen=True, kw_only=True):
    """The limits of a service; None is no limit.

    Attributes:
        sessions: How many sessions it knows, asleep or awake.
        owner_sessions: How many of them may belong to one owner.
        memory_bytes: What all workers together may take: for each, its policy's `memory_bytes` and
            64 MiB. Sessions that are idle are put to sleep to make room.
        queue: How many cells of one session may wait while another one runs.
        idle_seconds: After so long without a call a session is put to sleep: its process ends, and
            the next call wakes it.
        expire_seconds: After so long without a call a session is deleted, with its files.
        answer_seconds: A worker that says nothing for so long while somebody waits for it is ended.
    """

    sessions: int | None = None
    owner_sessions: int | None = None
    memory_bytes: int | None = None
    queue: int = 16
    idle_seconds: float | None = 120.0
    expire_seconds: float | None = None
    answer_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise PolicyError(name, f"must be above 0, or None for no limit, not {value!r}")


class Service:
    """Many sessions, each in a process of its own, behind both walls. Any thread may use it.

    One process has everything loaded, and forks a worker for each session that is called. It ends,
    and the workers with it, when the service is closed or its process ends in whatever way. A
    process that is forked from this one can't use the service: it makes its own.

    Args:
        workspace_root: The folder that holds the sessions' folders.
        limits: Its limits.
        policy: The limits of sandboxes whose creator names none.
        private_root: The folder that holds private folders; one of the user's by default.
        logger: Gets the events of all sessions, each with its id; silent by default.
        confinement: Whether workers close the second wall: `auto` as far as this machine can,
            `required`, or `off`.

    Attributes:
        root: The real path of the sessions' folder.
        limits: Its limits.
        fork_server: The process that workers are forked from.

    Raises:
        PlantedLinkError: the root's path is relative, and leads through a link.
        HostFailed: the process can't be started.
    """

    def __init__(
        self,
        workspace_root: Path | str = WORKSPACE_ROOT,
        *,
        limits: ServiceLimits | None = None,
        policy: ExecutionPolicy | None = None,
        private_root: Path | str | None = None,
        logger: SandboxLogger | EventLogger | None = None,
        confinement: str = "auto",
    ) -> None:
        private = None if private_root is None else real_path(private_root)
        self._sessions_root = SessionsRoot(real_path(workspace_root), private)
        self.root = self._sessions_root.path
        self.limits = limits or ServiceLimits()
        self._policy = policy or ExecutionPolicy()
        self._logger = SandboxLogger.of(logger)
        self._confinement = confinement
        self._guard = threading.RLock()
        self._making_room = threading.Lock()
        self._sessions: dict[str, Entry] = {}
        self._awake: dict[SessionWorker, int] = {}
        self._gone: dict[str, str] = {}
        self._why_closed = ""
        self._ending = threading.Event()
        self.fork_server = ForkServer()
        self.fork_server.start()
        self._rounds = threading.Thread(target=self._look_after, name="service", daemon=True)
        self._rounds.start()

    # -- sessions

    def create(
        self,
        language: RuntimeType | str = RuntimeType.PYTHON,
        *,
        owner: str = "",
        policy: ExecutionPolicy | None = None,
        pip: bool = False,
    ) -> RemoteSandbox:
        """Makes a new session, and begins to start its guest; does not wait for that.

        Args:
            language: The guest's language, or its name.
            owner: Whom it belongs to, for `ServiceLimits.owner_sessions` and `list`.
            policy: Its limits; those of the service by default.
            pip: Whether its cells may install packages, as `offer_pip` says.

        Raises:
            LimitReached: the service takes no more sessions; none was made.
            ValueError: there is no guest for `language`.
            WorkspaceError: the session's folder can't be made.
        """
        limits, name = policy or self._policy, ids.new()
        language = RuntimeType.checked(language)
        self._check_room(owner, 1)
        session = Session(self._sessions_root, name, self._logger, new=True, mounts=limits.mounts)
        session.leave()  # a worker opens it again
        sandbox = self._add_new(name, language, owner, limits, pip=pip)
        sandbox.start()
        return sandbox

    def get(
        self,
        session_id: str,
        language: RuntimeType | str = RuntimeType.PYTHON,
        *,
        owner: str = "",
        policy: ExecutionPolicy | None = None,
        pip: bool = False,
    ) -> RemoteSandbox:
        """Returns the sandbox of a session, asleep or awake.

        One that an earlier service, a kernel or a program made in the same folder is opened; its
        variables are there if nobody else has it open. The options are for such a session.

        Raises:
            SessionInUse: it belongs to another owner.
            FileNotFoundError: there is no such session.
            LimitReached: the service takes no more sessions.
            SessionIdError: `session_id` is not a session id (a `ValueError`).
        """
        name = self._sessions_root.target_of(ids.checked(session_id))
        with self._guard:
            entry, gone = self._sessions.get(name), self._gone.get(name)
        if entry is not None and not entry.sandbox.closed:
            return entry.sandbox_of(owner)
        if not (self.root / name).is_dir():
            raise FileNotFoundError(gone or f"There is no session {name}.")
        limits, language = policy or self._policy, RuntimeType.checked(language)
        return self._add(name, language, owner, limits, pip=pip)

    def list(self, owner: str | None = None) -> list[SessionInfo]:
        """Returns what is known of all sessions, or those of an owner; disks are not measured."""
        with self._guard:
            entries = [*self._sessions.values()]
        return [each.info() for each in entries if owner is None or each.owner == owner]

    def info(self, session_id: str) -> SessionInfo:
        """Returns what is known of a session, with what it takes on disk.

        Raises:
            FileNotFoundError: the service does not know it.
        """
        from wasm_kernel.sessions.overview import session_in

        with self._guard:
            entry = self._sessions.get(session_id)
        if entry is None:
            raise FileNotFoundError(
                self._gone.get(session_id, f"There is no session {session_id}.")
            )
        return entry.info(session_in(self._sessions_root, session_id).disk_bytes)

    def delete(self, session_id: str, why: str = "the service deleted this session") -> None:
        """Deletes a session: its variables, its files, its folder. A running cell is stopped.

        Args:
            session_id: The session.
            why: The error text of later calls.

        Raises:
            SessionInUse: another process uses it, too; it was closed, and nothing was deleted.
            WorkspaceError: something in its folder can't be deleted.
        """
        from wasm_kernel.sessions.lifecycle import delete_session_workspace

        with self._guard:
            entry = self._sessions.pop(session_id, None)
            self._gone[session_id] = why
            for oldest in [*self._gone][:-_GONE_MOST]:
                del self._gone[oldest]
        if entry is not None:
            entry.sandbox.close(why=why)
        private = self._sessions_root.private_root
        delete_session_workspace(session_id, self.root, self._logger, private_root=private)

    def close(self) -> None:
        """Stops what runs, and closes all sessions; they stay on disk. Safe to call twice."""
        self._why_closed = _STOPPED
        self._ending.set()
        with self._guard:
            entries = [*self._sessions.values()]
        leaving = [each for each in entries if each.sandbox.worker.sleep(_STOPPED)]
        for each in leaving:
            each.sandbox.worker.wait_asleep()
        self.fork_server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_new(
        self, name: str, language: RuntimeType, owner: str, policy: ExecutionPolicy, *, pip: bool
    ) -> RemoteSandbox:
        try:
            return self._add(name, language, owner, policy, pip=pip)
        except LimitReached:  # others came first
            self.delete(name)
            raise

    def _add(
        self, name: str, language: RuntimeType, owner: str, policy: ExecutionPolicy, *, pip: bool
    ) -> RemoteSandbox:
        private = self._sessions_root.private_root
        opened = Open(
            language=language.value,
            session_id=name,
            root=str(self.root),
            private_root=None if private is None else str(private),
            policy=plain_policy(policy),
            pip=pip,
            confinement=self._confinement,
        )
        worker = SessionWorker(
            opened,
            self,
            self._logger,
            queue=self.limits.queue,
            answer_seconds=self.limits.answer_seconds,
        )
        sandbox = RemoteSandbox(
            worker, policy, lambda n, reseed: self._fork(sandbox, owner, n, reseed=reseed)
        )
        with self._guard:
            if (known := self._sessions.get(name)) is not None and not known.sandbox.closed:
                return known.sandbox_of(owner)
            self._check_room(owner, 1)
            self._sessions[name] = Entry(sandbox, owner, time.time())
        return sandbox

    def _check_room(self, owner: str, more: int) -> None:
        """Checks that there may be so many more sessions.

        Raises:
            LimitReached: there may not.
        """
        if self._why_closed:
            raise LimitReached("closed", "This service is closed.", "Make another one.")
        limits = self.limits
        with self._guard:
            open_ones = [each for each in self._sessions.values() if not each.sandbox.closed]
        own = sum(each.owner == owner for each in open_ones)
        if limits.sessions is not None and len(open_ones) + more > limits.sessions:
            raise LimitReached(
                "sessions",
                f"This service takes {limits.sessions:,} sessions, and has {len(open_ones):,}.",
                "Close or delete one, or raise sessions.",
            )
        if limits.owner_sessions is not None and own + more > limits.owner_sessions:
            raise LimitReached(
                "owner_sessions",
                f"An owner may have {limits.owner_sessions:,} sessions, and this one has {own:,}.",
                "Close or delete one of them, or raise owner_sessions.",
            )

    def _fork(
        self, parent: RemoteSandbox, owner: str, n: int, *, reseed: bool
    ) -> Sequence[RemoteSandbox]:
        self._check_room(owner, n)
        names = tuple(ids.new() for _ in range(n))
        try:
            notices = parent.fork_into(names, reseed=reseed)
        except BaseException:
            for name in names:
                self.delete(name)
            raise
        forks = [self.get(name, owner=owner) for name in names]
        for fork, notice in zip(forks, notices, strict=False):
            if notice:
                fork.worker.tell(notice)
        return forks

    # -- what a session needs of it

    def admit(self, session: SessionWorker) -> None:
        """Makes room for a worker, if need be by putting sessions to sleep that nobody uses.

        Raises:
            LimitReached: all of them are busy.
        """
        need = int(session.opened.policy["memory_bytes"]) + _WORKER_BYTES
        most = self.limits.memory_bytes
        with self._guard:
            if session in self._awake or most is None:
                self._awake[session] = need
                return
        with self._making_room:
            while not self._reserved(session, need, most):
                if not self._put_one_to_sleep():
                    raise LimitReached(
                        "memory_bytes",
                        f"The workers of this service may take {readable(most)} together, and this "
                        f"session needs {readable(need)} of it, which busy sessions have.",
                        "Try again when one of them is idle, or raise memory_bytes.",
                    )

    def _reserved(self, session: SessionWorker, need: int, most: int) -> bool:
        with self._guard:
            if sum(self._awake.values()) + need > most:
                return False
            self._awake[session] = need
            return True

    def _put_one_to_sleep(self) -> bool:
        """Puts the session to sleep that nobody has used for longest; returns whether there is."""
        with self._guard:
            awake = sorted(self._awake, key=lambda each: each.last_used)
        for session in awake:
            if session.sleep():
                session.wait_asleep()
                return True
        return False

    def release(self, session: SessionWorker) -> None:
        """Takes note that a session is asleep."""
        with self._guard:
            self._awake.pop(session, None)

    def spawn(self, session: SessionWorker, progress: Callable[[str], None]) -> Worker:
        """Returns a new worker for a session."""
        self.admit(session)  # it may have fallen asleep since it was called
        opened = session.opened
        make_room(None, _DESCRIPTORS)
        metered = opened.policy["fuel_budget"] is not None
        flavours = (FUEL, FUEL_EPOCH) if metered else (UNCHECKED, EPOCH)
        return self.fork_server.spawn(opened.language, flavours, progress)

    def handlers(self, session: SessionWorker) -> Handlers:
        """Returns what is done for a session beyond its worker's walls."""
        opened = session.opened
        handlers: Handlers = {ForkSession: self._forking(opened.session_id)}
        if opened.pip:
            private = self._sessions_root.private_of(opened.session_id)
            handlers = {**handlers, **broker_handlers(opened.language, private)}
        return handlers

    def _forking(self, parent: str) -> Callable[[ForkSession, Task], Forked]:
        make = fork_session(self._sessions_root, parent)

        def fork(request: ForkSession, task: Task) -> Forked:
            with self._guard:
                entry = self._sessions[parent]
            self._check_room(entry.owner, 1)
            made, own = make(request, task), entry.sandbox.worker.opened
            language = RuntimeType.checked(own.language)
            name, policy = request.session_id, entry.sandbox.policy
            self._add_new(name, language, entry.owner, policy, pip=own.pip)
            return made

        return fork

    # -- looking after sessions

    def _look_after(self) -> None:
        """Looks after all sessions once a second, until the service is closed."""
        while not self._ending.wait(_ROUND_SECONDS):
            with self._guard:
                entries = [*self._sessions.values()]
            for entry in entries:
                try:
                    self._look_at(entry)
                except (WasmKernelError, OSError) as problem:
                    _LOG.warning("a session can't be put away: %s", problem)

    def _look_at(self, entry: Entry) -> None:
        worker, limits = entry.sandbox.worker, self.limits
        worker.look_after()
        idle, state = time.time() - worker.last_used, worker.state
        most = min(each or math.inf for each in (limits.idle_seconds, limits.expire_seconds))
        if entry.sandbox.closed and state == "asleep":
            with self._guard:
                self._sessions.pop(entry.sandbox.session_id, None)
        elif limits.expire_seconds and state == "asleep" and idle > limits.expire_seconds:
            why = _EXPIRED.format(seconds=limits.expire_seconds)
            self.delete(entry.sandbox.session_id, why)
        elif state == "idle" and idle > most:
            worker.sleep()
