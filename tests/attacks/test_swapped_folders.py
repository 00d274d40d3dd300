"""F22, cases 10, 41, 44: sessions are listed, exported and forked while their folders change."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest

from wasm_kernel import get_session_sandbox, list_session_files, write_session_file
from wasm_kernel.linux import trees
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.sessions.archives import export_session, import_session

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
def test_folders_are_swapped_while_they_are_listed_and_exported(
    root: Path, tmp_path: Path, other: str
) -> None:
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


def test_whatever_lies_in_a_workspace_it_is_exported_and_forked_at_once(
    root: Path, tmp_path: Path
) -> None:
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
