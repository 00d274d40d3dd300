"""Processes open, fill, delete, prune and make room at once: no variable is lost unheard."""

from __future__ import annotations

import random
import subprocess
import sys
import time
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
    assert len(left) <= len(sessions)


CLEANS = """
import sys
from wasm_kernel.sessions import upkeep
from wasm_kernel.sessions.root import SessionsRoot
upkeep.IDLE_SECONDS = 1e-4
print(flush=True)
while True:
    upkeep.Upkeep(SessionsRoot(sys.argv[1]), most_bytes=3_000_000, days=0).round()
"""
USES = """
import random, sys, time
from wasm_kernel import get_session_sandbox
end, values, seen = time.monotonic() + float(sys.argv[2]), {}, set()
while time.monotonic() < end:
    name = random.choice("abcd") + sys.argv[3]
    with get_session_sandbox(name, workspace_root=sys.argv[1]) as sandbox:
        found = sandbox.execute("print(globals().get('x'))")
        if name in values:
            told = "removed to make room" in found.stderr
            assert found.stdout.strip() == ("None" if told else str(values[name])), found
            assert told or not found.stderr, found
            seen.add(told)
        values[name] = random.random()
        assert sandbox.execute(f"x = {values[name]}").success
    time.sleep(random.random() / 5)
assert seen == {True, False}, seen
"""


@pytest.mark.soak
def test_making_room_that_is_killed_loses_nothing_unheard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = str(tmp_path / "root")
    users = [
        subprocess.Popen([sys.executable, "-c", USES, root, str(SOAK_SECONDS), str(number)])
        for number in range(2)
    ]
    while any(user.poll() is None for user in users):
        cleans = [sys.executable, "-c", CLEANS, root]
        both = [subprocess.Popen(cleans, stdout=subprocess.PIPE) for _ in range(2)]
        for each in both:
            assert each.stdout is not None
            each.stdout.readline()  # its imports may take longer than the wait below
        time.sleep(random.random())
        for each in both:
            each.kill()
            each.communicate()
    assert [user.returncode for user in users] == [0, 0]
