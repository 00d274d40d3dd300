"""Commits are written after the cells, by another thread, on a disk that may fail."""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Callable, Iterable

import pytest

from tests.faces import PATIENCE, full_disk, raising
from tests.state.session import Session
from wasm_kernel.linux import memory
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state import commits, recorder
from wasm_kernel.state.index import Index
from wasm_kernel.state.pages import Content

Making = Callable[..., Session]


class Disk:
    """The writes of commits, which fail while `broken` holds an error number."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.broken = 0
        self._write = commits.write_content
        patch.setattr(commits, "write_content", self.write)

    def write(self, folder: Folder, parts: Iterable[Content | memoryview]) -> object:
        if self.broken:
            raise OSError(self.broken, "the disk failed")
        return self._write(folder, parts)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_commit_is_not_written_before_the_index_has_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a worker that ends in between costs the next worker the cell before."""
    save, is_saving, goes_on = session.history.save, threading.Event(), threading.Event()

    def slow() -> None:
        is_saving.set()
        goes_on.wait(PATIENCE)
        save()

    monkeypatch.setattr(session.history, "save", slow)
    session.cell(p0="a")
    assert is_saving.wait(PATIENCE)
    waits = threading.Thread(target=session.recorder.wait_written, args=(PATIENCE,))
    waits.start()
    waits.join(0.1)
    assert waits.is_alive()
    goes_on.set()
    waits.join(PATIENCE)
    assert not waits.is_alive() and session.recorder.wait_written(0)


def test_cells_wait_for_a_slow_writer(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "BACKLOG_BYTES", 200_000)
    monkeypatch.setattr(memory, "available_memory", lambda: 0)
    store = session.history.store

    def slow(one: int) -> None:
        time.sleep(0.02)
        store(one)

    monkeypatch.setattr(session.history, "store", slow)
    for number in range(5):
        session.cell(**{f"p{page}": f"v{number}" for page in range(30)})
        assert session.history.unwritten <= 200_000
    assert session.go(3) == dict.fromkeys(range(30), "v2")


def test_cells_in_a_row_are_folded_too(session_of: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer always has something to do."""
    session = session_of(keep=3)
    monkeypatch.setattr(queue.Queue, "empty", lambda _: False)
    for number in range(60):
        session.cell(p0=f"v{number}")
    session.flush()
    assert len(session.history.tree.commits) <= 6 * 3 + 2
    assert session.go(60) == {0: "v59"}


def test_waiting_commits_are_not_put_off_by_folding(
    session_of: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells come faster than they are written, yet each is written in its turn."""
    session = session_of(keep=1)
    store, going, written = session.history.store, threading.Event(), list[int]()

    def slow(one: int) -> None:
        going.wait(PATIENCE)
        store(one)
        written.append(one)

    monkeypatch.setattr(session.history, "store", slow)
    for number in range(30):
        session.cell(p0=f"v{number}")
    going.set()
    session.flush()
    assert written == list(range(1, 31))


def test_a_commit_without_room_holds_up_what_stands_on_it_and_no_other_branch(
    session_of: Making, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = session.history.store

    def too_large(one: int) -> None:
        if one == 2:
            raise OSError(errno.ENOSPC, "no room")
        store(one)

    monkeypatch.setattr(session.history, "store", too_large)
    for text in "abc":
        session.cell(p0=text)
    session.go(1)
    session.save(p1="d")
    assert session.history.waiting == [2, 3]
    session.close()
    assert session_of(load=True).state == {0: "a", 1: "d"}


def test_a_second_failure_is_told_again(session: Session, disk: Disk) -> None:
    for broken in (errno.ENOSPC, 0, errno.ENOSPC, errno.ENOSPC):
        disk.broken = broken
        session.save(p0="x")
    assert len(session.troubles) == 2


class Surprise(BaseException):
    """An error that no disk is expected to raise."""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("squeeze", KeyError),
        ("store", Surprise),
        ("save", RecursionError),
        ("tidy", KeyError),
        ("put_merged", Surprise),
    ],
)
def test_an_unexpected_error_of_the_writer_is_told_and_loses_no_later_commit(
    session_of: Making, monkeypatch: pytest.MonkeyPatch, place: str, kind: type[BaseException]
) -> None:
    session = session_of(keep=1)
    session.save(p0="a")
    with monkeypatch.context() as patch:
        patch.setattr(type(session.history), place, raising(kind("surprise")))
        for number in range(6):
            session.save(p1=f"v{number}")
        assert session.troubles == ["an unexpected error, which the log describes"]
        saved = [session.recorder.saves]
    session.save(p2="c")
    assert [*saved, session.recorder.saves] == [False, True]
    session.close()
    assert session_of(load=True).state == {0: "a", 1: "v5", 2: "c"}


def test_a_cell_does_not_wait_for_a_writer_that_makes_no_room(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "BACKLOG_BYTES", 10_000)
    monkeypatch.setattr(memory, "available_memory", lambda: 0)
    monkeypatch.setattr(recorder, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(recorder, "BACKLOG_SHARE", 0.1)
    going, store = threading.Event(), session.history.store

    def stuck(one: int) -> None:
        going.wait(PATIENCE)
        store(one)

    monkeypatch.setattr(session.history, "store", stuck)
    for number in range(4):
        session.cell(**{f"p{page}": f"v{number}" for page in range(30)})
    assert session.history.unwritten <= 3 * 30 * 4096
    going.set()
    assert session.go(4) == dict.fromkeys(range(30), "v3")


def test_a_disk_that_stays_full_does_not_fill_memory(session_of: Making, disk: Disk) -> None:
    session = session_of(keep=3)
    for number in range(40):
        disk.broken = errno.ENOSPC if number >= 5 else 0
        session.save(p0=f"v{number}")
    assert len(session.history.tree.commits) <= 12
    assert session.go(session.history.tree.head) == {0: "v39"}


def test_a_failed_head_is_written_with_the_next(session_of: Making, session: Session) -> None:
    session.save(p0="a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Index, "append", full_disk)
        session.history.name("here", 1)
        with pytest.raises(OSError, match="No space"):
            session.history.save()
    session.cell(p0="b")
    session.close()
    assert session_of(load=True).history.tree.names == {"here": 1}


def test_without_a_folder_everything_is_in_memory(session_of: Making) -> None:
    session = session_of(disk=False, keep=2)
    for number in range(20):
        session.save(p0=f"v{number}")
    assert not session.folder.exists()
    assert len(session.history.tree.commits) <= 5
    assert session.go(19) == {0: "v18"}
    zeros = session.cell(**{f"p{page}": "" for page in range(40)}).id
    session.flush()
    assert session.go(zeros) == {}
    assert len(session.history.contents.held[zeros][1]) == 0
