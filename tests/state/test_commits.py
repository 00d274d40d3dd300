"""The content of commits: written, merged, verified and filled in; states that are folded."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.faces import full_disk, raising
from tests.state.session import Session, three
from tests.state.test_tree import reopened
from tests.stored import flip
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux import memory
from wasm_kernel.state import commits, folding, recorder
from wasm_kernel.state.commits import GuestPages, Source, Unreadable
from wasm_kernel.state.folding import fold, plan
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import PAGE

Making = Callable[..., Session]


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every commit count as a large one, which is written in steps."""
    monkeypatch.setattr(recorder, "BACKLOG_BYTES", 0)
    monkeypatch.setattr(recorder, "_STEP", PAGE)
    monkeypatch.setattr(memory, "available_memory", lambda: 0)


def test_large_commits_give_states(session_of: Making, session: Session, direct: None) -> None:
    session.grow(40)
    three(session)
    session.cell(**{f"p{page}": "" for page in range(200)})
    session.cell(p30="again")
    assert session.go(3) == {0: "A", 1: "b", 2: "c"}
    assert session.go(4) == {}
    session.go(5)
    session.history.save()
    assert reopened(session_of, session).state == {30: "again"}


def test_zeros_of_a_large_commit_take_no_room(session: Session, direct: None) -> None:
    session.grow(100)
    session.flush()
    commit = session.cell(p0="a", p1500="b")
    assert session.history.tree.commits[commit.id].page_bytes < 100 * 4096


def test_a_large_commit_that_the_disk_does_not_take_is_held_in_memory(
    session_of: Making, session: Session, direct: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(commits, "write_content", full_disk)
        session.save(p0="a")
    assert len(session.troubles) == 1
    assert session.go(1) == {0: "a"}
    session.cell(p1="b")
    assert reopened(session_of, session).state == {0: "a", 1: "b"}


def test_only_the_owner_reads_a_content_and_a_touched_one_is_used(session: Session) -> None:
    three(session)
    assert {session.content(one).stat().st_mode & 0o777 for one in (1, 2, 3)} == {0o400}
    three(session)
    for path in (session.folder / "contents").iterdir():
        os.utime(path)
    assert session.go(3) == {0: "A", 1: "b", 2: "c"}


def test_damage_is_not_folded_into_what_is_whole(session: Session) -> None:
    three(session)
    flip(session.content(1))
    with pytest.raises(HistoryError, match="damaged"):
        fold(session.history, 1)
    assert sorted(session.history.tree.commits) == [1, 2, 3]


def test_a_changed_content_is_read_again_whatever_its_times_say(session: Session) -> None:
    """Formerly, a content that had got another name was believed."""
    three(session)
    assert session.go(3) == {0: "A", 1: "b", 2: "c"}
    content = session.content(1)
    times = content.stat()
    (session.folder / "another name").hardlink_to(content)
    content.chmod(0o600)
    content.write_bytes(content.read_bytes().replace(b"a", b"z"))
    os.utime(content, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(Unreadable, match="damaged"):
        session.go(3)


def large(session: Session) -> None:
    """Runs three cells that each write 5 MB."""
    session.grow(100)
    for number in range(3):
        session.cell(**{f"p{page}": f"{number} {page}" for page in range(1250)})
    session.flush()


@pytest.mark.parametrize("most", [0, 1])
def test_large_commits_are_there_where_the_system_gives_too_few_threads(
    session_of: Making, session: Session, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A container may have few threads and many processors."""
    large(session)
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_some(thread: threading.Thread) -> None:
        if thread.name.startswith("ThreadPoolExecutor"):
            if len(started) == most:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    assert reopened(session_of, session).state == {page: f"2 {page}" for page in range(1250)}
    assert len(started) == most


@pytest.mark.parametrize("one", [1, 2, 3])
def test_a_damaged_one_of_commits_is_named(session_of: Making, session: Session, one: int) -> None:
    large(session)
    flip(session.content(one))
    with pytest.raises(Unreadable, match="damaged") as found:
        reopened(session_of, session)
    assert found.value.commit_id == one


def test_a_far_larger_state_stays_there(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "HEAVY_BYTES", 50 * 4096)
    session.grow(10)
    session.cell(**{f"p{page}": "large" for page in range(100)})
    for number in range(8):
        session.cell(p0=f"v{number}")
    session.flush()
    path = session.content(1)
    before = path.stat()
    fold(session.history, 2)
    assert sorted(session.history.tree.commits) == [1, 7, 8, 9]
    assert path.stat().st_ino == before.st_ino
    assert session.go(9) == dict.fromkeys(range(100), "large") | {0: "v7"}
    fold(session.history, 2, all_of_it=True)
    assert sorted(session.history.tree.commits) == [1, 7, 8, 9], "it would be as large as before"
    session.cell(**{f"p{page}": "new" for page in range(60)})
    session.save(p0="last")
    fold(session.history, 1, all_of_it=True)
    assert {one.id: one.cells for one in session.history.tree.commits.values()} == {10: 10, 11: 1}
    expected = dict.fromkeys(range(60), "new") | dict.fromkeys(range(60, 100), "large")
    assert session.go(11) == expected | {0: "last"}


@pytest.mark.parametrize("maps", [True, False], ids=["mapped", "read"])
def test_mapped_and_read_memory_are_the_same(
    session: Session, maps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not maps:
        monkeypatch.setattr(memory, "map_file", raising(OSError(errno.ENOMEM, "too many mappings")))
    monkeypatch.setattr(memory, "RANGES_MOST", 10)
    session.grow(40)
    session.cell(**{f"p{page}": f"one {page}" for page in range(200)})
    session.save(**{f"p{page}": f"two {page}" for page in range(0, 200, 3)})
    assert session.go(2) == {p: f"{'one' if p % 3 else 'two'} {p}" for p in range(200)}
    assert session.go(1) == {p: f"one {p}" for p in range(200)}


def test_pages_that_are_written_at_the_same_time_are_laid_right(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder writes a commit without its zeros while memory is filled from it."""
    session.grow(10)
    session.save(**{f"p{page}": "old" for page in range(60)})
    history = session.history
    store = history.store
    monkeypatch.setattr(history, "store", lambda one: None)
    session.save(**{f"p{page}": "" for page in range(30)}, p40="new")
    threads: list[threading.Thread] = []
    lay = GuestPages.lay

    def interleaved(pages: GuestPages, commit: Commit, source: Source) -> None:
        if commit.id == 2:
            threads.append(threading.Thread(target=store, args=(2,)))
            threads[-1].start()
            threads[-1].join(0.1)
        lay(pages, commit, source)

    monkeypatch.setattr(GuestPages, "lay", interleaved)
    assert session.go(2) == dict.fromkeys(range(30, 60), "old") | {40: "new"}
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert session.go(2) == dict.fromkeys(range(30, 60), "old") | {40: "new"}
    assert session.content(2).stat().st_size < 10 * PAGE


def test_pages_outside_of_the_memory_are_refused(session: Session) -> None:
    three(session)
    commit = replace(session.history.tree.commits[3], runs=((2**40, 1),))
    session.history.tree = session.history.tree.with_commit(commit)
    session.history.contents.held[3] = commit, bytearray(4096)
    with pytest.raises(HistoryError, match="outside"):
        session.go(3)


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
