"""Trackers find the pages that changed; all trackers pass the same tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faces import raising
from tests.state.stretch import PAGES, Stretch, pages_of
from wasm_kernel.errors import ImageError
from wasm_kernel.state import pages
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
