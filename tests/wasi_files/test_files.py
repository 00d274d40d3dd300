"""The guest's view of the disk: hidden names, read-only folders, mounts, descriptors, and the files
that a cell created, changed and deleted by its own calls.
"""

from __future__ import annotations

import os
import select
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engine.tiny import APP, OTHER, READ_ONLY, RIGHTS, ROOT, Guest, entries_of
from tests.wasi_files.overlays import Overlaid
from wasm_kernel.engine import abi
from wasm_kernel.linux import trees
from wasm_kernel.linux.folders import Folder, closing_fd
from wasm_kernel.linux.walks import WalkEntry
from wasm_kernel.wasi_files import changes, listing
from wasm_kernel.wasi_files.listing import FolderEntry, Listing
from wasm_kernel.wasi_files.preopens import Preopen, visible


@pytest.mark.parametrize(
    ("path", "errno"),
    [
        (b"a\0b", abi.EINVAL),
        (b"\xff\xfe", abi.EILSEQ),
        (b"x" * (abi.PATH_MAX + 1), abi.ENAMETOOLONG),
    ],
)
def test_an_impossible_path_is_refused(guest: Guest, path: bytes, errno: int) -> None:
    assert guest.stat(path) == errno


def test_another_file_in_the_place_of_the_null_device_is_not_written(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device := guest.app.with_name("root") / "dev" / "null").parent.mkdir(parents=True)
    device.touch()
    assert guest.write(guest.open("dev/null", fd=ROOT)[1], b"x") == abi.SUCCESS
    planted = guest.app / "null"
    planted.touch()
    monkeypatch.setattr(os, "devnull", str(planted))
    assert guest.open("dev/null", fd=ROOT)[0] == abi.ENOTSUP
    assert planted.read_bytes() == b""


def test_a_pipe_is_not_opened_even_for_a_moment(guest: Guest) -> None:
    """The pipe's reader would take the guest for a writer that came and left."""
    os.mkfifo(guest.app / "pipe")
    with closing_fd(os.open(guest.app / "pipe", os.O_RDONLY | os.O_NONBLOCK)) as reader:
        assert guest.open("pipe")[0] == abi.ENOTSUP
        there = select.poll()
        there.register(reader)
        assert there.poll(0) == []


def test_short_buffers_and_wrong_descriptors_and_addresses_are_told(guest: Guest) -> None:
    guest.symlink("target", "link")
    assert guest.call("path_readlink", APP, *guest.text("link"), 65_536, 4, 64) == abi.SUCCESS
    assert guest.answer(64) == b"targ"
    assert guest.open("x", fd=77)[0] == abi.EBADF
    assert guest.call("path_unlink_file", APP, 0xFFFFFF00, 16) == abi.EFAULT
    _, fd = guest.open("a", abi.O_CREAT)
    assert guest.stat("b", fd=fd) == abi.ENOTDIR


def test_a_closed_file_gives_its_place_back(tmp_path: Path) -> None:
    guest = Guest(tmp_path, open_files=1)
    try:
        assert [guest.make(name) for name in "abc"] == [0, 0, 0]
    finally:
        guest.close()


@pytest.mark.parametrize("fd", [0, 1, 2])
def test_the_streams_survive_a_close(guest: Guest, fd: int) -> None:
    assert guest.call("fd_close", fd) == abi.SUCCESS
    guest.write(1, b"still here")
    guest.streams.flush()
    assert guest.said == [("stdout", "still here")]


