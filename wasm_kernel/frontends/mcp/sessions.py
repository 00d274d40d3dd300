"""`AgentSessions`: the sessions of a server's clients, automatic and explicit, and their use.

An automatic session belongs to a scope (`callers.py`), such as a connection, and to a language. An
explicit one is made on request. Each has a handle, its id, which can't be guessed: a call with the
handle, and with the credential that the session was made with, may use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import SessionInUse, WasmKernelError
from wasm_kernel.frontends.http.callers import ENDING, Caller
from wasm_kernel.frontends.http.session_files import HostWork, write_file
from wasm_kernel.frontends.mcp.variables import NOTHING_SEEN, SessionContents
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.result import SandboxResult
from wasm_kernel.service.async_session import AsyncSession, on_thread
from wasm_kernel.service.service import AsyncService, Service
from wasm_kernel.sessions.ids import is_id

P = ParamSpec("P")
T = TypeVar("T")
LEFT_SECONDS = 3600.0
"""The time after its last use when a session is deleted, if its client has left."""
_LOOK_SECONDS = 60.0  # seconds between two searches for such sessions
_CELLS_MOST = 200  # cells of a session's history
_ENDED_MOST = 10_000  # ended sessions whose reasons are remembered
_UNKNOWN = (
    "There is no session {handle} for you. list_sessions shows those that you have; "
    "create_session makes one."
)
_NONE_YET = "You have no{language} session yet. execute_code or write_file begins one."
_UNBOUND = (
    'Nothing tells which session is yours. Name it: session="...", the handle that the result of '
    "execute_code or create_session has shown."
)
_SECOND = (
    "Nothing was done. Nothing tells which session this call is for, and without one it would "
    'begin another session, without your variables and files. Pass session="...", which the first '
    "line of your first result names; create_session begins another one on purpose."
)
_OTHER_LANGUAGE = (
    "This session runs {there}, not {asked}. Nothing was done. Leave session out to have one of "
    '{asked} beside it, or make one: create_session(language="{asked}").'
)
_THIS_IS = (
    'This is session="{handle}" ({language}), and nothing else leads back to it: pass that with '
    "each further call."
)
_DESTROYED = "destroy_session ended this session."
_CLIENT_LEFT = "This session was deleted, as its client had left."


class CellRecord(Struct, frozen=True):
    """The record of a cell: its number (0 for other actions, such as an undo) and first line.

    The outcome is `ok`, or the name of its error. It took `seconds` and ended at `at`, in seconds
    since 1970.
    """

    number: int
    code: str
    outcome: str
    seconds: float
    at: float


@dataclass(eq=False)
class AgentSession:
    """A session of a client, its `caller`; an automatic one ends with the client.

    Attributes:
        handle: The name by which calls refer to it.
        created: When it was made, in seconds since 1970; `used` is when a call last named it.
        cells: Its last cells.
        seen: The variables after the last cell.
        notes: Sentences with which its next result begins.
        running: Its cells that run or wait, in order.
        is_left: True if it is unlikely to be used again: its client's stream has ended, or no call
            has named its handle yet.
    """

    caller: Caller
    language: str
    sandbox: AsyncSession
    host: HostWork
    is_automatic: bool = False
    created: float = field(default_factory=time.time)
    cells: deque[CellRecord] = field(default_factory=lambda: deque(maxlen=_CELLS_MOST))
    seen: SessionContents = NOTHING_SEEN
    notes: list[str] = field(default_factory=list)
    running: list[asyncio.Task[SandboxResult]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.handle = self.sandbox.session_id
        self.used = self.created
        self.is_left = self.is_automatic and not self.caller.scope

    @property
    def name(self) -> str:
        """The session's name in results."""
        if self.is_automatic and self.caller.scope:
            return f"your {self.language} session"
        return f'session="{self.handle}" ({self.language})'

    @property
    def why_gone(self) -> str:
        """The reason why no call can use the session any more; empty if calls can."""
        return self.sandbox.sync.worker.why_closed

    def take_notes(self) -> list[str]:
        """Removes and returns the notes for the session's next result."""
        notes, self.notes = self.notes, []
        return notes

    def travelled(self, what: str) -> None:
        """Notes that variables were brought to another state."""
        self.remember(0, what, "ok", 0.0)
        self.seen = replace(self.seen, is_stale=True)

    def begin_anew(self) -> None:
        """Notes that variables and the list of cells are gone."""
        self.cells.clear()
        self.seen = NOTHING_SEEN

    async def work(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work` on the session's files in a thread, after the client's earlier such work."""
        return await self.host.work(self.caller, work, *args, **kwargs)

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file; raises `LimitReached` if its size exceeds the session's limits."""
        await self.work(write_file, self.sandbox, path, data)

    async def write_new(self, path: str, data: bytes | str) -> str:
        """Writes a file as `write`, and returns its path: another one if the path is taken."""
        return await self.work(self._write_new, path, data)

    def _write_new(self, path: str, data: bytes | str) -> str:
        content = data.encode("utf-8", "replace") if isinstance(data, str) else data
        try:
            write_file(self.sandbox, path, content, overwrite=False)
        except FileExistsError:
            # A cell may have taken thousands of names, so numbers could be tried for minutes.
            stem, dot, suffix = path.rpartition(".")
            path = f"{stem}-{secrets.token_hex(4)}{dot}{suffix}"
            write_file(self.sandbox, path, content, overwrite=False)
        return path

    def remember(self, number: int, code: str, outcome: str, seconds: float) -> None:
        """Adds a cell to its history."""
        line = code.strip().partition("\n")[0][:100]
        self.cells.append(CellRecord(number, line, outcome, seconds, time.time()))


class AgentSessions:
    """The sessions of all clients of a server. Only its event loop uses it.

    `opening` is the future of the service that has the sessions. With `keep`, sessions stay on disk
    when the server ends.
    """

    def __init__(self, opening: Future[Service], policy: ExecutionPolicy, *, keep: bool) -> None:
        self.policy = policy
        self.host = HostWork()
        self._opening = opening
        self._keep = keep
        self._sessions: dict[str, AgentSession] = {}
        self._ended: dict[tuple[str, str], str] = {}  # the reasons why automatic sessions are gone
        self._creating: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def service(self) -> AsyncService:
        """Returns the service, when it is open; raises the error if it can't be opened."""
        return AsyncService(await asyncio.shield(asyncio.wrap_future(self._opening)))

    # -- one session

    async def of(
        self, caller: Caller, handle: str | None, language: str | None = None, *, make: bool = True
    ) -> AgentSession:
        """Returns the session of a call; makes an automatic one if there is none, unless told not.

        A handle wins over everything else. Without a language, the last used automatic session is
        returned, or a new one for Python. Raises `WasmKernelError` if the handle is unknown, not
        the caller's, or of another language, if the caller has no scope and has called before, or
        if there is none.
        """
        await self._reopen(caller, handle)
        found = self.known(caller, handle, language)
        if found is None and make:
            begun = self._automatic_one(caller, language or RuntimeType.PYTHON.value)
            # it is completed even if the client leaves: then `end_scope` deletes it
            found = await asyncio.shield(begun)
        if found is None:
            none_yet = _NONE_YET.format(language=f" {language}" if language else "")
            raise WasmKernelError(none_yet if caller.scope else _UNBOUND)
        found.used = time.time()
        return found

    def known(
        self, caller: Caller, handle: str | None, language: str | None = None
    ) -> AgentSession | None:
        """Returns the session of a handle, or the caller's automatic one; None if there is none.

        Raises `WasmKernelError` as `of` does for a handle.
        """
        if not handle:  # models often pass an empty text for no handle
            own = self._automatic_of(caller.scope, language)
            return max(own, key=lambda each: each.used, default=None)
        found = self._sessions.get(handle)
        if found is None or not (caller.is_admin or found.caller.credential == caller.credential):
            why = self._opening.result().why_gone(handle) if self._opening.done() else ""
            raise WasmKernelError(why or _UNKNOWN.format(handle=repr(handle[:64])))
        if found.why_gone:
            raise WasmKernelError(found.why_gone)
        if language not in (None, found.language):
            raise WasmKernelError(_OTHER_LANGUAGE.format(there=found.language, asked=language))
        found.is_left = False
        return found

    async def _reopen(self, caller: Caller, handle: str | None) -> None:
        """Opens the caller's session with a handle if another server, or an earlier one, made it.

        Sessions with facts belong to another door.
        """
        if not handle or handle in self._sessions or not is_id(handle):
            return
        service = await self.service()
        with contextlib.suppress(FileNotFoundError, SessionInUse):  # the handle stays unknown
            record = await on_thread(service.sync.record, handle)
            if record is None or record.facts or record.owner != caller.owner:
                return
            opened = await service.get(handle, owner=record.owner, policy=self.policy, pip=True)
            found = AgentSession(caller, record.language, opened, self.host)
            self._sessions.setdefault(handle, found)

    async def _automatic_one(self, caller: Caller, language: str) -> AgentSession:
        """Returns the automatic session of a client; makes one for concurrent first calls."""
        async with self._creating_of(caller.scope or caller.owner, language):
            if caller.scope:
                found = self.known(caller, None, language)
                return found or await self._begin_automatic(caller, language)
            if self._has_begun(caller, language):
                raise WasmKernelError(_SECOND)
            made = await self.create(caller, language, is_automatic=True)
            made.notes.append(_THIS_IS.format(handle=made.handle, language=language))
            return made

    def _creating_of(self, client: str, language: str) -> asyncio.Lock:
        """The lock for making or ending a client's automatic session."""
        return self._creating.setdefault((client, language), asyncio.Lock())

    def _has_begun(self, caller: Caller, language: str) -> bool:
        """Returns whether a caller without a scope already has an automatic session.

        One that was not used for long does not count: it may belong to another conversation.
        """
        since = time.time() - LEFT_SECONDS
        own = [each for each in self.all() if each.caller == caller and each.is_automatic]
        return any(each.language == language and each.used > since for each in own)

    async def _begin_automatic(self, caller: Caller, language: str) -> AgentSession:
        made = await self.create(caller, language, is_automatic=True)
        self._forget_gone()
        if why := self._ended.pop((caller.scope, language), ""):
            made.notes.append(f"This is a new session, without earlier variables. {why}")
        return made

    async def create(
        self, caller: Caller, language: str, *, is_automatic: bool = False
    ) -> AgentSession:
        """Makes a session; raises `LimitReached`."""
        service, owner = await self.service(), caller.owner
        sandbox = await service.create(language, owner=owner, policy=self.policy, pip=True)
        made = AgentSession(caller, language, sandbox, self.host, is_automatic)
        self._sessions[made.handle] = made
        return made

    async def fork(self, parent: AgentSession, caller: Caller, count: int) -> list[AgentSession]:
        """Makes sessions with the variables and files of another one.

        Raises `ForkError` or `LimitReached`, with none made, or `ValueError` if `count` is less
        than 1.
        """
        made = list[AgentSession]()
        for sandbox in await parent.sandbox.fork(count):
            language = parent.language
            fork = AgentSession(caller, language, sandbox, self.host)
            fork.cells.extend(parent.cells)
            fork.seen = parent.seen
            made.append(fork)
        self._sessions |= {each.handle: each for each in made}
        return made

    async def destroy(self, session: AgentSession, why: str = _DESTROYED) -> None:
        """Deletes a session, its variables and its files. A running cell is stopped."""
        service = (await self.service()).sync
        await session.work(service.delete, session.handle, why)
        self._forget_gone()

    # -- all of them

    async def listed(self, caller: Caller, handle: str | None = None) -> Sequence[AgentSession]:
        """Returns the sessions that a caller may see: those of the same scope.

        A caller without a scope only sees the session of its handle. Raises `WasmKernelError` if
        that is missing or not the caller's.
        """
        if not caller.scope:
            return [await self.of(caller, handle, make=False)]
        return [
            each
            for each in self.all()
            if each.caller.scope == caller.scope and each.caller.credential == caller.credential
        ]

    def all(self) -> Sequence[AgentSession]:
        """Returns the sessions of all clients."""
        return [each for each in self._sessions.values() if not each.why_gone]

    def _automatic_of(self, scope: str, language: str | None = None) -> list[AgentSession]:
        """Returns the automatic sessions of a client, which end with it."""
        own = (each for each in self._sessions.values() if scope and each.caller.scope == scope)
        return [
            each
            for each in own
            if each.is_automatic and language in (None, each.language) and not each.why_gone
        ]

    @property
    def scopes(self) -> set[str]:
        """The clients with automatic sessions."""
        return {each.caller.scope for each in self._sessions.values() if each.is_automatic}

    def client_is_there(self, scope: str, is_there: bool) -> None:
        """Notes that a client is there, as it sent a request, or not, as its stream has ended."""
        for each in self._automatic_of(scope):
            each.is_left = not is_there

    async def end_scope(self, scope: str) -> None:
        """Deletes the automatic sessions of a client that has left."""
        for each in RuntimeType:
            async with self._creating_of(scope, each.value):
                for session in self._automatic_of(scope, each.value):
                    await self._end_left(session)
                self._ended.pop((scope, each.value), None)

    async def look_after(self) -> None:
        """Deletes left sessions, and forgets those that are gone, until it is cancelled.

        Many clients leave silently, and their sessions would take room for a day.
        """
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.end_left(time.time() - LEFT_SECONDS)

    async def end_left(self, before: float) -> None:
        """Deletes sessions that their clients have left, and not used since `before`."""
        for each in self.all():
            if each.is_left and each.used < before and not each.running:
                await self._end_left(each)
        self._forget_gone()

    def _forget_gone(self) -> None:
        """Forgets sessions that are gone; keeps the reasons for automatic ones, by their keys."""
        for each in [each for each in self._sessions.values() if each.why_gone]:
            del self._sessions[each.handle]
            if each.is_automatic and each.caller.scope:
                self._ended[each.caller.scope, each.language] = each.why_gone
                if len(self._ended) > _ENDED_MOST:
                    del self._ended[next(iter(self._ended))]

    async def _end_left(self, session: AgentSession) -> None:
        with contextlib.suppress(WasmKernelError, OSError):
            await self.destroy(session, _CLIENT_LEFT)

    async def close(self) -> None:
        """Ends all sessions and the service; deletes the sessions, unless they are kept."""
        try:
            service = (await self.service()).sync
        except (WasmKernelError, OSError):
            return  # it was never opened
        await on_thread(_close, service, keep=self._keep)


def _close(service: Service, *, keep: bool) -> None:
    ended = [] if keep else [each.session_id for each in service.list()]
    service.end(ENDING, saves=keep)
    for name in ended:
        with contextlib.suppress(WasmKernelError, OSError):
            service.delete(name)
