"""Files in a folder are reached by name, never through a link; whole folders copied and removed."""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.faces import raising
from tests.nobody import as_nobody
from tests.tasks import cancelled_after
from wasm_kernel.linux import files, trees, walks
from wasm_kernel.linux.files import link_or_copy
from wasm_kernel.linux.folders import Folder, NotRegular, TooLong, open_folder
from wasm_kernel.linux.task import QUIET, Cancelled, Task
from wasm_kernel.linux.walks import FolderWalk, Lookup

DEEP = 300  # more folders than this process may have files open


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A folder to copy; `remove_tree` removes it, as pytest's own removal can't go so deep."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    yield tmp_path / "here"
    trees.remove_tree(tmp_path / "here")
    trees.remove_tree(tmp_path / "there")


@pytest.fixture
def there(here: Path) -> Path:
    return here.with_name("there")


def copied(here: Path, there: Path, task: Task = QUIET) -> dict[str, str]:
    with Folder.open(here) as source, Folder.open(there) as target:
        return trees.copy_tree(source.fd, target.fd, lambda name: False, task)


def down(folder: Path, levels: int) -> FolderWalk:
    """Enters this many folders, and makes the missing ones."""
    way = FolderWalk(folder)
    for _ in range(levels):
        try:
            way.enter("d")
        except FileNotFoundError:
            os.mkdir("d", dir_fd=way.fd)
            way.enter("d")
    return way


def test_a_copy_stops_in_a_file(here: Path, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "STEP", 4096)
    monkeypatch.setattr(files.FileCopier, "clone", lambda *files: False)
    (here / "large").write_bytes(b"x" * 16384)
    with pytest.raises(Cancelled):
        copied(here, there, cancelled_after(2))
    assert (there / "large").read_bytes().count(b"x") == 8192


def test_permissions_and_times_are_kept(here: Path, there: Path) -> None:
    (here / "tool").write_text("x")
    (here / "tool").chmod(0o4751)
    (here / "closed").mkdir()
    (here / "closed" / "inside").touch()
    os.mkfifo(here / "pipe")
    (here / "closed").chmod(0o500)
    os.utime(here / "tool", ns=(1, 2_000_000_003))
    copied(here, there)
    assert stat.S_IMODE((there / "tool").stat().st_mode) == 0o751  # the copy has no other owner
    assert (there / "tool").stat().st_mtime_ns == 2_000_000_003
    assert stat.S_IMODE((there / "closed").stat().st_mode) == 0o500
    assert (there / "closed" / "inside").exists()
    assert (there / "pipe").is_fifo()


def test_files_that_share_their_content_go_on_sharing_it(here: Path, there: Path) -> None:
    (here / "z").mkdir()
    (here / "a").write_text("one")
    (here / "z" / "b").hardlink_to(here / "a")
    (here / "c").hardlink_to(here / "a")
    copied(here, there)
    (there / "a").write_text("two")
    assert (there / "z" / "b").read_text() == (there / "c").read_text() == "two"
    assert (here / "a").read_text() == "one"


@pytest.mark.parametrize("has_ranges", [True, False])
def test_content_is_the_same_however_it_is_copied(
    here: Path, there: Path, has_ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "STEP", 1 << 20)
    monkeypatch.setattr(files.FileCopier, "clone", lambda *files: False)
    if not has_ranges:
        monkeypatch.setattr(os, "copy_file_range", raising(OSError(errno.ENOSYS, "no")))
    data = os.urandom(9 << 20)
    (here / "data").write_bytes(data)
    copied(here, there)
    assert (there / "data").read_bytes() == data


def test_a_very_deep_folder_is_copied_with_few_files_open(here: Path, there: Path) -> None:
    with down(here, DEEP) as way:
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=way.fd))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limits[0]), limits[1]))
    try:
        assert copied(here, there) == {}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with down(there, DEEP) as way, os.scandir(way.fd) as found:
        assert [each.name for each in found] == ["f"]


