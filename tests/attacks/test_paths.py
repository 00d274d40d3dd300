"""ATTACKS 9-14, from the host's side: a second process swaps files, folders and links during a
file operation, which still leads nowhere outside.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from wasm_kernel import (
    delete_session_path,
    list_session_files,
    read_session_file,
    write_session_file,
)

SECRET = b"the host's own"
ROUNDS = 100


def untouched(root: Path) -> None:
    assert [path.name for path in (root / "outside").iterdir()] == ["file"]
    assert (root / "outside" / "file").read_bytes() == SECRET


SWAPPING = """
import itertools, os, shutil, sys
os.chdir(sys.argv[1])
kinds = sys.argv[2:]
print("ready", flush=True)
for turn in itertools.count():
    kind = kinds[turn % len(kinds)]
    try:
        if kind == "link":
            os.symlink("../outside", "new")
        elif kind == "file link":
            os.symlink("../outside/file", "new")
        elif kind == "hidden":
            os.symlink(".metadata.json", "new")
        elif kind == "root":
            os.symlink(".", "new")
        elif kind == "pipe":
            os.mkfifo("new")
        elif kind == "file":
            open("new", "w").close()
        else:
            os.mkdir("new"); open("new/file", "w").close()
        try:
            os.rename("swapped", "old")
        except FileNotFoundError:
            pass
        os.rename("new", "swapped")
        # they must not pile up: a walk through the folder would never end
        if os.path.isdir("old") and not os.path.islink("old"):
            shutil.rmtree("old")
        else:
            os.unlink("old")
    except OSError:
        pass
"""


@contextmanager
def swapping(folder: Path, *kinds: str) -> Iterator[None]:
    """Runs a process that swaps two things under the name `swapped`."""
    process = subprocess.Popen(
        [sys.executable, "-c", SWAPPING, str(folder), *kinds], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A session's folder without a guest, beside files of the host."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(SECRET)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / ".metadata.json").write_bytes(SECRET)
    yield tmp_path
    shutil.rmtree(tmp_path / "s")


@pytest.mark.parametrize("kinds", [("folder", "link"), ("link", "folder", "pipe", "file")])
def test_links_swapped_for_folders_lead_nowhere_outside(
    place: Path, kinds: tuple[str, ...]
) -> None:
    with swapping(place / "s", *kinds):
        for _ in range(ROUNDS):
            with suppress(ValueError, OSError):
                assert read_session_file("s", "swapped/file", place) != SECRET
            with suppress(ValueError, OSError):
                write_session_file("s", "swapped/file", b"evil", place)
            with suppress(ValueError, OSError):
                write_session_file("s", "swapped/new/file", b"evil", place)
            with suppress(ValueError, OSError):
                delete_session_path("s", "swapped/file", place)
    untouched(place)


def test_a_file_swapped_for_a_link_leads_nowhere_outside(place: Path) -> None:
    with swapping(place / "s", "file", "file link", "pipe"):
        for _ in range(ROUNDS):
            with suppress(ValueError, OSError):
                assert read_session_file("s", "swapped", place) != SECRET
            with suppress(ValueError, OSError):
                write_session_file("s", "swapped", b"evil", place)
            with suppress(ValueError, OSError):
                delete_session_path("s", "swapped", place)
    untouched(place)


def test_a_folder_swapped_for_a_link_does_not_lead_to_the_reserved_names(place: Path) -> None:
    with swapping(place / "s", "folder", "hidden", "root"):
        for _ in range(ROUNDS):
            for path in ("swapped", "swapped/file", "swapped/.metadata.json"):
                with suppress(ValueError, OSError):
                    assert read_session_file("s", path, place) != SECRET
                with suppress(ValueError, OSError):
                    write_session_file("s", path, b"evil", place)
                with suppress(ValueError, OSError):
                    delete_session_path("s", path, place, recursive=True)
    assert (place / "s" / ".metadata.json").read_bytes() == SECRET


def test_a_walk_meets_no_swapped_link(place: Path) -> None:
    with swapping(place / "s", "folder", "link"):
        for _ in range(ROUNDS // 4):
            with suppress(OSError):
                found = list_session_files("s", place)
                assert all(path.endswith("/file") for path in found)
            with suppress(ValueError, OSError):
                delete_session_path("s", "swapped", place, recursive=True)
    untouched(place)
