"""Deleting and pruning sessions: all of them, whatever they contain, and nothing else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.aged import aged, aged_session
from tests.faces import raising
from tests.nobody import as_nobody
from tests.private import private_of
from tests.tasks import WaitingCell
from wasm_kernel import SessionInUse, WorkspaceError, delete_session_workspace, prune_sessions
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders.locks import HistoryLock, exclusively, is_used
from wasm_kernel.folders.private import PrivateFolders
from wasm_kernel.guests.base import CommandLine, CommandRefused
from wasm_kernel.linux import trees
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import QUIET, Cancelled
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.sessions import metadata, pruning, removal
from wasm_kernel.sessions.pruning import (
    PruneError,
    PruneSessions,
    prune,
    prune_command,
    request_of,
)
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


@pytest.mark.parametrize("hours", [-0.001, float("nan"), float("inf"), True, "24"])
def test_an_invalid_number_of_hours_is_refused(tmp_path: Path, hours: Any) -> None:
    old = aged_session(tmp_path, 10**5)
    with pytest.raises(PruneError, match="older_than_hours") as caught:
        prune_sessions(hours, tmp_path)
    assert isinstance(caught.value, ValueError)
    assert prune_sessions(1e300, tmp_path).deleted_sessions == []
    assert old.exists()


def test_a_session_that_was_used_since_it_was_found_is_kept(tmp_path: Path) -> None:
    used, unused, gone = (aged_session(tmp_path, hours) for hours in (50, 49, 48))

    class Busy:
        """Another process uses one session and deletes another, when the first is about to go."""

        def info(self, event: str, **fields: Any) -> None:
            if event == "session.prune.candidate" and fields["session_id"] == used.name:
                with Folder.open(used) as folder:
                    metadata.touch(folder, used.name, None)
                (gone / ".metadata.json").unlink()
                gone.rmdir()

        warning = info

    result = prune_sessions(24, tmp_path, logger=SandboxLogger(Busy()))
    assert result.deleted_sessions == [unused.name]
    assert (result.skipped_sessions, result.errors) == ([], {})
    assert used.exists()


def test_a_link_to_the_root_is_a_root(tmp_path: Path) -> None:
    old = aged_session(tmp_path / "real", 48)
    (tmp_path / "link").symlink_to("real")
    assert prune_sessions(24, tmp_path / "link").deleted_sessions == [old.name]


def waiting(root: Path) -> WaitingCell:
    return WaitingCell({PruneSessions: prune(SessionsRoot(root))})


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("--older-than 24h", PruneSessions(24)),
        ("--apply --older-than 7d", PruneSessions(168, False)),
        ("--older-than 30m", PruneSessions(0.5)),
        ("--older-than 0h", PruneSessions(0)),
    ],
)
def test_the_words_are_understood(line: str, request_: PruneSessions) -> None:
    assert request_of(line) == request_


@pytest.mark.parametrize(
    "line",
    ["", "24h", "--older-than 24", "--older-than -1h", "--older-than 24h /tmp", "--apply",
     "--older-than 1e9h", "--older-than 24h --dry-run --apply"],
)  # fmt: skip
def test_other_words_are_refused_with_the_usage(line: str) -> None:
    with pytest.raises(CommandRefused, match="Usage: %prune_sessions"):
        request_of(line)


def test_an_interrupt_ends_it_between_two_sessions(tmp_path: Path) -> None:
    old = aged_session(tmp_path, 72)
    gone = waiting(tmp_path)
    gone.cancelled = True
    line = CommandLine("prune_sessions", "--older-than 24h --apply")
    with pytest.raises(Cancelled):
        prune_command(SandboxLogger())(line, gone)
    assert old.is_dir()


def test_a_result_of_thousands_fits_into_a_message_and_all_events_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_SHOWN_MOST", 5)
    for _ in range(8):
        aged_session(tmp_path, 72)
    pruned = prune(SessionsRoot(tmp_path))(PruneSessions(24), QUIET)
    assert len(pruned.reply["deleted"]) == 5
    assert pruned.reply["summary"].endswith("Of 8 sessions, only the first are listed.")
    names = [event for event, _ in pruned.events]
    assert names.count("session.prune.candidate") == 8
    assert names[-1] == "session.prune.completed"
