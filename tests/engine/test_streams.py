"""The two streams: decoding across chunks, merging of small writes, order, limits."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.tiny import MIB, Guest
from tests.peak import Peak
from wasm_kernel.engine import abi
from wasm_kernel.engine.streams import HOLD_CHARS, NAMES, OutputStreams, OverflowFiles, limit_of
from wasm_kernel.errors import GuestCrashed
from wasm_kernel.linux.folders import Folder

CAP = 1000
Overflowing = Callable[..., OutputStreams]


class Heard(list[tuple[str, str]]):
    """The texts that a sink got, in order."""

    def __call__(self, name: str, text: str) -> None:
        self.append((name, text))

    def of(self, name: str) -> str:
        return "".join(text for who, text in self if who == name)


def streams(cap: int = CAP) -> tuple[OutputStreams, Heard]:
    made, heard = OutputStreams(), Heard()
    made.begin(heard, {name: limit_of(name, cap) for name in NAMES.values()})
    return made, heard


@given(text=st.text(max_size=200), data=st.data())
def test_any_text_in_any_pieces_arrives(text: str, data: st.DataObject) -> None:
    out, heard = streams(10_000)
    whole = text.encode("utf-8", "replace")
    at = 0
    while at < len(whole):
        size = data.draw(st.integers(1, 9))
        out.feed("stdout", whole[at : at + size])
        at += size
    out.end()
    assert heard.of("stdout") == whole.decode()


def test_small_writes_are_one_message_and_held_text_is_bounded() -> None:
    out, heard = streams(10_000)
    for _ in range(1000):
        out.feed("stdout", b"x\n")
    out.end()
    assert len(heard) == 1
    out, heard = streams(10 * HOLD_CHARS)
    for _ in range(5):
        out.feed("stdout", b"x" * HOLD_CHARS)
    assert len(heard) == 5


def test_a_stream_is_cut_beyond_its_cap_and_between_turns() -> None:
    out, heard = streams(7)
    out.feed("stdout", b"1234567")
    out.feed("stderr", "12345€".encode())
    out.end()
    assert heard.of("stdout") == "1234567"
    assert heard.of("stderr").startswith("12345\ufffd\n[wasm-kernel] ")
    out, heard = streams()
    out.end()
    out.feed("stdout", b"late")
    out.flush()
    assert heard == []


def test_the_streams_keep_their_order_and_their_characters() -> None:
    out, heard = streams()
    out.feed("stdout", b"one")
    out.feed("stderr", b"two")
    out.feed("stdout", b"three")
    out.end()
    assert heard == [("stdout", "one"), ("stderr", "two"), ("stdout", "three")]
    out, heard = streams()
    out.feed("stdout", b"\xe2\x82")
    out.feed("stderr", b"!")
    out.feed("stdout", b"\xac")
    out.end()
    assert heard.of("stdout") == "€"


def test_a_tick_hands_on_what_is_old_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out, heard = streams()
    out.feed("stdout", b"x")
    out.on_tick()
    assert heard == []
    now[0] += 0.06
    out.on_tick()
    assert heard == [("stdout", "x")]


def test_writes_from_outside_or_of_too_many_buffers_are_bad_addresses(guest: Guest) -> None:
    guest.instance.memory.write(64, (0xFFFFFF00).to_bytes(4, "little") + b"\0\1\0\0")
    assert guest.call("fd_write", 1, 64, 1, 96) == abi.EFAULT
    assert guest.call("fd_write", 1, 64, 1_000_000, 96) == abi.EFAULT


@pytest.mark.parametrize("buffers", [1, 1024])
def test_f17_a_write_copies_no_more_than_is_shown(tmp_path: Path, buffers: int) -> None:
    guest = Guest(tmp_path, memory_bytes=512 * MIB)
    assert guest.call("grow", 7900) != 0xFFFFFFFF
    whole = guest.instance.memory.size
    guest.instance.memory.write(131_072, struct.pack("<II", 0, whole) * buffers)
    peak, begun = Peak(), time.thread_time()
    assert guest.call("fd_write", 1, 131_072, buffers, 96) == abi.SUCCESS
    assert guest.instance.memory.read_word(96) == whole * buffers & 0xFFFFFFFF  # it wrote all
    assert time.thread_time() - begun < 5
    assert peak.grown < 64 * MIB
    guest.streams.end()
    assert sum(len(text) for _, text in guest.said) < 2000
    guest.close()


def test_f17_the_engine_gathers_no_gigabytes_of_random_bytes(tmp_path: Path) -> None:
    guest = Guest(tmp_path, memory_bytes=512 * MIB)
    guest.call("grow", 7900)
    peak, begun = Peak(), time.thread_time()
    with pytest.raises(GuestCrashed):
        guest.call("random_get", 262_144, 450 * MIB)
    assert time.thread_time() - begun < 5
    assert peak.grown < 64 * MIB
    guest.close()


@pytest.fixture
def overflowing() -> Iterator[Overflowing]:
    """Makes streams of five characters whose whole text goes to files in a folder."""
    with contextlib.ExitStack() as opened:

        def one(folder: Path, most: int = 1000, heard: Heard | None = None) -> OutputStreams:
            place = opened.enter_context(Folder.open(folder))
            made = OutputStreams(OverflowFiles(place, most))
            sink = Heard() if heard is None else heard
            made.begin(sink, {name: limit_of(name, 5) for name in NAMES.values()}, 7)
            return made

        yield one


def test_the_file_has_an_end_too(overflowing: Overflowing, tmp_path: Path) -> None:
    out = overflowing(tmp_path, most=8)
    for _ in range(10):
        out.feed("stdout", b"abc")
    assert not out.wants("stdout")
    out.end()
    assert (tmp_path / "output-7-stdout.txt").read_bytes() == b"abcabcab"


def test_files_stay_and_links_are_not_followed(overflowing: Overflowing, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "output-7-stdout.txt").symlink_to(tmp_path / "outside")
    (folder / "output-7-stdout-2.txt").write_text("mine")
    out = overflowing(folder)
    out.feed("stdout", b"123456")
    out.end()
    assert not (tmp_path / "outside").exists()
    assert (folder / "output-7-stdout-2.txt").read_text() == "mine"
    assert (folder / "output-7-stdout-3.txt").read_text() == "123456"


def test_a_folder_that_is_gone_costs_the_file_alone(tmp_path: Path) -> None:
    heard = Heard()
    out = OutputStreams(OverflowFiles(Folder(-1), 1000))
    out.begin(heard, {name: limit_of(name, 5) for name in NAMES.values()}, 7)
    out.feed("stdout", b"123456")
    out.end()
    assert "the rest is cut" in heard.of("stdout")
