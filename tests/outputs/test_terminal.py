"""Terminal control in the output of cells: colours stay, the rest is removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasm_kernel.outputs.terminal import HELD_CHARACTERS, StreamCleaner, clean


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        ("\x1b[38:2::255:0:0mx", "\x1b[38:2::255:0:0mx"),
        ("a\tb\nc\rd\be", "a\tb\nc\rd\be"),
        ("a\x1b]52;c;Zm9v\x07b", "ab"),
        ("a\x1b]0;title\x1b\\b", "ab"),
        ("a\x9d0;title\x9cb", "ab"),
        ("a\x1b[2J\x1b[Hb", "ab"),
        ("a\x9b2Jb", "ab"),
        ("a\x1bPq data\x1b\\b", "ab"),
        ("a\x1bcb", "ab"),
        ("a\x1b(0b", "ab"),
        ("a\x00\x07\x7f\x85b", "ab"),
        ("a\x1b]0;never ended", "a]0;never ended"),
        ("50 \u20ac \U0001f600", "50 \u20ac \U0001f600"),
    ],
)
def test_only_colours_and_plain_layout_stay(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.text(alphabet="\x1b\x9b\x9d\x07\\[]0;mJc\na"), st.integers(0, 40))
def test_no_cut_between_two_pieces_lets_a_sequence_through(text: str, at: int) -> None:
    stream = StreamCleaner()
    shown = stream.feed(text[:at]) + stream.feed(text[at:]) + stream.finish()
    assert shown == clean(text)


def test_a_sequence_without_end_is_held_back_for_a_while_only() -> None:
    stream = StreamCleaner()
    assert stream.feed("\x1b]0;") == ""
    assert "x" * HELD_CHARACTERS in stream.feed("x" * HELD_CHARACTERS)
