"""A sandbox outside of sessions hides the sessions in its workspace (case 39)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faces import A_UUID
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.hiding import SessionFoldersHidden
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions.removal import delete_session_workspace
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

with Folder.open(Path("/")) as _top:
    HIDDEN = SessionFoldersHidden(_top)


def hides(path: Path, depth: int, hidden: SessionFoldersHidden = HIDDEN) -> bool:
    """Returns whether a folder is hidden, opened for reading and opened as a path only."""
    answers = set()
    for flags in (os.O_RDONLY, os.O_PATH):
        fd = os.open(path, flags | os.O_DIRECTORY)
        answers.add(hidden.hides_folder(fd, depth))
        os.close(fd)
    (answer,) = answers
    return answer


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_a_registered_session_is_hidden_at_any_depth_under_any_name(
    tmp_path: Path, depth: int
) -> None:
    with Folder.open(tmp_path) as folder:
        hidden = SessionFoldersHidden(folder)
    (tmp_path / "plain").mkdir()
    assert not hides(tmp_path / "plain", depth, hidden)
    Session(SessionsRoot(tmp_path / "root"), "named").closed()
    (tmp_path / "root" / "named" / ".metadata.json").unlink()
    assert hides(tmp_path / "root" / "named", depth, hidden)
    (tmp_path / "root" / "named").rename(tmp_path / "other")
    assert hides(tmp_path / "other", depth, hidden)
    assert not hides(tmp_path / "root", depth, hidden)
    assert not hides(tmp_path / "plain", depth, hidden)


def test_a_session_that_is_gone_hides_nothing(tmp_path: Path) -> None:
    Session(SessionsRoot(tmp_path), "named").closed()
    assert hides(tmp_path / "named", 1)
    delete_session_workspace("named", tmp_path)
    (tmp_path / "named").mkdir()
    assert not hides(tmp_path / "named", 1)


def test_a_folder_with_metadata_is_hidden_at_the_top_alone(tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / ".metadata.json").symlink_to("nowhere")
    assert hides(tmp_path / "moved", 0)
    assert not hides(tmp_path / "moved", 1)


def test_a_workspace_outside_of_sessions_becomes_one_when_it_is_opened_as_one(
    tmp_path: Path,
) -> None:
    SandboxFolders.of_workspace(tmp_path / "lone").close()
    assert not hides(tmp_path / "lone", 1)
    Session(SessionsRoot(tmp_path), "lone").closed()
    assert hides(tmp_path / "lone", 1)
    SandboxFolders.of_workspace(tmp_path / "lone").close()
    assert hides(tmp_path / "lone", 1)


def test_private_folders_are_hidden(tmp_path: Path) -> None:
    folders = SandboxFolders.of_workspace(tmp_path / "lone", tmp_path / "private")
    folders.close()
    assert hides(tmp_path / "private", 0)
    assert hides(folders.private_path.parent, 3)


@pytest.mark.parametrize(
    ("depth", "name", "hidden"),
    [
        (0, ".metadata.json", True),
        (3, ".Metadata.JSON", True),
        (1, ".metadata.json~write-1", True),
        (0, A_UUID, True),
        (0, A_UUID.upper(), True),
        (0, f"{A_UUID}. ", True),
        (1, A_UUID, False),
        (0, "12345678-1234", False),
        (0, ".wasm_kernel-removed-x-01234567", True),
        (4, ".wasm_kernel-removed-x-01234567", True),
        (0, ".wasm_kernel", False),
        (0, "data.csv", False),
    ],
)
def test_names_that_sessions_have_are_hidden(depth: int, name: str, hidden: bool) -> None:
    assert HIDDEN.hides_name(depth, name) is hidden
