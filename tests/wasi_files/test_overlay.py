"""The notebook's folder beneath the workspace: some files show through, and it never changes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny import OTHER, RIGHTS, ROOT
from tests.faces import host_tree
from tests.sampled import lasting
from tests.wasi_files.overlays import NEW, READ, WRITE, Overlaid
from wasm_kernel.engine import abi
from wasm_kernel.engine.clock import Clock
from wasm_kernel.linux.files import FileCopier

SECRET = b"secret of the host"
NOTHING = abi.ENOENT


Over = Callable[..., Overlaid]


@pytest.fixture
def over(tmp_path: Path) -> Iterator[Over]:
    """Makes overlays, and closes them after the test."""
    with contextlib.ExitStack() as made:

        def one(lower: Path | None = None, **limits: Any) -> Overlaid:
            return made.enter_context(contextlib.closing(Overlaid(tmp_path, lower, **limits)))

        yield one


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Overlaid]:
    """An overlay over a folder with a table, a module and data."""
    lower = tmp_path / "lower"
    (lower / "data" / "deep").mkdir(parents=True)
    (lower / "orders.csv").write_bytes(b"a,b\n1,2\n")
    (lower / "helper.py").write_bytes(b"x = 1\n")
    (lower / "data" / "x.csv").write_bytes(b"x\n")
    (lower / "data" / "deep" / "y.csv").write_bytes(b"y\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_bytes(SECRET)
    made = Overlaid(tmp_path)
    before = host_tree(lower)
    yield made
    made.close()
    assert host_tree(lower) == before


def covers(real: Overlaid) -> list[str]:
    return sorted(str(each.relative_to(real.app)) for each in real.app.rglob(".wh.*"))


def test_a_file_is_copied_when_it_is_opened_to_be_written_to(real: Overlaid) -> None:
    before = (real.lower / "orders.csv").stat()
    errno, fd = real.open("orders.csv", 0, READ | WRITE)
    assert errno == abi.SUCCESS
    copy = (real.app / "orders.csv").stat()
    assert (copy.st_mtime_ns, copy.st_size) == (before.st_mtime_ns, before.st_size)
    assert real.guest.write(fd, b"A") == abi.SUCCESS
    assert real.read("orders.csv") == b"A,b\n1,2\n"
    assert not list(real.app.rglob("*part*"))


def test_a_file_that_is_cut_at_once_is_not_copied_first(tmp_path: Path, over: Over) -> None:
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower" / "big").write_bytes(bytes(100_000))
    real = over(workspace_bytes=1000)
    assert real.write("big", b"x", 0) == abi.ENOSPC
    assert list(real.app.iterdir()) == []
    assert real.write("big", b"small", NEW) == abi.SUCCESS
    assert real.read("big") == b"small"


def test_holes_stay_holes_and_count_with_their_length(tmp_path: Path, over: Over) -> None:
    (tmp_path / "lower").mkdir()
    with (tmp_path / "lower" / "sparse").open("wb") as file:
        file.truncate(40 * 1024 * 1024)
    real = over(workspace_bytes=50 * 1024 * 1024)
    assert real.write("sparse", b"x", 0) == abi.SUCCESS
    assert (real.app / "sparse").stat().st_blocks * 512 < 1024 * 1024
    assert real.write("other", bytes(1000)) == abi.SUCCESS
    real.guest.files.quota.begin_turn()
    shutil.copy(tmp_path / "lower" / "sparse", tmp_path / "lower" / "again")
    assert real.write("again", b"x", 0) == abi.ENOSPC


def test_an_interrupt_ends_a_copy_and_a_listing(real: Overlaid) -> None:
    _, few = real.open("data", abi.O_DIRECTORY)
    _, many = real.open(".", abi.O_DIRECTORY)
    for number in range(300):
        (real.app / f"{number}").touch()
    real.guest.is_to_stop = True
    assert real.write("orders.csv", b"x", 0) == abi.EINTR
    assert real.guest.read_folder(many, 4096)[0] == abi.EINTR
    assert real.guest.read_folder(few, 4096)[0] == abi.SUCCESS  # imports that go on list folders
    assert {path.name for path in real.app.iterdir()} == {f"{number}" for number in range(300)}


def test_a_folder_that_no_user_may_write_to(real: Overlaid) -> None:
    for path in (real.lower, real.lower / "data", real.lower / "data" / "x.csv"):
        path.chmod(path.stat().st_mode & 0o555)
    try:
        assert real.write("data/x.csv", b"new") == abi.SUCCESS
        assert real.write("data/y.csv", b"new") == abi.SUCCESS
        assert real.rename("orders.csv", "data/o.csv") == abi.SUCCESS
        assert real.names("data") == ["deep", "o.csv", "x.csv", "y.csv"]
        assert os.access(real.app / "data" / "x.csv", os.W_OK)
    finally:
        for path in (real.lower, real.lower / "data", real.lower / "data" / "x.csv"):
            path.chmod(path.stat().st_mode | 0o200)


def test_an_open_reader_goes_on_reading_the_file_beneath(real: Overlaid) -> None:
    _, fd = real.open("orders.csv")
    assert real.write("orders.csv", b"new") == abi.SUCCESS
    assert real.read_open(fd) == b"a,b\n1,2\n"
    assert real.read("orders.csv") == b"new"


def test_covers_are_not_files_of_the_session(real: Overlaid) -> None:
    real.guest.changes.clear()
    assert real.call("path_unlink_file", "orders.csv") == abi.SUCCESS
    assert real.guest.told == (set(), set(), set())
    assert real.stat(".wh.orders.csv") == NOTHING
    assert real.write(".wh.helper.py", b"") == NOTHING
    assert real.write("data/.wh.x.csv", b"") == NOTHING
    assert real.rename("helper.py", ".wh.a") == NOTHING


def test_folder_that_lies_beneath_is_neither_renamed_nor_removed_as_a_file(real: Overlaid) -> None:
    """Programs copy its files then, as from one disk to another."""
    assert real.call("path_unlink_file", "data") == abi.EISDIR
    assert real.call("path_remove_directory", "orders.csv") == abi.ENOTDIR
    assert real.rename("data", "other") == abi.EXDEV
    assert real.write("data/new", b"n") == abi.SUCCESS
    assert real.rename("data", "other") == abi.EXDEV
    assert real.call("path_create_directory", "own") == abi.SUCCESS
    assert real.rename("own", "data") == abi.ENOTEMPTY
    for name in ("data/new", "data/x.csv", "data/deep/y.csv"):
        assert real.call("path_unlink_file", name) == abi.SUCCESS
    assert real.call("path_remove_directory", "data/deep") == abi.SUCCESS
    assert (real.rename("own", "data"), real.names("data")) == (abi.SUCCESS, [])


def test_times_are_set_on_a_copy(real: Overlaid) -> None:
    at = real.guest.text("notebook/orders.csv")
    assert real.guest.call("path_filestat_set_times", ROOT, 1, *at, 5, 7, 5) == abi.SUCCESS
    assert (real.app / "orders.csv").stat().st_mtime_ns == 7
    errno, fd = real.open("data", abi.O_DIRECTORY)
    assert errno == abi.SUCCESS
    assert real.guest.call("fd_filestat_set_times", fd, 5, 7, 5) == abi.EPERM


def test_hidden_names_are_not_there(real: Overlaid) -> None:
    # made by others while the guest runs, as by git or an editor
    names = [".env", ".git", "\u2024git", "\u200c.git", "GIT~1", "a~1.txt", "\uff0eenv"]
    for name in names:
        (real.lower / name).write_bytes(SECRET)
    try:
        for name in names:
            assert (name, real.read(name)) == (name, NOTHING)
            assert (name, real.stat(name)) == (name, NOTHING)
        assert real.names() == ["data", "helper.py", "orders.csv"]
        assert real.call("path_unlink_file", ".env") == NOTHING
        assert real.rename(".env", "env") == NOTHING
        assert real.link(".env", "env") == NOTHING
        assert real.write(".env", b"mine") == abi.SUCCESS
        assert real.read(".env") == b"mine"
        assert real.call("path_create_directory", ".git") == abi.SUCCESS
        assert real.names(".git") == []
    finally:
        for name in names:
            (real.lower / name).unlink()


def test_special_files_are_not_there(tmp_path: Path) -> None:
    lower = tmp_path / "lower"
    lower.mkdir()
    os.mkfifo(lower / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        with contextlib.chdir(lower):  # a socket's path is short
            listening.bind("socket")
        (lower / "device").symlink_to("/dev/zero")
        real = Overlaid(tmp_path)
        try:
            for name in ("fifo", "socket", "device"):
                assert (name, real.read(name)) == (name, NOTHING)
                assert (name, real.stat(name, follow=0)) == (name, NOTHING)
                assert real.write(name, b"mine") == abi.SUCCESS
            assert real.names() == ["device", "fifo", "socket"]
        finally:
            real.close()


def test_links_are_there_if_they_end_inside(tmp_path: Path, over: Over) -> None:
    lower = tmp_path / "lower"
    (lower / "data").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_bytes(SECRET)
    (lower / "data" / "x.csv").write_bytes(b"x")
    (lower / ".hidden").write_bytes(SECRET)
    good = {"file": "data/x.csv", "folder": "data", "data/up": "../data/x.csv", "chain": "file"}
    bad = {
        "out": "../outside/key",
        "outer": "../outside",
        "absolute": str(tmp_path / "outside" / "key"),
        "inside": str(lower / "data" / "x.csv"),
        "dots": "data/../../outside/key",
        "hidden": ".hidden",
        "ring": "ring",
        "nowhere": "nothing",
        "data/out": "../../outside",
        "through": "outer/key",
    }
    for name, target in {**good, **bad}.items():
        (lower / name).symlink_to(target)
    before = host_tree(lower)
    real = over()
    for name in bad:
        assert (name, real.stat(name, follow=0)) == (name, NOTHING)
        found = real.read(name)
        assert isinstance(found, int), (name, found)
    assert isinstance(real.read("outer/key"), int)
    assert real.read("file") == real.read("data/up") == real.read("chain") == b"x"
    assert real.names() == ["chain", "data", "file", "folder"]
    assert real.names("data") == ["up", "x.csv"]
    assert real.names("folder") == ["up", "x.csv"]
    assert real.write("folder/x.csv", b"new") == abi.SUCCESS
    assert real.read("file") == b"new"
    assert real.call("path_unlink_file", "file") == abi.SUCCESS
    assert real.stat("file", follow=0) == NOTHING
    assert real.write("out", b"mine") == abi.SUCCESS
    assert host_tree(lower) == before
    assert (tmp_path / "outside" / "key").read_bytes() == SECRET


def test_links_of_the_guest_end_inside(real: Overlaid) -> None:
    assert real.symlink("orders.csv", "own") == abi.SUCCESS
    assert real.read("own") == b"a,b\n1,2\n"
    assert real.symlink("../../outside/key", "data/out") == abi.SUCCESS
    assert isinstance(real.read("data/out"), int)
    (real.app / "planted").symlink_to(real.lower.parent / "outside")
    assert isinstance(real.read("planted/key"), int)


def test_a_folder_changes_when_either_layer_does(real: Overlaid) -> None:
    def changed() -> int:
        assert real.stat(".") == abi.SUCCESS
        return int.from_bytes(real.guest.instance.memory.read(64 + 48, 8), "little")

    first = changed()
    time.sleep(0.02)
    (real.lower / "later.py").write_text("")
    second = changed()
    (real.lower / "later.py").unlink()
    assert first < second
    time.sleep(0.02)
    assert real.write("mine", b"") == abi.SUCCESS
    assert changed() > second


def test_the_folder_may_be_renamed_while_the_guest_runs(tmp_path: Path, over: Over) -> None:
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower" / "a").write_bytes(b"1")
    real = over()
    (tmp_path / "lower").rename(tmp_path / "elsewhere")
    (tmp_path / "lower").symlink_to("/etc")
    assert real.names() == ["a"]
    assert real.read("a") == b"1"
    assert real.write("b", b"2") == abi.SUCCESS
    assert not (tmp_path / "elsewhere" / "b").exists()


def test_the_folder_may_be_deleted_while_the_guest_runs(tmp_path: Path, over: Over) -> None:
    (tmp_path / "lower" / "d").mkdir(parents=True)
    (tmp_path / "lower" / "d" / "a").write_bytes(b"1")
    real = over()
    shutil.rmtree(tmp_path / "lower")
    assert real.names() == []
    assert real.write("d", b"2") == abi.SUCCESS
    assert real.names() == ["d"]


def test_a_folder_on_another_disk(over: Over, other_disk: Path) -> None:
    (other_disk / "a").write_bytes(b"1" * 100_000)
    (other_disk / "d").mkdir()
    real = over(other_disk)
    assert real.write("a", b"2", 0) == abi.SUCCESS
    assert (real.app / "a").read_bytes() == b"2" + b"1" * 99_999
    assert real.rename("a", "d/b") == abi.SUCCESS
    assert real.names() == ["d"]
    assert real.link("d/b", "c") == abi.SUCCESS
    assert (other_disk / "a").read_bytes() == b"1" * 100_000
    assert list((other_disk / "d").iterdir()) == []


def test_the_files_limit_holds_for_covers(tmp_path: Path, over: Over) -> None:
    lower = tmp_path / "lower"
    lower.mkdir()
    for number in range(20):
        (lower / f"f{number}").touch()
    real = over(workspace_files=10)
    errors = [real.call("path_unlink_file", f"f{number}") for number in range(20)]
    assert errors == [abi.SUCCESS] * 10 + [abi.ENOSPC] * 10
    names = real.names()
    assert isinstance(names, list)
    assert len(names) == 10


def swaps(lower: Path, outside: Path, stop: threading.Event) -> None:
    """Another process's changes to the folder: files, folders and links swap places."""
    turn = 0
    while not stop.is_set():
        turn += 1
        for name, target in (("x", outside / "key"), ("d", outside)):
            place, aside = lower / name, lower.parent / f"aside-{name}"
            try:
                place.rename(aside)
                place.symlink_to(target)
                place.replace(lower.parent / "gone")
                aside.rename(place)
            except OSError:
                continue


