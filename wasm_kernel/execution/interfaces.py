"""A sandbox as front ends see it, `Sandbox`; those who get what happens in it, `Listener` and
`Sender`; and its session as it sees it, `SessionHooks`.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Struct

from wasm_kernel.errors import ForkError, describe
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.guests.protocol import Output
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import CommMessage, SandboxResult

NO_INPUT = "This needs a front end that takes input; there is none here."
"""The reason why a question of a cell is refused."""

Provider = Callable[[], Mapping[str, Any]]


class InputInterrupted(Exception):
    """The user interrupted the cell while it waited for input."""


class InputRefused(Exception):
    """The front end takes no input; `str()` says so to the cell's author."""


class SessionFacts:
    """Facts about a session, by name, from whoever knows them. Any thread may add a provider.

    Front ends show the names that they know under headings, and the others as they are.
    """

    def __init__(self, *providers: Provider) -> None:
        self._providers = providers

    def add(self, provider: Provider) -> None:
        """Asks `provider` too; it is called on the guest's thread, and its answer is JSON."""
        self._providers = (*self._providers, provider)

    def all(self) -> dict[str, Any]:
        """Returns the facts as they are now; those that can't be found out are left out."""
        found: dict[str, Any] = {}
        for provider in self._providers:
            try:
                found |= provider()
            except Exception:  # noqa: S112 - one fact less is no reason to fail a cell
                continue
        return found


class Listener(Protocol):
    """Gets the output of a running cell. Every method is called on the sandbox's own guest thread.

    Only text of a guest without epochs may come on another thread while the guest computes; two
    calls never come at once.

    Attributes:
        collects: Whether the cell's result holds what it showed as well. A listener that has
            sent it on needs no second copy.
    """

    collects: bool

    def emit(self, output: Output) -> None:
        """One piece of output, as it happens; must be quick, and must not call the sandbox."""

    def comm(self, message: CommMessage) -> None:
        """A message on a comm, for the front end's page; as quick as `emit`."""

    def ask(self, prompt: str, password: bool) -> str:
        """The line that the user answers with.

        The wait must end soon after `Sandbox.interrupt` was called: poll, and look at
        `Sandbox.interrupted`.

        Raises:
            InputInterrupted: the wait ended by an interrupt.
            InputRefused: the front end takes no input.
        """

    def terminate(self) -> None:
        """The cell asked that its kernel end after this turn."""


class NoListener:
    """A listener that does nothing: output is only collected, input is refused. Derive yours."""

    collects = True

    def emit(self, output: Output) -> None:
        """Nothing to do: the sandbox collects the output for its result."""

    def comm(self, message: CommMessage) -> None:
        """There is no page."""

    def ask(self, prompt: str, password: bool) -> str:
        """Nobody is there to answer."""
        raise InputRefused(NO_INPUT)

    def terminate(self) -> None:
        """There is no kernel to end."""


class Sender(Protocol):
    """The one that waits for a message to be served. Called on the guest's thread."""

    def began(self) -> None:
        """The guest has the message."""

    def ended(self) -> None:
        """Its callbacks have run."""


class OfferedMessage:
    """A message that waits for its turn, and that the running cell may take earlier.

    `parent` is what the guest may know of the message that carried it; the listener gets what
    callbacks say; the sender is called when it was served.
    """

    def __init__(
        self, message: CommMessage, parent: Mapping[str, str], listener: Listener, sender: Sender
    ) -> None:
        self.message = message
        self.parent = parent
        self.listener = listener
        self.sender = sender
        self._guard = threading.Lock()
        self._is_gone = False

    def claim(self) -> bool:
        """Takes the message; False if somebody has taken it already. Any thread.

        The guest's thread takes it for a running cell, the sender when its turn has come.
        """
        with self._guard:
            is_first, self._is_gone = not self._is_gone, True
            return is_first


NUMBERS_MOST = (1 << 31) - 1
"""The highest number of a cell."""


class Cell(Struct, frozen=True, kw_only=True):
    """A cell that is to be run; `BaseSandbox.submit` explains the fields."""

    code: str
    silent: bool = False
    store_history: bool = True
    allow_stdin: bool = False
    user_expressions: Mapping[str, str] = {}
    cell_id: str | None = None
    parent: Mapping[str, str] = {}
    timeout_seconds: float | None = None


