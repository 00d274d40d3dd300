"""Where an undo, a redo or a restore leads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasm_kernel.errors import TravelError
from wasm_kernel.state import travel
from wasm_kernel.state.index import Commit
from wasm_kernel.state.travel import Past


def commit(one: int, parent: int, *, cell: int | None = None, cells: int = 1) -> Commit:
    count = one - 1 if cell is None else cell
    return Commit(one, parent, count, count + 1, f"cell {count}", 0.0, 4096, cells)


def line(length: int, **fields: object) -> Past:
    """The beginning and so many cells, one on the other."""
    commits = {one: commit(one, one - 1) for one in range(1, length + 2)}
    return Past(commits, length + 1, {}, **fields)  # type: ignore[arg-type]


def labels(journey: travel.Journey) -> list[str]:
    return [one.label for one in journey.cells]


def test_undo_leads_before_the_last_cell() -> None:
    journey = travel.undo(line(3), 1)
    assert (journey.to, labels(journey)) == (3, ["cell 3"])


def test_undo_names_its_cells_oldest_first() -> None:
    assert labels(travel.undo(line(3), 2)) == ["cell 2", "cell 3"]


def test_undo_remembers_where_it_came_from() -> None:
    assert travel.undo(line(3), 2).undone == (4,)


def test_every_cell_can_be_undone_and_the_beginning_not() -> None:
    assert travel.undo(line(3), 3).to == 1
    with pytest.raises(TravelError, match="Only 3 cells"):
        travel.undo(line(3), 4)


@pytest.mark.parametrize("cells", [0, -1, -(2**31)])
def test_undo_takes_a_number_of_cells(cells: int) -> None:
    with pytest.raises(TravelError):
        travel.undo(line(3), cells)


def test_before_the_first_cell_there_is_nothing_to_undo() -> None:
    with pytest.raises(TravelError, match="Only 0 cells"):
        travel.undo(Past({}, 0, {}), 1)


def test_undo_stops_at_what_older_cells_were_folded_into() -> None:
    folded = Past({5: commit(5, 0, cells=5), 6: commit(6, 5)}, 6, {})
    assert travel.undo(folded, 1).to == 5
    with pytest.raises(TravelError, match="Only 1 cells"):
        travel.undo(folded, 2)


def test_undo_stops_at_cells_that_were_folded_over_a_checkpoint() -> None:
    commits = {1: commit(1, 0), 7: commit(7, 1, cells=6), 8: commit(8, 7)}
    with pytest.raises(TravelError):
        travel.undo(Past(commits, 8, {"early": 1}), 2)


def test_redo_leads_back_to_where_undo_was() -> None:
    past = line(3)
    there = travel.undo(past, 2)
    back = travel.redo(Past(past.commits, there.to, {}, there.undone))
    assert (back.to, labels(back), back.undone) == (4, ["cell 2", "cell 3"], ())


def test_each_undo_is_redone_by_itself() -> None:
    past = line(3)
    once = travel.undo(past, 1)
    twice = travel.undo(Past(past.commits, once.to, {}, once.undone), 1)
    back = travel.redo(Past(past.commits, twice.to, {}, twice.undone))
    assert (back.to, back.undone) == (3, (4,))


def test_without_an_undo_there_is_nothing_to_redo() -> None:
    with pytest.raises(TravelError, match="nothing to redo"):
        travel.redo(line(3))


def test_a_state_that_is_gone_can_not_be_redone() -> None:
    with pytest.raises(TravelError, match="nothing to redo"):
        travel.redo(line(3, undone=(99,)))


def test_a_restore_can_be_redone_too() -> None:
    past = Past(line(3).commits, 4, {"early": 2})
    there = travel.restore(past, "early")
    assert travel.redo(Past(past.commits, there.to, past.names, there.undone)).to == 4


def test_redo_over_branches_names_the_cells_of_its_own_branch_only() -> None:
    commits = {1: commit(1, 0), 2: commit(2, 1), 3: commit(3, 2), 4: commit(4, 2)}
    assert labels(travel.redo(Past(commits, 4, {}, (3,)))) == ["cell 2"]


def test_restore_takes_a_name() -> None:
    assert travel.restore(Past(line(3).commits, 4, {"early": 2}), "early").to == 2


@pytest.mark.parametrize("where", ["2", " 2 ", "In[2]", "In 2", "[2]"])
def test_restore_takes_a_cells_number(where: str) -> None:
    assert travel.restore(line(3), where).to == 3


def test_a_name_comes_before_a_number() -> None:
    assert travel.restore(Past(line(3).commits, 4, {"3": 2}), "3").to == 2


def test_the_latest_cell_of_a_number_is_meant() -> None:
    commits = {1: commit(1, 0), 2: commit(2, 1, cell=1), 3: commit(3, 1, cell=1)}
    assert travel.restore(Past(commits, 2, {}), "1").to == 3


@pytest.mark.parametrize(
    "where", ["nope", "", "0", "99", "-1", "9" * 5000, "²", "../../x", "In[]", "\0"]
)
def test_what_is_not_there_is_told_with_what_is(where: str) -> None:
    with pytest.raises(TravelError, match="Named checkpoints: early"):
        travel.restore(Past(line(3).commits, 4, {"early": 2}), where)


@pytest.mark.parametrize("name", ["a", "before the merge", "v1.2-rc+3", "ünïcode", "x" * 64])
def test_names_that_can_be_given(name: str) -> None:
    assert travel.checked_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "../../x", "a/b", "/etc", ".hidden", "x" * 65, "a\nb", "a\0", "\x1b[31m", "-a"],
)
def test_names_that_can_not(name: str) -> None:
    with pytest.raises(TravelError, match="was not used"):
        travel.checked_name(name)


@given(st.lists(st.sampled_from(["undo", "redo", "restore", "cell"]), max_size=30))
def test_every_journey_leads_to_a_commit_that_is_there(steps: list[str]) -> None:
    past, number = line(2), 3
    for step in steps:
        try:
            if step == "cell":
                number += 1
                commits = {**past.commits, number: commit(number, past.head)}
                past = Past(commits, number, {"early": 2})
                continue
            journey = travel.journey_of(past, step, 1, "early")
        except TravelError:
            continue
        assert journey.to in past.commits
        past = Past(past.commits, journey.to, past.names, journey.undone)


def with_widgets() -> Past:
    """In[1], In[2], two callbacks of a widget, In[3], and one more callback."""
    cells = [(1, 0), (1, 1), (1, 2), (0, 2), (0, 2), (1, 3), (0, 3)]
    commits = {
        one: commit(one, one - 1, cell=cell, cells=cells)
        for one, (cells, cell) in enumerate(cells, start=1)
    }
    return Past(commits, 7, {})


def test_what_widgets_did_is_undone_with_the_cell_before() -> None:
    journey = travel.undo(with_widgets(), 1)
    assert (journey.to, labels(journey)) == (5, ["cell 3"])
    assert travel.undo(with_widgets(), 2).to == 2


def test_redo_brings_back_what_widgets_did_too() -> None:
    past = with_widgets()
    undone = travel.undo(past, 2)
    journey = travel.redo(Past(past.commits, undone.to, {}, undone.undone))
    assert (journey.to, labels(journey)) == (7, ["cell 2", "cell 3"])


def test_a_cells_number_leads_to_right_after_it_without_what_widgets_did() -> None:
    assert travel.restore(with_widgets(), "3").to == 6