def test_two_may_empty_a_folder_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "folder").mkdir()
    for name in ("file", "folder/file"):
        (here / name).touch()
    unlink = os.unlink
    monkeypatch.setattr(
        os, "unlink", lambda name, **place: (unlink(name, **place), unlink(name, **place))
    )
    with Folder.open(here) as folder:
        trees.remove_contents(folder.fd)
    assert list(here.iterdir()) == []


def test_files_that_can_not_be_read_are_left_out_and_named(here: Path, there: Path) -> None:
    (here / "file").write_text("x")
    (here / "folder").mkdir()
    (here / "open").write_text("y")
    with as_nobody(here.parent):
        for name in ("file", "folder"):
            (here / name).chmod(0)
        left = copied(here, there)
    assert left == dict.fromkeys(("file", "folder"), "Permission denied")
    assert [path.name for path in there.iterdir()] == ["open"]


def test_a_walk_whose_way_is_gone_ends(here: Path) -> None:
    with down(here, 40) as way:
        here.joinpath(*["d"] * 24).rename(here.with_name("there") / "elsewhere")
        here.joinpath(*["d"] * 5).rename(here.with_name("there") / "further")
        with pytest.raises(OSError, match=r"moved|No such"):
            for _ in range(40):
                way.leave()


BLOCK = 10_000
ROUNDS = 3_000  # without a defence, some in a thousand fail


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_a_file_that_is_replaced_all_the_time_is_always_there(folder: int, tmp_path: Path) -> None:
    """For example an old commit, which a folded one replaces while a fork is made."""
    file, aside, target = (tmp_path / name for name in ("file", "aside", "target"))
    file.write_bytes(b"a" * BLOCK)
    done = threading.Event()

    def replace() -> None:
        number = 0
        while not done.is_set():
            number += 1
            aside.write_bytes(b"ab"[number % 2 : number % 2 + 1] * BLOCK)
            aside.replace(file)

    replacing = threading.Thread(target=replace)
    replacing.start()
    try:
        for _ in range(ROUNDS):
            link_or_copy(folder, "file", target)
            assert target.read_bytes() in (b"a" * BLOCK, b"b" * BLOCK)
            target.unlink()
    finally:
        done.set()
        replacing.join()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "key").write_text("secret")
    return folder


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    folder.mkdir()
    return folder


def test_a_file_is_replaced_as_a_whole_or_stays(inside: Path) -> None:
    with Folder.open(inside) as folder:
        with folder.replacing("head") as file:
            file.write(b"one")
        with pytest.raises(RuntimeError), folder.replacing("head") as file:
            file.write(b"half")
            raise RuntimeError
        assert folder.read("head", 10) == b"one"
        assert folder.names() == ["head"]


def test_special_files_are_refused_at_once(inside: Path, outside: Path) -> None:
    os.mkfifo(inside / "fifo")
    (inside / "link").symlink_to(outside / "key")
    (inside / "zero").symlink_to("/dev/zero")
    (inside / "folder").mkdir()
    with Folder.open(inside) as folder:
        for name in ("fifo", "link", "zero", "folder"):
            with pytest.raises(NotRegular):
                folder.read(name, 100)
        with pytest.raises(NotRegular):
            folder.open_regular("link", os.O_WRONLY | os.O_TRUNC)
    assert (outside / "key").read_text() == "secret"


def test_reading_is_bounded(inside: Path) -> None:
    os.truncate(os.open(inside / "huge", os.O_CREAT | os.O_WRONLY), 1 << 40)
    with Folder.open(inside) as folder, pytest.raises(TooLong):
        folder.read("huge", 1000)


def test_no_link_is_entered_and_no_name_leads_elsewhere(inside: Path, outside: Path) -> None:
    (inside / "link").symlink_to(outside)
    with Folder.open(inside) as folder:
        for make in (False, True):
            with pytest.raises(OSError, match=r"Not a directory|symbolic link"):
                folder.enter("link", make=make)
        for name in ("..", ".", "", "a/b", "link/key", "a\0b"):
            with pytest.raises(ValueError, match="plain name"):
                folder.open_regular(name)
    assert [path.name for path in outside.iterdir()] == ["key"]


