"""Requests of cells to the history: their words, several in a cell, and cells that do not count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faces import error_of
from tests.private import kept_sandbox
from wasm_kernel import Sandbox
from wasm_kernel.errors import TravelError
from wasm_kernel.execution.commands import TRAVELS, words_of
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests.base import CommandLine
from wasm_kernel.guests.python.language import PythonCell


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A session whose cells set x to 1, 2 and 3."""
    with kept_sandbox(workspace=tmp_path / "app", resume=Resume.ALWAYS) as made:
        for value in (1, 2, 3):
            assert made.execute(f"x = {value}").success
        yield made


def x(sandbox: Sandbox) -> str:
    result = sandbox.execute("print(x)", silent=True)
    return result.stdout.strip()


def test_two_undos_in_one_cell_take_back_two_cells(sandbox: Sandbox) -> None:
    told = sandbox.execute("%undo\n%undo").stdout
    assert told == "Undone: In[3] x = 3\nUndone: In[2] x = 2\n"
    assert x(sandbox) == "1"


def test_a_checkpoint_before_an_undo_names_what_is_left(sandbox: Sandbox) -> None:
    sandbox.execute("y = 'here'\n%checkpoint far\n%undo 2")
    assert x(sandbox) == "1"
    sandbox.restore("far")
    assert sandbox.execute("print(x, y)").stdout == "3 here\n"


def test_a_checkpoint_after_an_undo_names_where_it_leads(sandbox: Sandbox) -> None:
    sandbox.execute("%undo 2\n%checkpoint back")
    sandbox.execute("x = 99")
    sandbox.restore("back")
    assert x(sandbox) == "1"


@pytest.mark.parametrize("code", ["%undo 99", "%timeline", "%checkpoint a"])
def test_a_cell_that_only_asks_is_not_one_to_undo(sandbox: Sandbox, code: str) -> None:
    sandbox.execute(code)
    assert sandbox.execute("%undo").stdout == "Undone: In[3] x = 3\n"
    assert x(sandbox) == "2"


def test_a_silent_cell_goes_with_the_cell_before(sandbox: Sandbox) -> None:
    sandbox.execute("z = 1", silent=True)
    sandbox.execute("z = 2", store_history=False)
    assert sandbox.undo().cells == ("x = 3",)
    assert sandbox.execute("print('z' in globals())").stdout == "False\n"


def test_a_redo_waits_while_cells_only_ask_and_until_one_runs(sandbox: Sandbox) -> None:
    sandbox.undo(2)
    sandbox.execute("%checkpoints")
    sandbox.execute("%undo 99")
    assert sandbox.redo().cells == ("x = 2", "x = 3")
    assert x(sandbox) == "3"
    sandbox.undo()
    sandbox.execute("x = 5")
    with pytest.raises(TravelError, match="nothing to redo"):
        sandbox.redo()


def test_a_redo_is_possible_in_another_process(sandbox: Sandbox) -> None:
    sandbox.undo()
    sandbox.undo()
    sandbox.close()
    with kept_sandbox(workspace=sandbox.workspace, resume=Resume.ALWAYS) as again:
        assert again.redo().cells == ("x = 2",)
        assert again.redo().cells == ("x = 3",)
        assert x(again) == "3"


def test_a_crash_of_the_asking_cell_is_no_reason_to_do_more(sandbox: Sandbox) -> None:
    sandbox.execute(
        "get_ipython().events.register('pre_run_cell', lambda *a: __import__('os')._exit(4))"
    )
    assert error_of(sandbox.execute("x = 9\n%undo")).startswith("GuestExited:")
    assert "Undone" in sandbox.execute("%undo").stdout
    assert x(sandbox) == "3"


def test_the_tree_shows_branches(sandbox: Sandbox) -> None:
    sandbox.undo(2)
    sandbox.execute("x = 'branch'")
    [shown] = sandbox.execute("%timeline").outputs
    text = shown.data["text/plain"]
    assert "├─○ In[2]" in text
    assert "│ ○ In[3]" in text
    assert "<ul><li>In[2]" in shown.data["text/html"]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("  %undo   3  \n", [CommandLine("undo", "3")]),
        (
            "# a\n\n%undo 2\r\n%restore a b",
            [CommandLine("undo", "2"), CommandLine("restore", "a b")],
        ),
        ("%checkpoint\n%timeline\n#", [CommandLine("checkpoint"), CommandLine("timeline")]),
    ],
)
def test_a_cell_that_only_travels_is_read(code: str, found: list[CommandLine]) -> None:
    assert PythonCell(code).only_commands(TRAVELS) == found


@pytest.mark.parametrize(
    "code",
    [
        *("", "#", "x = 1", "%undo; x", "x = 1\n%undo", "%%time\n%undo", "%hist", "%undone"),
        "#\n" * 60_000 + "%undo",
        *("%undo?", "%restore {name}", "%restore $name", "%restore a?", "%restore \\\na"),
    ],
)
def test_other_cells_are_the_guests(code: str) -> None:
    assert PythonCell(code).only_commands(TRAVELS) is None


@pytest.mark.parametrize(
    ("travel", "target"),
    [
        (CommandLine("undo"), (1, "", False)),
        (CommandLine("undo", "3 --files"), (3, "", True)),
        (CommandLine("undo", "9" * 5_000), (2**31, "", False)),
        (CommandLine("redo", "--files"), (1, "", True)),
        (CommandLine("restore", "In[3]"), (1, "In[3]", False)),
        (CommandLine("restore", "--files"), (1, "", True)),
    ],
)
def test_words_are_read(travel: CommandLine, target: tuple[int, str, bool]) -> None:
    assert words_of(travel) == target


@pytest.mark.parametrize(
    "travel", [CommandLine("undo", "x"), CommandLine("redo", "1"), CommandLine("restore")]
)
def test_words_that_say_nothing_are_refused(travel: CommandLine) -> None:
    with pytest.raises(TravelError, match=f"%{travel.name} takes"):
        words_of(travel)
