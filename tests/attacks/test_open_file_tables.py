"""An archive's states say which files were open, and how: a session writes only to its own.

A stranger's table may name the guest's library, which all sessions of this machine share, with the
right to write.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.test_archives import unpacked
from tests.faces import open_files, process_of
from tests.private import folders_of
from wasm_kernel import get_session_sandbox
from wasm_kernel.linux import trees
from wasm_kernel.linux.files import file_identity
from wasm_kernel.sessions.archives import import_session
from wasm_kernel.state.archive_out import identities_here
from wasm_kernel.state.tar import ArchiveWriter

ID = "tables"
OPENED = """
import os, glob
path = "/usr/local/lib/wasm-kernel.zip"
fd = os.open(path, os.O_RDONLY)
before = os.pread(fd, 30, 0)
with open("/app/own", "w") as file: file.write("0123456789")
own = os.open("/app/own", os.O_RDWR)
x = 1
"""
USED = """
told = []
for one in (fd, own):
    try:
        os.pwrite(one, b"!", 0)
        told.append("written")
    except OSError:
        told.append("refused")
try:
    same = os.pread(os.open(path, os.O_RDONLY), 30, 0) == before
except OSError as problem:
    same = problem.strerror == "No file descriptors available"
print(told, same, x)
"""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest archive of a session with open files, unpacked."""
    return unpacked(tmp_path_factory.mktemp("honest"), ID, OPENED)


@pytest.fixture
def archive(honest: Path, tmp_path: Path) -> Iterator[Path]:
    """The unpacked parts; each test writes the ones that it changes."""
    shutil.copytree(honest, tmp_path / "parts", copy_function=os.link)
    yield tmp_path / "parts"
    trees.remove_tree(tmp_path / "there")


Files = list[dict[str, Any]]


def changed(states: Path, change: Callable[[Files], None]) -> None:
    """States with changed tables of open files."""
    records = [json.loads(line) for line in states.read_text().splitlines()]
    for record in records:
        if record["type"] == "commit":
            change(record["files"])
    states.unlink()
    states.write_text("\n".join(map(json.dumps, records)))


def packed(parts: Path, target: Path) -> Path:
    members = ["manifest.json", "files/own"]
    names = {path.name for path in (parts / "memory").iterdir()} - {"image", "states.jsonl"}
    members += [f"memory/{name}" for name in ("image", "states.jsonl", *sorted(names))]
    with target.open("wb") as file:
        packing = ArchiveWriter(file)
        for name in members:
            with (parts / name).open("rb") as source:
                packing.file(name, source.fileno())
        packing.close()
    return target


def hostile(files: Files) -> None:
    """Rights to write to the library, flags that empty it, and thousands of numbers."""
    for file in files:
        file.update(rights=(1 << 64) - 1, inheriting=(1 << 64) - 1, flags=15, fdflags=31)
    files += [files[0] | {"fd": number} for number in range(100, 5000)]


def test_a_strangers_table_bricks_no_session_and_writes_to_no_library(
    archive: Path, tmp_path: Path
) -> None:
    changed(archive / "memory" / "states.jsonl", hostile)
    made = import_session(packed(archive, tmp_path / "b.tar.gz"), tmp_path / "there")
    with get_session_sandbox(made.session_id, workspace_root=tmp_path / "there") as sandbox:
        first = sandbox.execute("y = 1")
        assert first.success, first.stderr
        assert len(open_files(process_of(sandbox))) < 340
        told = sandbox.execute(USED)
        assert "written" not in told.stdout.partition(",")[0], told.stderr
        assert told.stdout.endswith("True 1\n"), told.stderr
    assert (tmp_path / "there" / made.session_id / "own").stat().st_size == 10


def test_a_strangers_table_finds_the_sessions_own_files_only(tmp_path: Path) -> None:
    app, found = tmp_path / "app", "1:2"
    with closing(folders_of(app)) as folders:
        for path in ("a", ".metadata.json"):
            (app / path).write_text("x")
        (folders.private.path / "lock").write_text("x")
        (app / "private").symlink_to(folders.private.path)
        known = identities_here(folders, {found: ("/app", "a")})
        assert known == {found: file_identity(str(app / "a"))}
        for where in (
            *(("/app", path) for path in (".metadata.json", ".Metadata.JSON", "", ".", "a\0")),
            *(("/app", path) for path in ("private/lock", "../app/a", "/etc/passwd", "x" * 5000)),
            ("/tmp", "../lock"),
            ("/etc", "passwd"),
            ("", "a"),
        ):
            assert identities_here(folders, {found: where}) == {}, where
