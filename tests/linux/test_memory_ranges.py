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


def test_ranges_come_one_after_the_other(stretch: Stretch) -> None:
    ranges = [(page * PAGE, (page + 1) * PAGE) for page in (9, 2, 250)]
    assert bytes(read_ranges(stretch.address, ranges)) == b"".join(
        stretch.read(a, b - a) for a, b in ranges
    )


def test_no_ranges_copy_nothing(stretch: Stretch) -> None:
    assert not read_ranges(stretch.address, [])


def test_more_ranges_than_one_call_takes(monkeypatch: pytest.MonkeyPatch, stretch: Stretch) -> None:
    monkeypatch.setattr(memory, "RANGES_MOST", 3)
    ranges = [(page * PAGE, (page + 1) * PAGE) for page in range(0, PAGES, 2)]
    assert bytes(read_ranges(stretch.address, ranges)) == b"".join(
        stretch.read(a, b - a) for a, b in ranges
    )


def test_more_bytes_than_one_call_takes(monkeypatch: pytest.MonkeyPatch, stretch: Stretch) -> None:
    monkeypatch.setattr(memory, "COPIED_MOST", 5 * PAGE)
    ranges = [(0, 3 * PAGE), (10 * PAGE, 40 * PAGE), (50 * PAGE, 51 * PAGE)]
    assert bytes(read_ranges(stretch.address, ranges)) == b"".join(
        stretch.read(a, b - a) for a, b in ranges
    )


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
