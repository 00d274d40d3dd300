"""ATTACKS 9-14 and 21, from the host's side: nothing in a workspace leads a file operation outside.

The real guest makes the guest's files. A second process does what only another process on the host
can do, such as swapping links during an operation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.faces import says
from tests.private import private_of
from wasm_kernel import (
    BaseSandbox,
    create_session_sandbox,
    delete_session_path,
    list_session_files,
    read_session_file,
    write_session_file,
)
from wasm_kernel.linux import trees

SECRET = b"the host's own"
ROUNDS = 100


@pytest.fixture(scope="module")
def session(
    warm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, BaseSandbox, Path]]:
    """A session with a running guest, its id, and its workspace root."""
    root = tmp_path_factory.mktemp("root")
    session_id, sandbox = create_session_sandbox(workspace_root=root)
    (root / "outside").mkdir()
    (root / "outside" / "file").write_bytes(SECRET)
    yield session_id, sandbox, root
    sandbox.close()
    trees.remove_tree(root / session_id)


def untouched(root: Path) -> None:
    assert [path.name for path in (root / "outside").iterdir()] == ["file"]
    assert (root / "outside" / "file").read_bytes() == SECRET


def refused(session_id: str, path: str, root: Path) -> None:
    """Check that every file operation refuses a path."""
    with pytest.raises((ValueError, OSError)):
        read_session_file(session_id, path, root)
    with pytest.raises((ValueError, OSError)):
        write_session_file(session_id, path, b"evil", root)
    with pytest.raises((ValueError, OSError)):
        delete_session_path(session_id, path, root, recursive=True)


LINKS = ["../outside", "../outside/file", "..", "../..", "a/../../outside", "../../../../etc"]


@pytest.mark.parametrize("target", LINKS)
def test_case_10_links_that_the_guest_made_are_not_followed_out(
    session: tuple[str, BaseSandbox, Path], target: str
) -> None:
    session_id, sandbox, root = session
    made = says(
        sandbox,
        f"import os\ntry: os.symlink({target!r}, 'x')\nexcept OSError as e: print('no link', e)\n",
    )
    if not made:
        refused(session_id, "x", root)
        refused(session_id, "x/file", root)
        assert list_session_files(session_id, root, "x*") == []
        (root / session_id / "x").unlink()
    untouched(root)


def test_case_9_the_host_skips_the_reserved_names_too(
    session: tuple[str, BaseSandbox, Path],
) -> None:
    session_id, sandbox, root = session
    says(sandbox, "open('/tmp/in-scratch', 'w').write('x')")
    assert (private_of(root / session_id) / "tmp" / "in-scratch").exists()
    before = (root / session_id / ".metadata.json").read_bytes()
    for path in (".metadata.json", ".metadata.json~spare", ".Metadata.JSON"):
        refused(session_id, path, root)
    assert not [path for path in list_session_files(session_id, root) if "scratch" in path]
    assert (root / session_id / ".metadata.json").read_bytes() == before


def test_case_12_names_of_the_guest_are_carried(session: tuple[str, BaseSandbox, Path]) -> None:
    session_id, sandbox, root = session
    names = ["COM1", "a\nb", "\x1b]0;t\x07", "x" * 255, "-rf *", "\uff45", "\xe9", "e\u0301", "..x"]
    says(sandbox, f"import os\nos.mkdir('odd')\nfor n in {names!r}: open('odd/' + n, 'w').close()")
    found = list_session_files(session_id, root, "odd/*")
    assert found == sorted(f"odd/{name}" for name in names)
    for path in found:
        assert read_session_file(session_id, path, root) == b""
    delete_session_path(session_id, "odd", root, recursive=True)
    untouched(root)


def test_case_13_a_sparse_file_of_the_guest_does_not_fill_the_hosts_memory(
    session: tuple[str, BaseSandbox, Path],
) -> None:
    session_id, sandbox, root = session
    (root / session_id / "huge").touch()
    os.truncate(root / session_id / "huge", 1 << 40)
    says(sandbox, "import os; assert os.path.getsize('huge') == 1 << 40")
    with pytest.raises(OSError, match="over"):
        read_session_file(session_id, "huge", root)
    delete_session_path(session_id, "huge", root)


@pytest.mark.parametrize("name", ["../../x", "..\\..\\x", "/x", "C:\\x", "a/../../x", "x\0y", ""])
def test_case_21_a_session_id_or_path_is_no_way_out(
    session: tuple[str, BaseSandbox, Path], name: str
) -> None:
    session_id, _, root = session
    refused(name, "file", root)
    refused(session_id, name, root)
    with pytest.raises(ValueError, match="session id"):
        list_session_files(name, root)
    untouched(root)


def test_no_operation_waits_for_a_pipe(session: tuple[str, BaseSandbox, Path]) -> None:
    session_id, _, root = session
    os.mkfifo(root / session_id / "pipe")
    with pytest.raises(OSError, match="a pipe"):
        read_session_file(session_id, "pipe", root)
    with pytest.raises(OSError, match="a pipe"):
        write_session_file(session_id, "pipe", b"", root)
    assert "pipe" not in list_session_files(session_id, root)
    delete_session_path(session_id, "pipe", root)


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
