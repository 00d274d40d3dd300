"""SQLite's dice: found in two looks at memory, and thrown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.tiny import Guest
from wasm_kernel.engine import dice

CONSTANT = b"expand 32-byte k"
AT = 200_000


def memory(left: int, *, key: bytes = b"k" * 48, at: int = 100) -> bytes:
    """A memory with a generator at `at`, and the constant alone at 4000."""
    state = CONSTANT + key + b"o" * 64 + bytes([left])
    return (bytes(at) + state).ljust(4000, b"\0") + CONSTANT + bytes(400)


def test_a_generator_is_where_a_number_was_drawn() -> None:
    assert dice.places(memory(56), memory(48)) == [100]


@pytest.mark.parametrize(
    "after", [memory(56), memory(40), memory(48, key=b"x" * 48), memory(48, at=104), b""]
)
def test_elsewhere_there_is_none(after: bytes) -> None:
    assert dice.places(memory(56), after) == []


def test_a_constant_at_the_very_end_is_none() -> None:
    assert dice.places(CONSTANT, CONSTANT) == []


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    made = Guest(tmp_path)
    yield made
    made.close()


def test_every_throw_is_another(guest: Guest) -> None:
    reach, seen = guest.instance.reach, set()
    guest.instance.use_dice([AT])
    for _ in range(3):
        reach.write(AT + 128, b"\x30")
        guest.instance.throw_dice()
        state = reach.read(AT, 129)
        assert (state[:16], state[48:52], state[128]) == (CONSTANT, bytes(4), 0)
        seen.add((state[16:48], state[52:64]))
    assert len(seen) == 3


def test_without_a_place_nothing_is_written(guest: Guest) -> None:
    before = guest.instance.reach.read(0, guest.instance.reach.size)
    guest.instance.throw_dice()
    assert guest.instance.reach.read(0, guest.instance.reach.size) == before
