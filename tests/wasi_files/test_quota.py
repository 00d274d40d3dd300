"""The quota in the guest's own calls: the files that count, refusals, space given back."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny import APP, FOLLOW, OTHER, RIGHTS, Guest
from wasm_kernel.engine import abi
from wasm_kernel.linux.folders import Folder
from wasm_kernel.wasi_files.preopens import Preopen
from wasm_kernel.wasi_files.quota import Full, Quota

KB = 1000
Making = Callable[..., Guest]


@pytest.fixture
def limited(tmp_path: Path, ending: ExitStack) -> Making:
    """Makes guests of a quota of the test's own."""

    def one(size: int = 10 * KB, files: int = 10) -> Guest:
        guest = Guest(tmp_path, workspace_bytes=size, workspace_files=files)
        return ending.enter_context(closing(guest))

    return one


def opened(guest: Guest, name: str, how: int = abi.O_CREAT, *, fd: int = APP) -> int:
    errno, found = guest.open(name, how, fd=fd)
    assert errno == abi.SUCCESS
    return found


def written(guest: Guest, fd: int, size: int) -> int:
    """The number of bytes that a write of this size takes; a negative error number if none."""
    errno = guest.write(fd, b"x" * size)
    return -errno if errno else guest.instance.memory.read_word(96)


def seek(guest: Guest, fd: int, offset: int) -> None:
    assert guest.call("fd_seek", fd, offset, 0, 200) == abi.SUCCESS


def total(guest: Guest) -> int:
    return sum(path.stat().st_size for path in guest.app.rglob("*") if path.is_file())


def test_a_part_of_several_buffers_is_written(limited: Making) -> None:
    guest = limited(size=100)
    fd = opened(guest, "a")
    buffers = [guest.text(b""), guest.text(b"a" * 60), guest.text(b"b" * 60)]
    reach = guest.instance.memory
    sizes = []
    while True:
        reach.write(64, b"".join(struct.pack("<II", *buffer) for buffer in buffers))
        errno = guest.call("fd_write", fd, 64, 3, 96)
        if errno:
            break
        sizes.append(reach.read_word(96))
    assert (errno, sum(sizes)) == (abi.ENOSPC, 100)
    assert reach.read(64, 24) == b"".join(struct.pack("<II", *buffer) for buffer in buffers)


