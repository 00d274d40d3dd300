"""Copying many ranges of memory at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peak import MB, Peak
from tests.state.stretch import PAGES, Stretch
from wasm_kernel.linux import memory
from wasm_kernel.linux.memory import read_ranges
from wasm_kernel.state.pages import PAGE


@pytest.fixture
def stretch() -> Iterator[Stretch]:
    made = Stretch()
    for page in range(PAGES):
        made.write(page * PAGE, page.to_bytes(2, "little") * (PAGE // 2))
    yield made
    made.close()


@pytest.mark.parametrize(("most_ranges", "most_pages"), [(1000, 1000), (3, 1000), (1000, 5)])
def test_ranges_come_one_after_the_other_in_any_number_of_calls(
    monkeypatch: pytest.MonkeyPatch, stretch: Stretch, most_ranges: int, most_pages: int
) -> None:
    monkeypatch.setattr(memory, "RANGES_MOST", most_ranges)
    monkeypatch.setattr(memory, "COPIED_MOST", most_pages * PAGE)
    alone = [(page, page + 1) for page in range(80, PAGES, 2)]
    for pages in ([], [(9, 10), (2, 3), (250, 251)], [(0, 3), (10, 40), (50, 51)], alone):
        ranges = [(first * PAGE, end * PAGE) for first, end in pages]
        expected = b"".join(stretch.read(a, b - a) for a, b in ranges)
        assert bytes(read_ranges(stretch.address, ranges)) == expected


def test_the_room_for_a_copy_is_not_filled_first(
    monkeypatch: pytest.MonkeyPatch, stretch: Stretch
) -> None:
    """Before, no other thread of a worker went on at that time: one with 1.2 GB seemed to hang."""
    read, held = memory._read, []

    def noting(*args: int) -> int:
        held.append(before.held)
        return read(*args)

    monkeypatch.setattr(memory, "_read", noting)
    ranges = [(0, PAGES * PAGE)] * (64 * MB // (PAGES * PAGE))
    before = Peak()
    copy = read_ranges(stretch.address, ranges)
    assert len(copy) > 60 * MB and before.held > 32 * MB > held[0]


def test_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="process_vm_readv"):
        read_ranges(PAGE, [(0, PAGE)])
