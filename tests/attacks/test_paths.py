"""ATTACKS 9-14, from the host's side: a second process swaps files, folders and links during a
file operation, which still leads nowhere outside.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from wasm_kernel import (
    ExecutionPolicy,
    Mount,
    WorkspaceError,
    create_sandbox,
    delete_session_path,
    read_session_file,
    write_session_file,
)

SECRET = b"the host's own"
ROUNDS = 100


def untouched(root: Path) -> None:
    assert [path.name for path in (root / "outside").iterdir()] == ["file"]
    assert (root / "outside" / "file").read_bytes() == SECRET
    assert (root / "s" / ".metadata.json").read_bytes() == SECRET


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


SWAPPED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "any for any": (("link", "folder", "pipe", "file"), ("swapped/file", "swapped/new/file")),
    "a file for a link": (("file", "file link", "pipe"), ("swapped",)),
    "a folder for a link to the reserved names": (
        ("folder", "hidden", "root"),
        ("swapped", "swapped/file", "swapped/.metadata.json"),
    ),
}


@pytest.mark.parametrize(("kinds", "paths"), SWAPPED.values(), ids=SWAPPED)
def test_swapped_files_lead_nowhere_outside_and_to_no_reserved_name(
    place: Path, kinds: tuple[str, ...], paths: tuple[str, ...]
) -> None:
    with swapping(place / "s", *kinds):
        for _, path in itertools.product(range(ROUNDS), paths):
            with suppress(ValueError, OSError):
                assert read_session_file("s", path, place) != SECRET
            with suppress(ValueError, OSError):
                write_session_file("s", path, b"evil", place)
            with suppress(ValueError, OSError):
                delete_session_path("s", path, place, recursive=True)
    untouched(place)


def test_a_folder_whose_name_is_not_utf_8_is_refused_in_words(tmp_path: Path) -> None:
    """Formerly, each call said that its process had ended, and that the log says more."""
    strange = tmp_path / os.fsdecode(b"strange-\xff")
    strange.mkdir()
    mount = ExecutionPolicy(mounts=(Mount(strange, "/data"),))
    for workspace, policy in ((strange / "own", None), (tmp_path / "own", mount)):
        with (
            create_sandbox(workspace=workspace, policy=policy) as sandbox,
            pytest.raises(WorkspaceError, match="not UTF-8"),
        ):
            sandbox.execute("1")
