"""`fd_readdir` without the hidden names, for any size of the guest's buffer."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engine.tiny import APP, RIGHTS, Guest, entries_of
from tests.wasi_files.overlays import Overlaid
from wasm_kernel.engine import abi
from wasm_kernel.wasi_files import listing
from wasm_kernel.wasi_files.listing import FolderEntry, Listing


@pytest.mark.parametrize("files", [0, 1, 7, 40])
def test_every_room_shows_every_file_once_and_no_hidden_one(guest: Guest, files: int) -> None:
    names = [f"file{i:03}" for i in range(files)]
    for name in [*names, ".metadata.json"]:
        (guest.app / name).touch()
    for room in (48, 64, 80, 100, 200, 4096):
        assert sorted(guest.names(APP, room)) == names


def test_no_buffer_of_any_size_holds_a_hidden_name(guest: Guest) -> None:
    for name in (".metadata.json", "a", "b"):
        (guest.app / name).touch()
    for room in range(0, 120, 7):
        for cookie in range(6):
            errno, data = guest.read_folder(APP, room, cookie)
            assert errno == abi.SUCCESS
            assert b".meta" not in data


def test_a_listing_that_is_under_way_is_of_one_moment(guest: Guest) -> None:
    """Files that come and go during a listing neither hide others nor show them twice."""
    names = [f"f{i}" for i in range(20)]
    for name in names:
        (guest.app / name).touch()
    _, fd = guest.open(".", abi.O_DIRECTORY)
    _, data = guest.read_folder(fd, 200)
    seen = entries_of(data)
    for name in names[:10]:
        (guest.app / name).unlink()
    _, rest = guest.read_folder(fd, 4096, seen[-1].next)
    found = [entry.name for entry in [*seen, *entries_of(rest)]]
    assert sorted(found) == sorted([".", "..", *names])


def test_an_entry_tells_the_number_and_kind_that_stat_tells(guest: Guest) -> None:
    (guest.app / "file").touch()
    (guest.app / "folder").mkdir()
    (guest.app / "link").symlink_to("file")
    _, data = guest.read_folder(APP, 4096)
    for entry in entries_of(data):
        assert guest.stat(entry.name if entry.name != ".." else ".", follow=0) == abi.SUCCESS
        _, inode, kind = struct.unpack("<QQB", guest.instance.memory.read(64, 17))
        assert (entry.name, entry.inode, entry.kind) == (entry.name, inode, kind)


def test_a_name_of_the_hosts_that_is_no_utf8_is_listed_as_it_is(guest: Guest) -> None:
    Path(f"{guest.app}/a\udcffb").touch()
    (guest.app / "b").touch()
    _, data = guest.read_folder(APP, 4096)
    assert b"a\xffb" in data
    assert guest.stat(b"a\xffb") == abi.EILSEQ


def test_a_removed_folder_is_empty_whatever_has_its_name(guest: Guest) -> None:
    (guest.app / "d").mkdir()
    _, fd = guest.open("d", abi.O_DIRECTORY)
    guest.one_path("path_remove_directory", "d")
    (guest.app / "d").mkdir()
    (guest.app / "d" / "another").touch()
    assert guest.names(fd) == []


def test_beyond_the_last_entry_is_nothing(guest: Guest) -> None:
    _, before = guest.read_folder(APP, 4096)
    for cookie in (2, 3, 1000, 2**63, 2**64 - 1):
        assert guest.read_folder(APP, 4096, cookie) == (abi.SUCCESS, b"")
    assert guest.read_folder(APP, 4096) == (abi.SUCCESS, before)
    assert guest.call("fd_readdir", APP, 0xFFFFFF00, 4096, 0, 64) != abi.SUCCESS


def test_a_long_listing_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formerly, a folder of a million long names took 700 MB."""
    monkeypatch.setattr(listing, "MOST_BYTES", 2_000_000)
    entries = (FolderEntry(f"{number:0250}", number, abi.FILE_TYPE) for number in range(20_000))
    found, cookie, names = Listing(1, entries), 0, 0
    while part := found.part(cookie, 65_536):
        whole = [entry for entry in entries_of(part) if entry.name != "."]
        cookie, names = whole[-1].next, names + len(whole)
        assert found.size <= listing.MOST_BYTES + 512
    assert names == 20_001  # with ".."
    assert found.part(5, 512) is None
    assert found.part(2**63, 512) == b""


@pytest.mark.parametrize("merged", [False, True], ids=["workspace", "notebook"])
def test_a_listing_that_is_read_piece_by_piece_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool
) -> None:
    monkeypatch.setattr(listing, "MOST_BYTES", 2000)
    real = Overlaid(tmp_path)
    try:
        guest, names = real.guest, [f"file{i:03}" for i in range(300)]
        for number, name in enumerate(names):
            (real.lower if merged and number % 2 else guest.app).joinpath(name).touch()
        fd = real.open(".", abi.O_DIRECTORY, RIGHTS & ~0x42)[1] if merged else APP
        assert sorted(guest.names(fd, 500)) == names
        first = entries_of(guest.read_folder(fd, 500, 3)[1])  # read again, as it was dropped
        guest.read_folder(fd, 500, 200)
        assert entries_of(guest.read_folder(fd, 500, 3)[1]) == first
        guest.is_to_stop = True
        assert guest.read_folder(fd, 500, 290)[0] == abi.EINTR
        guest.is_to_stop = False
        assert len(entries_of(guest.read_folder(fd, 500, 290)[1])) > 10
    finally:
        real.close()


def descriptors_below(folder: Path) -> int:
    """The number of this process's open files and folders in a folder."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it
            found += each.readlink().is_relative_to(folder)
    return found


def test_folders_left_half_read_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_BYTES", 2000)
    real = Overlaid(tmp_path)
    before = descriptors_below(tmp_path)
    for number in range(300):
        (real.lower / f"file{number:03}").touch()
    for _ in range(8):
        errno, fd = real.open(".", abi.O_DIRECTORY, RIGHTS & ~0x42)
        assert errno == abi.SUCCESS
        assert real.guest.read_folder(fd, 500)[0] == abi.SUCCESS
    assert before < descriptors_below(tmp_path) <= before + 8 + 6
    real.guest.files.close()
    assert descriptors_below(tmp_path) <= before
    real.close()
