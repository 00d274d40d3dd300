"""An open session's folder: made for its owner, found again, never a link."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wasm_kernel.sessions.session import Session, WorkspaceError

Opening = Callable[[Path, str], Path]


@pytest.fixture
def workspace_of() -> Iterator[Opening]:
    """Opens sessions for the length of a test."""
    opened: list[Session] = []

    def open_one(root: Path, session_id: str) -> Path:
        opened.append(Session(root, session_id))
        return opened[-1].workspace

    yield open_one
    for session in opened:
        session.closed()


def test_a_workspace_is_for_its_owner_alone(workspace_of: Opening, tmp_path: Path) -> None:
    workspace = workspace_of(tmp_path / "root", "one")
    for folder in (workspace, workspace / ".wasm_kernel"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_workspace_is_found_again_with_its_files(workspace_of: Opening, tmp_path: Path) -> None:
    (workspace_of(tmp_path, "one") / "kept").touch()
    assert (workspace_of(tmp_path, "one") / "kept").exists()


@pytest.mark.parametrize("name", ["one", "one/.wasm_kernel"])
def test_a_link_in_a_workspaces_place_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "root" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceError):
        Session(tmp_path / "root", "one")


def test_a_root_that_cannot_be_made_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceError, match="Set workspace_root"):
        Session(tmp_path / "file", "one")
