"""The interfaces around a sandbox: its `Listener`, and the `SessionHooks` of its session."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Literal, Protocol

from msgspec import Struct

from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.guests.protocol import Output
from wasm_kernel.policy import check_env
from wasm_kernel.result import CommMessage

NO_INPUT = "This needs a front end that takes input; there is none here."
"""The reason why a cell's request for input is refused."""

QUERIES = ("complete", "inspect", "is_complete", "history")
"""The requests that run no cell and leave nothing behind."""

Provider = Callable[[], Mapping[str, Any]]


class InputInterrupted(Exception):
    """The error of a cell that the user interrupted while it waited for input."""


class InputRefused(Exception):
    """The error of a front end that takes no input; `str()` is for the cell's author."""


class SessionFacts:
    """Facts about a session, by name, from several providers. Any thread may add a provider.

    Front ends show the names that they know under headings, and the others as they are.
    """

    def __init__(self, *providers: Provider) -> None:
        self._providers = providers

    def add(self, provider: Provider) -> None:
        """Adds a provider, which is called on the guest's thread and must return JSON values."""
        self._providers = (*self._providers, provider)

    def all(self) -> dict[str, Any]:
        """Returns the current facts, without those of providers that fail."""
        found: dict[str, Any] = {}
        for provider in self._providers:
            try:
                found |= provider()
            except Exception:  # noqa: S112 - a missing fact fails no cell
                continue
        return found


class Listener(Protocol):
    """Gets the output of a running cell. Every method is called on the sandbox's own guest thread.

    A method may submit a cell of the sandbox, but not wait for one: that is a `RuntimeError`.
    Only text may come on another thread, while the guest computes; two calls never come at once.
    If it `collects`, the cell's result holds the output, too: one that has sent it on needs no
    second copy.
    """

    collects: bool

    def emit(self, output: Output) -> None:
        """Takes one piece of output when it happens; must be quick, and not call the sandbox."""

    def comm(self, message: CommMessage) -> None:
        """Takes a message on a comm for the front end's page; must be as quick as `emit`."""

    def ask(self, prompt: str, password: bool) -> str:
        """Returns the line that the user answers with.

        The wait must end soon after a call of `Sandbox.interrupt`: poll `Sandbox.interrupted`.

        Raises:
            InputInterrupted: the wait ended by an interrupt.
            InputRefused: the front end takes no input.
        """

    def terminate(self) -> None:
        """Notes that the kernel must end after this turn, as the cell asked."""


class NoListener:
    """A listener that only collects output, and refuses input. A base class for listeners."""

    collects = True

    def emit(self, output: Output) -> None:
        """Does nothing: the sandbox collects the output for its result."""

    def comm(self, message: CommMessage) -> None:
        """Does nothing: there is no page."""

    def ask(self, prompt: str, password: bool) -> str:
        """Raises `InputRefused`."""
        raise InputRefused(NO_INPUT)

    def terminate(self) -> None:
        """Does nothing: there is no kernel to end."""


class OfferedMessage:
    """A message that waits for its turn, and that the running cell may take earlier.

    `parent` has the fields of the front end's message that the guest may know. The listener gets
    the output of callbacks. The guest's thread calls `began` and `ended`.
    """

    def __init__(self, message: CommMessage, parent: Mapping[str, str], listener: Listener) -> None:
        self.message = message
        self.parent = parent
        self.listener = listener
        self._guard = threading.Lock()
        self._is_gone = False

    def claim(self) -> bool:
        """Takes the message; False if it was taken already. Any thread.

        The guest's thread takes it for a running cell, the sender when the message's turn comes.
        """
        with self._guard:
            is_first, self._is_gone = not self._is_gone, True
            return is_first

    @abstractmethod
    def began(self) -> None:
        """Notes that the guest has the message."""

    @abstractmethod
    def ended(self) -> None:
        """Notes that the message's callbacks have run, or never will."""


NUMBERS_MOST = (1 << 31) - 1
"""The highest number of a cell."""


