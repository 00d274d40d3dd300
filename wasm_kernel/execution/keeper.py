"""What a session does for its sandbox; a sandbox outside of sessions has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.record import record

if TYPE_CHECKING:
    from wasm_kernel.execution.sandbox import BaseSandbox


@record
class Home:
    """A place that a sandbox can live in: its folders, and the session that they belong to."""

    folders: SandboxFolders
    session_id: str


class Keeper(Protocol):
    """The session of a sandbox, as the sandbox sees it.

    `heard_by`, `executed`, `new_home` and `keeper_of` are called on the sandbox's own thread, the
    rest on any.
    """

    def opened(self, sandbox: BaseSandbox) -> None:
        """This sandbox lives in the session from now on."""

    def heard_by(self, logger: SandboxLogger) -> None:
        """Another logger hears of the session from now on."""

    def executed(self) -> None:
        """A cell has ended, in whatever way. Never raises: a cell does not fail over it."""

    def new_home(self) -> Home:
        """A place for a fork: a new session beside this one, its workspace made and empty.

        Raises:
            WasmKernelError: it can't be made.
        """

    def keeper_of(self, home: Home) -> Keeper:
        """The keeper of a sandbox that is to live in such a place."""

    def entered(self) -> None:
        """A `with` block of the sandbox begins."""

    def left(self) -> bool:
        """A `with` block of the sandbox ends; whether the sandbox is to be closed now."""

    def closed(self) -> None:
        """The sandbox has been closed; idempotent."""
