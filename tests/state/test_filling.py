"""Filling a guest's memory from commits: mapped or read, each page once."""

from __future__ import annotations

import errno
import threading

import pytest
from msgspec.structs import replace

from tests.state.session import Session, three
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux import memory
from wasm_kernel.state.commits import GuestPages, Source
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import PAGE


def refused(*_: object) -> None:
    raise OSError(errno.ENOMEM, "too many mappings")


@pytest.mark.parametrize("maps", [True, False], ids=["mapped", "read"])
def test_mapped_and_read_memory_are_the_same(
    session: Session, maps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not maps:
        monkeypatch.setattr(memory, "map_file", refused)
    session.grow(40)
    session.cell(**{f"p{page}": f"one {page}" for page in range(200)})
    session.cell(**{f"p{page}": f"two {page}" for page in range(0, 200, 3)})
    session.flush()
    assert session.go(2) == {p: f"{'one' if p % 3 else 'two'} {p}" for p in range(200)}
    assert session.go(1) == {p: f"one {p}" for p in range(200)}


def test_writes_over_a_mapped_commit_stay_out_of_its_file(session: Session) -> None:
    session.grow(40)
    session.cell(**{f"p{page}": f"one {page}" for page in range(200)})
    session.flush()
    before = session.content(1).read_bytes()
    session.go(1)
    session.cell(p100="other")
    assert session.content(1).read_bytes() == before
    assert session.go(1)[100] == "one 100"


def test_pages_outside_of_the_memory_are_refused(session: Session) -> None:
    three(session)
    commit = replace(session.history.tree.commits[3], runs=((2**40, 1),))
    session.history.tree = session.history.tree.with_commit(commit)
    session.history.contents.held[3] = commit, bytearray(4096)
    with pytest.raises(HistoryError, match="outside"):
        session.go(3)


def test_pages_that_are_written_at_the_same_time_are_laid_right(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder writes a commit without its zeros while memory is filled from it."""
    session.grow(10)
    session.cell(**{f"p{page}": "old" for page in range(60)})
    session.flush()
    history = session.history
    store = history.store
    monkeypatch.setattr(history, "store", lambda one: None)
    session.cell(**{f"p{page}": "" for page in range(30)}, p40="new")
    session.flush()
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
