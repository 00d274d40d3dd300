"""Folders, files and links are swapped while a guest or the host uses them: F22, cases 10, 41, 44.

The other process may be a second guest of the same session, or a native program.
Nothing outside may be read, kept, written or removed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest

from tests.engine.tiny import APP, RIGHTS, Guest
from wasm_kernel import get_session_sandbox, list_session_files, write_session_file
from wasm_kernel.engine import abi
from wasm_kernel.linux import trees
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.sessions.archives import export_session, import_session
from wasm_kernel.state.file_restore import restore_files
from wasm_kernel.state.file_versions import FileVersions

SECONDS = 0.8
SECRET = "TOP SECRET"
SWAPPER = """
import ctypes, os, sys
libc, at = ctypes.CDLL(None), -100
one, other = (os.fsencode(path) for path in sys.argv[1:])
while True:
    libc.renameat2(at, one, at, other, 2)  # RENAME_EXCHANGE: there is always one of the two
"""


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Runs a process that swaps two names all the time."""
    process = subprocess.Popen([sys.executable, "-c", SWAPPER, str(one), str(other)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that the guest must not reach, with the same names as the guest's own."""
    folder = tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    for name in ("key", "sub/key"):
        (folder / name).write_text(SECRET)
    return folder


@pytest.fixture
def guest(keeping: tuple[Guest, FileVersions]) -> tuple[Guest, FileVersions]:
    (keeping[0].app / "d" / "sub").mkdir(parents=True)
    return keeping


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below a folder: its inode, its number of links, its content."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_ino,
            path.lstat().st_nlink,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


def read(guest: Guest, path: str) -> bytes:
    errno, fd = guest.open(path)
    if errno != abi.SUCCESS:
        return b""
    guest.instance.memory.write(200, (65_536).to_bytes(4, "little") + (64).to_bytes(4, "little"))
    guest.call("fd_read", fd, 200, 1, 96)
    data = guest.answer(96)
    guest.call("fd_close", fd)
    return data


def test_a_folder_that_becomes_a_link_leads_no_call_out(
    guest: tuple[Guest, FileVersions], outside: Path
) -> None:
    """F2: the guest opens, makes, moves and removes names below a folder that is swapped."""
    tiny, _ = guest
    (tiny.app / "d" / "key").write_text("own")
    (tiny.app / "way").symlink_to("../outside")
    before, reached, until = snapshot(outside), 0, time.monotonic() + SECONDS
    with swapping(tiny.app / "d", tiny.app / "way"):
        while time.monotonic() < until:
            data = read(tiny, "d/key")
            assert SECRET.encode() not in data
            reached += bool(data)
            errno, fd = tiny.open("d/planted", abi.O_CREAT)
            if errno == abi.SUCCESS:
                tiny.call("fd_close", fd)
            tiny.one_path("path_create_directory", "d/folder")
            tiny.one_path("path_remove_directory", "d/folder")
            tiny.one_path("path_unlink_file", "d/planted")
            tiny.call("path_filestat_set_times", APP, 1, *tiny.text("d/key"), 0, 0, 5)
            if tiny.link("d/key", "twin") == abi.SUCCESS:
                assert (tiny.app / "twin").read_text() == "own"
            tiny.one_path("path_unlink_file", "twin")
            for path in ("d/../outside/key", "way/../outside/key", "d/../../outside/key"):
                assert tiny.stat(path) != abi.SUCCESS
    assert reached, "the guest never came to its own file: nothing was tried"
    assert snapshot(outside) == before


def test_kept_versions_are_never_others(guest: tuple[Guest, FileVersions], outside: Path) -> None:
    """F3. Formerly, outside files were kept as versions, and `%undo --files` gave them away."""
    tiny, versions = guest
    for number in range(40):
        (tiny.app / "d" / "sub" / str(number)).write_text("own")
    (tiny.app / "d" / "sub" / "key").write_text("own")
    (tiny.app / "way").symlink_to("../outside")
    before, one, until = snapshot(outside), 2, time.monotonic() + SECONDS
    versions.commit(one, [1, one])
    with swapping(tiny.app / "d", tiny.app / "way"):
        while time.monotonic() < until:
            tiny.rename("d/sub", "d/sub2")
            tiny.rename("d/sub2", "d/sub")
            errno, fd = tiny.open("d/sub/key", abi.O_TRUNC)
            if errno == abi.SUCCESS:
                tiny.write(fd, b"own")
                tiny.call("fd_close", fd)
            tiny.one_path("path_unlink_file", "d/sub/key")
            tiny.make("d/sub/key", b"own")
            one += 1
            versions.commit(one, range(1, one + 1))
            kept = tiny.app.parent / "private"
            for path in kept.rglob("[0-9]*"):
                assert SECRET not in path.read_text()
        restore_files(versions, 2, lambda path, found: None, ())
    assert snapshot(outside) == before
    inside = [path for path in tiny.app.rglob("*") if path.is_file()]
    assert SECRET not in "".join(path.read_text() for path in inside if not path.is_symlink())


def test_a_folder_that_the_guest_has_open_stays_the_same(
    guest: tuple[Guest, FileVersions], outside: Path
) -> None:
    """An open folder stays the one that was opened, whatever lies at its path now."""
    tiny, _ = guest
    errno, fd = tiny.open("d", abi.O_DIRECTORY)
    assert errno == abi.SUCCESS
    (tiny.app / "d").rename(tiny.app / "moved")
    (tiny.app / "d").symlink_to(outside)
    at = (fd, 1, *tiny.text("new"), abi.O_CREAT, RIGHTS, RIGHTS, 0, 64)
    assert tiny.call("path_open", *at) == abi.SUCCESS
    assert (tiny.app / "moved" / "new").exists()
    assert not (outside / "new").exists()
    assert tiny.open("key", fd=fd)[0] == abi.ENOENT


def test_swapped_workspaces_are_left(guest: tuple[Guest, FileVersions], outside: Path) -> None:
    tiny, _ = guest
    tiny.app.rename(tiny.app.parent / "elsewhere")
    tiny.app.symlink_to(outside)
    assert tiny.open("key")[0] == abi.ENOENT
    assert tiny.make("planted") == abi.SUCCESS
    assert not os.path.lexists(outside / "planted")


ID = "swapped"
DEEP, NAMED = 2100, 100


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("SECRET")
    write_session_file(ID, "a/kept", b"kept", tmp_path / "sessions")
    yield tmp_path / "sessions"
    for folder in ("sessions", "there"):  # pytest's own removal can't go so deep
        trees.remove_tree(tmp_path / folder)


@contextmanager
def at_work(work: Callable[[], None]) -> Iterator[None]:
    """Run a function over and over in a thread while the block lasts."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("other", ["file", "link"])
def test_folders_are_swapped_while_they_are_read(root: Path, tmp_path: Path, other: str) -> None:
    app = root / ID
    for number in range(20):
        write_session_file(ID, f"d/sub/{number}", b"x", root)
    if other == "file":
        (app / "x").write_text("a file")
    else:
        (app / "x").symlink_to(tmp_path / "outside")

    def swap() -> None:
        (app / "d").rename(app / "away")
        (app / "x").rename(app / "d")
        (app / "d").rename(app / "x")
        (app / "away").rename(app / "d")

    with at_work(swap):
        deadline, number = time.monotonic() + 0.4, 0
        while time.monotonic() < deadline or number < 3:
            listed = list_session_files(ID, root)
            assert "a/kept" in listed and not [path for path in listed if "secret" in path]
            target = tmp_path / f"{number}.tar.gz"
            assert export_session(ID, target, root, files_only=True).files >= 1
            assert b"SECRET" not in target.read_bytes()
            target.unlink()
            number += 1


def deep(folder: Path, depth: int) -> None:
    (folder / "origin").write_text("one file")
    with FolderWalk(folder) as way:
        for number in range(depth):
            os.mkdir("d", dir_fd=way.fd)
            way.enter("d")
            if number < NAMED:
                os.link(folder / "origin", "name", dst_dir_fd=way.fd)


def test_workspaces_with_anything_are_exported_forked_at_once(root: Path, tmp_path: Path) -> None:
    folder = root / ID / "strange"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "zeros").symlink_to("/dev/zero")
    (folder / "out").symlink_to(tmp_path / "outside" / "secret")
    (folder / "loop").symlink_to("loop")
    (folder / ("x" * 255)).write_text("a long name")
    with (folder / "hole").open("wb") as file:
        file.truncate(1 << 40)
    with chdir(folder), socket.socket(socket.AF_UNIX) as here:
        here.bind("socket")  # a socket's path has at most 108 bytes
    deep(folder, DEEP)
    begun = time.process_time()
    assert "a/kept" in list_session_files(ID, root)
    made = export_session(ID, tmp_path / "a.tar.gz", root)
    assert any("folders" in why for why in made.left_out.values())
    import_session(tmp_path / "a.tar.gz", tmp_path / "there")
    with get_session_sandbox(ID, workspace_root=root) as sandbox:
        [fork] = sandbox.fork()
        assert fork.execute("print(open('a/kept').read())").stdout == "kept\n"
        assert (
            b"SECRET"
            not in b"".join(
                path.read_bytes() for path in fork.workspace.iterdir() if path.is_file()
            )[:1000]
        )
        fork.close()
    assert time.process_time() - begun < 60
