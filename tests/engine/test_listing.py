"""`fd_readdir` without the hidden names, whatever room the guest gives it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.tiny import APP, Guest
from wasm_kernel.engine import abi
from wasm_kernel.engine.listing import split


def entry(name: str, following: int) -> bytes:
    data = name.encode()
    return struct.pack("<QQIB3x", following, 1, len(data), 4) + data


@pytest.mark.parametrize("room", [48, 64, 80, 100, 128, 200, 400, 4096])
@pytest.mark.parametrize("files", [0, 1, 7, 40])
def test_every_room_shows_every_file_once(guest: Guest, room: int, files: int) -> None:
    names = [f"file{i:03}" for i in range(files)]
    for name in [*names, ".metadata.json"]:
        (guest.app / name).touch()
    (guest.app / ".wasm_kernel").mkdir()
    assert sorted(guest.names(APP, room)) == names


@pytest.mark.parametrize("around", range(12))
def test_a_hidden_name_at_any_position_is_left_out(guest: Guest, around: int) -> None:
    """The order is the file system's: files made before and after move the hidden name about."""
    for i in range(around):
        (guest.app / f"a{i}").touch()
    (guest.app / ".metadata.json").touch()
    for i in range(12 - around):
        (guest.app / f"b{i}").touch()
    (guest.app / ".wasm_kernel").mkdir()
    for room in (50, 60, 70, 90, 150):
        assert len(guest.names(APP, room)) == 12


def test_a_folder_of_nothing_but_hidden_names_is_empty(guest: Guest) -> None:
    (guest.app / ".metadata.json").touch()
    (guest.app / ".wasm_kernel").mkdir()
    assert guest.names(APP, 48) == []


@pytest.mark.parametrize("room", range(0, 120, 7))
def test_no_buffer_of_any_size_holds_a_hidden_name(guest: Guest, room: int) -> None:
    for name in (".metadata.json", "a", "b"):
        (guest.app / name).touch()
    for cookie in range(6):
        errno, data = guest.read_folder(APP, room, cookie)
        assert errno == abi.SUCCESS
        assert b".meta" not in data


def test_every_hidden_spelling_is_left_out(guest: Guest) -> None:
    for name in (".METADATA.json", ".metadata.json.", ".Wasm_Kernel", "seen"):
        (guest.app / name).touch()
    assert guest.names(APP) == ["seen"]


def test_a_large_folder_is_listed_whole(guest: Guest) -> None:
    for i in range(1500):
        (guest.app / f"f{i}").touch()
    (guest.app / ".metadata.json").touch()
    assert len(guest.names(APP, 1000)) == 1500


def test_a_buffer_outside_the_memory_is_a_bad_address(guest: Guest) -> None:
    assert guest.call("fd_readdir", APP, 0xFFFFFF00, 4096, 0, 64) != abi.SUCCESS


@given(
    names=st.lists(st.sampled_from(["a", "bb", ".metadata.json", "c" * 30]), max_size=8),
    cut=st.integers(0, 400),
)
def test_splitting_keeps_each_whole_entry_that_may_be_seen(names: list[str], cut: int) -> None:
    data = b"".join(entry(name, i + 1) for i, name in enumerate(names))[:cut]
    shown, tail, cookie, hidden = split(data, 0)
    whole = names[:cookie]
    assert shown == b"".join(
        entry(name, i + 1) for i, name in enumerate(whole) if name != ".metadata.json"
    )
    assert hidden == (".metadata.json" in whole)
    assert data.endswith(tail)
