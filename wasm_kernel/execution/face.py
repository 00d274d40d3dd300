"""A sandbox as front ends see it, `Sandbox`, and its session as it sees it, `SessionHooks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.comms import OfferedMessage
from wasm_kernel.execution.facts import SessionFacts
from wasm_kernel.execution.listener import Listener
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.guests.commands import CommandHandler
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import CommMessage, SandboxResult

if TYPE_CHECKING:
    from wasm_kernel.execution.commands import HostCommands

SandboxT_contra = TypeVar("SandboxT_contra", contravariant=True)


class Sandbox(Protocol):
    """A sandbox as a front end sees it; `BaseSandbox` says what each member does.

    Any thread may call it. Tests of front ends have one of their own, without a guest.
    """

    workspace: Path
    policy: ExecutionPolicy
    session_id: str | None
    commands: HostCommands
    language_commands: Mapping[str, CommandHandler]
    facts: SessionFacts

    @property
    def next_count(self) -> int:
        """The execution count that the next cell will have."""

    @property
    def interrupted(self) -> bool:
        """True if a wait of the running cell in the host should end now."""

    def start(self, progress: Callable[[str], None] | None = None) -> Future[None]:
        """Gets the guest ready, on its own thread."""

    def submit(
        self,
        code: str,
        *,
        silent: bool = False,
        store_history: bool = True,
        allow_stdin: bool = False,
        user_expressions: Mapping[str, str] | None = None,
        cell_id: str | None = None,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Future[SandboxResult]:
        """Queues a cell; its future ends with its result, whatever the code does."""

    def query(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
        """Asks the guest something, such as how a name may be completed."""

    def comm(
        self,
        message: CommMessage,
        *,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Future[None]:
        """Hands a message of the front end's page to the guest."""

    def offer(self, offered: OfferedMessage) -> None:
        """Lets the running cell take a message while it awaits something."""

    def comms(self, listener: Listener | None = None) -> Future[dict[str, str]]:
        """Returns the target of each comm that is open, by the comm's id."""

    def interrupt(self) -> bool:
        """Interrupts the running cell, or those that wait for the guest to start."""

    def close(self, *, anew: bool = False) -> None:
        """Stops what runs and frees the sandbox's resources."""


class NewSession(Struct, frozen=True):
    """A place for a fork to live in.

    Attributes:
        folders: Its folders, open.
        session_id: Its session, or None outside of sessions.
        hooks: What the session does for its sandbox, if there is one.
    """

    folders: SandboxFolders
    session_id: str | None = None
    hooks: SessionHooks[Any] | None = None


class SessionHooks(Protocol[SandboxT_contra]):
    """The things that a session does for its sandbox; one outside of sessions has no hooks.

    `logger_changed`, `executed` and `new_session` are called on the sandbox's own thread, the rest
    on any.
    """

    def opened(self, sandbox: SandboxT_contra, /) -> None:
        """The sandbox lives in the session from now on."""

    def logger_changed(self, logger: SandboxLogger) -> None:
        """Another logger hears of the session from now on."""

    def executed(self) -> None:
        """A cell has ended, in whatever way. Never raises: a cell does not fail because of it."""

    def new_session(self) -> NewSession:
        """Makes a session for a fork, beside this one, with an empty workspace.

        Raises:
            WasmKernelError: it can't be made.
        """

    def entered(self) -> None:
        """A `with` block of the sandbox begins."""

    def left(self) -> bool:
        """A `with` block of the sandbox ends; returns whether the sandbox is to be closed now."""

    def closed(self) -> None:
        """The sandbox has been closed. Safe to call twice."""
