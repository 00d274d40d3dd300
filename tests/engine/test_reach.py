"""Reaching into a guest's memory; mounts; the interrupt words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.tiny import Guest
from wasm_kernel.engine.interrupt import Words, candidates
from wasm_kernel.engine.reach import OutOfBounds
from wasm_kernel.linux.folders import Folder
from wasm_kernel.wasi_files.preopens import FIRST_DESCRIPTOR, Preopen, Preopens

PAGE = 4096
SIZE = 8 * 65_536
CLOSED = Folder(-1)
FIXED = (Preopen(CLOSED, "/app"), Preopen(CLOSED, "/"))
DATA, DEEP = Preopen(CLOSED, "/data"), Preopen(CLOSED, "/data/deep")


@pytest.mark.parametrize(("at", "length"), [(0, 0), (0, SIZE), (SIZE - 1, 1), (SIZE, 0)])
def test_what_lies_inside_is_read(guest: Guest, at: int, length: int) -> None:
    assert len(guest.instance.reach.read(at, length)) == length


@pytest.mark.parametrize(
    ("at", "length"), [(SIZE, 1), (0, SIZE + 1), (-1, 1), (0, -1), (2**32, 1), (2**64, 2**64)]
)
def test_what_lies_outside_is_not_read(guest: Guest, at: int, length: int) -> None:
    with pytest.raises(OutOfBounds):
        guest.instance.reach.read(at, length)


@pytest.mark.parametrize("at", [SIZE - 3, SIZE, 2**32 - 4, -4])
def test_nothing_is_written_outside(guest: Guest, at: int) -> None:
    with pytest.raises(OutOfBounds):
        guest.instance.reach.write_word(at, 1)


def test_memory_that_grew_is_in_reach(guest: Guest) -> None:
    guest.call("grow", 1)
    assert guest.instance.reach.read(SIZE, 65_536) == bytes(65_536)


def test_too_many_buffers_are_refused(guest: Guest) -> None:
    with pytest.raises(OutOfBounds):
        guest.instance.reach.buffers(0, 1025)


@given(path=st.text(alphabet="dataep/.", max_size=14))
def test_a_mount_takes_what_lies_below_it_and_nothing_else(path: str) -> None:
    found = Preopens(FIXED, (DATA, DEEP)).mount_of(path)
    below = path == "data" or path.startswith("data/")
    assert (found is not None) == below
    if found is not None:
        assert path[: found[1]].rstrip("/") == found[0].guest[1:]


def test_the_deepest_mount_wins() -> None:
    found = Preopens(FIXED, (DATA, DEEP)).mount_of("data/deep/x")
    assert found == (DEEP, len("data/deep/"))


def test_the_root_is_found() -> None:
    assert Preopens(FIXED).root == FIRST_DESCRIPTOR + 1
    assert Preopens(FIXED[:1]).root is None


def memory(**words: int) -> bytes:
    """Two pages with these words."""
    data = bytearray(2 * PAGE)
    for at, value in words.items():
        data[int(at[1:]) : int(at[1:]) + 4] = value.to_bytes(4, "little")
    return bytes(data)


def test_a_word_that_is_turned_on_and_off_again_is_a_candidate() -> None:
    assert candidates(memory(), memory(_4100=1), memory()) == {4100: 1}


@pytest.mark.parametrize(
    ("before", "after", "rest"),
    [
        (memory(_8=5), memory(_8=6), memory()),
        (memory(), memory(_8=3), memory()),
        (memory(), memory(_8=1), memory(_8=1)),
        (memory(), memory(_8=0x0100_0000), memory()),
    ],
)
def test_other_words_are_none(before: bytes, after: bytes, rest: bytes) -> None:
    assert candidates(before, after, rest) == {}


def test_an_interrupt_is_pending_until_it_is_taken(guest: Guest) -> None:
    words = Words({128: 1, 132: 2}, guest.instance.reach)
    words.raise_()
    assert words.pending()
    guest.instance.reach.write_word(128, 0)
    assert not words.pending()


def test_raising_keeps_the_other_bits_of_a_word(guest: Guest) -> None:
    guest.instance.reach.write_word(132, 0x50)
    words = Words({132: 2}, guest.instance.reach)
    words.raise_()
    assert guest.instance.reach.read_word(132) == 0x52
    words.clear()
    assert guest.instance.reach.read_word(132) == 0x50


def test_without_words_nothing_is_pending(guest: Guest) -> None:
    assert not Words({}, guest.instance.reach).pending()
