"""The tree of commits: which are kept, which left out, and to which an undo or a redo leads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.faces import full_disk
from tests.state.session import Session, three
from wasm_kernel.errors import HistoryError, TravelError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.result import Ran
from wasm_kernel.state import index
from wasm_kernel.state.history import History
from wasm_kernel.state.index import Commit
from wasm_kernel.state.stored import StateFolder
from wasm_kernel.state.tables import CheckpointTable, HistoryTree
from wasm_kernel.state.tree import Tree, checked_name


def commit(one: int, parent: int, *, cell: int | None = None, cells: int = 1) -> Commit:
    count = one - 1 if cell is None else cell
    return Commit(one, parent, count, count + 1, f"cell {count}", 0.0, 4096, cells)


def line(length: int, **fields: object) -> Tree:
    """The first state and this number of cells, each on the one before."""
    commits = {one: commit(one, one - 1) for one in range(1, length + 2)}
    return Tree(commits, length + 1, {}, **fields)  # type: ignore[arg-type]


def test_undo_names_its_cells_a_restore_is_redone_and_the_latest_of_a_number_meant() -> None:
    travel = line(3).plan("undo", 2)
    assert [one.label for one in travel.cells] == ["cell 2", "cell 3"]
    assert (travel.target, travel.undone) == (2, (4,))
    tree = Tree(line(3).commits, 4, {"early": 2})
    there = tree.plan("restore", name="early")
    assert Tree(tree.commits, there.target, tree.names, there.undone).plan("redo").target == 4
    commits = {1: commit(1, 0), 2: commit(2, 1, cell=1), 3: commit(3, 1, cell=1)}
    assert Tree(commits, 2, {}).plan("restore", name="1").target == 3


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


def test_travels_leave_what_widgets_did_and_a_state_has_a_row_for_each_name() -> None:
    assert with_widgets().plan("restore", name="3").target == 6
    assert with_widgets().plan("undo").target == 5
    rows = Tree(line(2).commits, 3, {"one": 2, "two": 2}).rows()
    assert [(row["id"], row["name"]) for row in rows] == [(1, ""), (2, "one"), (2, "two"), (3, "")]


Making = Callable[..., Session]
SYNC = History.sync
"""The function that users have; `conftest.py` replaces it."""


def reopened(session_of: Making, session: Session, **options: object) -> Session:
    session.close()
    return session_of(load=True, **options)


def lose(session: Session, one: int) -> None:
    """Remove the last record of a commit from the index, as if it had never been written."""
    path = session.folder / "index"
    lines = path.read_bytes().splitlines(keepends=True)
    at = max(n for n, line in enumerate(lines) if b'"type":"commit","id":%d,' % one in line)
    path.write_bytes(b"".join(lines[:at] + lines[at + 1 :]))


def test_a_cell_after_a_lost_one_is_the_head(session_of: Making, session: Session) -> None:
    """Commit 3 was never written, but an undo from commit 3 was."""
    three(session)
    session.go(1)
    session.history.save()
    lose(session, 3)
    again = reopened(session_of, session)
    assert again.history.tree.head == 1
    again.cell(p6="after")
    assert reopened(session_of, again).state == {0: "a", 6: "after"}


def test_a_name_whose_commit_is_lost_is_forgotten(session_of: Making, session: Session) -> None:
    three(session)
    session.history.name("here", 3)
    session.history.save()
    session.content(3).unlink()
    assert reopened(session_of, session).history.tree.names == {}


def test_a_name_that_was_taken_back_stays_so(session_of: Making, session: Session) -> None:
    three(session)
    for name, commit in (("here", 3), ("there", 2)):
        session.history.name(name, commit)
    session.history.save()
    session.history.forget_name("here")
    session.history.save()
    again = reopened(session_of, session)
    assert again.history.tree.names == {"there": 2}
    again.history.name("here", 1)
    again.history.save()
    assert reopened(session_of, again).history.tree.names == {"there": 2, "here": 1}


def test_a_missing_commit_and_those_on_it_are_gone(session_of: Making, session: Session) -> None:
    """Commit 3 was a child of the old commit 2, and must not become one of a new commit 2."""
    three(session)
    session.content(2).unlink()
    again = reopened(session_of, session)
    assert again.state == {0: "a"}
    assert again.found is not None
    assert (again.found.lost, again.found.is_certain) == (2, False)
    again.cell(p7="new")
    assert again.history.tree.head == 4
    assert reopened(session_of, again).state == {0: "a", 7: "new"}


def test_a_commit_that_is_forgotten_takes_all_that_stands_on_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(session)
    session.history.name("here", 3)
    session.history.move(2, (3,))
    monkeypatch.setattr(StateFolder, "set_contents_aside", full_disk)
    session.history.forget(2)
    tree = session.history.tree
    assert ([*tree.commits], tree.head, tree.names, tree.undone) == ([1], 1, {}, ())


def test_without_a_number_left_a_commit_is_refused_in_words(session: Session) -> None:
    """No later process could read such a commit."""
    three(session)
    session.history.tree = replace(session.history.tree, last=index.ID_MOST)
    with pytest.raises(OSError, match="no numbers left"):
        session.cell(p1="more")


def test_files_that_killed_writers_left_are_swept(session_of: Making, session: Session) -> None:
    three(session)
    for name in (".index.aside", "contents/.9.aside", f"contents/{'0' * 64}"):
        (session.folder / name).write_bytes(b"half")
    assert len(reopened(session_of, session).files()) == 1 + 3


def test_a_session_left_at_the_beginning_is_there(session_of: Making, session: Session) -> None:
    """The session does not open at the newest state, in which the guest may not run."""
    three(session)
    session.go(0)
    session.history.move(0, (3,))
    session.history.save()
    session.recorder.close()
    assert session.history.close()
    again = session_of(load=True, crashed=False)
    assert again.found is not None
    assert (again.found.is_damaged, again.found.is_certain) == (False, True)
    assert (again.history.tree.head, again.state) == (0, {})
    assert sorted(again.history.tree.commits) == [1, 2, 3]
    assert again.go(3) == {0: "A", 1: "b", 2: "c"}


def test_an_index_that_would_become_too_long_is_rewritten(
    session_of: Making, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(session)
    small, most = (session.folder / "index").stat().st_size, 6_000
    for number in range(200):
        if number == 120:  # most of it is useless, long before it is too long
            session.history.tidy()
            assert (session.folder / "index").stat().st_size < 2 * small
            monkeypatch.setattr(index, "MOST_BYTES", most)
        session.history.name("here", 1 + number % 3)
        session.history.save()
        assert number < 120 or (session.folder / "index").stat().st_size <= most
    again = reopened(session_of, session)
    assert again.found is not None
    assert not again.found.is_damaged
    assert (again.history.tree.names, again.state) == ({"here": 2}, {0: "A", 1: "b", 2: "c"})


def test_only_an_end_and_a_named_state_wait_for_the_disk_itself(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(History, "sync", SYNC)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    three(session)
    assert synced == []
    session.recorder.sync()
    session.flush()
    assert len(synced) == 3 + 1, "each content, and the index"
    session.cell(p0="more")
    session.recorder.close()
    assert session.history.close(sync=True)
    assert len(synced) == 4 + 1 + 1


def test_killed_clearing_leaves_nothing_usable(session_of: Making, session: Session) -> None:
    """The index is removed first, and without it the rest means nothing."""
    three(session)
    calls: list[str] = []
    remove = Folder.remove

    def killed(folder: Folder, name: str) -> None:
        calls.append(name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        remove(folder, name)

    assert "index" in session.files()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            session.history.clear()
    with pytest.raises(HistoryError):
        reopened(session_of, session)


def state(one: int, parent: int, label: str = "", **fields: Any) -> dict[str, Any]:
    plain = {"name": "", "time": 0.0, "bytes": 2048, "here": False}
    return {**plain, "id": one, "parent": parent, "cell": one - 1, "label": label, **fields}


BRANCHED = [
    state(1, 0),
    state(2, 1, "x = 1", name="one"),
    state(2, 1, "x = 1", name="two"),
    state(3, 2, "x = 2"),
    state(4, 3, "x = 3"),
    state(5, 2, "x = 4", here=True),
    state(6, 1, "y = 1"),
]


def nodes(tree: HistoryTree) -> list[str]:
    """The prefixes of the first lines of cells."""
    return [line.split("  ")[0].rstrip() for line in tree.text().splitlines()]


def test_branches_of_any_depth_hang_off_the_line_that_leads_here() -> None:
    assert nodes(HistoryTree(BRANCHED)) == [
        "● the beginning",
        "├─○ In[5]",
        "● In[1]",
        "├─○ In[2]",
        "│ ○ In[3]",
        "● In[4]",
    ]
    deep = [state(1, 0)]
    for one in range(2, 4_000, 2):
        deep += [state(one, max(1, one - 2), here=one == 2), state(one + 1, max(1, one - 2))]
    tree = HistoryTree(deep)
    assert len(tree.text().splitlines()) == len(deep)
    assert max(map(len, tree.text().splitlines())) < 200
    assert tree.html().count("<li>") == tree.html().count("</li>") == len(deep)


def test_the_tree_and_the_table_tell_names_dates_and_where_memory_stands() -> None:
    ran = {3: Ran(error="<i>", seconds=0.25), 5: Ran(sent=True, seconds=3.0)}
    tree = HistoryTree(BRANCHED, ran)
    lines = tree.text().splitlines()
    assert "'one', 'two'" in lines[2]
    assert [line.endswith("<- here") for line in lines] == [False] * 5 + [True]
    assert "<i>, undone, 250 ms, 2.0 KiB" in lines[3]
    assert "sent requests, can't be unsent, 3.0 s, 2.0 KiB" in lines[5]
    assert "undone, 2.0 KiB" in lines[1]
    assert "&lt;i&gt;, undone, 250 ms" in tree.html()
    text = CheckpointTable(BRANCHED).text()
    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["one", "two"]
    assert "<script>" not in CheckpointTable([state(1, 0, "<script>")]).html()
    now = time.time()
    assert (
        time.strftime("  %H:%M:%S  ", time.gmtime(now))
        in CheckpointTable([state(1, 0, time=now)]).text()
    )
    earlier = time.gmtime(now - 100_000)
    assert (
        time.strftime("%Y-%m-%d %H:%M", earlier)
        in CheckpointTable([state(1, 0, time=now - 100_000)]).text()
    )


def test_html_nests_the_branches_escapes_labels_and_begins_where_all_before_is_folded() -> None:
    assert nodes(HistoryTree([state(7, 4), state(8, 7, here=True)])) == ["● In[6]", "● In[7]"]
    html = HistoryTree([*BRANCHED, state(7, 6, "<script>")]).html()
    assert html.count("<ul>") == html.count("</ul>") == 3
    assert html.count("<li>") == 7
    assert html.count("<b>") == 1
    assert "<script>" not in html
