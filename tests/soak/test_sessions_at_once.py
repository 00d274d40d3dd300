"""Several processes open, fill, delete and prune the same sessions: no state is lost or left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampled import SOAK_SECONDS

WORK = """
import os, random, sys, time
from pathlib import Path
from wasm_kernel import SessionInUse, delete_session_workspace, prune_sessions
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

root, end = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    name, what = random.choice("ab"), random.random()
    try:
        if what < 0.7:
            session = Session(SessionsRoot(root), name)
            folders = session.folders
            assert os.path.samestat(os.stat(root / name), os.fstat(folders.workspace.fd))
            assert folders.private.path.is_dir()
            mark = f"{os.getpid()}-{time.monotonic_ns()}"
            (folders.real / mark).touch()
            assert folders.workspace.status(mark) is not None
            session.closed()
        elif what < 0.9:
            delete_session_workspace(name, root)
        else:
            prune_sessions(0, root)
    except SessionInUse:
        pass
"""


@pytest.mark.soak
def test_sessions_that_come_and_go_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "root").mkdir()
    command = [sys.executable, "-c", WORK, str(tmp_path / "root"), str(SOAK_SECONDS)]
    workers = [subprocess.Popen(command) for _ in range(4)]
    assert [worker.wait() for worker in workers] == [0, 0, 0, 0]
    sessions = {path.name for path in (tmp_path / "root").iterdir()}
    assert sessions <= {"a", "b"}
    left = list((tmp_path / "state" / "wasm-kernel" / "private").iterdir())
    assert len(left) <= len(sessions) + 4
