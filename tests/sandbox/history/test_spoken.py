"""Cells that are nothing but a journey, read by the host itself."""

from __future__ import annotations

import pytest

from wasm_kernel.sandbox.frames import Travel
from wasm_kernel.sandbox.history.spoken import journeys, only_travels


@pytest.mark.parametrize(
    ("code", "wishes"),
    [
        ("%undo", [Travel("undo")]),
        ("  %undo   3  \n", [Travel("undo", 3)]),
        ("# back\n\n%undo 2\n%restore before the merge", 2),
        ("%redo", [Travel("redo")]),
        ("%restore In[3]", [Travel("restore", name="In[3]")]),
    ],
)
def test_a_journey_is_read(code: str, wishes: object) -> None:
    found = journeys(code)
    assert (len(found) if isinstance(wishes, int) else found) == wishes


@pytest.mark.parametrize(
    "code",
    [
        "",
        "#",
        "x",
        "%undo\nx = 1",
        "%undo x",
        "%undo -1",
        "%undo?",
        "%undone",
        "%restore",
        "%redo 1",
    ],
)
def test_anything_else_is_none(code: str) -> None:
    assert journeys(code) == []


def test_a_checkpoint_is_the_guests_to_make() -> None:
    assert journeys("%checkpoint a\n%undo") == []


@pytest.mark.parametrize(
    "code", ["%undo 99", "%checkpoint", "%checkpoints", "%history_tree", "%undo x", "%redo\n#"]
)
def test_such_cells_only_travel(code: str) -> None:
    assert only_travels(code)


@pytest.mark.parametrize(
    "code", ["", "x = 1", "%undo; x", "x = 1\n%undo", "%%time\n%undo", "%hist"]
)
def test_others_do_more(code: str) -> None:
    assert not only_travels(code)
