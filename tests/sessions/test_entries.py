"""The leftovers of a killed writer of a session's file, and their removal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import entries
from wasm_kernel.sessions.files import list_session_files
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

_KILLED = """
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
    subprocess.run([sys.executable, "-c", _KILLED, str(workspace)], check=False)
    assert len(list(workspace.glob(PATTERN))) == 1
    assert list_session_files("one", tmp_path) == []
    monkeypatch.setattr(entries, "YOUNG_SECONDS", 0.0)
    return workspace


def test_opening_the_session_removes_what_a_killed_writer_left(
    workspace: Path, tmp_path: Path
) -> None:
    Session(SessionsRoot(tmp_path), "one").closed()
    assert list(workspace.glob(PATTERN)) == []


def test_what_is_being_written_stays(workspace: Path, tmp_path: Path) -> None:
    with Folder.open(workspace) as folder, entries.draft_of(folder.fd, b"slow", None) as draft:
        Session(SessionsRoot(tmp_path), "one").closed()
        assert [path.name for path in workspace.glob(PATTERN)] == [draft]


def test_what_was_just_begun_stays(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    Session(SessionsRoot(workspace.parent), "one").closed()
    assert len(list(workspace.glob(PATTERN))) == 1
