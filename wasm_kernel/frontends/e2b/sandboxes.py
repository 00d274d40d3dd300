"""`Sandboxes`: the sandboxes of E2B's clients, each a session with its time-out and contexts.

The facts of a sandbox lie with its session (`SandboxRecord`). A server that does not know a sandbox
reads them: an earlier server on the same folder has made it, or one on another machine that shares
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from wasm_kernel.errors import Door, PolicyError, SessionInUse, WasmKernelError
from wasm_kernel.frontends.e2b.messages import TEMPLATES, NewSandbox
from wasm_kernel.frontends.e2b.sandbox import HOME, ClientSandbox, CodeContext, SandboxRecord
from wasm_kernel.frontends.http.callers import Caller
from wasm_kernel.frontends.http.limits import Refusal
from wasm_kernel.frontends.http.session_files import HostWork
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.service.async_session import AsyncSession, on_thread
from wasm_kernel.service.service import AsyncService, Service
from wasm_kernel.sessions.ids import is_id

GONE = "The sandbox {name} was not found"
"""The words by which the clients know that a sandbox was killed, paused, or met its time-out."""
_NO_SANDBOX = "The request names no sandbox (E2b-Sandbox-Id). Links to files can't work here."
_KILLED, _TIMED_OUT = "The sandbox was killed.", "The sandbox has met its time-out."
_BUSY = "A cell runs in this sandbox, so it can't be paused now. Nothing was changed."
_POLL_SECONDS = 0.1
_SETTLED_SECONDS = 60.0
_LANGUAGES = {"python": RuntimeType.PYTHON}
_LANGUAGES |= dict.fromkeys(("javascript", "js", "typescript", "ts"), RuntimeType.JAVASCRIPT)


@dataclass
class Sandboxes:
    """The sandboxes of all clients. Only the server's event loop uses it.

    `service` returns the service that has the sessions, `policy` is the policy of each, and `host`
    does the work on files.
    """

    service: Callable[[], Awaitable[AsyncService]]
    policy: ExecutionPolicy
    host: HostWork

    def __post_init__(self) -> None:
        self.policy = self.policy.at(Door.SANDBOX)
        self._known: dict[str, ClientSandbox] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._credentials: dict[str, str] = {}  # by session; empty for other doors
        self._ending: set[asyncio.Future[None]] = set()

    # -- find

    async def of(self, caller: Caller, name: str) -> ClientSandbox:
        """Returns a sandbox of a client; otherwise raises `Refusal`."""
        async with self._changing(name):
            kept = await self._kept(name)
            if kept is None or not (caller.is_admin or kept.credential == caller.credential):
                raise Refusal(404, GONE.format(name=name[:64]))
            found = await self._open(name, kept)
        return await self._in_time(found)

    async def running(self, name: str, tokens: Iterable[str]) -> ClientSandbox:
        """Returns the sandbox that a request with these access tokens is for.

        Wakes a paused one if it was made with `autoResume`. Raises `Refusal`.
        """
        if not name:
            raise Refusal(400, _NO_SANDBOX)
        async with self._changing(name):
            kept = await self._kept(name)
            if kept is None:
                raise Refusal(502, GONE.format(name=name[:64]))
            own = kept.token.encode()
            given = (each.encode("utf-8", "replace") for each in tokens)
            if not any(hmac.compare_digest(own, each) for each in given):
                raise Refusal(401, "The access token is not this sandbox's.")
            found = await self._open(name, kept)
        await self._in_time(found)
        if found.kept.is_paused:
            if not kept.asked.auto_resume.enabled:
                raise Refusal(502, f"{GONE.format(name=name)} running: it is paused")
            await self.end_in(found, kept.asked.timeout)  # the request wakes it
        return found

    def _changing(self, name: str) -> asyncio.Lock:
        """Returns the lock that is held while a sandbox is looked up, changes, or is deleted."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def listed(self, caller: Caller) -> list[tuple[str, SandboxRecord]]:
        """Returns the facts of a client's sandboxes, also on other servers, by their ids."""
        service = (await self.service()).sync
        names = await self.host.work(caller, self._names, service, caller.credential)
        found = []
        for name in names:
            async with self._changing(name):
                kept = await self._kept(name)
            if kept is None:
                continue
            is_over = kept.ends <= time.time()
            if is_over and kept.asked.auto_pause:  # maybe no server was there to pause it
                kept = replace(kept, is_paused=True)
            if kept.is_paused or not is_over:
                found.append((name, kept))
        return found

    def _names(self, service: Service, credential: str) -> list[str]:
        """Returns the ids of a client's sandboxes. Each session's record is read once."""
        there = {each.name: each for each in service.root.iterdir() if is_id(each.name)}
        for name in there.keys() - self._credentials.keys():
            kept = _read(service, name)
            if kept is not None or _is_settled(there[name]):
                self._credentials.setdefault(name, "" if kept is None else kept.credential)
        for name in self._credentials.keys() - there.keys():
            self._credentials.pop(name, None)
        return [name for name in there if self._credentials.get(name) == credential]

    async def _kept(self, name: str) -> SandboxRecord | None:
        """Returns the facts of a sandbox, while its lock is held; None if it is gone.

        This server's own facts are right while the sandbox is awake here.
        """
        known = self._known.get(name)
        if known is not None and not known.is_gone and known.is_awake:
            return known.kept
        return await on_thread(_read, (await self.service()).sync, name)

    async def _open(self, name: str, kept: SandboxRecord) -> ClientSandbox:
        """Returns the sandbox with these facts, while its lock is held; raises `Refusal`."""
        found = self._known.get(name)
        if found is None or found.is_gone:
            self._known.pop(name, None)
            try:
                main = await self._session(kept, name)
            except FileNotFoundError:
                raise Refusal(502, GONE.format(name=name)) from None
            found = self._known[name] = ClientSandbox(kept, main, self._policy(kept.asked))
        await self._update(found, kept)
        return found

    async def _in_time(self, sandbox: ClientSandbox) -> ClientSandbox:
        """Returns the sandbox; raises `Refusal` if its time is over."""
        if sandbox.seconds_left <= 0:
            await self._end(sandbox)
            if not sandbox.kept.is_paused:
                raise Refusal(502, GONE.format(name=sandbox.name))
        return sandbox

    async def _update(self, sandbox: ClientSandbox, kept: SandboxRecord) -> None:
        """Updates a sandbox to the facts that another server may have changed."""
        sandbox.kept = kept
        for name, language in kept.contexts.items():
            if name not in sandbox.contexts:
                with contextlib.suppress(FileNotFoundError):  # the sandbox was killed half
                    session = await self._session(kept, name, language)
                    sandbox.add(session, language, kept.folders.get(name, HOME))
        for name in sandbox.contexts.keys() - kept.contexts.keys():
            del sandbox.contexts[name]
        self._arm(sandbox)

    async def _session(
        self, kept: SandboxRecord, name: str, language: RuntimeType | None = None
    ) -> AsyncSession:
        service, policy = await self.service(), self._policy(kept.asked)
        main = next(iter(kept.contexts), name)
        shared = "" if name == main else main
        return await service.get(
            name, language, owner=kept.owner, policy=policy, pip=True, files_of=shared
        )

    def _policy(self, asked: NewSandbox) -> ExecutionPolicy:
        try:
            return dataclasses.replace(self.policy, env={**self.policy.env, **asked.env_vars})
        except PolicyError as problem:
            raise Refusal(400, str(problem)) from None

    async def _write_record(self, sandbox: ClientSandbox) -> None:
        """Writes the facts of a sandbox to its session, while its lock is held."""
        service, facts = (await self.service()).sync, msgspec.json.encode(sandbox.kept).decode()
        await on_thread(service.note, sandbox.name, facts)

    # -- sandboxes come and go

    async def create(self, caller: Caller, asked: NewSandbox) -> ClientSandbox:
        """Makes a sandbox, and begins to start it; raises `Refusal` or `LimitReached`."""
        _check(asked)
        await self.check_seconds(asked.timeout)
        policy = self._policy(asked)
        for name in [name for name, each in self._known.items() if each.is_gone]:
            self._stop_timer(self._known.pop(name))
        service = await self.service()
        main = await service.create("python", owner=caller.owner, policy=policy, pip=True)
        kept = SandboxRecord(caller.credential, caller.owner, asked)
        return await self._added(ClientSandbox(kept, main, policy), asked.timeout)

    async def fork(self, sandbox: ClientSandbox, seconds: int, count: int) -> list[ClientSandbox]:
        """Copies the files and the variables of a sandbox's default context."""
        await self.check_seconds(seconds)
        asked, own = replace(sandbox.kept.asked, timeout=seconds), sandbox.kept
        forks = [
            ClientSandbox(SandboxRecord(own.credential, own.owner, asked), each, sandbox.policy)
            for each in await sandbox.main.fork(count)
        ]
        return [await self._added(each, seconds) for each in forks]

    async def _added(self, made: ClientSandbox, seconds: int) -> ClientSandbox:
        made.kept.defaults[RuntimeType.PYTHON] = made.add(made.main, RuntimeType.PYTHON).name
        self._known[made.name] = made
        self._credentials[made.name] = made.kept.credential
        await self.end_in(made, seconds)
        return made

    async def kill(self, sandbox: ClientSandbox) -> None:
        """Deletes a sandbox with all its contexts. Running cells are stopped."""
        async with self._changing(sandbox.name):
            await self._kill(sandbox, _KILLED)

    async def _kill(self, sandbox: ClientSandbox, why: str) -> None:
        self._known.pop(sandbox.name, None)
        self._stop_timer(sandbox)
        for each in reversed([*sandbox.contexts.values()]):  # the one with the facts last
            await self._delete(sandbox, each, why)

    async def _delete(self, sandbox: ClientSandbox, context: CodeContext, why: str) -> None:
        service = (await self.service()).sync
        with contextlib.suppress(FileNotFoundError):  # the service has deleted it
            await self.host.work(sandbox.kept.caller, service.delete, context.name, why)

    # -- time

    async def check_seconds(self, seconds: int) -> None:
        """Raises `Refusal` if a sandbox may not live for this time."""
        most = (await self.service()).sync.limits.expire_seconds
        if most is not None and seconds > most:
            raise Refusal(400, f"A sandbox may live {most:g} seconds here, not {seconds}.")

    async def end_in(self, sandbox: ClientSandbox, seconds: float) -> None:
        """Sets the time that a sandbox has from now on; it is not paused any more."""
        async with self._changing(sandbox.name):
            sandbox.kept.ends, sandbox.kept.is_paused = time.time() + seconds, False
            self._arm(sandbox)
            await self._write_record(sandbox)

    def _arm(self, sandbox: ClientSandbox) -> None:
        """Ends the sandbox when its time is over."""
        self._stop_timer(sandbox)
        if not sandbox.kept.is_paused:
            loop = asyncio.get_running_loop()
            sandbox.timer = loop.call_later(sandbox.seconds_left, self._time_out, sandbox)

    def _stop_timer(self, sandbox: ClientSandbox) -> None:
        if sandbox.timer is not None:
            sandbox.timer.cancel()
            sandbox.timer = None

    def _time_out(self, sandbox: ClientSandbox) -> None:
        ending = asyncio.ensure_future(self._end(sandbox))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end(self, sandbox: ClientSandbox) -> None:
        """Ends a sandbox whose time is over, unless another server has given it more."""
        with contextlib.suppress(WasmKernelError, OSError):
            async with self._changing(sandbox.name):
                kept = await self._kept(sandbox.name)
                if kept is None:
                    self._known.pop(sandbox.name, None)
                    return
                await self._update(sandbox, kept)
                if sandbox.seconds_left > 0:
                    return
                if not kept.asked.auto_pause:
                    await self._kill(sandbox, _TIMED_OUT)
                    return
            await self._pause_when_done(sandbox)

    async def _pause_when_done(self, sandbox: ClientSandbox) -> None:
        sandbox.kept.is_paused = True  # so that no further cells come
        while sandbox.is_busy:
            for each in sandbox.contexts.values():
                await each.session.interrupt()
            await asyncio.sleep(_POLL_SECONDS)
        await self._pause(sandbox, memory=sandbox.kept.asked.auto_pause_memory)

    # -- sleep

    async def pause(self, sandbox: ClientSandbox, *, memory: bool) -> None:
        """Puts a sandbox to sleep on disk; without `memory` its variables are gone.

        Raises `Refusal` if it is paused, or a cell runs.
        """
        if sandbox.kept.is_paused:
            raise Refusal(409, "This sandbox is paused already.")
        while sandbox.is_starting:
            await asyncio.sleep(_POLL_SECONDS)
        if sandbox.is_busy:
            raise Refusal(503, _BUSY)
        await self._pause(sandbox, memory=memory)

    async def _pause(self, sandbox: ClientSandbox, *, memory: bool) -> None:
        self._stop_timer(sandbox)
        async with self._changing(sandbox.name):
            sandbox.kept.is_paused = True
            await self._write_record(sandbox)
        if memory:
            await self.leave(sandbox)
        else:
            for each in sandbox.contexts.values():
                await each.session.reset()

    async def leave(self, sandbox: ClientSandbox) -> None:
        """Puts the sessions of a sandbox to sleep, so that another server can wake them."""
        for each in sandbox.contexts.values():
            await on_thread(_sleep, each.session)

    # -- contexts

    async def context(
        self, sandbox: ClientSandbox, name: str | None, language: str | None
    ) -> CodeContext:
        """Returns a context by its name, or the default one of a language; raises `Refusal`."""
        if name is not None:
            if (found := sandbox.contexts.get(name)) is not None:
                return found
            if name != RuntimeType.JAVASCRIPT.value:  # its first cell makes the default one
                raise Refusal(404, f"There is no context {name[:64]!r} in this sandbox.")
            language = name
        runtime = runtime_of(language)
        defaults = sandbox.kept.defaults
        if runtime not in defaults:
            async with self._changing(sandbox.name):
                if runtime not in defaults:
                    defaults[runtime] = (await self._new_context(sandbox, runtime)).name
                    await self._write_record(sandbox)
        return sandbox.contexts[defaults[runtime]]

    async def new_context(
        self, sandbox: ClientSandbox, language: str | None, folder: str = HOME
    ) -> CodeContext:
        """Makes a context whose cells begin in a folder; raises `Refusal` or `LimitReached`."""
        runtime = runtime_of(language)
        async with self._changing(sandbox.name):
            made = await self._new_context(sandbox, runtime, folder)
            await self._write_record(sandbox)
        try:
            await made.enter_folder()
        except Refusal:
            await self.remove_context(sandbox, made)
            raise
        return made

    async def _new_context(
        self, sandbox: ClientSandbox, runtime: RuntimeType, folder: str = HOME
    ) -> CodeContext:
        if sandbox.is_gone:
            raise Refusal(502, GONE.format(name=sandbox.name))
        service = await self.service()
        owner, policy = sandbox.kept.owner, sandbox.policy
        session = await service.create(
            runtime, owner=owner, policy=policy, pip=True, files_of=sandbox.name
        )
        return sandbox.add(session, runtime, folder)

    async def remove_context(self, sandbox: ClientSandbox, context: CodeContext) -> None:
        """Deletes a context; raises `Refusal` for the one that has the sandbox's files."""
        if context.session is sandbox.main:
            words = "This context has the sandbox's files. Restart it, or kill the sandbox."
            raise Refusal(400, words)
        async with self._changing(sandbox.name):
            sandbox.remove(context)
            await self._write_record(sandbox)
            await self._delete(sandbox, context, "This context was removed.")


