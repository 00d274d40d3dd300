"""The states to which an undo, a redo or a restore leads."""

from __future__ import annotations

import pytest

from wasm_kernel.errors import TravelError
from wasm_kernel.state.index import Commit
from wasm_kernel.state.tree import Tree, checked_name


def commit(one: int, parent: int, *, cell: int | None = None, cells: int = 1) -> Commit:
    count = one - 1 if cell is None else cell
    return Commit(one, parent, count, count + 1, f"cell {count}", 0.0, 4096, cells)


def line(length: int, **fields: object) -> Tree:
    """The first state and this number of cells, each on the one before."""
    commits = {one: commit(one, one - 1) for one in range(1, length + 2)}
    return Tree(commits, length + 1, {}, **fields)  # type: ignore[arg-type]


def test_undo_names_its_cells_in_their_order_and_where_it_came_from() -> None:
    travel = line(3).plan("undo", 2)
    assert [one.label for one in travel.cells] == ["cell 2", "cell 3"]
    assert (travel.target, travel.undone) == (2, (4,))


def test_a_restore_can_be_redone_too() -> None:
    tree = Tree(line(3).commits, 4, {"early": 2})
    there = tree.plan("restore", name="early")
    assert Tree(tree.commits, there.target, tree.names, there.undone).plan("redo").target == 4


@pytest.mark.parametrize("cells", [4, 0, -(2**31)])
def test_a_number_that_is_not_one_of_cells_before_is_not_undone(cells: int) -> None:
    with pytest.raises(TravelError, match="Only 3 cells" if cells == 4 else None):
        line(3).plan("undo", cells)
    with pytest.raises(TravelError, match="No cell can be undone" if cells == 4 else None):
        Tree({}, 0, {}).plan("undo", cells)


def test_undo_stops_at_what_was_folded() -> None:
    folded = Tree({5: commit(5, 0, cells=5), 6: commit(6, 5)}, 6, {})
    assert folded.plan("undo", 1).target == 5
    with pytest.raises(TravelError, match="Only 1 cell can"):
        folded.plan("undo", 2)
    commits = {1: commit(1, 0), 7: commit(7, 1, cells=6), 8: commit(8, 7)}
    with pytest.raises(TravelError):
        Tree(commits, 8, {"early": 1}).plan("undo", 2)


@pytest.mark.parametrize("undone", [(), (99,)], ids=["without an undo", "its state is gone"])
def test_there_is_nothing_to_redo(undone: tuple[int, ...]) -> None:
    with pytest.raises(TravelError, match="nothing to redo"):
        line(3, undone=undone).plan("redo")


@pytest.mark.parametrize(
    ("where", "target"), [("early", 2), ("3", 2), ("2", 3), (" 2 ", 3), ("In[2]", 3), ("[2]", 3)]
)
def test_restore_takes_a_name_or_else_a_cells_number(where: str, target: int) -> None:
    tree = Tree(line(3).commits, 4, {"early": 2, "3": 2})
    assert tree.plan("restore", name=where).target == target


def test_the_latest_cell_of_a_number_is_meant() -> None:
    commits = {1: commit(1, 0), 2: commit(2, 1, cell=1), 3: commit(3, 1, cell=1)}
    assert Tree(commits, 2, {}).plan("restore", name="1").target == 3


@pytest.mark.parametrize(
    "where", ["nope", "", "0", "99", "-1", "9" * 5000, "²", "../../x", "In[]", "\0"]
)
def test_the_error_about_a_missing_state_names_those_that_exist(where: str) -> None:
    with pytest.raises(TravelError, match="Named checkpoints: early"):
        Tree(line(3).commits, 4, {"early": 2}).plan("restore", name=where)


@pytest.mark.parametrize("name", ["a", "before the merge", "v1.2-rc+3", "ünïcode", "x" * 64])
def test_names_that_can_be_given(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "../../x", "a/b", "/etc", ".hidden", "x" * 65, "a\nb", "a\0", "\x1b[31m", "-a"],
)
def test_names_that_can_not_be_given(name: str) -> None:
    with pytest.raises(TravelError, match="was not used"):
        checked_name(name)


def with_widgets() -> Tree:
    """In[1], In[2], two callbacks of a widget, In[3], and one more callback."""
    cells = [(1, 0), (1, 1), (1, 2), (0, 2), (0, 2), (1, 3), (0, 3)]
    commits = {
        one: commit(one, one - 1, cell=cell, cells=cells)
        for one, (cells, cell) in enumerate(cells, start=1)
    }
    return Tree(commits, 7, {})


def test_travels_leave_what_widgets_did_with_the_cell_before() -> None:
    assert with_widgets().plan("restore", name="3").target == 6
    assert with_widgets().plan("undo").target == 5


def test_a_state_has_a_row_for_each_of_its_names() -> None:
    rows = Tree(line(2).commits, 3, {"one": 2, "two": 2}).rows()
    assert [(row["id"], row["name"]) for row in rows] == [(1, ""), (2, "one"), (2, "two"), (3, "")]
