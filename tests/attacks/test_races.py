"""Another process swaps folders, files and links while the guest and the host use them (case 44).

It may be a second guest of the same session, or a native program; here it does nothing else.
Nothing outside may be read, kept, written or removed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engine.tiny import APP, RIGHTS, Guest
from wasm_kernel.engine import abi
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


def test_kept_versions_are_never_other_peoples_files(
    guest: tuple[Guest, FileVersions], outside: Path
) -> None:
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


def test_a_workspace_that_is_swapped_is_not_followed(
    guest: tuple[Guest, FileVersions], outside: Path
) -> None:
    tiny, _ = guest
    tiny.app.rename(tiny.app.parent / "elsewhere")
    tiny.app.symlink_to(outside)
    assert tiny.open("key")[0] == abi.ENOENT
    assert tiny.make("planted") == abi.SUCCESS
    assert not os.path.lexists(outside / "planted")
