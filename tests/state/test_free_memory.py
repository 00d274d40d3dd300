"""Memory that the guest's allocator has free goes back to the system, and is not saved or read."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from tests.faces import raising
from tests.state.session import FIRST, Session
from wasm_kernel.linux import memory
from wasm_kernel.state import pages, recorder
from wasm_kernel.state.index import decode
from wasm_kernel.state.pages import PAGE, Compare, WriteProtect

MANY = 400
ALL = {f"p{page}": f"v{page}" for page in range(MANY)}
STATE = {page: f"v{page}" for page in range(MANY)}
KEPT = {page: text for page, text in STATE.items() if not 100 <= page < 380}


@pytest.fixture(autouse=True)
def _everything_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FREE_WORTH", 1)
    monkeypatch.setattr(recorder, "FREE_LARGE", PAGE)


@pytest.fixture(params=[WriteProtect, Compare], ids=lambda kind: str(kind.name))
def peak(
    request: pytest.FixtureRequest, session: Session, monkeypatch: pytest.MonkeyPatch
) -> Session:
    """A session with 400 pages in commit 1; 280 of them are free from now on."""
    monkeypatch.setattr(pages, "best", request.param)
    session.go(0)
    session.grow(40)
    session.cell(**ALL)
    session.free.runs = [(100, 280)]
    return session


def test_freed_pages_are_zeros_that_no_commit_holds(peak: Session) -> None:
    commit = peak.cell(p0="v0", p200="written before it was freed")
    assert peak.state == KEPT
    assert (commit.page_bytes <= 3 * PAGE, sum(n for _, n in commit.zeros)) == (True, 280)
    assert decode(msgspec.json.encode(commit)) == commit
    assert peak.go(2) == KEPT
    assert peak.go(1) == STATE


def test_freed_memory_that_is_used_again_is_kept(peak: Session) -> None:
    peak.cell(p0="v0")
    peak.free.runs = []
    # one page gets its old bytes again, the other one new bytes
    assert peak.cell(p150="v150", p151="new").runs[-1] == (230, 2)
    assert peak.state == KEPT | {150: "v150", 151: "new"} == peak.go(3)


def test_freed_memory_that_is_mapped_from_a_commit_holds_zeros(peak: Session) -> None:
    peak.flush()
    peak.free.runs = []
    assert peak.go(1) == STATE
    peak.free.runs = [(100, 280)]
    peak.cell(p0="v0")
    assert peak.state == KEPT
    peak.free.runs = []
    assert peak.cell(p150="v150").page_bytes == PAGE
    assert peak.state == KEPT | {150: "v150"} == peak.go(3)


def test_memory_that_cannot_be_given_back_is_kept(
    peak: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear, left = memory.clear, [1]

    def once(address: int, size: int, *, mapped: bool) -> None:
        if not left:
            raise OSError(errno.ENOMEM, "too many mappings")
        left.clear()
        clear(address, size, mapped=mapped)

    monkeypatch.setattr(memory, "clear", once)
    peak.free.runs = [(100, 100), (210, 170)]
    peak.cell(p0="v0", p200="new", p300="new")
    expected = {page: text for page, text in STATE.items() if not 100 <= page < 200}
    assert peak.state == expected | {200: "new", 300: "new"} == peak.go(2)


def test_changes_are_tracked_after_clearing(peak: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (WriteProtect, Compare):
        monkeypatch.setattr(kind, "cleared", raising(OSError(errno.ENOMEM, "no")))
    peak.cell(p0="v0")
    peak.free.runs = []
    peak.cell(p150="new")
    assert peak.state == KEPT | {150: "new"} == peak.go(3)


def test_zeros_are_laid_without_touching_memory(session: Session) -> None:
    """Writing zeros to untouched memory would allocate it."""
    session.grow(40)
    session.cell(**ALL)
    session.free.runs = [(100, 280)]
    session.cell(p0="v0")
    session.stand_at(2)
    address = session.guest.instance.memory.address
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(8 * (address // PAGE + FIRST + 100))
        entries = memoryview(pagemap.read(8 * 280)).cast("Q")
    assert sum(entry >> 63 for entry in entries) == 0