def test_a_file_without_a_name_takes_its_space_until_it_is_closed(
    limited: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second count of the folder would find such a file, too."""
    monkeypatch.setattr("wasm_kernel.wasi_files.quota._SHARE", 1e9)
    guest = limited()
    fd = opened(guest, "a")
    assert written(guest, fd, 6 * KB) == 6 * KB
    guest.one_path("path_unlink_file", "a")
    assert written(guest, opened(guest, "b"), 6 * KB) == 4 * KB
    guest.call("fd_close", fd)
    assert written(guest, opened(guest, "c"), 7 * KB) == 6 * KB


def test_a_file_that_the_host_filled_over_the_limit_can_be_written_over(limited: Making) -> None:
    guest = limited()
    (guest.app / "a").write_bytes(bytes(20 * KB))
    assert written(guest, opened(guest, "a", 0), 5 * KB) == 5 * KB
    assert guest.make("b") == abi.SUCCESS
    assert written(guest, opened(guest, "b"), 1) == -abi.ENOSPC


def test_files_of_others_between_turns_count(tmp_path: Path) -> None:
    with Folder.open(tmp_path) as folder:
        quota = Quota([Preopen(folder, "/app")], 10 * KB, 10, now=lambda: 0.0)
        quota.begin_turn()
        quota.reserve(0, 5 * KB)
        (tmp_path / "b").write_bytes(bytes(9 * KB))
        quota.begin_turn()
        with pytest.raises(Full):
            quota.reserve(0, 5 * KB)


def test_files_beside_a_failed_one_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"{number}").write_bytes(bytes(KB))
    status = os.stat

    def failing(path: str, **how: Any) -> os.stat_result:
        if path == "7":
            raise OSError(errno.EIO, "the disk fails")
        return status(path, **how)

    with Folder.open(tmp_path) as folder:
        quota = Quota([Preopen(folder, "/app")], 30 * KB, 100)
        monkeypatch.setattr(os, "stat", failing)
        assert quota.space() == (30 * KB, 19 * KB)


def test_a_file_that_another_process_cut_is_counted_from_there(limited: Making) -> None:
    guest = limited()
    fd = opened(guest, "a")
    assert written(guest, fd, 8 * KB) == 8 * KB
    os.truncate(guest.app / "a", 0)
    assert written(guest, opened(guest, "b"), 9 * KB) == 9 * KB
    seek(guest, fd, 0)
    assert written(guest, fd, 8 * KB) == KB


@pytest.mark.parametrize("how", ["opened so", "made so later"])
def test_appending_counts_wherever_the_position_is(limited: Making, how: str) -> None:
    guest = limited()
    path, flag = guest.text("a"), abi.FD_APPEND if how == "opened so" else 0
    guest.call("path_open", APP, FOLLOW, *path, abi.O_CREAT, RIGHTS, RIGHTS, flag, 64)
    fd = guest.instance.memory.read_word(64)
    if not flag:
        assert guest.call("fd_fdstat_set_flags", fd, abi.FD_APPEND) == abi.SUCCESS
    taken = []
    for _ in range(4):
        seek(guest, fd, 0)
        taken.append(written(guest, fd, 4 * KB))
    assert taken == [4000, 4000, 2000, -abi.ENOSPC]
    at, length = guest.text(b"x")
    guest.instance.memory.write(64, struct.pack("<II", at, length))
    assert guest.call("fd_pwrite", fd, 64, 1, 0, 96) == abi.ENOSPC


def test_emptying_without_the_right_to_write_gives_back_as_well(limited: Making) -> None:
    """wasmtime opens such a file for writing, whatever the rights say."""
    guest = limited()
    guest.make("a", b"x" * 10 * KB)
    guest.changes.clear()
    assert guest.open("a", abi.O_TRUNC, rights=2)[0] == abi.SUCCESS
    assert (total(guest), guest.told[1]) == (0, {"a"})
    assert written(guest, opened(guest, "b"), 10 * KB) == 10 * KB


def test_a_file_with_two_names_counts_once_and_until_both_are_gone(limited: Making) -> None:
    guest = limited()
    guest.make("a", b"x" * 8 * KB)
    assert guest.link("a", "b") == abi.SUCCESS
    guest.one_path("path_unlink_file", "a")
    fd = opened(guest, "c")
    assert written(guest, fd, 8 * KB) == 2 * KB
    guest.one_path("path_unlink_file", "b")
    assert written(guest, fd, 9 * KB) == 8 * KB


def test_renaming_one_name_of_a_file_over_another_changes_nothing(limited: Making) -> None:
    guest = limited()
    guest.make("a", b"x" * 8 * KB)
    guest.link("a", "b")
    guest.changes.clear()
    assert guest.rename("a", "b") == abi.SUCCESS
    assert guest.told == (set(), set(), set())
    assert written(guest, opened(guest, "c"), 8 * KB) == 2 * KB


def test_a_call_that_fails_costs_nothing_and_a_folder_is_a_name(limited: Making) -> None:
    guest = limited(files=2)
    (guest.app / "d").mkdir()
    for _ in range(10):
        assert guest.one_path("path_create_directory", "d") != abi.SUCCESS
        assert guest.open("no/such", abi.O_CREAT)[0] != abi.SUCCESS
        assert guest.symlink("x", "d") != abi.SUCCESS
        assert guest.link("nothing", "y") != abi.SUCCESS
        assert guest.one_path("path_unlink_file", "nothing") != abi.SUCCESS
    assert guest.make("a") == abi.SUCCESS
    assert guest.one_path("path_create_directory", "e") == abi.ENOSPC


def test_files_that_move_in_from_a_mount_must_fit(limited: Making, tmp_path: Path) -> None:
    guest = limited()
    folder = tmp_path / "other" / "d"
    folder.mkdir()
    (folder / "big").write_bytes(bytes(11 * KB))

    assert guest.rename("d", "d", fd=OTHER) == abi.ENOSPC
    (folder / "big").write_bytes(bytes(9 * KB))
    assert guest.rename("d", "d", fd=OTHER) == abi.SUCCESS
    assert written(guest, opened(guest, "a"), 2 * KB) == KB
    assert guest.rename("d", "d", to=OTHER) == abi.SUCCESS
    assert written(guest, opened(guest, "b"), 10 * KB) == 9 * KB


def test_a_mount_has_no_quota(limited: Making) -> None:
    guest = limited(size=0, files=0)
    assert written(guest, opened(guest, "a", fd=OTHER), 20 * KB) == 20 * KB


def test_a_renumbered_file_is_still_counted(limited: Making) -> None:
    guest = limited()
    one, two = opened(guest, "a"), opened(guest, "b")
    for new in (one, two):
        assert guest.call("fd_renumber", one, new) == abi.SUCCESS
    assert written(guest, two, 11 * KB) == 10 * KB
    assert (guest.app / "a").stat().st_size == 10 * KB
    assert guest.told[1] == {"a"}
    assert written(guest, one, 1) == -abi.EBADF


@pytest.mark.parametrize("fixed", [0, 1, 2, APP, OTHER])
def test_the_guests_folders_and_streams_are_not_renumbered(guest: Guest, fixed: int) -> None:
    """Otherwise the host's record of a descriptor would be wrong."""
    fd = opened(guest, "a")
    assert guest.call("fd_renumber", fixed, fd) == abi.EBADF
    assert guest.call("fd_renumber", fd, fixed) == abi.EBADF
