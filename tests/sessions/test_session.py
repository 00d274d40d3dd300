"""An open session's folder: made for its owner, found again, never a link, without leftovers."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.aged import metadata_of
from tests.documented import Heard
from tests.private import private_of
from wasm_kernel import (
    SessionInUse,
    create_session_sandbox,
    delete_session_workspace,
    get_session_sandbox,
    prune_sessions,
)
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import entries
from wasm_kernel.sessions.files import list_session_files
from wasm_kernel.sessions.removal import Deleter, Rule
from wasm_kernel.sessions.root import SessionsRoot, WorkspaceError
from wasm_kernel.sessions.session import Session

Opening = Callable[[Path, str], Path]


@pytest.fixture
def workspace_of() -> Iterator[Opening]:
    """Opens sessions for the length of a test."""
    opened: list[Session] = []

    def open_one(root: Path, session_id: str) -> Path:
        opened.append(Session(SessionsRoot(root), session_id))
        return opened[-1].workspace

    yield open_one
    for session in opened:
        session.closed()


def test_a_workspace_is_for_its_owner_alone(workspace_of: Opening, tmp_path: Path) -> None:
    workspace = workspace_of(tmp_path / "root", "one")
    for folder in (workspace, private_of(workspace)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_link_in_a_workspaces_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "one").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceError):
        Session(SessionsRoot(tmp_path / "root"), "one")


def test_a_root_that_cannot_be_made_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceError, match="Set workspace_root"):
        Session(SessionsRoot(tmp_path / "file"), "one")


def test_a_pipe_in_the_place_of_a_private_file_is_named(tmp_path: Path) -> None:
    root = SessionsRoot(tmp_path / "root", tmp_path / "private")
    session = Session(root, "one")
    session.closed()
    session.folders.close()
    [present] = (tmp_path / "private").glob("*/present")
    present.unlink()
    os.mkfifo(present)
    with pytest.raises(WorkspaceError, match=r"present is not a regular file.* private folder"):
        Session(root, "one")


def test_a_fork_is_a_session_of_its_own_and_is_told(tmp_path: Path, heard: Heard) -> None:
    session_id, sandbox = create_session_sandbox(workspace_root=tmp_path, logger=heard.logger)
    with sandbox:
        sandbox.execute("x = 1")
        (fork,) = sandbox.fork()
        assert fork.session_id is not None
        with fork:
            assert get_session_sandbox(fork.session_id, workspace_root=tmp_path) is fork
            assert fork.execute("print(x)").stdout == "1\n"
            made = metadata_of(fork.workspace)
            assert made["session_id"] == fork.session_id
            assert made["updated_at"] > made["created_at"]
            with pytest.raises(SessionInUse), Folder.open(tmp_path) as root:
                Deleter(SessionsRoot(tmp_path), root).delete(fork.session_id, Rule(0.0))
        fork.close()
    told = heard.one("session.forked")
    assert (told["session_id"], told["fork_id"]) == (session_id, fork.session_id)
    created = [each["session_id"] for each in heard.of("session.created")]
    assert created == [session_id, fork.session_id]
    delete_session_workspace(fork.session_id, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [session_id]


_KILLED = """
import os, signal, sys
from wasm_kernel.sessions import session, staging
from wasm_kernel.sessions.root import SessionsRoot
publish = staging.publish
def killed(*args):
    if sys.argv[2] == "after":
        publish(*args)
    os.kill(os.getpid(), signal.SIGKILL)
staging.publish = killed
session.Session(SessionsRoot(sys.argv[1]), session.ids.new(), new=True)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_session_whose_maker_is_killed_is_pruned(tmp_path: Path, moment: str) -> None:
    """A folder gets a session's name together with metadata, and is not a session before."""
    subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), moment], check=False)
    (left,) = tmp_path.iterdir()
    result = prune_sessions(0, tmp_path)
    assert (result.skipped_sessions, result.errors) == ([], {})
    assert result.deleted_sessions == ([left.name] if moment == "after" else [])
    assert not list(tmp_path.iterdir())


_KILLED_WRITER = """
import os, signal, sys
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import entries
with Folder.open(sys.argv[1]) as root, entries.draft_of(root.fd, b"x" * 1000, None):
    os.kill(os.getpid(), signal.SIGKILL)
"""
PATTERN = ".metadata.json~*"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A session's folder in which a writer was killed, some time ago."""
    Session(SessionsRoot(tmp_path), "one").closed()
    workspace = tmp_path / "one"
    subprocess.run([sys.executable, "-c", _KILLED_WRITER, str(workspace)], check=False)
    assert len(list(workspace.glob(PATTERN))) == 1
    assert list_session_files("one", tmp_path) == []
    monkeypatch.setattr(entries, "LEFT_SECONDS", 0.0)
    return workspace


def test_opening_removes_what_a_killed_writer_left(workspace: Path, tmp_path: Path) -> None:
    Session(SessionsRoot(tmp_path), "one").closed()
    assert list(workspace.glob(PATTERN)) == []


def test_a_draft_that_was_just_begun_stays(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    Session(SessionsRoot(workspace.parent), "one").closed()
    assert len(list(workspace.glob(PATTERN))) == 1