def test_a_link_left_aside_does_not_lead_a_writer_out(inside: Path, outside: Path) -> None:
    (inside / ".head.aside").symlink_to(outside / "key")
    with Folder.open(inside) as folder, folder.replacing("head") as file:
        file.write(b"new")
    assert (inside / "head").read_bytes() == b"new"
    assert (outside / "key").read_text() == "secret"


DEPTH = 900  # paths beyond PATH_MAX, and more folders than this process may have files open


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "top").mkdir()
    yield tmp_path / "top"
    trees.remove_tree(tmp_path / "top")


def dig(folder: Path, levels: int) -> None:
    with FolderWalk(folder) as way:
        for _ in range(levels):
            os.mkdir("deep", dir_fd=way.fd)
            way.enter("deep")
        descriptor = os.open("treasure", os.O_CREAT | os.O_WRONLY, dir_fd=way.fd)
        os.write(descriptor, b"12345")
        os.close(descriptor)


@contextmanager
def open_folder_at(path: Path) -> Iterator[int]:
    with Folder(open_folder(path)) as folder:
        yield folder.fd


def names_in(folder: Path, *, force: bool = False) -> list[str]:
    with open_folder_at(folder) as opened:
        return ["/".join([*e.path, e.name]) for e in walks.entries(opened, force=force)]


def size_of(folder: Path) -> int:
    with open_folder_at(folder) as opened:
        return walks.size_of(opened)


def test_a_file_with_two_names_counts_once(top: Path) -> None:
    (top / "one").write_bytes(b"x" * 1000)
    (top / "two").hardlink_to(top / "one")
    (top / "other").write_bytes(b"x")
    assert size_of(top) == 1001


@pytest.mark.parametrize("path", ["../victim", "a/../../victim", "..", "a/./b", "a//b", "", "a\0"])
def test_a_lookup_leads_nowhere_outside(top: Path, path: str) -> None:
    (top / "a").mkdir()
    with open_folder_at(top) as opened, Lookup(opened) as lookup:
        with pytest.raises(OSError, match="Invalid argument"):
            lookup.parent(path, make=True)
        assert lookup.parent("a/b")[1] == "b"


def test_a_link_is_named_and_not_followed(top: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x" * 100)
    (top / "out").symlink_to(tmp_path / "outside")
    (top / "file").symlink_to(tmp_path / "outside" / "secret")
    (top / "round").symlink_to(top)
    assert sorted(names_in(top)) == ["file", "out", "round"]
    assert size_of(top) == 0
    with open_folder_at(top) as folder:
        trees.remove_contents(folder)
    assert list(top.iterdir()) == []
    assert (tmp_path / "outside" / "secret").exists()
    (top / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=r"directory|links"), open_folder_at(top / "link"):
        pass


def test_a_tree_deeper_than_descriptors_and_paths_go(top: Path) -> None:
    dig(top, DEPTH)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        assert size_of(top) == 5
        with open_folder_at(top) as folder:
            trees.remove_contents(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert list(top.iterdir()) == []


def test_closed_folders_are_left_out_and_opened_only_by_force(top: Path) -> None:
    for mode in (0o000, 0o400, 0o100, 0o500):
        closed = top / f"{mode:o}"
        closed.mkdir()
        (closed / "file").write_bytes(b"x" * 10)
        closed.chmod(mode)
    with as_nobody(top):
        shown = names_in(top)
        assert [name for name in shown if "/" in name] == ["500/file"]
        assert len(shown) == 5
        assert size_of(top) == 10
        with open_folder_at(top) as folder:
            trees.remove_contents(folder)
        assert list(top.iterdir()) == []


def test_a_folder_that_is_not_ours_to_open_is_an_error(top: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs another user's folder")
    (top / "ours").mkdir()
    with as_nobody(top):
        os.seteuid(0)
        (top / "theirs").mkdir(mode=0o700)
        (top / "theirs" / "file").touch()
        os.seteuid(65534)
        with open_folder_at(top) as folder, pytest.raises(PermissionError):
            trees.remove_contents(folder)


names = st.sampled_from(["a", "b", "c", "\udcff", "new\nline", ".hidden", "-", "ä"])
paths = st.lists(names, min_size=1, max_size=4).map(tuple)
