"""A notebook that a stranger made never gets another notebook's session.

A stranger is the author of a notebook or of an archive, or shares a folder with the user. Strangers
choose the contents of files, their names, links and times, but not inode numbers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faces import full_disk
from tests.nobody import as_nobody
from tests.sessions.notebook_kernel import NotebookKernel, session_of, written
from wasm_kernel.folders.notebook_file import NotebookRefused
from wasm_kernel.sessions.notebooks import bind
from wasm_kernel.sessions.root import SessionsRoot

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    return written(tmp_path / "mine" / "analysis.ipynb")


@pytest.fixture
def strangers(tmp_path: Path) -> Path:
    """A folder that a stranger has filled."""
    (folder := tmp_path / "theirs").mkdir()
    return folder


Trick = Callable[[Path, Path], object]
TRICKS: dict[str, Trick] = {
    "a link": lambda victim, planted: planted.symlink_to(victim),
    "a relative link": lambda victim, planted: planted.symlink_to(f"../mine/{victim.name}"),
    "another name of the file": lambda victim, planted: planted.hardlink_to(victim),
    "a copy with all its times": shutil.copy2,
    "a FIFO": lambda _, planted: os.mkfifo(planted),
    "a folder": lambda _, planted: planted.mkdir(),
    "a link to itself": lambda _, planted: planted.symlink_to(planted),
    "nothing": lambda _, planted: None,
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=list(TRICKS))
def test_nothing_in_a_strangers_folder_leads_to_a_session(
    root: Path, victim: Path, strangers: Path, trick: Trick
) -> None:
    session = session_of(root, victim)
    planted = strangers / victim.name
    trick(victim, planted)
    for _ in range(2):
        assert session_of(root, planted) != session
    assert session_of(root, victim) == session


def test_a_file_with_the_inode_of_a_deleted_one_is_another(root: Path, victim: Path) -> None:
    session, number = session_of(root, victim), victim.stat().st_ino
    times = victim.stat()
    for _ in range(100):
        victim.unlink()
        written(victim, "a stranger's")
        os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
        if victim.stat().st_ino == number:
            break
    assert session_of(root, victim) != session


def test_a_notebooks_own_metadata_counts_for_nothing(root: Path, victim: Path) -> None:
    session = session_of(root, victim)
    claims = {"session_id": session, "path": str(victim), "wasm_kernel": {"session": session}}
    book = {"cells": [], "metadata": claims | {"pad": "x" * 2000}, "nbformat": 4}
    victim.unlink()
    victim.write_text(json.dumps(book))
    assert session_of(root, victim) != session


def test_names_that_a_stranger_chose_are_told_as_text(
    root: Path, victim: Path, strangers: Path
) -> None:
    planted = strangers / "a; touch x\x1b]52;c;eA==\x07$(id).ipynb"
    shutil.copy(victim, strangers / "first.ipynb")
    session_of(root, strangers / "first.ipynb")
    shutil.copy(strangers / "first.ipynb", planted)
    first = NotebookKernel(root, planted)
    assert first.said.endswith(" NOTEBOOK\n")
    assert first.said.replace("\n", "").isprintable()
    first.end()
    quoted = strangers / "$(id); x.ipynb"
    shutil.copy(victim, quoted)
    second = NotebookKernel(root, quoted)
    assert second.said.endswith(" '$(id); x.ipynb'\n")
    second.end()


def test_another_users_notebook_has_no_session(root: Path, victim: Path, strangers: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    with as_nobody(strangers):
        theirs = written(strangers / "theirs.ipynb")
    session = session_of(root, theirs)
    assert session_of(root, theirs) != session
    with pytest.raises(NotebookRefused, match="belongs to another user"):
        bind(SessionsRoot(root), session, theirs)


@pytest.mark.parametrize("damage", ["", "[" * 100_000, '[{"root": 1}, 2]', "FIFO"])
def test_a_damaged_list_costs_the_sessions_their_notebooks_and_nothing_else(
    root: Path, victim: Path, damage: str
) -> None:
    session = session_of(root, victim)
    place = Path(os.environ["XDG_STATE_HOME"], "wasm-kernel", "notebooks", "notebooks.json")
    place.unlink()
    if damage == "FIFO":
        os.mkfifo(place)
    else:
        place.write_text(damage)
    fresh = session_of(root, victim)
    assert fresh != session
    assert session_of(root, victim) == fresh
    assert (root / session).is_dir()


def test_a_full_disk_is_told_and_leaves_the_list_as_it_was(
    root: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(root, victim)
    with monkeypatch.context() as patch:
        patch.setattr("wasm_kernel.linux.folders.os.rename", full_disk)
        kernel = NotebookKernel(root, victim)
        assert "could not be noted" in kernel.said
        assert kernel.end() == session
    assert session_of(root, victim) == session
