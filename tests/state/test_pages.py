"""Trackers find the pages that changed; memory that the allocator has free is given back."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faces import raising
from tests.state.session import FIRST, Session
from tests.state.stretch import PAGES, Stretch, pages_of
from wasm_kernel.errors import ImageError
from wasm_kernel.linux import memory
from wasm_kernel.state import pages, recorder
from wasm_kernel.state.index import decode
from wasm_kernel.state.pages import PAGE, Compare, Tracker, WriteProtect

SIZE = PAGES * PAGE
Making = Callable[..., Tracker]


@pytest.fixture(params=["anonymous", "file"])
def stretch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stretch]:
    made = Stretch(tmp_path / "below" if request.param == "file" else None)
    yield made
    made.close()


@pytest.fixture(params=["write-protect", "compare", "compare all"])
def watch(
    request: pytest.FixtureRequest,
    stretch: Stretch,
    ending: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> Making:
    """Begins to track this number of bytes of the stretch."""
    if request.param == "compare all":
        monkeypatch.setattr(pages, "_pagemap_of", raising(PermissionError()))

    def one(size: int = SIZE) -> Tracker:
        kind = WriteProtect if request.param == "write-protect" else Compare
        tracker: Tracker = kind(stretch.address, size)
        return ending.enter_context(closing(tracker))

    return one


def test_a_page_that_each_cell_writes_is_told_a_while(watch: Making, stretch: Stretch) -> None:
    tracker = watch()
    for page in (7, 7, 7, 8, 9):
        stretch.touch(page)
        assert pages_of(tracker.changed(SIZE)) - {7} == {page} - {7}
    assert not pages_of([each for _ in range(16) for each in tracker.changed(SIZE)]) - {7}
    assert tracker.changed(SIZE) == []


def test_reading_is_no_change(watch: Making, stretch: Stretch) -> None:
    tracker = watch()
    stretch.read(0, SIZE)
    assert tracker.changed(SIZE) == []


def test_memory_can_be_tracked_again_after_a_close(watch: Making, stretch: Stretch) -> None:
    first = watch()
    first.close()
    first.close()  # safe to call twice
    tracker = watch()
    stretch.touch(1)
    assert pages_of(tracker.changed(SIZE)) == {1}


WRITES = st.lists(
    st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 3 * PAGE)), max_size=8), max_size=20
)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=WRITES, sizes=st.lists(st.integers(1, PAGES), min_size=20, max_size=20))
def test_a_copy_that_follows_what_changed_stays_equal(
    watch: Making, stretch: Stretch, cells: list[list[tuple[int, int]]], sizes: list[int]
) -> None:
    size = 50 * PAGE
    copy = bytearray(stretch.read(0, size))
    tracker = watch(size)
    for number, (writes, wanted) in enumerate(zip(cells, sizes, strict=False), start=1):
        for at, length in writes:
            stretch.write(at, bytes([number * 31 % 256]) * min(length, SIZE - at))
        size = max(size, wanted * PAGE)
        copy.extend(bytes(size - len(copy)))
        for start, end in tracker.changed(size):
            copy[start:end] = stretch.read(start, end - start)
        assert copy == stretch.read(0, size)
    tracker.close()


def test_a_refused_tracker_is_replaced(monkeypatch: pytest.MonkeyPatch, stretch: Stretch) -> None:
    monkeypatch.setattr(pages, "_ioctl", raising(OSError(1, "not permitted")))
    tracker = pages.best(stretch.address, SIZE)
    assert tracker.name == "compare"
    tracker.close()


def test_a_machine_with_larger_pages_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 65_536)
    with pytest.raises(ImageError, match=r"pages of 64 KiB.*none can run"):
        pages.check_pages()


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


def test_memory_that_cannot_go_back_is_kept(peak: Session, monkeypatch: pytest.MonkeyPatch) -> None:
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
