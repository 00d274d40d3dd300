"""No sweep takes the variables of a workspace that was only moved away for a moment."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.private import private_of
from wasm_kernel import (
    create_sandbox,
    create_session_sandbox,
    delete_session_workspace,
    get_session_sandbox,
    prune_sessions,
)
from wasm_kernel.folders import orphans
from wasm_kernel.folders.locks import exclusively
from wasm_kernel.frontends.cli.doctor import examine
from wasm_kernel.linux.folders import Folder

DAY = 24 * 3600.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "wasm-kernel"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "ws"


def others_act(folder: Path) -> None:
    """Does all that sweeps private folders, in another place."""
    delete_session_workspace("another", workspace_root=folder)
    prune_sessions(10**6, folder)
    create_sandbox(workspace=folder / "app").close()
    create_session_sandbox(workspace_root=folder / "root")[1].close()
    list(examine(folder))


def later(state: Path, days: float) -> None:
    """Make all times in the state folder this many days older."""
    for path in (state / "swept", *(state / "private").rglob("*")):
        if path.exists():
            found = path.lstat()
            os.utime(path, (found.st_atime - days * DAY, found.st_mtime - days * DAY))


def test_a_root_may_be_away_while_others_work(root: Path, tmp_path: Path, state: Path) -> None:
    with get_session_sandbox("one", workspace_root=root) as sandbox:
        sandbox.execute("x = 1")
    (tmp_path / "elsewhere").mkdir()
    later(state, 100)  # the root was not used for long
    for is_opened in (True, False):
        root.rename(tmp_path / "ws.tmp")
        others_act(tmp_path / "elsewhere")
        later(state, 6)
        others_act(tmp_path / "elsewhere")
        (tmp_path / "ws.tmp").rename(root)
        later(state, 2)
        if is_opened:  # that, and a sweep that sees the root, forget that it was missing
            get_session_sandbox("one", workspace_root=root).close()
        else:
            others_act(tmp_path / "elsewhere")
        later(state, 6)
    with get_session_sandbox("one", workspace_root=root) as sandbox:
        assert sandbox.execute("print(x)").stdout == "1\n"


def test_a_root_that_came_back_during_the_wait_for_the_lock_stays(
    root: Path, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_session_sandbox("one", workspace_root=root).close()
    private = private_of(root / "one")
    root.rename(tmp_path / "ws.tmp")
    orphans.remove_due()
    later(state, 8)

    def slow(folder: Folder) -> AbstractContextManager[None]:
        (tmp_path / "ws.tmp").rename(root)
        return exclusively(folder)

    monkeypatch.setattr(orphans, "exclusively", slow)
    orphans.remove_due()
    assert private.exists()