@pytest.mark.parametrize("tries", [range(100), pytest.param(lasting(), marks=pytest.mark.soak)])
def test_races_lead_nowhere(tmp_path: Path, tries: Iterable[int]) -> None:
    lower, outside = tmp_path / "lower", tmp_path / "outside"
    (lower / "d").mkdir(parents=True)
    outside.mkdir()
    (outside / "key").write_bytes(SECRET)
    (lower / "x").write_bytes(b"x")
    (lower / "d" / "key").write_bytes(b"inner")
    real = Overlaid(tmp_path)
    stop = threading.Event()
    thread = threading.Thread(target=swaps, args=(lower, outside, stop))
    thread.start()
    try:
        for turn in tries:
            for path in ("x", "d/key"):
                found = real.read(path)
                assert isinstance(found, int) or found in (b"x", b"inner"), found
            with contextlib.suppress(AssertionError):  # the file may go between two calls
                real.names("d")
            if turn % 10 == 0:
                real.write("d/key", b"inner", 0)
                real.guest.one_path("path_unlink_file", "d/key")
                real.call("path_unlink_file", "x")
                real.guest.one_path("path_unlink_file", ".wh.x")
    finally:
        stop.set()
        thread.join()
        real.close()
    assert [path.name for path in outside.iterdir()] == ["key"]
    assert (outside / "key").read_bytes() == SECRET
    for place in real.app.rglob("*"):
        assert not place.is_file() or place.read_bytes() != SECRET


