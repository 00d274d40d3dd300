"""The session that a notebook's kernel opens, found by the notebook's file."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faces import PATIENCE
from tests.sessions.notebook_kernel import NotebookKernel, session_of, written
from wasm_kernel.linux.files import FileMark
from wasm_kernel.sessions import notebooks
from wasm_kernel.sessions.notebooks import bind, notebooks_of
from wasm_kernel.sessions.removal import delete_session_workspace
from wasm_kernel.sessions.root import SessionsRoot

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


def test_one_of_several_kernels_that_start_at_once_has_the_session(
    root: Path, notebook: Path
) -> None:
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
