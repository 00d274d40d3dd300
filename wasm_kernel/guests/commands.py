"""Host commands, as those see them who write one: what the host does for a command in a cell.

`%pip`, `%fork` and the like reach beyond the guest. `execution/commands.py` decides whether one is
run, and runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.broker import Broker
from wasm_kernel.linux.task import Task

Json = Any


class CommandLine(Struct, frozen=True):
    """A command as it stands in a cell: its name, the words behind it, and the cell below `%%name`.

    Nothing in `line` was expanded: `$x` and `{x}` stand for themselves.
    """

    name: str
    line: str = ""
    cell: str | None = None


class CommandRefused(WasmKernelError):
    """The command is not run; `str()` says why to the cell's author, as a sentence."""


class ActionContext(Task, Protocol):
    """A cell whose end has come, as an action sees it. Used on the guest's thread.

    Attributes:
        broker: Does what this process may not do.
    """

    broker: Broker

    def say(self, text: str, stream: str = "stdout") -> None:
        """Prints for the cell, on `stdout` or `stderr`."""


class CommandContext(ActionContext, Protocol):
    """The cell that waits for a command. Used on the guest's thread, while it waits.

    A command that takes longer than a moment asks every 0.1 s whether it is `cancelled`: the cell
    was interrupted, ran out of time, or is being closed. It then puts things back as they were, and
    raises `Cancelled`. What it reports is printed as a line; beyond the cell's limits, what it says
    is dropped.
    """

    def wait(self, seconds: float) -> bool:
        """Waits so long, or until the command is cancelled; returns whether it is."""

    def after_cell(self, action: AfterCellAction) -> None:
        """Has something done when the cell has finished."""


class AfterCellAction(Protocol):
    """An action to run after the cell has finished, such as a fork. It never raises."""

    def run(self, context: ActionContext) -> None:
        """Does it; the cell's effects are kept by now."""

    def cell_lost(self, context: ActionContext) -> None:
        """Puts back what was prepared: the guest was lost in the cell."""


CommandHandler = Callable[[CommandLine, CommandContext], Json]
"""Runs a command on the guest's thread, in the midst of a cell, and returns what the guest gets.

It must not call the sandbox. The cell's fuel does not burn meanwhile; its deadline goes on. It may
raise a `WasmKernelError`, whose text says to the cell's author why it was not run, or `Cancelled`.
"""


def switched_off(sentence: str) -> CommandHandler:
    """Returns a command that is not offered; the sentence says what to set, and why it is off."""

    def refuse(*_: object) -> Json:
        raise CommandRefused(sentence)

    return refuse