@pytest.mark.parametrize("by_overlay", [False, True], ids=["in the workspace", "by the overlay"])
def test_an_open_folder_beneath_is_not_one_that_moves(real: Overlaid, by_overlay: bool) -> None:
    # the descriptors were opened when there were no such folders in the workspace
    errno, fd = real.open("data", abi.O_DIRECTORY, RIGHTS & ~0x42)
    _, deep = real.open("data/deep", abi.O_DIRECTORY, RIGHTS & ~0x42)
    assert errno == abi.SUCCESS
    if not by_overlay:
        assert real.guest.one_path("path_create_directory", "data") == abi.SUCCESS
        assert real.guest.one_path("path_create_directory", "data/deep") == abi.SUCCESS
        assert real.guest.rename("data", "e") == abi.SUCCESS
    else:
        for name in ("data/deep/y.csv", "data/x.csv"):
            assert real.call("path_unlink_file", name) == abi.SUCCESS
        for name in ("data/deep", "data"):
            assert real.call("path_remove_directory", name) == abi.SUCCESS
        for name in ("data", "data/deep"):
            assert real.call("path_create_directory", name) == abi.SUCCESS
        assert real.guest.rename("notebook/data", "moved", fd=ROOT, to=OTHER) == abi.SUCCESS
    (real.lower / "data" / ".env").write_bytes(SECRET)
    try:
        for each in (fd, deep):
            assert real.guest.open("../.env", 0, fd=each)[0] != abi.SUCCESS
            assert real.guest.open(".env", 0, fd=each)[0] != abi.SUCCESS
            real.guest.open("planted", NEW, fd=each)
            real.guest.one_path("path_unlink_file", "x.csv", fd=each)
            real.guest.one_path("path_unlink_file", "y.csv", fd=each)
        assert not (real.lower / "data" / "planted").exists()
    finally:
        (real.lower / "data" / ".env").unlink()


