"""The magics that travel: recognition of cells with nothing else, and their arguments."""

from __future__ import annotations

import pytest

from wasm_kernel.errors import TravelError
from wasm_kernel.execution.commands import TRAVELS, words_of
from wasm_kernel.guests.base import CommandLine
from wasm_kernel.guests.python.language import PythonCell


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
