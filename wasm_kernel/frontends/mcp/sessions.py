"""`AgentSessions`: the sessions of a server's clients, automatic and explicit; who may use them.

An automatic session belongs to a scope (`callers.py`), such as a connection, and to a language. An
explicit one is made on request. Each has a handle, a secret that calls name it by: whoever shows
the handle and the credential that it was made with may use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import LimitReached, WasmKernelError
from wasm_kernel.frontends.mcp.callers import Caller
from wasm_kernel.frontends.mcp.variables import NOTHING_SEEN, Seen
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Folder
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.result import readable
from wasm_kernel.service.async_session import AsyncSession, on_thread
from wasm_kernel.service.remote_sandbox import RemoteSandbox
from wasm_kernel.service.service import AsyncService, Service

_HANDLE_BYTES = 16
_CELLS_MOST = 200  # of the history of a session
_REMEMBER_SECONDS = 24 * 3600.0  # that a session which is gone can say why
_UNKNOWN = (
    "There is no session {handle} for you. list_sessions shows those that you have; "
    "create_session makes one."
)
_NONE_YET = "You have no session yet: execute_code begins one."
_UNBOUND = (
    'Nothing tells which session is yours. Name it: session="...", the handle that the result of '
    "execute_code or create_session has shown."
)
_OTHER_LANGUAGE = (
    "This session runs {there}, not {asked}. Nothing was run. Leave session out to have one of "
    '{asked} beside it, or make one: create_session(language="{asked}").'
)
_MADE_ROOM = "This session has made room for another one: its client had left without a word."
_LANGUAGES = {"py": "python", "python3": "python", "js": "javascript", "node": "javascript"}
_LANGUAGES |= {"ts": "javascript", "typescript": "javascript"}  # as models call them
_OF_SESSIONS = ("sessions", "owner_sessions", "disk_bytes")  # limits that a deleted one helps with
_DESTROYED = "destroy_session ended this session. create_session makes another one."
_CLIENT_LEFT = "The client of this session has left."


class NoSuchSession(WasmKernelError):
    """A call names no session of its caller's; nothing was changed."""


class CellRecord(Struct, frozen=True):
    """The record of a cell: its number (0 if it is none, such as an undo) and first line.

    The outcome is `ok`, or the name of its error. It took some seconds and ended at `at`, in
    seconds since 1970.
    """

    number: int
    code: str
    outcome: str
    seconds: float
    at: float