def test_a_path_leads_on_above_its_folder_as_an_absolute_one_does(tmp_path: Path) -> None:
    for name in ("data", "deep"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").touch()
        (tmp_path / name / "up").symlink_to("../data/up")
    (tmp_path / "data" / "out").symlink_to("../srv/deep/f")
    mounts = (("data", "/data"), ("deep", "/srv/deep"))
    opened = tuple(Preopen(Folder.open(tmp_path / name), guest) for name, guest in mounts)
    guest = Guest(tmp_path, mounts=opened)
    try:
        guest.one_path("path_create_directory", "sub")
        inner = guest.open("sub", abi.O_DIRECTORY)[1]
        for path in ("../data/f", "../../data/f", "sub/../.././data/f", "../data/../srv/deep/f"):
            assert guest.stat(path) == abi.SUCCESS, path
        assert guest.stat("srv/deep/../../data/f", fd=ROOT) == abi.SUCCESS
        assert guest.stat("../" * 1360 + "data/f") == abi.SUCCESS
        assert guest.stat("../data/" * 500 + "f") == abi.SUCCESS
        for path in ("..", "../", "../..", "../data/..", "../app", "../app/sub/../../app/sub/"):
            assert guest.stat(path) == abi.SUCCESS, path
        assert guest.names(guest.open("..", abi.O_DIRECTORY)[1]) == ["data"]
        assert guest.open("../new", abi.O_CREAT)[0] == abi.EPERM
        for path in ("../none", "../data/../f", "../data/f/", "../srv", "../../app/../app/f"):
            assert guest.stat(path) in (abi.ENOENT, abi.ENOTDIR), path
        for path in ("../data/out", "../data/up", "../srv/deep/up/"):
            assert guest.stat(path) == abi.ENOENT, path
        assert guest.stat("../../data/f", fd=inner) == abi.ENOENT  # it may have been moved
        assert guest.open("../data/new", abi.O_CREAT)[0] == abi.EPERM
    finally:
        guest.close()


def deep(guest: Guest, name: str, levels: int, fd: int = APP) -> int:
    """Folders of one name inside each other; the descriptor of the innermost."""
    for _ in range(levels):
        assert guest.one_path("path_create_directory", name, fd=fd) == abi.SUCCESS
        outer = fd
        errno, fd = guest.open(name, abi.O_DIRECTORY, fd=outer)
        assert errno == abi.SUCCESS
        guest.call("fd_close", outer)
    return fd


def test_folders_do_not_nest_deeper_than_the_host_can_look(guest: Guest) -> None:
    fd = deep(guest, "L" * 200, (abi.PATH_MAX - 1) // 201)
    assert guest.one_path("path_create_directory", "L" * 200, fd=fd) == abi.ENAMETOOLONG
    assert guest.open("L" * 200, abi.O_CREAT, fd=fd)[0] == abi.ENAMETOOLONG
    assert guest.symlink("x", "L" * 200, fd=fd) == abi.ENAMETOOLONG
    one, two = deep(guest, "a" * 200, 11), deep(guest, "b" * 200, 11)
    assert guest.open("file", abi.O_CREAT, fd=two)[0] == abi.SUCCESS
    assert guest.rename("b" * 200, "in", to=one) == abi.ENAMETOOLONG
    assert guest.stat("/".join(["b" * 200] * 11)) == abi.SUCCESS


def test_an_interrupt_ends_the_look_at_a_renamed_folder(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "other" / "big").mkdir()
    for number in range(300):
        (tmp_path / "other" / "big" / f"{number}").touch()
    guest.is_to_stop = True
    assert guest.rename("big", "new", fd=OTHER, to=OTHER) == abi.EINTR
    assert (tmp_path / "other" / "big" / "0").exists()


def test_many_levels_are_fine(guest: Guest) -> None:
    assert guest.open("end", abi.O_CREAT, fd=deep(guest, "d", 1100))[0] == abi.SUCCESS
    path = "/".join(["d"] * 1100) + "/end"
    assert guest.stat(path) == abi.SUCCESS
    assert guest.rename("d", "e") == abi.SUCCESS
    assert guest.told[0] == {"e" + path[1:]}
    trees.remove_tree(guest.app / "e")  # pytest's removal of folders gives up at 1,000 levels


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("how", [0, abi.O_TRUNC, abi.O_CREAT])
@pytest.mark.parametrize(
    ("folder", "left"), [(APP, 0o644), (OTHER, 0o755)], ids=["session", "mount"]
)
def test_files_that_the_guest_can_write_to_run_with_no_other_rights(
    guest: Guest, how: int, folder: int, left: int
) -> None:
    path = guest.app.parent / {APP: "app", OTHER: "other"}[folder] / "tool"
    path.write_text("host's")
    path.chmod(0o6755)
    assert guest.open("tool", how, fd=folder)[0] == abi.SUCCESS
    assert mode(path) == left


def test_reading_leaves_a_files_mode_alone(guest: Guest) -> None:
    (guest.app / "tool").touch()
    (guest.app / "tool").chmod(0o4755)
    assert guest.open("tool", rights=2)[0] == abi.SUCCESS
    assert mode(guest.app / "tool") == 0o4755


def test_files_are_told_as_they_come_and_go(guest: Guest) -> None:
    guest.open("a", abi.O_CREAT, fd=OTHER)
    assert guest.told == (set(), set(), set())
    guest.rename("a", "a", fd=OTHER)
    assert guest.told[0] == {"a"}
    _, fd = guest.open("a")
    guest.changes.clear()
    assert guest.rename("a", "b", to=OTHER) == abi.SUCCESS
    guest.write(fd, b"x")
    assert guest.told == (set(), set(), {"a"})


def test_writing_modifies_all_names_that_a_file_has_left(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    guest.link("a", "b")
    (guest.app.parent / "other" / "c").hardlink_to(guest.app / "a")
    _, earlier = guest.open("a")
    for fd in (earlier, guest.open("c", fd=OTHER)[1]):
        guest.changes.clear()
        guest.write(fd, b"y")
        assert guest.told == (set(), {"a", "b"}, set())
    guest.changes.clear()
    guest.one_path("path_unlink_file", "a")
    guest.write(earlier, b"y")
    assert guest.told == (set(), {"b"}, {"a"})


def test_a_file_that_vanishes_does_not_end_the_search_for_other_names(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    (guest.app / "gone").touch()
    (guest.app / "a").write_text("x")
    (guest.app / "folder").mkdir()
    (guest.app / "folder" / "b").hardlink_to(guest.app / "a")

    def vanishing(preopen: Preopen) -> Iterator[WalkEntry]:
        for entry in visible(preopen):
            (guest.app / "gone").unlink(missing_ok=True)
            yield entry

    monkeypatch.setattr(changes, "visible", vanishing)
    guest.write(guest.open("a")[1], b"y")
    assert guest.told == (set(), {"a", "folder/b"}, set())


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


OK, CREAT, DIRECTORY = abi.SUCCESS, abi.O_CREAT, abi.O_DIRECTORY
READ, WRITE = 2, abi.RIGHT_WRITE


def opened(guest: Guest, path: str, how: int = 0, rights: int = READ) -> int:
    errno, fd = guest.open(path, how, follow=0, rights=rights)
    assert errno == OK
    return fd


def read(guest: Guest, fd: int) -> int:
    guest.instance.memory.write(64, struct.pack("<II", 65_536, 10))
    return guest.call("fd_read", fd, 64, 1, 96)


def test_p1_dir_fd_op_failures(guest: Guest) -> None:
    for fd in (APP, opened(guest, ".", DIRECTORY)):
        call = guest.call
        assert call("fd_filestat_get", fd, 256) == OK
        assert guest.instance.memory.read(256 + 16, 1) == b"\x03"
        assert read(guest, fd) == abi.EBADF
        assert guest.write(fd, b"x") == abi.EBADF
        guest.instance.memory.write(64, struct.pack("<II", *guest.text(b"x")))
        assert call("fd_pread", fd, 64, 1, 0, 96) == abi.EBADF
        assert call("fd_pwrite", fd, 64, 1, 0, 96) == abi.EBADF
        assert [call("fd_seek", fd, 0, whence, 96) for whence in range(3)] == [abi.EBADF] * 3
        assert call("fd_tell", fd, 96) == abi.EBADF
        assert call("fd_advise", fd, 0, 0, 4) == abi.EBADF
        assert call("fd_allocate", fd, 0, 0) == abi.EBADF
        assert call("fd_sync", fd) == abi.EBADF
        assert call("fd_datasync", fd) == abi.EBADF
        assert call("fd_fdstat_set_flags", fd, 4) == abi.EBADF
        assert call("fd_filestat_set_size", fd, 0) == abi.EBADF


def test_p1_fd_flags_set(guest: Guest) -> None:
    """Appending can be turned on and off: a write at a position then is one at the end, or not."""
    fd = opened(guest, "f", CREAT, READ | WRITE)
    put, call = guest.write, guest.call
    assert put(fd, b"0123456789") == OK
    for flag, expected in ((1, b"0123456789x"), (0, b"x123456789x")):
        assert call("fd_fdstat_set_flags", fd, flag) == OK
        assert call("fd_seek", fd, 0, 0, 96) == OK
        assert put(fd, b"x") == OK
        assert (guest.app / "f").read_bytes() == expected
    assert call("fd_fdstat_set_flags", fd, 16) == abi.EINVAL  # SYNC


def test_p1_path_open_read_write(guest: Guest) -> None:
    guest.make("file")
    reading, writing = opened(guest, "file", 0, READ), opened(guest, "file", 0, WRITE)
    assert guest.write(reading, b"x") in (abi.EPERM, abi.EBADF, abi.EACCES)
    assert read(guest, writing) in (abi.EPERM, abi.EBADF, abi.EACCES)
    assert guest.told[1] == set()
    assert guest.write(writing, b"x") == OK
    assert read(guest, reading) == OK


@pytest.mark.parametrize("links", [39, 40, 41, 80])
def test_cap_std_a_chain_of_links_is_followed_as_by_the_system(guest: Guest, links: int) -> None:
    """The guest gets the system's limit: giving up before or after it would be wrong."""
    guest.make("0")
    for i in range(links):
        assert guest.symlink(str(i), str(i + 1)) == OK
    try:
        (guest.app / str(links)).stat()
        expected = OK
    except OSError:
        expected = abi.ELOOP
    assert guest.open(str(links), rights=READ)[0] == expected


def test_cap_std_up_from_an_open_folder_is_nowhere(guest: Guest) -> None:
    (guest.app / "a" / "b").mkdir(parents=True)
    for path in ("file", "a/file", "a/b/file"):
        guest.make(path)
    fd = opened(guest, "a/b", DIRECTORY)
    for path in ("..", "../file", "../../file", "../b/file", "x/../../file"):
        assert guest.open(path, fd=fd, follow=0, rights=READ)[0] in (abi.EPERM, abi.ENOENT)


def test_p1_file_truncation_readonly(guest: Guest) -> None:
    path = guest.app.parent / "ro" / "f"
    path.write_text("content")
    assert guest.open("f", abi.O_TRUNC, fd=READ_ONLY, follow=0, rights=READ)[0] == abi.EPERM
    assert path.read_text() == "content"
