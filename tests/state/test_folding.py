"""Folding removes states to which no travel leads, and the others stay the same, also on disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.faces import full_disk
from tests.state.session import Session, three
from tests.state.test_history import reopened
from wasm_kernel.state import commits
from wasm_kernel.state.folding import fold, plan
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import PAGE

SIZE = 12


def commit(one: int, parent: int, **fields: object) -> Commit:
    plain = Commit(one, parent, one, one + 1, f"cell {one}", 0.0, SIZE * PAGE)
    return replace(plain, **fields)


@st.composite
def trees(draw: st.DrawFn) -> dict[int, Commit]:
    """A tree with one root, and every other commit on an earlier one."""
    count = draw(st.integers(1, 15))
    parents = [0, *(draw(st.integers(1, one - 1)) for one in range(2, count + 1))]
    return {one: commit(one, parent) for one, parent in enumerate(parents, start=1)}


def folded(tree: dict[int, Commit], steps: list[tuple[int, int | None]]) -> dict[int, Commit]:
    """The tree after each step; checks that each step leaves it whole."""
    tree = dict(tree)
    for one, child in steps:
        below = [c.id for c in tree.values() if c.parent == one]
        if child is None:
            assert below == [], "a commit that others stand on was dropped"
        else:
            assert below == [child], "a commit with other children was folded"
            tree[child] = replace(tree[child], parent=tree[one].parent)
        del tree[one]
        assert all(c.parent == 0 or c.parent in tree for c in tree.values())
    return tree


@given(st.data())
def test_the_head_the_kept_and_the_last_cells_stay(data: st.DataObject) -> None:
    tree = data.draw(trees())
    head = data.draw(st.sampled_from(sorted(tree)))
    kept = data.draw(st.sets(st.sampled_from(sorted(tree))))
    keep = data.draw(st.integers(1, 5))
    left = folded(tree, plan(tree, head, kept, keep))
    line, at = [], head
    while at:
        line.append(at)
        at = tree[at].parent
    assert left.keys() >= {head, *kept, *line[: keep + 1]}


def test_only_the_last_of_several_commits_between_cells_stays() -> None:
    cells = {3: 1, 4: 0, 5: 0, 6: 0, 7: 1, 8: 0, 9: 0}
    tree = {one: commit(one, one - 1, cells=cells.get(one, 1)) for one in range(1, 10)}
    assert folded(tree, plan(tree, 9, (), 5)).keys() == {1, 2, 3, 6, 7, 9}
    assert folded(tree, plan(tree, 9, (), 1)).keys() == {6, 7, 9}


Making = Callable[..., Session]


def test_folding_keeps_every_state_that_it_keeps(session_of: Making, session: Session) -> None:
    session.grow(40)
    large = {page: f"large {page}" for page in range(10, 600)}  # it is merged in several steps
    for page, text in large.items():
        session.write(page, text)
    for number in range(10):
        for page in range(100, 200) if number in (4, 5) else ():
            session.write(page, "" if number == 4 else large[page])
        session.cell(**{f"p{number % 4}": f"v{number}"})
    session.history.name("early", 3)
    session.flush()
    fold(session.history, 2)
    assert sorted(session.history.tree.commits) == [3, 8, 9, 10]
    assert session.history.tree.commits[8].cells == 5
    assert session.go(3) == {0: "v0", 1: "v1", 2: "v2"} | large
    assert session.go(8) == {0: "v4", 1: "v5", 2: "v6", 3: "v7"} | large
    last = {0: "v8", 1: "v9", 2: "v6", 3: "v7"} | large
    assert session.go(10) == reopened(session_of, session).state == last


def test_folding_that_is_killed_leaves_every_state(session_of: Making, session: Session) -> None:
    """The process is killed after it wrote the merged child, before it removes the parent."""
    three(session)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.history, "drop", lambda one: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fold(session.history, 1)
    again = reopened(session_of, session)
    assert again.state == {0: "A", 1: "b", 2: "c"}
    assert again.go(2) == {0: "A", 1: "b"}


def test_a_rollback_passes_a_folding(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A travel into the range that is being folded finds every state."""
    three(session)
    write, states = commits.write_content, list[dict[int, str]]()

    def interleaved(*args: object) -> object:
        written = write(*args)  # type: ignore[arg-type]
        states.extend(session.go(one) for one in (3, 1))
        return written

    monkeypatch.setattr(commits, "write_content", interleaved)
    fold(session.history, 1)
    assert states == [{0: "A", 1: "b", 2: "c"}, {0: "a"}]
    assert session.go(3) == {0: "A", 1: "b", 2: "c"}
    assert session.go(2) == {0: "A", 1: "b"}


def test_folding_leaves_what_stands_below_memory_only(session_of: Making, session: Session) -> None:
    three(session)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "write_content", full_disk)
        for number in range(5):
            session.cell(**{f"p{number}": "unsaved"})
        session.flush()
        with pytest.raises(OSError, match="No space"):
            fold(session.history, 1)
        again = reopened(session_of, session)
    assert again.state == {0: "A", 1: "b", 2: "c"}
