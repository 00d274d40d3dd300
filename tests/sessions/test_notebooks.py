"""The session that a notebook opens; a session's folder: its owner's, no link, no leftovers."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.aged import metadata_of
from tests.documented import Heard
from tests.faces import PATIENCE
from tests.private import private_of
from tests.sessions.notebook_kernel import NotebookKernel, session_of, written
from wasm_kernel import (
    SessionInUse,
    create_session_sandbox,
    delete_session_workspace,
    get_session_sandbox,
    prune_sessions,
)
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import entries, notebooks
from wasm_kernel.sessions.files import list_session_files
from wasm_kernel.sessions.notebooks import bind, notebooks_of
from wasm_kernel.sessions.removal import Deleter, Rule
from wasm_kernel.sessions.root import SessionsRoot, WorkspaceError
from wasm_kernel.sessions.session import Session

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    return written(tmp_path / "work" / "analysis.ipynb")


def seen(root: Path) -> dict[str, tuple[Path, bool]]:
    """The place where each session's one notebook was seen last, and whether it is still there."""
    found = notebooks_of(SessionsRoot(root)).items()
    return {session: (one.file, one.is_there) for session, (one,) in found}


def test_a_notebook_keeps_its_session_whatever_its_path_is(root: Path, notebook: Path) -> None:
    session = session_of(root, notebook)
    first = NotebookKernel(root, notebook)
    assert (first.session.id, first.is_again) == (session, False)  # no cell has run in it
    first.session.executed()
    first.end()
    notebook.write_text("saved in place, as Jupyter does")
    again = NotebookKernel(root, notebook)
    assert (again.session.id, again.is_again) == (session, True)
    again.end()
    (moved := notebook.parent / "sub").mkdir()
    renamed = notebook.rename(moved / "renamed.ipynb")
    assert session_of(root, renamed.rename(moved / "\udcff\n.ipynb")) == session
    (moved / "\udcff\n.ipynb").rename(renamed)
    assert session_of(root, renamed) == session
    (notebook.parent / "linked").symlink_to(moved)
    assert session_of(root, notebook.parent / "linked" / "renamed.ipynb") == session
    assert seen(root) == {session: (renamed, True)}


def test_a_rename_is_known_when_the_kernel_has_ended(root: Path, notebook: Path) -> None:
    kernel = NotebookKernel(root, notebook)
    renamed = notebook.rename(notebook.with_name("renamed.ipynb"))
    session = kernel.end()
    assert seen(root) == {session: (renamed, True)}
    new = NotebookKernel(root, written(notebook, "a new one"))
    assert (new.session.id == session, new.said) == (False, "")
    new.end()


def test_a_restart_keeps_the_session_whatever_name_is_told(root: Path, notebook: Path) -> None:
    session = session_of(root, notebook)
    kernel = NotebookKernel(root, notebook)
    renamed = notebook.rename(notebook.with_name("renamed.ipynb"))
    kernel.end()
    written(notebook, "another one")
    restarted = NotebookKernel(root, notebook, kernel.id)
    assert (restarted.session.id, restarted.is_again) == (session, False)
    restarted.end()
    assert session_of(root, renamed) == session
    assert session_of(root, notebook) != session


def test_other_bytes_are_another_notebook_the_same_a_backup(root: Path, notebook: Path) -> None:
    session = session_of(root, notebook)
    copy = NotebookKernel(root, Path(shutil.copy(notebook, notebook.with_name("copy.ipynb"))))
    assert "it holds the same as 'analysis.ipynb', but is another file" in copy.said
    assert copy.end() != session
    backup = Path(shutil.copy(notebook, notebook.with_name("backup.ipynb")))
    written(notebook.with_name("new"), "from elsewhere").replace(notebook)
    other = NotebookKernel(root, notebook)
    assert "as another file had its name before" in other.said
    assert f"wasm-kernel sessions bind {session} analysis.ipynb\n" in other.said
    assert other.end() != session
    backup.replace(notebook)
    assert session_of(root, notebook) == session


def test_bytes_and_path_decide_if_files_can_not_be_told_apart(
    root: Path, notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileMark, "of", lambda fd: FileMark(1, "", 0, ""))
    session = session_of(root, notebook)
    assert session_of(root, notebook) == session
    written(notebook, "changed after its kernel's end")
    assert session_of(root, notebook) != session
    assert session_of(root, written(notebook.with_name("other.ipynb"))) != session


def test_a_person_gives_a_notebook_a_session(root: Path, notebook: Path) -> None:
    session = session_of(root, notebook)
    other = written(notebook.with_name("other.ipynb"), "other")
    kernel = NotebookKernel(root, other)
    bind(SessionsRoot(root), session, other)
    own = kernel.end()
    restarted = NotebookKernel(root, other, kernel.id)
    assert restarted.session.id == session != own
    restarted.end()
    assert session_of(root, other) == session


def test_a_deleted_session_is_told_and_not_made_again(root: Path, notebook: Path) -> None:
    session = session_of(root, notebook)
    delete_session_workspace(session, root)
    again = NotebookKernel(root, notebook)
    assert "was deleted" in again.said
    assert again.end() != session
    assert session_of(root, notebook) == again.session.id


def test_one_of_kernels_that_start_at_once_has_the_session(root: Path, notebook: Path) -> None:
    session = session_of(root, notebook)
    with ThreadPoolExecutor(8) as threads:
        started = list(threads.map(lambda _: NotebookKernel(root, notebook), range(16)))
    found = [kernel.session.id for kernel in started]
    assert found.count(session) == 1
    assert len(set(found)) == len(found)
    assert sum("is open in another kernel" in kernel.said for kernel in started) == 15
    for kernel in started:
        kernel.end()
    assert session_of(root, notebook) == session


def test_a_kernel_waits_for_one_that_is_just_ending(
    root: Path, notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebooks, "PATIENCE_SECONDS", PATIENCE)
    first = NotebookKernel(root, notebook)
    with ThreadPoolExecutor(1) as threads:
        second = threads.submit(NotebookKernel, root, notebook)
        time.sleep(0.2)
        assert not second.done()
        assert first.end() == second.result().end()


def test_the_list_keeps_the_notebooks_that_were_opened_last(
    root: Path, notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebooks, "NOTEBOOKS_MOST", 2)
    names = [written(notebook.with_name(f"{n}.ipynb"), str(n)) for n in range(3)]
    sessions = [session_of(root, name) for name in names]
    names[1].unlink()
    assert seen(root) == {sessions[1]: (names[1], False), sessions[2]: (names[2], True)}


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


def test_a_link_for_a_workspace_and_an_impossible_root_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "one").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceError):
        Session(SessionsRoot(tmp_path / "root"), "one")
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


def test_draft_that_was_just_begun_stays(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    Session(SessionsRoot(workspace.parent), "one").closed()
    assert len(list(workspace.glob(PATTERN))) == 1
