"""A history that branches off another: the same contents, but independent afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.state.session import IMAGE, Session
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state import commits
from wasm_kernel.state.commits import ContentFile
from wasm_kernel.state.folding import fold
from wasm_kernel.state.history import History
from wasm_kernel.state.index import Commit, Origin
from wasm_kernel.wasi_files.open_files import OpenFile

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
        place = Folder.open(folder / "state")
        history = session.history.branch(place, {}, reseed=reseed)
        return session_of(folder=folder, history=history)

    return one


Branching = Callable[..., Session]


def test_commits_on_disk_are_copied_and_known_to_be_right(
    session: Session, branched: Branching, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.cell(p1="one")
    session.flush()
    branch = branched(session)
    assert branch.contents() == session.contents()
    assert not branch.content(1).samefile(session.content(1))
    monkeypatch.delattr(ContentFile, "verify")
    assert branch.go(1) == {1: "one"}


def test_what_is_not_on_disk_yet_is_written_twice(
    session: Session, branched: Branching, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.flush()
    wrote = commits.write_content
    gate = threading.Event()

    def late(*args: object) -> object:
        gate.wait(30)
        return wrote(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(commits, "write_content", late)
    session.cell(p1="one")
    branch = branched(session)
    assert branch.state == {1: "one"}
    gate.set()
    for each in (session, branch):
        each.flush()
        assert each.history.waiting == []
        assert each.go(each.history.tree.head) == {1: "one"}


def test_a_session_without_a_disk_branches_off_to_one(
    session_of: Making, branched: Branching
) -> None:
    session = session_of(disk=False)
    session.cell(p1="one")
    branch = branched(session)
    branch.flush()
    assert branch.contents() == [branch.history.tree.commits[1].content]
    assert branch.state == {1: "one"}


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
    for number in range(30):
        session.cell(**{f"p{number % 7}": f"cell {number}"})
        expected[number % 7] = f"cell {number}"
        branch = branched(session)
        assert branch.state == expected
        fold(branch.history, 1)
        branch.flush()
        assert branch.go(branch.history.tree.head) == expected


def test_a_branch_is_found_by_a_later_process(
    session: Session, session_of: Making, branched: Branching
) -> None:
    session.cell(p1="one")
    branch = branched(session, reseed=True)
    inherited = branch.history.tree.head
    own = branch.cell(p1="two")
    branch.close()
    later = session_of(folder=branch.folder.parent, load=True)
    assert later.found is not None
    assert not later.found.is_damaged
    assert later.state == {1: "two"}
    assert later.history.tree.origin == Origin(inherited, True, {})
    assert not later.history.tree.origin.inherits(own)


def test_a_new_beginning_has_no_origin(
    session: Session, branched: Branching, tmp_path: Path
) -> None:
    session.cell(p1="one")
    branch = branched(session, reseed=True)
    branch.history.clear()
    assert branch.history.tree.origin == Origin()
    with contextlib.closing(History(Folder.open(branch.folder), IMAGE)) as again:
        again.load(crashed=True)
        assert again.tree.origin == Origin()


def opened(identity: str) -> OpenFile:
    return OpenFile(9, "/app", "x", 0, 0, 0, 0, identity)


def commit(one: int, *identities: str) -> Commit:
    files = tuple(map(opened, identities))
    return Commit(one, one - 1, one, one + 1, "", 0.0, 4096, files=files)


def test_inherited_files_are_called_as_their_copies() -> None:
    origin = Origin(5, False, {"1:a": "2:b", "3:c": "gone"})
    found = [file.identity for file in origin.files_of(commit(5, "1:a", "3:c", "4:d", ""))]
    assert found == ["2:b", "gone", "4:d", ""]
