"""`ClientSandbox`: a session and its contexts, as E2B's clients have them, and their record."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from msgspec import Struct
from msgspec import field as kept_field

from wasm_kernel.errors import Door
from wasm_kernel.frontends.e2b.messages import NewSandbox
from wasm_kernel.frontends.http.callers import ENDING, Caller
from wasm_kernel.frontends.http.limits import Refusal
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.service.async_session import AsyncSession

HOME = Door.SANDBOX.home
"""The home folder in E2B's sandboxes, a second path of `/app`: relative paths begin there."""
_ENTERING = {
    RuntimeType.PYTHON: "__import__('os').chdir({})",
    RuntimeType.JAVASCRIPT: "process.chdir({})",
}


class SandboxRecord(Struct, tag="e2b", tag_field="door"):
    """The facts of a sandbox that lie with its session: another server goes on with them.

    Attributes:
        credential: The name of the key of the client that made the sandbox.
        owner: The name under which the limits count its sessions.
        asked: The client's request for the sandbox.
        token: The secret that requests to it carry.
        created: When it was made, in seconds since 1970; `ends` is when its time is over.
        contexts: The languages of its contexts by their names; the first has the sandbox's files.
        folders: The folders that contexts begin in, by the contexts' names, without the home
            folder.
        defaults: The names of the contexts for cells that name a language only.
    """

    credential: str
    owner: str
    asked: NewSandbox
    token: str = kept_field(default_factory=lambda: secrets.token_urlsafe(32))
    created: float = kept_field(default_factory=time.time)
    ends: float = 0.0
    is_paused: bool = False
    contexts: dict[str, RuntimeType] = {}
    folders: dict[str, str] = {}
    defaults: dict[RuntimeType, str] = {}

    @property
    def caller(self) -> Caller:
        """The client that made the sandbox."""
        return Caller("", self.credential, self.owner)


@dataclass
class CodeContext:
    """Variables for cells: a session of its own, with the files of the sandbox's main one.

    `folder` is the guest path that its cells begin in.
    """

    name: str
    language: RuntimeType
    session: AsyncSession
    folder: str = HOME

    async def enter_folder(self) -> None:
        """Makes the context's folder the current one; raises `Refusal` if it does not exist."""
        if self.folder == HOME:
            return
        code = _ENTERING[self.language].format(json.dumps(self.folder, ensure_ascii=False))
        result = await self.session.execute(code, store_history=False)
        if result.error is not None:
            raise Refusal(400, f"A context can't begin in {self.folder}: {result.error.evalue}")


@dataclass(eq=False)
class ClientSandbox:
    """A sandbox of a client, on the server that its requests come to.

    Attributes:
        kept: Its facts, as they are on disk.
        main: The session that has its files; its id is the sandbox's.
        policy: The limits of its sessions, with its environment variables.
        contexts: Its contexts by their names; the first is the main session's.
        commands: The functions that end its commands, by the numbers that `numbers` gives out.
    """

    kept: SandboxRecord
    main: AsyncSession
    policy: ExecutionPolicy
    contexts: dict[str, CodeContext] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    commands: dict[int, Callable[[], object]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def name(self) -> str:
        """The sandbox's id."""
        return self.main.session_id

    @property
    def is_gone(self) -> bool:
        """True if the sandbox's session was deleted."""
        return self.main.sync.worker.why_closed not in ("", ENDING)

    @property
    def is_busy(self) -> bool:
        """True if one of its cells runs or waits."""
        return any(each.session.sync.worker.state == "busy" for each in self.contexts.values())

    @property
    def is_starting(self) -> bool:
        """True if one of its guests is starting, so that no cell runs yet."""
        workers = [each.session.sync.worker for each in self.contexts.values()]
        return any(each.state in ("starting", "busy") and not each.is_up for each in workers)

    @property
    def is_awake(self) -> bool:
        """True if the sandbox has a worker here, so that no other server can have changed it."""
        return any(each.session.sync.worker.state != "asleep" for each in self.contexts.values())

    @property
    def seconds_left(self) -> float:
        """The seconds until the sandbox's time is over; infinite while it is paused."""
        return math.inf if self.kept.is_paused else self.kept.ends - time.time()

    def add(self, session: AsyncSession, language: RuntimeType, folder: str = HOME) -> CodeContext:
        """Adds a context."""
        made = CodeContext(session.session_id, language, session, folder)
        self.contexts[made.name] = made
        self.kept.contexts[made.name] = language
        if folder != HOME:
            self.kept.folders[made.name] = folder
        return made

    def remove(self, context: CodeContext) -> None:
        """Removes a context."""
        self.contexts.pop(context.name, None)
        self.kept.contexts.pop(context.name, None)
        self.kept.folders.pop(context.name, None)
        if self.kept.defaults.get(context.language) == context.name:
            del self.kept.defaults[context.language]
