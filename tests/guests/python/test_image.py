"""Places in the guest's memory that the host uses: signal words, and SQLite's generators."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.engine.tiny import Guest
from wasm_kernel.guests.python.guest import (
    HostChannel,
    SignalWords,
    find_sqlite_prngs,
    reseed_sqlite,
    signal_candidates,
)

PAGE = 4096
CONSTANT = b"expand 32-byte k"
AT = 200_000


def generator(left: int, *, key: bytes = b"k" * 48, at: int = 100) -> bytes:
    """A memory with a generator at `at`, and the constant alone at 4000."""
    state = CONSTANT + key + b"o" * 64 + bytes([left])
    return (bytes(at) + state).ljust(4000, b"\0") + CONSTANT + bytes(400)


def test_a_generator_is_where_a_number_was_drawn() -> None:
    assert find_sqlite_prngs(generator(56), generator(48)) == [100]


@pytest.mark.parametrize(
    "after",
    [generator(56), generator(40), generator(48, key=b"x" * 48), generator(48, at=104), b""],
)
def test_elsewhere_there_is_no_generator(after: bytes) -> None:
    assert find_sqlite_prngs(generator(56), after) == []


@pytest.mark.parametrize("request_of_guest", [b"\0{}", b"\1{}"], ids=["codec", "shell"])
def test_while_an_image_is_built_codecs_and_scripts_are_refused_in_silence(
    request_of_guest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, matplotlib's search for fonts had `wasm-kernel warm` print a traceback."""
    channel = HostChannel(lambda data: json.dumps(json.loads(data)).encode())
    memory = SimpleNamespace(read=lambda at, length: request_of_guest)
    call = channel.bind(cast(Any, SimpleNamespace(memory=memory)))["host", "call"]
    assert call(0, 3, PAGE, PAGE + 4) != 0
    assert not caplog.records


def test_every_seed_is_another(guest: Guest) -> None:
    reach, seen = guest.instance.memory, set()
    for _ in range(3):
        reach.write(AT + 128, b"\x30")
        reseed_sqlite(reach, [AT])
        state = reach.read(AT, 129)
        assert (state[:16], state[48:52], state[128]) == (CONSTANT, bytes(4), 0)
        seen.add((state[16:48], state[52:64]))
    assert len(seen) == 3


def words_at(**words: int) -> bytes:
    """Two pages with these words."""
    data = bytearray(2 * PAGE)
    for at, value in words.items():
        data[int(at[1:]) : int(at[1:]) + 4] = value.to_bytes(4, "little")
    return bytes(data)


def test_a_word_that_is_turned_on_and_off_again_is_a_candidate() -> None:
    assert signal_candidates(words_at(), words_at(_4100=1), words_at()) == {4100: 1}


@pytest.mark.parametrize(
    ("before", "after", "rest"),
    [
        (words_at(_8=5), words_at(_8=6), words_at()),
        (words_at(), words_at(_8=3), words_at()),
        (words_at(), words_at(_8=1), words_at(_8=1)),
        (words_at(), words_at(_8=0x0100_0000), words_at()),
    ],
)
def test_other_words_are_not_candidates(before: bytes, after: bytes, rest: bytes) -> None:
    assert signal_candidates(before, after, rest) == {}


def test_an_interrupt_is_pending_until_it_is_taken(guest: Guest) -> None:
    words = SignalWords({128: 1, 132: 2}, guest.instance.memory)
    words.raise_()
    assert words.pending()
    guest.instance.memory.write_word(128, 0)
    assert not words.pending()


def test_raising_keeps_the_other_bits_of_a_word(guest: Guest) -> None:
    guest.instance.memory.write_word(132, 0x50)
    words = SignalWords({132: 2}, guest.instance.memory)
    words.raise_()
    assert guest.instance.memory.read_word(132) == 0x52
    words.clear()
    assert guest.instance.memory.read_word(132) == 0x50
