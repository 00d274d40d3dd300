"""Actions after a cell: a failing one harms neither the cell nor the next action."""

from __future__ import annotations

from typing import Any, cast

import pytest

from wasm_kernel.engine.clock import Clock
from wasm_kernel.execution.commands import HostCommands
from wasm_kernel.guests.base import ActionContext
from wasm_kernel.linux.broker import LocalBroker


class Action:
    """An action that fails as the test says, or records that it ran."""

    def __init__(self, problem: Exception | None = None) -> None:
        self._problem = problem

    def run(self, context: ActionContext) -> None:
        if self._problem is not None:
            raise self._problem
        context.say("run")

    def cell_lost(self, context: ActionContext) -> None:
        context.say("put back", "stderr")


class Cell:
    """A turn that records the notices that it gets."""

    text = None

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def on_text(self, name: str, text: str) -> None:
        self.told.append((name, text))


def commands_with(*actions: Action) -> HostCommands:
    nothing = cast("Any", None)
    commands = HostCommands(nothing, nothing, LocalBroker({}))
    for action in actions:
        commands.after_cell(action)
    return commands


def test_an_action_that_fails_unexpectedly_is_logged_and_does_not_keep_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cell = Cell()
    commands_with(Action(OSError(5, "secret", "/a/path")), Action()).run_actions(
        cast("Any", cell), Clock()
    )
    assert cell.told == [
        ("stderr", "[wasm-kernel] internal error; the kernel's log says more.\n"),
        ("stdout", "run"),
    ]
    assert "Action failed unexpectedly" in caplog.text
    assert "Traceback (most recent call last)" in caplog.text


def test_actions_of_a_lost_cell_are_put_back_and_forgotten() -> None:
    cell, commands = Cell(), commands_with(Action())
    commands.cell_lost(cast("Any", cell), Clock())
    commands.run_actions(cast("Any", cell), Clock())
    assert cell.told == [("stderr", "put back")]
