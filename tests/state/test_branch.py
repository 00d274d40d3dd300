"""The states of a fork: the same contents as its parent's, but independent afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.state.session import IMAGE, Session
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import QUIET
from wasm_kernel.state.folding import fold
from wasm_kernel.state.fork import copy_states, whole_states
from wasm_kernel.state.history import History
from wasm_kernel.state.index import ForkOrigin

Making = Callable[..., Session]


@pytest.fixture
def branched(session_of: Making, tmp_path: Path) -> Callable[..., Session]:
    """Makes a session on a branch of another one."""
    made = 0

    def one(session: Session, *, reseed: bool = False) -> Session:
        nonlocal made
        made += 1
        folder = tmp_path / f"branch {made}"
        folder.mkdir()
        (folder / "state").mkdir()
        session.flush()
        with session.history.frozen():
            copy(session.folder, folder / "state", reseed=reseed)
        return session_of(folder=folder, load=True)

    return one


Branching = Callable[..., Session]


def copy(parent: Path, place: Path, *, reseed: bool) -> None:
    with Folder.open(parent) as source, Folder.open(place) as target:
        image, tree = whole_states(source)
        tree = replace(tree, origin=ForkOrigin(tree.last, reseed))
        copy_states(source, target, image, tree, QUIET)


def test_folding_in_one_leaves_the_other_alone(session: Session, branched: Branching) -> None:
    for number in range(8):
        session.cell(**{f"p{number}": f"cell {number}"})
    session.flush()
    branch = branched(session)
    expected = session.state
    fold(session.history, 1)
    session.cell(p1="later")
    session.flush()
    newest = branch.history.tree.head
    assert branch.go(3) == {0: "cell 0", 1: "cell 1", 2: "cell 2"}
    assert branch.go(newest) == expected
    fold(branch.history, 1)
    assert branch.go(newest) == expected


def test_branching_while_the_parent_folds(session_of: Making, branched: Branching) -> None:
    session = session_of(keep=1)
    expected: dict[int, str] = {}
    for number in range(12):
        session.cell(**{f"p{number % 7}": f"cell {number}"})
        expected[number % 7] = f"cell {number}"
        branch = branched(session)
        assert branch.state == expected
        fold(branch.history, 1)
        branch.flush()
        assert branch.go(branch.history.tree.head) == expected


def test_a_new_start_has_no_origin(session: Session, branched: Branching, tmp_path: Path) -> None:
    session.cell(p1="one")
    branch = branched(session, reseed=True)
    branch.history.clear()
    assert branch.history.tree.origin == ForkOrigin()
    with contextlib.closing(History(Folder.open(branch.folder), IMAGE)) as again:
        again.load(crashed=True)
        assert again.tree.origin == ForkOrigin()
