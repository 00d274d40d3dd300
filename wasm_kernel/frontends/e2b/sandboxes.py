"""`Sandboxes`: the sandboxes of E2B's clients, each a session with its time-out and contexts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Protocol

from msgspec.structs import replace

from wasm_kernel.errors import PolicyError, WasmKernelError
from wasm_kernel.frontends.e2b.messages import TEMPLATES, NewSandbox
from wasm_kernel.frontends.http.callers import Caller
from wasm_kernel.frontends.http.host_work import HostWork
from wasm_kernel.frontends.http.limits import Refusal
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.service.async_session import AsyncSession, on_thread
from wasm_kernel.service.service import AsyncService

GONE = "The sandbox {name} was not found"
"""The words by which the clients know that a sandbox was killed, paused, or met its time-out."""
_KILLED, _TIMED_OUT = "The sandbox was killed.", "The sandbox has met its time-out."
_BUSY = "A cell runs in this sandbox, so it can't be paused now. Nothing was changed."
_POLL_SECONDS = 0.1
_LANGUAGES = {
    "python": RuntimeType.PYTHON,
    "javascript": RuntimeType.JAVASCRIPT,
    "js": RuntimeType.JAVASCRIPT,
    "typescript": RuntimeType.JAVASCRIPT,
    "ts": RuntimeType.JAVASCRIPT,
}


class Stoppable(Protocol):
    """A cell or a command that runs in a sandbox, and can be interrupted."""

    def stop(self) -> None:
        """Interrupts it."""


@dataclass
class Context:
    """Variables for cells: a session of its own, with files of its own."""

    name: str
    language: RuntimeType
    session: AsyncSession


@dataclass(eq=False)
class Sandbox:
    """A sandbox of a client.

    Attributes:
        caller: The client that made it.
        asked: What the client asked for as it made it.
        main: The session that has its files; its id is the sandbox's.
        policy: The limits of its sessions, with its environment variables.
        token: The secret that requests to it carry.
        created: When it was made, in seconds since 1970; `ends` is when its time is over.
        contexts: Its contexts by their names; the first is the main session's.
        defaults: The contexts for cells that name a language only.
        commands: Its running commands, by the numbers that `numbers` gives out.
        changing: Held while contexts come or go.
    """

    caller: Caller
    asked: NewSandbox
    main: AsyncSession
    policy: ExecutionPolicy
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    created: float = field(default_factory=time.time)
    ends: float = math.inf
    is_paused: bool = False
    contexts: dict[str, Context] = field(default_factory=dict)
    defaults: dict[RuntimeType, Context] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    commands: dict[int, Stoppable] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        """Its id."""
        return self.main.session_id

    @property
    def is_gone(self) -> bool:
        """True if its session was deleted, by whatever."""
        return bool(self.main.sync.worker.why_closed)

    @property
    def is_busy(self) -> bool:
        """True if a cell of it runs or waits."""
        return any(each.session.sync.worker.state == "busy" for each in self.contexts.values())

    def begin(self, command: Stoppable) -> int:
        """Adds a running command; returns its number."""
        number = next(self.numbers)
        self.commands[number] = command
        return number

    def add(self, session: AsyncSession, language: RuntimeType) -> Context:
        """Adds a context."""
        made = Context(session.session_id, language, session)
        self.contexts[made.name] = made
        return made


class Sandboxes:
    """The sandboxes of all clients. Only the server's event loop uses it.

    `service` returns the service that has the sessions, `policy` is the policy of each, and `host`
    does the work on files.
    """

    def __init__(
        self,
        service: Callable[[], Awaitable[AsyncService]],
        policy: ExecutionPolicy,
        host: HostWork,
    ) -> None:
        self.policy = policy
        self.host = host
        self.service = service
        self._known: dict[str, Sandbox] = {}
        self._ending: set[asyncio.Future[None]] = set()

    # -- find

    def of(self, caller: Caller, name: str) -> Sandbox:
        """Returns a sandbox of a client; otherwise raises `Refusal`."""
        found = self._known.get(name)
        if found is None or found.is_gone or not self._may_use(caller, found):
            raise Refusal(404, "", GONE.format(name=name[:64]))
        return found

    def running(self, name: str, tokens: Iterable[str]) -> Sandbox:
        """Returns the sandbox that a request with these access tokens is for.

        Wakes it if it was made so. Raises `Refusal`.
        """
        found = self._known.get(name)
        if found is None or found.is_gone:
            raise Refusal(502, "", GONE.format(name=name[:64]))
        own = found.token.encode()
        if not any(hmac.compare_digest(own, each.encode("utf-8", "replace")) for each in tokens):
            raise Refusal(401, "", "The access token is not this sandbox's.")
        if found.is_paused:
            if not found.asked.auto_resume.enabled:
                raise Refusal(502, "", f"{GONE.format(name=name)} running: it is paused")
            self.resume(found, found.asked.timeout)
        return found

    def listed(self, caller: Caller) -> list[Sandbox]:
        """Returns the sandboxes of a client."""
        self._forget_gone()
        return [
            each for each in self._known.values() if each.caller.credential == caller.credential
        ]

    @staticmethod
    def _may_use(caller: Caller, sandbox: Sandbox) -> bool:
        return caller.is_admin or sandbox.caller.credential == caller.credential

    def _forget_gone(self) -> None:
        for name in [name for name, each in self._known.items() if each.is_gone]:
            self._stop_timer(self._known.pop(name))

    # -- sandboxes come and go

    async def create(self, caller: Caller, asked: NewSandbox) -> Sandbox:
        """Makes a sandbox, and begins to start it; raises `Refusal` or `LimitReached`."""
        _check(asked)
        await self.check_seconds(asked.timeout)
        try:
            policy = dataclasses.replace(self.policy, env={**self.policy.env, **asked.env_vars})
        except PolicyError as problem:
            raise Refusal(400, "", str(problem)) from None
        self._forget_gone()
        service = await self.service()
        main = await service.create("python", owner=caller.owner, policy=policy, pip=True)
        return self._added(Sandbox(caller, asked, main, policy), asked.timeout)

    async def fork(self, sandbox: Sandbox, seconds: int, count: int) -> list[Sandbox]:
        """Copies the files and the variables of a sandbox's default context."""
        await self.check_seconds(seconds)
        made = await sandbox.main.fork(count)
        caller, asked, policy = (
            sandbox.caller,
            replace(sandbox.asked, timeout=seconds),
            sandbox.policy,
        )
        return [self._added(Sandbox(caller, asked, each, policy), seconds) for each in made]

    def _added(self, made: Sandbox, seconds: int) -> Sandbox:
        made.defaults[RuntimeType.PYTHON] = made.add(made.main, RuntimeType.PYTHON)
        self._known[made.name] = made
        self.end_in(made, seconds)
        return made

    async def kill(self, sandbox: Sandbox, why: str = _KILLED) -> None:
        """Deletes a sandbox with all its contexts. Running cells are stopped."""
        self._known.pop(sandbox.name, None)
        self._stop_timer(sandbox)
        async with sandbox.changing:
            for each in [*sandbox.contexts.values()]:
                await self._delete(sandbox, each, why)

    async def _delete(self, sandbox: Sandbox, context: Context, why: str) -> None:
        service = (await self.service()).sync
        with contextlib.suppress(FileNotFoundError):  # the service has deleted it
            delete = partial(service.delete, context.name, why)
            await self.host.work(sandbox.caller, delete)

    # -- time

    async def check_seconds(self, seconds: int) -> None:
        """Raises `Refusal` if a sandbox may not live so long."""
        most = (await self.service()).sync.limits.expire_seconds
        if most is not None and seconds > most:
            raise Refusal(400, "", f"A sandbox may live {most:g} seconds here, not {seconds}.")

    def end_in(self, sandbox: Sandbox, seconds: float) -> None:
        """Sets the time that a sandbox has from now on."""
        self._stop_timer(sandbox)
        sandbox.ends = time.time() + seconds
        loop = asyncio.get_running_loop()
        sandbox.timer = loop.call_later(seconds, self._time_out, sandbox)

    def _stop_timer(self, sandbox: Sandbox) -> None:
        if sandbox.timer is not None:
            sandbox.timer.cancel()
            sandbox.timer = None

    def _time_out(self, sandbox: Sandbox) -> None:
        ending = asyncio.ensure_future(self._end(sandbox))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end(self, sandbox: Sandbox) -> None:
        with contextlib.suppress(WasmKernelError, OSError):
            if sandbox.asked.auto_pause:
                sandbox.is_paused = True  # so that no further cells come
                while sandbox.is_busy:
                    for each in sandbox.contexts.values():
                        await each.session.interrupt()
                    await asyncio.sleep(_POLL_SECONDS)
                await self._pause(sandbox, memory=sandbox.asked.auto_pause_memory)
            else:
                await self.kill(sandbox, _TIMED_OUT)

    # -- sleep

    async def pause(self, sandbox: Sandbox, *, memory: bool) -> None:
        """Puts a sandbox to sleep on disk; without `memory` its variables are gone.

        Raises `Refusal` if it is paused, or a cell runs.
        """
        if sandbox.is_paused:
            raise Refusal(409, "", "This sandbox is paused already.")
        if sandbox.is_busy:
            raise Refusal(503, "", _BUSY)
        await self._pause(sandbox, memory=memory)

    async def _pause(self, sandbox: Sandbox, *, memory: bool) -> None:
        self._stop_timer(sandbox)
        sandbox.is_paused = True
        for each in sandbox.contexts.values():
            if memory:
                await on_thread(_sleep, each.session)
            else:
                await each.session.reset()

    def resume(self, sandbox: Sandbox, seconds: float) -> None:
        """Lets requests to a paused sandbox in again; the first one wakes it."""
        sandbox.is_paused = False
        self.end_in(sandbox, seconds)

    # -- contexts

    async def context(self, sandbox: Sandbox, name: str | None, language: str | None) -> Context:
        """Returns a context by its name, or the default one of a language; raises `Refusal`."""
        if name is not None:
            if (found := sandbox.contexts.get(name)) is None:
                raise Refusal(404, "", f"There is no context {name[:64]!r} in this sandbox.")
            return found
        runtime = runtime_of(language)
        if runtime not in sandbox.defaults:
            async with sandbox.changing:
                if runtime not in sandbox.defaults:
                    sandbox.defaults[runtime] = await self._new_context(sandbox, runtime)
        return sandbox.defaults[runtime]

    async def new_context(self, sandbox: Sandbox, language: str | None) -> Context:
        """Makes a context; raises `Refusal` or `LimitReached`."""
        runtime = runtime_of(language)
        async with sandbox.changing:
            return await self._new_context(sandbox, runtime)

    async def _new_context(self, sandbox: Sandbox, runtime: RuntimeType) -> Context:
        if sandbox.is_gone:
            raise Refusal(502, "", GONE.format(name=sandbox.name))
        service = await self.service()
        owner, policy = sandbox.caller.owner, sandbox.policy
        session = await service.create(runtime, owner=owner, policy=policy, pip=True)
        return sandbox.add(session, runtime)

    async def remove_context(self, sandbox: Sandbox, context: Context) -> None:
        """Deletes a context; raises `Refusal` for the one that has the sandbox's files."""
        if context.session is sandbox.main:
            words = "This context has the sandbox's files. Restart it, or kill the sandbox."
            raise Refusal(400, "", words)
        async with sandbox.changing:
            sandbox.contexts.pop(context.name, None)
            if sandbox.defaults.get(context.language) is context:
                del sandbox.defaults[context.language]
            await self._delete(sandbox, context, "This context was removed.")


def runtime_of(language: str | None) -> RuntimeType:
    """Returns the runtime of a language by its name; raises `Refusal` if there is none."""
    found = _LANGUAGES.get((language or "python").lower())
    if found is None:
        words = f"Cells are Python, JavaScript or TypeScript here, not {language!r}."
        raise Refusal(400, "", words)
    return found


def _check(asked: NewSandbox) -> None:
    """Raises `Refusal` for what has no meaning here."""
    if asked.template_id not in TEMPLATES:
        known = ", ".join(TEMPLATES[:2])
        raise Refusal(400, "", f"There is one template here, called {known}, and no images.")
    refused = {
        "MCP servers": asked.mcp,
        "workload identities": asked.iam,
        "volumes": asked.volume_mounts,
        "network rules of their own": asked.network or asked.allow_internet_access,
    }
    for what, wanted in refused.items():
        if wanted:
            raise Refusal(400, "", f"Sandboxes have no {what} here. Nothing was made.")


def _sleep(session: AsyncSession) -> None:
    if session.sync.worker.sleep():
        session.sync.worker.wait_asleep()