class Sandbox(Protocol):
    """A sandbox as a front end sees it. Any thread may call it.

    Tests of front ends have one of their own, without a guest.
    """

    policy: ExecutionPolicy

    @abstractmethod
    def start(self, progress: Callable[[str], None] | None = None) -> Future[None]:
        """Gets the guest ready: compiles it and builds its image, if missing.

        Args:
            progress: Gets plain sentences about what takes long, from any thread.

        Returns:
            A future that ends when the guest is ready; it carries a `WasmKernelError` if it can't
            be. A later call tries again after a failure.

        Raises:
            SandboxClosed: the sandbox is closed.
        """

    @abstractmethod
    def queue(self, cell: Cell, listener: Listener | None = None) -> Future[SandboxResult]:
        """Queues a cell; its future ends with its result, whatever the code does.

        Raises:
            SandboxClosed: the sandbox is closed.
        """

    @abstractmethod
    def interrupt(self) -> bool:
        """Interrupts the running cell, or those that wait for the guest to start. Any thread.

        The cell ends with `KeyboardInterrupt`; if it does not within `policy.grace_seconds`, its
        guest is stopped. Returns whether there was something to interrupt.
        """

    @property
    @abstractmethod
    def interrupted(self) -> bool:
        """True if a wait of the running cell in the host should end now."""

    @property
    @abstractmethod
    def next_count(self) -> int:
        """The execution count that the next cell will have."""

    @abstractmethod
    def query(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
        """Asks the guest something: `complete`, `inspect`, `is_complete` or `history`.

        The request and the reply are those of `runtimes/PROTOCOL.md`. A query has
        `policy.query_seconds`; it is then interrupted, and stopped if it goes on. It leaves nothing
        behind.
        """

    @abstractmethod
    def comm(
        self,
        message: CommMessage,
        *,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Future[None]:
        """Hands a message of the front end to the guest; the future ends when it was served.

        A message for which there is nobody is dropped; such an `open` is answered with a `close`.
        What the guest's callbacks change is kept like a cell's effects, and taken back together
        with the cell before. They have `policy.comm_seconds`; then they are interrupted. `parent`
        is what the guest may know of the message that carried it: `msg_id`, `msg_type`.
        """

    @abstractmethod
    def offer(self, offered: OfferedMessage) -> None:
        """Lets the running cell take a message while it awaits something.

        Whoever offers it claims it when its turn has come, and calls `comm` if that succeeds.
        """

    @abstractmethod
    def comms(self, listener: Listener | None = None) -> Future[dict[str, str]]:
        """Returns the target of each comm that is open, by the comm's id."""

    @abstractmethod
    def rest(self) -> bool:
        """Gives the guest's memory back to the system until the next call, if all is on disk.

        Waits for that, for some milliseconds. The next call takes some more. Returns whether there
        is nothing to give back any more.
        """

    @abstractmethod
    def close(self, *, anew: bool = False) -> None:
        """Stops what runs and frees the sandbox's resources. Safe to call twice.

        With `anew`, whoever opens the session next begins without its variables, always.
        """


class NewSession(Struct, frozen=True):
    """A place for a fork to live in: open folders, and a session if it is to have one."""

    folders: SandboxFolders
    session_id: str | None
    hooks: SessionHooks


class SessionHooks:
    """The duties of a session towards its sandbox; by default none.

    `logger_changed`, `executed` and `new_session` are called on the sandbox's own thread, the rest
    on any.
    """

    def opened(self, sandbox: Any, /) -> None:
        """The sandbox lives in the session from now on."""

    def facts(self) -> Mapping[str, Any]:
        """Returns what a cell may know of the session, by name; its answer is JSON."""
        return {}

    def logger_changed(self, logger: SandboxLogger) -> None:
        """Another logger gets the events of the session from now on."""

    def executed(self) -> None:
        """A cell has ended, in whatever way. Never raises: a cell does not fail because of it."""

    def new_session(self) -> NewSession:
        """Makes a session for a fork, beside this one, with an empty workspace."""
        raise NotImplementedError

    def entered(self) -> None:
        """A `with` block of the sandbox begins."""

    def left(self) -> bool:
        """A `with` block of the sandbox ends; returns whether the sandbox is to be closed now."""
        return True

    def closed(self) -> None:
        """The sandbox has been closed. Safe to call twice."""


class NoSession(SessionHooks):
    """The hooks of a sandbox outside of sessions: only a fork needs something."""

    def __init__(self, folders: SandboxFolders) -> None:
        self._folders = folders

    def new_session(self) -> NewSession:
        """Makes a workspace next to that of the sandbox, named after it, or raises `ForkError`."""
        workspace, number = self._folders.real, 1
        while True:
            folder = workspace.with_name(f"{workspace.name}-fork-{number}")
            try:
                folder.mkdir(mode=0o700)
                break
            except FileExistsError:
                number += 1
            except OSError as problem:
                raise ForkError(describe(problem)) from problem
        try:
            folders = SandboxFolders.of_workspace(folder, self._folders.private_root)
        except BaseException:
            with suppress(OSError):
                folder.rmdir()
            raise
        return NewSession(folders, None, NoSession(folders))
