"""`Service`: many sessions, each in a worker of its own, within limits."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from wasm_kernel.errors import LimitReached, SandboxClosed, describe
from wasm_kernel.events import EventLogger, SandboxLogger
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.execution.interfaces import check_type
from wasm_kernel.folders.folders import EXCHANGES, identities_of
from wasm_kernel.folders.locks import ServiceLock
from wasm_kernel.folders.orphans import remove_due_daily
from wasm_kernel.folders.private import OpenFolder, opening_in
from wasm_kernel.guests.broker_handlers import broker_handlers
from wasm_kernel.linux.broker import Handlers
from wasm_kernel.linux.confinement import AUTO, OFF, REQUIRED
from wasm_kernel.linux.folders import real_path
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import ExecutionPolicy, RuntimeType, user_path
from wasm_kernel.service import fork_process
from wasm_kernel.service.async_session import Async, AsyncSession, awaited, awaited_as
from wasm_kernel.service.awake import AwakeSessions
from wasm_kernel.service.expiry import Expiry, call_logged
from wasm_kernel.service.fork_server import CLOSED, ForkServer, Worker, flavours_of
from wasm_kernel.service.functions import Functions
from wasm_kernel.service.limits import ServiceLimits
from wasm_kernel.service.open_message import Open, plain_policy
from wasm_kernel.service.open_sessions import OpenSessions
from wasm_kernel.service.records import SessionRecord, SessionRecords
from wasm_kernel.service.registry import Registry, SessionEntry, SessionInfo, check_owner
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.service.sandbox_home import SandboxHome
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.forking import ForkSession, ForkSessionReply, fork_session, log_fork
from wasm_kernel.sessions.overview import session_in
from wasm_kernel.sessions.paths import WORKSPACE_ROOT
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

if TYPE_CHECKING:
    from wasm_kernel.service.host_function import Function, HostFunction

_LOG = logging.getLogger("wasm_kernel.service")
_ROUND_SECONDS = 1.0
_MEASURE_SECONDS = 0.1  # seconds of each round, to measure sessions on disk
_DESCRIPTORS = 16  # this process's descriptors for each worker, including brief ones


class Service(SandboxHome[Sandbox]):
    """Many sessions, each in a process of its own, behind both walls. Any thread may use it.

    One process has everything loaded, and forks a worker for each session that is called. It and
    its workers end when the service is closed or its process ends in any way. A process that is
    forked from this one can't use the service; it can make its own.

    Args:
        workspace_root: The folder that holds the sessions' folders; `root` is its real path.
        limits: The service's limits.
        policy: The policy of sandboxes whose creator names none.
        private_root: The folder that holds private folders; one of the user's by default.
        logger: Gets the events of all sessions, each with its id; silent by default.
        functions: Functions that cells of all sessions may call, as `Sandbox.offer_functions` says.
        confinement: Whether workers close the second wall: `auto` as far as this machine can,
            `required`, or `off`.

    Raises:
        PlantedLinkError: the root's path is relative, and leads through a link.
        HostFailed: the process can't be started.
        ValueError: `confinement` is another word.
        TypeError: `limits`, `policy` or `logger` is of another type, or a function is not callable.
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
        functions: Iterable[Function | HostFunction] = (),
    ) -> None:
        if confinement not in (OFF, AUTO, REQUIRED):  # a typing error must not turn `required` off
            raise ValueError(f"confinement is 'auto', 'required' or 'off', not {confinement!r}")
        self.limits = ServiceLimits() if limits is None else limits
        self._policy = ExecutionPolicy() if policy is None else policy
        check_type("limits", self.limits, ServiceLimits)
        check_type("policy", self._policy, ExecutionPolicy)
        root = workspace_root if workspace_root == "" else real_path(user_path(workspace_root))
        self._sessions_root = SessionsRoot(root, private_root)  # it refuses an empty text
        self.root = self._sessions_root.path
        self._records = SessionRecords(self._sessions_root)
        self._lock = ServiceLock(self.root)
        self._logger = SandboxLogger.of(logger)
        self._confinement = confinement
        self._functions = Functions(functions)
        self._awake = AwakeSessions(self.limits.memory_bytes)
        self._registry = Registry(self._sessions_root)
        self._open = OpenSessions(self._sessions_root)
        self._why_closed = ""
        self._asked_for: set[str] = set()  # ids of forks that the program itself asked for
        self._ending = threading.Event()
        self.fork_server = ForkServer(fork_process.take_early())
        self.fork_server.start()
        threading.Thread(target=self._look_after, name="service", daemon=True).start()
        threading.Thread(target=self._delete_due, name="expiry", daemon=True).start()
        if self.limits.disk_bytes is not None:
            threading.Thread(target=self._measure, name="disk", daemon=True).start()

    # -- sessions

    def create(
        self,
        language: RuntimeType | str = RuntimeType.PYTHON,
        *,
        owner: str = "",
        policy: ExecutionPolicy | None = None,
        pip: bool = False,
        files_of: str = "",
    ) -> Sandbox:
        """Makes a new session, and begins to start its guest; does not wait for that.

        If another session would have to sleep to make room, the guest starts at the first call.

        Args:
            language: The guest's language, or its name.
            owner: Its owner, for `ServiceLimits.owner_sessions` and `list`.
            policy: Its policy; the service's by default.
            pip: Whether its cells may install packages, as `Sandbox.offer_pip` says.
            files_of: The id of a session of this service whose files it has; its forks have none.

        Raises:
            FileNotFoundError: the service does not know the session `files_of`.
            LimitReached: the service takes no more sessions; none was made.
            SandboxClosed: the service is closed, or this process was forked from the one that made
                it.
            ValueError: there is no guest for `language`.
            TypeError: `owner` is not text, or `policy` is not a policy.
            WorkspaceError: the session's folder can't be made.
        """
        limits, name = self._limits(owner, policy, pip=pip), ids.new()
        language = RuntimeType.checked(language)
        if files_of:
            self._registry.known(files_of).sandbox_of(owner)
        self._check_room(owner)
        session = Session(self._sessions_root, name, self._logger, new=True, mounts=limits.mounts)
        session.leave()  # a worker opens it again
        sandbox = self._add(name, language, owner, limits, pip=pip, made=True, files_of=files_of)
        if self._awake.has_room(limits.memory_bytes):
            sandbox.start()
        self._note_owner(name, owner, language)  # while the worker begins
        return sandbox

    def get(
        self,
        session_id: str,
        language: RuntimeType | str | None = None,
        *,
        owner: str = "",
        policy: ExecutionPolicy | None = None,
        pip: bool = False,
        files_of: str = "",
    ) -> Sandbox:
        """Returns the sandbox of a session, asleep or awake.

        A session that an earlier service, a kernel or a program made in the same folder is opened;
        its variables are there if it is not open elsewhere. The options are for such a session. Its
        owner and its language are known if a service had it; its policy is not.

        Raises:
            SessionInUse: it belongs to another owner, or its owner's record can't be trusted.
            FileNotFoundError: there is no such session.
            LimitReached: the service takes no more sessions.
            SandboxClosed: as for `create`.
            SessionIdError: `session_id` is not a session id (a `ValueError`).
            TypeError: `owner` is not text, or `policy` is not a policy.
        """
        self._check_open()
        limits = self._limits(owner, policy, pip=pip)
        name = self._sessions_root.target_of(ids.checked(session_id))
        if (entry := self._registry.get(name)) is not None:
            return entry.sandbox_of(owner)
        if not (self.root / name).is_dir():
            raise self._registry.missing(name)
        if (record := self._records.read(name)) is not None:
            check_owner(record.owner, owner)
            language = language or record.language
        language = RuntimeType.checked(language or "python")
        if files_of:
            self._registry.known(files_of).sandbox_of(owner)
        sandbox = self._add(name, language, owner, limits, pip=pip, files_of=files_of)
        if record is None:
            self._note_owner(name, owner, language)
        return sandbox

    def list(self, owner: str | None = None) -> list[SessionInfo]:
        """Returns the facts about all sessions, or those of an owner; the disk is not measured."""
        entries = self._registry.entries()
        return [each.info() for each in entries if owner is None or each.owner == owner]

    def info(self, session_id: str) -> SessionInfo:
        """Returns the facts about a session, with its bytes on disk.

        Raises:
            FileNotFoundError: the service does not know it.
        """
        entry = self._registry.known(session_id)
        return entry.info(session_in(self._sessions_root, session_id).disk_bytes)

    def note(self, session_id: str, facts: str) -> None:
        """Keeps a text with a session, for `record`: of this service, or of a later one.

        Raises:
            FileNotFoundError: the service does not know the session, or it was deleted.
            OSError: the text can't be written.
            TypeError, ValueError: `facts` is not text, or has more than about 500,000 characters.
        """
        entry = self._registry.known(session_id)
        record = SessionRecord(entry.owner, entry.sandbox.worker.opened.language, facts)
        record.check()
        self._records.write(session_id, record)

    def record(self, session_id: str) -> SessionRecord | None:
        """Returns a service's record of a session; None if there is no such session.

        The session may be another service's, or an earlier one's.

        Raises:
            SessionInUse: the record can't be trusted.
        """
        return self._records.read(session_id) if ids.is_id(session_id) else None

    def why_gone(self, session_id: str) -> str:
        """Returns why one of the last 10,000 deleted sessions was deleted; empty if not known."""
        return self._registry.why_gone(session_id)

    def delete(self, session_id: str, why: str = "the service deleted this session") -> None:
        """Deletes a session: its variables, its files, its folder. A running cell is stopped.

        Args:
            session_id: The session.
            why: The error text of later calls.

        Raises:
            SessionInUse: another process uses it, too; it was closed here, and nothing was deleted.
            WorkspaceError: something in its folder can't be deleted.
        """
        from wasm_kernel.sessions.removal import delete_session_workspace

        is_there = (self.root / ids.checked(session_id)).is_dir()
        if (entry := self._registry.remove(session_id, why if is_there else "")) is not None:
            entry.sandbox.close(why=why)
        private = self._sessions_root.private_root
        delete_session_workspace(session_id, self.root, self._logger, private_root=private)

    def close(self) -> None:
        """Stops running cells, and closes all sessions; they stay on disk. Safe to call twice.

        Does nothing in a process that was forked from the one that made the service.
        """
        self.end(CLOSED)

    def end(self, why: str, *, saves: bool = True) -> None:
        """Closes all sessions, for the reason `why`. For servers, which may delete them afterwards.

        Without `saves`, changes that are not on disk yet are lost.
        """
        if self.fork_server.is_copy:
            return
        self._why_closed = why
        self._ending.set()
        leaving = [each for each in self._registry.entries() if each.sandbox.worker.sleep(why)]
        for each in leaving if saves else ():
            each.sandbox.worker.wait_asleep()
        self.fork_server.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> AsyncService:
        return AsyncService(self)

    async def __aexit__(self, *_: object) -> None:
        await AsyncService(self).close()

    def _add(
        self,
        name: str,
        language: RuntimeType,
        owner: str,
        policy: ExecutionPolicy,
        *,
        pip: bool,
        made: bool = False,
        disk_bytes: int = 0,
        files_of: str = "",
    ) -> Sandbox:
        """Adds a session to those that the service knows, or raises `LimitReached`.

        A session that was `made` just now is deleted if there is no room for it. It counts as
        `disk_bytes` until it is measured.
        """
        private = self._sessions_root.private_root
        opened = Open(
            language=language.value,
            session_id=name,
            workspace=str(self.root / name),
            private_root=None if private is None else str(private),
            policy=plain_policy(policy),
            mounts=identities_of(policy.mounts),
            pip=pip,
            confinement=self._confinement,
            door=policy.door,
            files_of=str(self.root / files_of) if files_of else "",
            forks=True,
        )
        queue, silence = self.limits.queue, self.limits.answer_seconds
        worker = SessionWorker(opened, self, self._logger, queue=queue, answer_seconds=silence)
        sandbox = Sandbox(worker, self, Path(opened.workspace), policy)
        sandbox.take_functions(self._functions)
        try:
            lineage = self._sessions_root.lineage_below(name)
            entry = SessionEntry(sandbox, owner, time.time(), lineage, disk_bytes)
            return self._registry.add(entry, self.limits).sandbox_of(owner)
        except LimitReached:  # other threads have taken the room
            if made:
                self.delete(name)
            raise

    def _limits(self, owner: str, policy: ExecutionPolicy | None, *, pip: bool) -> ExecutionPolicy:
        """Checks a caller's options; returns the session's policy."""
        SessionRecord(owner, "").check()
        limits = self._policy if policy is None else policy
        check_type("policy", limits, ExecutionPolicy)
        check_type("pip", pip, bool)
        return limits

    def _note_owner(self, name: str, owner: str, language: RuntimeType) -> None:
        try:
            self._records.write(name, SessionRecord(owner, language.value))
        except OSError as problem:
            _LOG.warning("the owner of a session can't be noted: %s", describe(problem))

    def _check_open(self) -> None:
        """Raises `SandboxClosed` if the service is closed, or this process did not make it."""
        self.fork_server.check_process()
        if self._why_closed:
            raise SandboxClosed(self._why_closed)

    def _check_room(self, owner: str, more: int = 1, more_bytes: int = 0) -> None:
        """Raises `LimitReached` or `SandboxClosed` unless there may be `more` sessions."""
        self._check_open()
        self._registry.check_room(self.limits, owner, more, more_bytes)

    # -- the service as its sandboxes use it

    def fork(self, sandbox: Sandbox, n: int, *, reseed: bool) -> Sequence[Sandbox]:
        """Makes forks of a session; they sleep until they are called."""
        if (entry := self._registry.get(sandbox.session_id)) is None:
            raise SandboxClosed(sandbox.worker.why_closed)
        self._check_room(entry.owner, n, n * self._size_of(entry))
        names = tuple(ids.new() for _ in range(n))
        self._asked_for.update(names)
        try:
            notices = sandbox.fork_into(names, reseed=reseed)
        except BaseException:
            for name in names:
                self.delete(name)
            raise
        finally:
            self._asked_for.difference_update(names)
        forks = [self.get(name, owner=entry.owner) for name in names]
        for fork, notice in zip(forks, notices, strict=False):
            fork.worker.opened = replace(fork.worker.opened, notices=(notice,) if notice else ())
        return forks

    def release(self, session: SessionWorker) -> None:
        """Closes the folders of a sleeping session."""
        self._open.close(session)
        self._awake.release(session)

    def spawn(self, session: SessionWorker, progress: Callable[[str], None]) -> Worker:
        """Returns a new worker for a session, as soon as there is room for it."""
        self._awake.admit(session)
        make_room(None, _DESCRIPTORS)
        opened = session.opened
        flavours = flavours_of(opened.policy, opened.confinement)
        return self.fork_server.spawn(opened.language, flavours, progress)

    def opening(self, session: SessionWorker) -> Open:
        """Opens the folders of a session; returns the message for its new worker."""
        return self._open.open(session)

    def handlers(self, session: SessionWorker) -> Handlers:
        """Returns the handlers of a session's requests beyond its worker's walls."""
        opened = session.opened
        private = self._sessions_root.private_of(opened.session_id)
        own = broker_handlers(opened.language, private, pip=opened.pip, fetched=session.fetched)
        return {**own, ForkSession: self._forking(opened.session_id)}

    def check_mounts(self, session: SessionWorker, policy: ExecutionPolicy) -> dict[str, Any]:
        """Checks the mounts of a session's next policy; returns their identities."""
        for mount in policy.mounts:
            mount.check()  # the folder may be gone since the policy was made
        self._sessions_root.check(session.opened.session_id, policy.mounts)
        return {"mounts": identities_of(policy.mounts)}

    def exchanges(self, session: SessionWorker) -> OpenFolder:
        """Returns the opener of the folder for the recorded requests of a session."""
        return opening_in(self._sessions_root.private_of(session.opened.session_id), EXCHANGES)

    def _size_of(self, entry: SessionEntry) -> int:
        """The bytes of a session on disk; 0 without a limit that they count for."""
        return 0 if self.limits.disk_bytes is None else entry.measure(self._sessions_root)

    def _forking(self, parent: str) -> Callable[[ForkSession, Task], ForkSessionReply]:
        def fork(request: ForkSession, task: Task) -> ForkSessionReply:
            entry = self._registry.known(parent)
            name, policy, size = request.session_id, entry.sandbox.policy, self._size_of(entry)
            self._check_room(entry.owner, 1, size)
            is_free = name in self._asked_for and not policy.door.forking
            bound = None if is_free else policy
            made = fork_session(self._sessions_root, entry.lineage, bound)(request, task)
            log_fork(self._logger, self._sessions_root, parent, name)
            own = entry.sandbox.worker.opened
            language = RuntimeType.checked(own.language)
            worker = self._add(
                name, language, entry.owner, policy, pip=own.pip, made=True, disk_bytes=size
            ).worker
            # a fork's mounts are the same folders, whatever their paths lead to now
            worker.opened = replace(worker.opened, policy=own.policy, mounts=own.mounts)
            self._note_owner(name, entry.owner, language)
            return made

        return fork

    # -- looking after sessions

    def _look_after(self) -> None:
        """Looks after all sessions once a second, until the service is closed."""
        while not self._ending.wait(_ROUND_SECONDS):
            for entry in self._registry.entries():
                call_logged(self._look_at, entry)

    def _measure(self) -> None:
        """Measures sessions on disk, on a thread of its own, as that takes long."""
        while not self._ending.wait(_ROUND_SECONDS):
            call_logged(self._registry.measure, _MEASURE_SECONDS)

    def _delete_due(self) -> None:
        """Deletes expired sessions, on a thread of its own, as that takes long.

        Once a day, it removes private folders whose workspaces are gone, those of other roots, too.
        """
        seconds = self.limits.expire_seconds or math.inf
        expiry = Expiry(self._sessions_root, self._registry, self._records, seconds, self._logger)
        while not self._ending.wait(_ROUND_SECONDS):
            call_logged(remove_due_daily)
            if self.limits.expire_seconds:
                call_logged(expiry.delete_expired)

    def _look_at(self, entry: SessionEntry) -> None:
        worker, limits = entry.sandbox.worker, self.limits
        idle, state = time.time() - worker.last_used, worker.state
        if state != "asleep":
            worker.look_after()
        most = min(each or math.inf for each in (limits.idle_seconds, limits.expire_seconds))
        if entry.sandbox.closed and state == "asleep":
            self._registry.remove(entry.sandbox.session_id)
        elif state == "idle" and idle > most:
            worker.sleep()


class AsyncService(Async[Service]):
    """A service for programs that use asyncio: `async with Service(...) as service`.

    Its methods are those of `Service`, awaited; sessions are `AsyncSession`s.
    """

    create = awaited_as(AsyncSession, Service.create)
    get = awaited_as(AsyncSession, Service.get)
    list = awaited(Service.list)
    info = awaited(Service.info)
    delete = awaited(Service.delete)
    close = awaited(Service.close)
