"""The magics that travel: cells that hold nothing else, and what their words say."""

from __future__ import annotations

import pytest

from wasm_kernel.errors import TravelError
from wasm_kernel.execution.spoken import Wish, only_travels, wish_of
from wasm_kernel.guests.protocol import Travel
from wasm_kernel.guests.python.cells import PythonCell


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("%undo", [Travel("undo")]),
        ("  %undo   3  \n", [Travel("undo", "3")]),
        (
            "# back\n\n%undo 2\r\n%restore a b",
            [Travel("undo", "2"), Travel("restore", "a b")],
        ),
        ("%undo 99", [Travel("undo", "99")]),
        ("%checkpoint\n%checkpoints", [Travel("checkpoint"), Travel("checkpoints")]),
        ("%history_tree", [Travel("history_tree")]),
        ("%redo\n#", [Travel("redo")]),
    ],
)
def test_a_cell_that_only_travels_is_read(code: str, found: list[Travel]) -> None:
    assert only_travels(PythonCell(code)) == found


@pytest.mark.parametrize(
    "code",
    [
        *("", "#", "x = 1", "%undo; x", "x = 1\n%undo", "%%time\n%undo", "%hist", "%undone"),
        "#\n" * 60_000 + "%undo",
        *("%undo?", "%restore {name}", "%restore $name", "%restore a?", "%restore \\\na"),
    ],
)
def test_others_are_the_guests(code: str) -> None:
    assert only_travels(PythonCell(code)) is None


@pytest.mark.parametrize(
    ("travel", "wish"),
    [
        (Travel("undo"), Wish()),
        (Travel("undo", "3 --files"), Wish(cells=3, files=True)),
        (Travel("undo", "9" * 5_000), Wish(cells=2**31)),
        (Travel("redo", "--files"), Wish(files=True)),
        (Travel("restore", "In[3]"), Wish(name="In[3]")),
        (Travel("restore", "--files"), Wish(files=True)),
    ],
)
def test_words_are_read(travel: Travel, wish: Wish) -> None:
    assert wish_of(travel) == wish


@pytest.mark.parametrize(
    "travel",
    [Travel("undo", "x"), Travel("undo", "-1"), Travel("redo", "1"), Travel("restore")],
)
def test_words_that_say_nothing_are_refused(travel: Travel) -> None:
    with pytest.raises(TravelError, match=f"%{travel.how} takes"):
        wish_of(travel)
