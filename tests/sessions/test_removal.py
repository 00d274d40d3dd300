"""Deleting sessions: all of them, whatever they contain, and nothing else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.aged import aged
from tests.faces import raising
from tests.nobody import as_nobody
from tests.private import private_of
from wasm_kernel import SessionInUse, WorkspaceError, delete_session_workspace
from wasm_kernel.folders.locks import HistoryLock, exclusively, is_used
from wasm_kernel.folders.private import PrivateFolders
from wasm_kernel.linux import trees
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.sessions import removal
from wasm_kernel.sessions.removal import ASKED, Deleter, NotDue, Rule
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

ID = "abc-123"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A session that is not in use."""
    session = Session(SessionsRoot(tmp_path), ID)
    session.closed()
    return session.workspace


def used(workspace: Path) -> bool:
    with Folder.open(workspace) as folder:
        found = PrivateFolders(workspace.parent).find(workspace.name, folder)
    if found is None:
        return False
    with found:
        return is_used(found)


def test_everything_goes_and_nothing_else(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    (workspace / "out").symlink_to(tmp_path / "kept")
    (workspace / "pipe.fifo").touch()
    os.mkfifo(workspace / "pipe")
    private = private_of(workspace)
    (private / "history").mkdir()
    (private / "history" / "c1").write_bytes(b"x" * 100)
    (workspace / "closed").mkdir(mode=0o000)
    with FolderWalk(workspace) as way:
        for _ in range(200):
            os.mkdir("deep", dir_fd=way.fd)
            way.enter("deep")
    workspace.chmod(0o000)
    with as_nobody(tmp_path):
        delete_session_workspace(ID, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").read_text() == "kept"
    assert not private.exists()


def _link(place: Path) -> None:
    place.symlink_to(place.parent / "kept")


def _file(place: Path) -> None:
    place.write_text("x")


@pytest.mark.parametrize("make", [_link, _file])
def test_a_folder_that_is_not_a_sessions_folder_is_refused(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    make(tmp_path / ID)
    with pytest.raises(WorkspaceError, match="can't be deleted") as caught:
        delete_session_workspace(ID, tmp_path)
    assert str(tmp_path) not in str(caught.value)
    assert os.path.lexists(tmp_path / ID)
    assert (tmp_path / "kept" / "file").exists()


def test_a_session_in_use_is_refused_and_whole(workspace: Path, tmp_path: Path) -> None:
    (workspace / "file").write_text("x")
    first, second = Session(SessionsRoot(tmp_path), ID), Session(SessionsRoot(tmp_path), ID)
    for user in (first, second):
        assert used(workspace)
        with Folder.open(tmp_path) as root, pytest.raises(SessionInUse):
            Deleter(SessionsRoot(tmp_path), root).delete(ID, ASKED)
        user.closed()
    assert not used(workspace)
    assert (workspace / "file").exists()
    delete_session_workspace(ID, tmp_path)
    assert not workspace.exists()


def test_the_historys_own_lock_counts_too(workspace: Path, tmp_path: Path) -> None:
    with Folder.open(private_of(workspace)) as private:
        claim = HistoryLock(private)
        assert claim.acquire()
        assert used(workspace)
        with pytest.raises(SessionInUse):
            delete_session_workspace(ID, tmp_path)
        claim.release()
    delete_session_workspace(ID, tmp_path)
    assert not workspace.exists()


def test_a_user_during_the_deletion_finds_a_new_session(workspace: Path, tmp_path: Path) -> None:
    (workspace / "file").touch()
    opened: list[Session] = []
    with Folder.open(private_of(workspace)) as private, Folder.open(tmp_path) as root:
        with exclusively(private):
            starting = threading.Thread(
                target=lambda: opened.append(Session(SessionsRoot(tmp_path), ID))
            )
            starting.start()
            time.sleep(0.1)
            assert opened == []  # the thread waits
            os.rename(ID, "aside", src_dir_fd=root.fd, dst_dir_fd=root.fd)
        starting.join()
    assert opened[0].made
    assert [path.name for path in opened[0].workspace.iterdir()].count("file") == 0
    assert (opened[0].workspace / ".metadata.json").exists()
    assert (tmp_path / "aside" / "file").exists()
    assert used(opened[0].workspace)
    opened[0].closed()


def test_a_session_that_is_used_just_before_the_lock_is_taken_is_kept(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(workspace, 48)

    def late(private: Folder) -> AbstractContextManager[None]:
        aged(workspace, 0)
        return exclusively(private)

    monkeypatch.setattr(removal, "exclusively", late)
    with Folder.open(tmp_path) as root, pytest.raises(NotDue):
        Deleter(SessionsRoot(tmp_path), root).delete(ID, Rule(3600.0))
    assert [path.name for path in tmp_path.iterdir()] == [ID]


def test_a_removal_that_was_cut_short_is_finished_by_the_next(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "file").touch()
    monkeypatch.setattr(trees, "remove_contents", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        delete_session_workspace(ID, tmp_path)
    monkeypatch.undo()
    (aside,) = tmp_path.iterdir()
    assert aside.name.startswith(".wasm_kernel-removed-abc-123-")
    for name in (".wasm_kernel-removed-", ".wasm_kernel-removed-mine", ".notes"):
        (tmp_path / name).mkdir()
    delete_session_workspace("another", tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    assert not aside.exists()


def test_a_removal_that_another_process_finishes_at_once_leaves_no_private_folder(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, rename = private_of(workspace), os.rename

    def finished(source: str, target: str, **folders: int) -> None:
        rename(source, target, **folders)
        if source == ID:
            with Folder.open(tmp_path) as root:
                assert removal.finish_removals(root) == {}

    monkeypatch.setattr(os, "rename", finished)
    delete_session_workspace(ID, tmp_path)
    assert not private.exists()


def test_a_session_that_cannot_be_deleted_keeps_its_id_also_after_a_killed_removal(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = raising(OSError(5, "Input/output error"))
    aside = tmp_path / f".wasm_kernel-removed-{ID}-0123abcd"
    for cut_short in (False, True):
        if cut_short:
            workspace.rename(aside)
        monkeypatch.setattr(trees, "remove_contents", fail)
        with pytest.raises(WorkspaceError, match="Input/output"):
            delete_session_workspace(ID, tmp_path)
        monkeypatch.undo()
        assert [path.name for path in tmp_path.iterdir()] == [ID]
    workspace.rename(aside)
    Session(SessionsRoot(tmp_path), ID).closed()  # another session has the id by now
    (workspace / "file").write_text("mine")
    monkeypatch.setattr(trees, "remove_contents", fail)
    with Folder.open(tmp_path) as root:
        assert {name: problem.errno for name, problem in removal.finish_removals(root).items()} == {
            ID: 5
        }
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([ID, aside.name])
    assert (workspace / "file").read_text() == "mine"
    with Folder.open(tmp_path) as root:
        assert removal.finish_removals(root) == {}
    assert [path.name for path in tmp_path.iterdir()] == [ID]


def test_a_session_that_is_deleted_in_part_keeps_its_metadata(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning never deletes a session without metadata."""
    (workspace / "folder").mkdir()
    (workspace / "folder" / "stuck").touch()
    unlink = os.unlink

    def refuse(name: str, **options: Any) -> None:
        if name == "stuck":
            raise OSError(1, "Operation not permitted")
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(WorkspaceError, match="not permitted"):
        delete_session_workspace(ID, tmp_path)
    assert (workspace / ".metadata.json").exists()


def test_a_folder_that_cannot_be_renamed_is_deleted_in_its_place(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def other_layer(name: str, *args: Any, **options: Any) -> None:
        if name == ID:
            raise OSError(18, "Invalid cross-device link")
        rename(name, *args, **options)

    monkeypatch.setattr(os, "rename", other_layer)
    delete_session_workspace(ID, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_root_not_to_be_written_to_is_told_in_words(workspace: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with as_nobody(tmp_path), pytest.raises(WorkspaceError, match="Permission denied"):
        delete_session_workspace(ID, tmp_path)
    tmp_path.chmod(0o700)
    assert (workspace / ".metadata.json").exists()
    trees.remove_tree(workspace)
