"""Which files an archive may have opened again: none through a link, none of the session's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from wasm_kernel.engine.folders.identity import identity
from wasm_kernel.sessions.handles import arrived


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    app = tmp_path / "app"
    (app / ".wasm_kernel" / "tmp").mkdir(parents=True)
    (app / "folder").mkdir()
    for path in ("a", "folder/b", ".metadata.json", ".wasm_kernel/lock", ".wasm_kernel/tmp/t"):
        (app / path).write_text("x")
    (tmp_path / "secret").write_text("x")
    (app / "out").symlink_to("..")
    (app / "private").symlink_to(".wasm_kernel")
    return app


@pytest.mark.parametrize(
    ("guest", "path", "host"),
    [
        ("/app", "a", "a"),
        ("/app", "folder/b", "folder/b"),
        ("/app", "folder", "folder"),
        ("/tmp", "t", ".wasm_kernel/tmp/t"),
    ],
)
def test_a_file_that_is_there_is_known(workspace: Path, guest: str, path: str, host: str) -> None:
    assert arrived(workspace, {"1:2": (guest, path)}) == {"1:2": identity(str(workspace / host))}


@pytest.mark.parametrize(
    ("guest", "path"),
    [
        ("/app", "missing"),
        ("/app", ""),
        ("/app", "."),
        ("/app", "../secret"),
        ("/app", "/etc/passwd"),
        ("/app", "out/secret"),
        ("/app", "private/lock"),
        ("/app", ".metadata.json"),
        ("/app", ".Metadata.JSON"),
        ("/app", ".wasm_kernel/lock"),
        ("/app", "folder/../.metadata.json"),
        ("/app", "a/b"),
        ("/app", "a\0"),
        ("/app", "x" * 5000),
        ("/tmp", "../lock"),
        ("/etc", "passwd"),
        ("", "a"),
    ],
)
def test_nothing_else_is(workspace: Path, guest: str, path: str) -> None:
    assert arrived(workspace, {"1:2": (guest, path)}) == {}
