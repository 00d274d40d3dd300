"""The content of commits: written later or at once, merged in steps, verified if it was touched,
and filled into a guest's memory.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.faces import full_disk, raising
from tests.state.session import Session, three
from tests.state.test_history import reopened
from tests.stored import flip
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux import memory
from wasm_kernel.state import commits, folding, recorder
from wasm_kernel.state.commits import GuestPages, Source, Unreadable
from wasm_kernel.state.folding import fold
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


def test_only_the_owner_reads_a_content_and_nobody_writes_it(session: Session) -> None:
    three(session)
    assert {session.content(one).stat().st_mode & 0o777 for one in (1, 2, 3)} == {0o400}


def test_damage_is_not_folded_into_what_is_whole(session: Session) -> None:
    three(session)
    flip(session.content(1))
    with pytest.raises(HistoryError, match="damaged"):
        fold(session.history, 1)
    assert sorted(session.history.tree.commits) == [1, 2, 3]


def test_a_file_that_was_only_touched_is_read_and_used(session: Session) -> None:
    three(session)
    for path in (session.folder / "contents").iterdir():
        os.utime(path)
    assert session.go(3) == {0: "A", 1: "b", 2: "c"}


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
def test_a_damaged_one_of_several_large_commits_is_named(
    session_of: Making, session: Session, one: int
) -> None:
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
