"""`Listener`: hears what a cell shows, and answers its questions."""

from __future__ import annotations

from typing import Protocol

from wasm_kernel.guests.protocol import Output
from wasm_kernel.result import CommMessage


class InputInterrupted(Exception):
    """The user interrupted the cell while it waited for input."""


class InputRefused(Exception):
    """The front end takes no input; `str()` says so to the cell's author."""


class Listener(Protocol):
    """Hears a running cell. Every method is called on the sandbox's own guest thread.

    Attributes:
        collects: Whether the cell's result holds what it showed as well. Who has sent it on needs
            no second copy.
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
    """A listener for whom nobody waits: output is only collected, input is refused."""

    collects = True

    def emit(self, output: Output) -> None:
        """Nothing to do: the sandbox collects the output for its result."""

    def comm(self, message: CommMessage) -> None:
        """There is no page."""

    def ask(self, prompt: str, password: bool) -> str:
        """Nobody is there to answer."""
        raise InputRefused("input() needs a front end that takes input; there is none here.")

    def terminate(self) -> None:
        """There is no kernel to end."""