def runtime_of(language: str | None) -> RuntimeType:
    """Returns the runtime of a language by its name; raises `Refusal` if there is none."""
    found = _LANGUAGES.get((language or "python").lower())
    if found is None:
        words = f"Cells are Python, JavaScript, TypeScript or Bash here, not {language!r}."
        raise Refusal(400, words)
    return found


def _check(asked: NewSandbox) -> None:
    """Raises `Refusal` for options that have no meaning here."""
    if asked.template_id not in TEMPLATES:
        known = ", ".join(TEMPLATES[:2])
        raise Refusal(400, f"There is one template here, called {known}, and no images.")
    refused = {
        "MCP servers": asked.mcp,
        "workload identities": asked.iam,
        "volumes": asked.volume_mounts,
        "network rules of their own": any((asked.network or {}).values()),
    }
    for what, wanted in refused.items():
        if wanted:
            raise Refusal(400, f"Sandboxes have no {what} here. Nothing was made.")


def _sleep(session: AsyncSession) -> None:
    if session.sync.worker.sleep():
        session.sync.worker.wait_asleep()


def _is_settled(folder: Path) -> bool:
    """Returns whether a session was made long ago, so that a sandbox would have its facts."""
    with contextlib.suppress(OSError):
        return time.time() - folder.stat().st_ctime > _SETTLED_SECONDS
    return False


def _read(service: Service, name: str) -> SandboxRecord | None:
    """Returns the facts that lie with a session; None if it is not a sandbox of this API."""
    with contextlib.suppress(SessionInUse, OSError, msgspec.DecodeError):
        record = service.record(name) if is_id(name) else None
        return None if record is None else msgspec.json.decode(record.facts, type=SandboxRecord)
    return None