class AgentSession:
    """A session of a client, its `caller`; an automatic one ends with that.

    Attributes:
        handle: What calls name it by.
        cells: Its last cells.
        seen: What the last cell left in variables.
        notes: What its next result has to say first.
        is_left: Whether nobody would find it again, as far as can be told: its client's stream has
            ended, or no call has named its handle yet.
    """

    def __init__(
        self, caller: Caller, language: str, sandbox: AsyncSession, *, is_automatic: bool
    ) -> None:
        self.handle = secrets.token_hex(_HANDLE_BYTES)
        self.caller = caller
        self.language = language
        self.sandbox = sandbox
        self.is_automatic = is_automatic
        self.created = self.used = time.time()
        self.cells: deque[CellRecord] = deque(maxlen=_CELLS_MOST)
        self.seen: Seen = NOTHING_SEEN
        self.notes: list[str] = []
        self.is_left = is_automatic and not caller.scope

    @property
    def why_gone(self) -> str:
        """The reason why no call can use it any more; empty if it is there."""
        return self.sandbox.sync.worker.why_closed

    @property
    def is_busy(self) -> bool:
        """True if a cell runs or waits in it."""
        return self.sandbox.sync.busy

    def may_use(self, caller: Caller) -> bool:
        """Returns whether somebody who names it may use it."""
        return self.caller.credential == caller.credential

    def travelled(self, what: str) -> None:
        """Notes that variables were brought elsewhere."""
        self.remember(0, what, "ok", 0.0)
        self.seen = replace(self.seen, is_stale=True)

    def begin_anew(self) -> None:
        """Notes that variables and history are gone."""
        self.cells.clear()
        self.seen = NOTHING_SEEN

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file, if the session may have one more of that size; else `LimitReached`.

        The quota of the guest's own calls does not see what the host writes.
        """
        await on_thread(_check_room, self.sandbox.sync, len(data))
        await self.sandbox.write_file(path, data)

    def remember(self, number: int, code: str, outcome: str, seconds: float) -> None:
        """Adds a cell to its history."""
        line = code.strip().partition("\n")[0][:100]
        self.cells.append(CellRecord(number, line, outcome, seconds, time.time()))


class AgentSessions:
    """The sessions of all clients of a server. Its event loop uses it.

    `opening` ends with the service that they live in. With `keep`, sessions stay on disk when the
    server ends.
    """

    def __init__(self, opening: Future[Service], policy: ExecutionPolicy, *, keep: bool) -> None:
        self.policy = policy
        self._opening = opening
        self._keep = keep
        self._sessions: dict[str, AgentSession] = {}
        self._automatic: dict[tuple[str, str], AgentSession] = {}
        self._creating: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def service(self) -> AsyncService:
        """Returns the service, when it is open, or raises why it can't be."""
        return AsyncService(await asyncio.shield(asyncio.wrap_future(self._opening)))

    # -- one session

    async def of(self, caller: Caller, handle: str | None, language: str = "") -> AgentSession:
        """Returns the session that a call is for; makes an automatic one if there is none.

        A handle wins over everything else. The language of an automatic session is by default that
        of the one used last. Raises `NoSuchSession` if the handle is not known, not the caller's,
        or of another language; `LimitReached`; or `ValueError` if there is no such language.
        """
        language = language and _language(language)
        found = self.known(caller, handle, language)
        if found is None:
            found = await self._automatic_one(caller, language or RuntimeType.PYTHON.value)
        elif language not in ("", RuntimeType.PYTHON, found.language):  # python is the default
            raise NoSuchSession(_OTHER_LANGUAGE.format(there=found.language, asked=language))
        found.used = time.time()
        return found

    async def _automatic_one(self, caller: Caller, language: str) -> AgentSession:
        if not caller.scope:
            return await self._begin_automatic(caller, language)
        # it is made to its end if the client leaves meanwhile: then `end_scope` deletes it
        return await asyncio.shield(self._shared_one(caller, language))

    async def _shared_one(self, caller: Caller, language: str) -> AgentSession:
        """The automatic session of a client, which calls at once share."""
        async with self._creating_of(caller.scope, language):
            found = self.known(caller, None, language)
            return found or await self._begin_automatic(caller, language)

    def _creating_of(self, scope: str, language: str) -> asyncio.Lock:
        """The lock of whoever makes a client's automatic session, or ends it."""
        return self._creating.setdefault((scope, language), asyncio.Lock())

    async def to_look_at(self, caller: Caller, handle: str | None) -> AgentSession:
        """Returns the session of a call that only looks: as `of`, if that would be found again.

        Raises `NoSuchSession` if nothing tells which session is the caller's.
        """
        return await (self.of if caller.scope else self.existing)(caller, handle)

    async def existing(self, caller: Caller, handle: str | None) -> AgentSession:
        """Returns the session that a call is for, or raises `NoSuchSession`; makes none."""
        found = self.known(caller, handle)
        if found is None:
            raise NoSuchSession(_NONE_YET if caller.scope else _UNBOUND)
        return found

    def known(self, caller: Caller, handle: str | None, language: str = "") -> AgentSession | None:
        """Returns the session of a handle, or the caller's automatic one; None if there is none.

        Raises `NoSuchSession` if the handle is not known, or not the caller's.
        """
        if not handle:  # models give an empty text for what they leave out
            own = [
                each
                for (scope, spoken), each in self._automatic.items()
                if caller.scope and scope == caller.scope and language in ("", spoken)
                if not each.why_gone
            ]
            return max(own, key=lambda each: each.used, default=None)
        found = self._sessions.get(handle)
        if found is None or not found.may_use(caller):
            raise NoSuchSession(_UNKNOWN.format(handle=repr(handle[:64])))
        if found.why_gone:
            raise NoSuchSession(found.why_gone)
        found.is_left = False
        return found

    async def _begin_automatic(self, caller: Caller, language: str) -> AgentSession:
        before = self._automatic.get((caller.scope, language)) if caller.scope else None
        made = await self.create(caller, language, is_automatic=True)
        if before is not None:
            made.notes.append(
                f"This is a new session, without earlier variables. {before.why_gone}"
            )
        if caller.scope:
            self._automatic[caller.scope, language] = made
        else:
            made.notes.append(
                f'This is session="{made.handle}": pass that with each further call, or it begins '
                "another session."
            )
        return made

    async def create(
        self, caller: Caller, language: str, *, is_automatic: bool = False
    ) -> AgentSession:
        """Makes a session; raises `LimitReached`, or `ValueError` if there is no such language."""
        self._forget_gone()
        language = _language(language)
        try:
            sandbox = await self._made(caller, language)
        except LimitReached as refusal:
            if refusal.limit not in _OF_SESSIONS or not await self._make_room(caller, refusal):
                raise
            sandbox = await self._made(caller, language)
        return self._added(AgentSession(caller, language, sandbox, is_automatic=is_automatic))

    async def _made(self, caller: Caller, language: str) -> AsyncSession:
        service = await self.service()
        owner = caller.owner or f"unknown {secrets.token_hex(8)}"  # only the limit of all holds
        return await service.create(language, owner=owner, policy=self.policy, pip=True)

    async def _make_room(self, caller: Caller, refusal: LimitReached) -> bool:
        """Deletes the sleeping automatic session of the same credential left longest ago, if any.

        Many a client leaves without a word, and its sessions would be in the way for a day.
        """
        left = [
            each
            for each in self.all()
            if each.is_left and each.may_use(caller)
            if each.sandbox.sync.worker.state == "asleep"
            if refusal.limit != "owner_sessions" or each.caller.owner == caller.owner
        ]
        oldest = min(left, key=lambda each: each.used, default=None)
        if oldest is not None:
            await self.destroy(oldest, _MADE_ROOM)
        return oldest is not None

    async def fork(self, parent: AgentSession, caller: Caller, count: int) -> list[AgentSession]:
        """Makes sessions that begin with the variables and files of another one.

        Raises `ForkError` or `LimitReached`, with none made, or `ValueError` if `count` is less
        than 1.
        """
        made = []
        for sandbox in await parent.sandbox.fork(count):
            fork = AgentSession(caller, parent.language, sandbox, is_automatic=False)
            fork.cells.extend(parent.cells)
            fork.seen = parent.seen
            made.append(self._added(fork))
        return made

    async def destroy(self, session: AgentSession, why: str = _DESTROYED) -> None:
        """Deletes a session, its variables and its files. A running cell is stopped."""
        self._sessions.pop(session.handle, None)
        for key in [key for key, each in self._automatic.items() if each is session]:
            del self._automatic[key]
        service = await self.service()
        await service.delete(session.sandbox.session_id, why)

    def _added(self, session: AgentSession) -> AgentSession:
        self._sessions[session.handle] = session
        return session

    def _forget_gone(self) -> None:
        """Forgets sessions that are gone, after some time in which they say why."""
        limit = time.time() - _REMEMBER_SECONDS
        for handle, each in [*self._sessions.items()]:
            if each.why_gone and each.used < limit:
                del self._sessions[handle]
        for key, each in [*self._automatic.items()]:
            if each.why_gone and each.used < limit:
                del self._automatic[key]

    # -- all of them

    def listed(self, caller: Caller, handle: str | None = None) -> Sequence[AgentSession]:
        """Returns the sessions that a caller may be told of: those of the same owner.

        Raises `NoSuchSession` if the handle is not the caller's, or nothing tells whose a session
        is.
        """
        if not caller.owner:
            found = self.known(caller, handle) if handle else None
            if found is None:
                raise NoSuchSession(_UNBOUND)
            return [found]
        return [
            each
            for each in self._sessions.values()
            if each.caller.owner == caller.owner and each.may_use(caller) and not each.why_gone
        ]

    def all(self) -> Sequence[AgentSession]:
        """Returns the sessions of all clients."""
        return [each for each in self._sessions.values() if not each.why_gone]

    def has_automatic(self, scope: str) -> bool:
        """Returns whether a client has a session that ends with it."""
        return any((scope, each.value) in self._automatic for each in RuntimeType)

    def client_is_there(self, scope: str, is_there: bool) -> None:
        """Notes that a client has sent a request, or that its stream has ended."""
        for each in RuntimeType:
            if (session := self._automatic.get((scope, each.value))) is not None:
                session.is_left = not is_there

    async def end_scope(self, scope: str) -> None:
        """Deletes the automatic sessions of a client that has left."""
        for each in RuntimeType:
            async with self._creating_of(scope, each.value):
                session = self._automatic.get((scope, each.value))
                with contextlib.suppress(WasmKernelError, OSError):
                    if session is not None:
                        await self.destroy(session, _CLIENT_LEFT)

    async def close(self) -> None:
        """Ends all sessions and the service; deletes them, unless they are to be kept."""
        try:
            service = (await self.service()).sync
        except (WasmKernelError, OSError):
            return  # it was never open
        await on_thread(_close, service, keep=self._keep)


def _language(name: str) -> str:
    """Returns the language of a name, or raises `ValueError`."""
    word = name.strip().lower()
    return RuntimeType.checked(_LANGUAGES.get(word, word)).value


def _check_room(sandbox: RemoteSandbox, size: int) -> None:
    policy, taken, files = sandbox.policy, size, 1
    with Folder.open(sandbox.workspace.parent) as root, root.enter(sandbox.session_id) as folder:
        for entry in walks.entries(folder.fd):
            with contextlib.suppress(OSError):  # it is gone
                found = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
                taken += found.st_size
                files += 1
    if taken > policy.workspace_bytes or files > policy.workspace_files:
        raise LimitReached(
            "workspace_bytes",
            f"The files of this session may be {policy.workspace_files:,} and take "
            f"{readable(policy.workspace_bytes)}.",
            "",
        )


def _close(service: Service, *, keep: bool) -> None:
    ended = [] if keep else [each.session_id for each in service.list()]
    if not keep:
        service.fork_server.close()  # what is deleted need not be saved before
    service.close()
    for name in ended:
        with contextlib.suppress(WasmKernelError, OSError):
            service.delete(name)