def test_links_that_take_long_to_follow_do_not_block(
    tmp_path: Path, over: Over, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower, way = tmp_path / "lower", "d/../" * 300
    (lower / "d").mkdir(parents=True)
    (lower / "end").write_bytes(b"x")
    for number in range(38):
        (lower / f"l{number}").symlink_to(f"{way}l{number + 1}")
    (lower / "l38").symlink_to("end")
    (lower / "out").mkdir()
    (lower / "out" / "link").symlink_to("../../outside")
    real = over()
    began = time.process_time()
    assert real.read("l0") == b"x"
    assert time.process_time() - began < 2  # each link is followed twice, not once per link
    _, fd = real.open("out", abi.O_DIRECTORY, RIGHTS & ~0x42)
    assert real.guest.read_folder(fd, 4096)[0] == abi.SUCCESS
    monkeypatch.setattr(Clock, "interrupted", property(lambda _: True))
    assert real.guest.read_folder(fd, 4096)[0] == abi.EINTR  # also if there are no entries
    assert real.call("path_remove_directory", "out") == abi.EINTR


def test_file_that_a_copy_replaces_counts_as_long_as_it_is_open(tmp_path: Path, over: Over) -> None:
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower" / "small").write_bytes(b"x")
    real = over(workspace_bytes=1000)
    errno, fd = real.guest.open(".wh..wh.part", abi.O_CREAT)
    assert errno == abi.SUCCESS
    assert real.guest.write(fd, bytes(900)) == abi.SUCCESS
    assert real.write("small", b"y", 0) == abi.SUCCESS
    assert not (real.app / ".wh..wh.part").exists()
    assert real.guest.make("more", b"") == abi.SUCCESS
    errno, other = real.guest.open("more")
    assert errno == abi.SUCCESS
    assert real.guest.call("fd_filestat_set_size", other, 900) == abi.ENOSPC
    assert real.guest.call("fd_close", fd) == abi.SUCCESS
    assert real.guest.call("fd_filestat_set_size", other, 900) == abi.SUCCESS


def test_two_kernels_of_one_session_copy_in_one_folder(
    real: Overlaid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, found = FileCopier.copy, list[int]()

    def other() -> None:
        again = Overlaid(tmp_path)
        try:
            found.append(again.write("helper.py", b"y", 0))
            found.append(again.write("orders.csv", b"c", 0))
        finally:
            again.close()

    thread = threading.Thread(target=other)

    def copy(self: FileCopier, source: int, target: int, size: int) -> object:
        if not thread.ident:
            thread.start()
            thread.join()  # the other thread is faster
        return copied(self, source, target, size)

    monkeypatch.setattr(FileCopier, "copy", copy)
    assert real.write("orders.csv", b"b", 0) == abi.SUCCESS
    assert found == [abi.SUCCESS, abi.SUCCESS]
    assert real.read("orders.csv") == b"b,b\n1,2\n"
    assert real.read("helper.py") == b"y = 1\n"
    assert not list(real.app.rglob(".wh.*"))


def test_a_name_that_is_too_long_to_be_covered_stays(tmp_path: Path, over: Over) -> None:
    name = "n" * 252
    (tmp_path / "lower" / f"{name}d").mkdir(parents=True)
    (tmp_path / "lower" / name).write_bytes(b"x")
    real = over()
    assert real.rename(name, "short") == abi.ENAMETOOLONG
    assert real.call("path_unlink_file", name) == abi.ENAMETOOLONG
    assert real.call("path_remove_directory", f"{name}d") == abi.ENAMETOOLONG
    assert real.call("path_create_directory", "own") == abi.SUCCESS
    assert real.rename("own", f"{name}d") == abi.ENAMETOOLONG
    assert sorted(each.name for each in real.app.iterdir()) == ["own"]
    assert real.link(name, "short") == abi.SUCCESS
    assert real.write(name, b"y", 0) == abi.SUCCESS
    assert real.read("short") == real.read(name) == b"y"


def test_a_folder_with_the_name_of_a_cover_is_a_folder(real: Overlaid) -> None:
    for path in ("own", "own/.wh.x", "own/.wh.x/.wh.y", ".wh.helper.py"):
        assert real.guest.one_path("path_create_directory", path) == abi.SUCCESS
    assert real.guest.make("own/.wh.x/a", b"a") == abi.SUCCESS
    assert real.names("own") == [".wh.x"]
    assert real.read("helper.py") == b"x = 1\n"  # the name covers nothing
    assert real.call("path_unlink_file", "helper.py") == abi.EEXIST
    assert real.rename("helper.py", "other") == abi.EEXIST
    assert real.call("path_remove_directory", "own") == abi.ENOTEMPTY
    assert real.call("path_create_directory", ".wh.new") == NOTHING
    assert real.call("path_unlink_file", "own/.wh.x/a") == abi.SUCCESS
    for path in ("own/.wh.x/.wh.y", "own/.wh.x", "own", ".wh.helper.py"):
        assert real.call("path_remove_directory", path) == abi.SUCCESS
    assert list(real.app.iterdir()) == []
    assert real.call("path_unlink_file", "helper.py") == abi.SUCCESS