class Cell(Struct, frozen=True, kw_only=True, tag_field="kind", tag="execute"):
    """A cell to run; `Sandbox.submit` explains the fields."""

    code: str
    silent: bool = False
    store_history: bool = True
    allow_stdin: bool = False
    user_expressions: Mapping[str, str] = {}
    cell_id: str | None = None
    parent: Mapping[str, str] = {}
    timeout_seconds: float | None = None
    env: Mapping[str, str] = {}


def check_type(name: str, given: object, kind: type | UnionType) -> None:
    """Raises `TypeError` if a caller's argument is of another type than `kind`."""
    if not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool):
        known = kind.__name__ if isinstance(kind, type) else kind
        raise TypeError(f"{name} is of type {known}, not {type(given).__name__}")


def check_count(name: str, given: int) -> None:
    """Raises `TypeError` or `ValueError` if a caller's argument is not a number from 1 on."""
    check_type(name, given, int)
    if given < 1:
        raise ValueError(f"{name} is 1 or more, not {given}")


def checked_query(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request of a query; raises `TypeError` or `ValueError` if it is not one."""
    check_type("a query", request, Mapping)
    if request.get("op") not in QUERIES:
        known = ", ".join(map(repr, QUERIES))
        raise ValueError(f"the op of a query is one of {known}, not {request.get('op')!r}")
    return dict(request)


def checked_cell(cell: Cell) -> Cell:
    """Returns a cell that a caller describes.

    Raises:
        TypeError: its code is not a string, or `timeout_seconds` not a number.
        ValueError: `timeout_seconds` is not above 0, or `env` can't be the guest's.
    """
    check_type("a cell's code", cell.code, str)
    if cell.timeout_seconds is not None:
        check_type("timeout_seconds", cell.timeout_seconds, float | int)
        if not cell.timeout_seconds > 0:
            raise ValueError(f"timeout_seconds is above 0, not {cell.timeout_seconds!r}")
    check_env(cell.env)
    return cell


NO_CELL = Cell(code="", silent=True, store_history=False)
"""The cell of a turn that runs none."""


class TravelRequest(Struct, frozen=True, tag_field="kind", tag="travel"):
    """A request to go back or forth in the history; `Sandbox.undo` and its like explain it."""

    how: Literal["undo", "redo", "restore", "rollback"]
    cells: int = 1
    where: str = ""
    files: bool = False


class ProcessUsage(Struct, frozen=True):
    """The use of resources by the process that a guest lives in; zeros if there is none.

    Memory that it shares with other processes counts in proportion. The processor time is that of
    all such processes that the sandbox has had.
    """

    memory_bytes: int = 0
    cpu_seconds: float = 0.0


class SessionHooks:
    """A session, or a workspace outside of sessions, and its duties towards its sandbox.

    By default it has no duties. `logger_changed`, `executed` and `new_session` are called on the
    sandbox's own thread, the rest on any. The `id` is empty outside of sessions.
    """

    id: str = ""
    folders: SandboxFolders

    def opened(self, sandbox: Any, /) -> None:
        """Notes that the sandbox lives in the session from now on."""

    def facts(self) -> Mapping[str, Any]:
        """Returns the facts that a cell may know about the session, by name, as JSON values."""
        return {}

    def logger_changed(self, logger: SandboxLogger) -> None:
        """Sends the events of the session to another logger from now on."""

    def executed(self) -> None:
        """Notes that a cell has ended in any way. Never raises, so that no cell fails by it."""

    def new_session(self) -> SessionHooks:
        """Makes a session for a fork, beside this one, with an empty workspace."""
        raise NotImplementedError

    def entered(self) -> None:
        """Notes that a `with` block of the sandbox begins."""

    def left(self) -> bool:
        """Notes the end of a `with` block; returns whether the sandbox must be closed now."""
        return True

    def closed(self) -> None:
        """Notes that the sandbox has been closed. Safe to call twice."""
