"""An archive reopens none of the session's own files, and no file through a link."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.private import folders_of
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.linux.files import file_identity
from wasm_kernel.state.archive_out import identities_here

HIDDEN = (".metadata.json", ".Metadata.JSON")


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[SandboxFolders]:
    app = tmp_path / "app"
    (app / "folder").mkdir(parents=True)
    with closing(folders_of(app)) as found:
        for path in ("a", "folder/b", ".metadata.json"):
            (app / path).write_text("x")
        (found.private_path / "lock").write_text("x")
        (found.private_path / "tmp" / "t").write_text("x")
        (tmp_path / "secret").write_text("x")
        (app / "out").symlink_to("..")
        (app / "private").symlink_to(found.private_path)
        yield found


@pytest.mark.parametrize(
    ("guest", "path", "host"),
    [
        ("/app", "a", "a"),
        ("/app", "folder/b", "folder/b"),
        ("/app", "folder", "folder"),
        ("/tmp", "t", ""),
    ],
)
def test_a_file_there_is_known(folders: SandboxFolders, guest: str, path: str, host: str) -> None:
    there = folders.real / host if host else folders.private_path / "tmp" / "t"
    assert identities_here(folders, {"1:2": (guest, path)}) == {"1:2": file_identity(str(there))}


OTHERS = [
    *[("/app", path) for path in ("missing", "", ".", "../secret", "/etc/passwd", "out/secret")],
    *[("/app", path) for path in ("private/lock", "/1", "a/b", "a\0", "x" * 5000)],
    *[("/app", f"{way}{name}") for way in ("", "folder/../") for name in HIDDEN],
    ("/tmp", "../lock"),
    ("/etc", "passwd"),
    ("", "a"),
]


@pytest.mark.parametrize(("guest", "path"), OTHERS)
def test_other_files_are_unknown(folders: SandboxFolders, guest: str, path: str) -> None:
    assert identities_here(folders, {"1:2": (guest, path)}) == {}
