"""Session ids and the folders they name."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from wasm_kernel.sessions import ids
from wasm_kernel.sessions.lifecycle import WorkspaceError, open_workspace


@pytest.mark.parametrize("text", ["abc-123", "A", "7", ids.new(), "a" * ids.ID_LENGTH])
def test_letters_digits_and_hyphens_make_an_id(text: str) -> None:
    assert ids.checked(text) == text


@pytest.mark.parametrize(
    "text", ["", "..", "../x", "a/b", "a\\b", "-x", "a b", "a\n", "\u00e9", "a" * 65, "a\0", "a."]
)
def test_anything_else_does_not(text: str) -> None:
    with pytest.raises(ids.SessionIdError):
        ids.checked(text)


def test_a_derived_id_depends_on_every_part_and_its_place() -> None:
    assert ids.derived(b"a", b"b") == ids.derived(b"a", b"b")
    assert len({ids.derived(b"a", b"b"), ids.derived(b"b", b"a"), ids.derived(b"ab", b"")}) == 3
    assert ids.uuid_in(ids.derived(b"a")) is not None


def test_a_workspace_is_for_its_owner_alone(tmp_path: Path) -> None:
    workspace = open_workspace(tmp_path / "root", "one")
    for folder in (workspace, workspace / ".wasm_kernel"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_workspace_is_found_again_with_its_files(tmp_path: Path) -> None:
    (open_workspace(tmp_path, "one") / "kept").touch()
    assert (open_workspace(tmp_path, "one") / "kept").exists()


@pytest.mark.parametrize("name", ["one", "one/.wasm_kernel"])
def test_a_link_in_a_workspaces_place_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "root" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceError):
        open_workspace(tmp_path / "root", "one")


def test_a_root_that_cannot_be_made_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceError, match="Set workspace_root"):
        open_workspace(tmp_path / "file", "one")
