"""One sandbox a session and process: who finds it, who closes it, who is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wasm_kernel import (
    BaseSandbox,
    ExecutionPolicy,
    SandboxClosed,
    SessionInUse,
    create_session_sandbox,
    delete_session_workspace,
    get_session_sandbox,
)
from wasm_kernel.sessions.live import LIVE

ID = "abc-123"
ROOT = Path(__file__).resolve().parents[2]
NEVER_CLOSED = """
import sys
from wasm_kernel import get_session_sandbox
sandbox = get_session_sandbox("abc-123", workspace_root=sys.argv[1])
print(sandbox.execute("count = globals().get('count', 0) + 1; print(count)").stdout.strip())
"""


@pytest.fixture
def root(warm: None, tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    LIVE.close_all()


def get(root: Path, **options: object) -> BaseSandbox:
    return get_session_sandbox(ID, workspace_root=root, **options)  # type: ignore[arg-type]


def test_what_is_open_is_found_and_not_started_twice(root: Path) -> None:
    first = get(root)
    first.execute("x = 1")
    assert get(root) is first
    (root / "link").symlink_to(root)
    assert get(root / "link") is first
    assert get(root).execute("print(x)").stdout == "1\n"
    assert get_session_sandbox("other", workspace_root=root) is not first


def test_a_with_block_leaves_a_sandbox_that_somebody_else_was_handed(root: Path) -> None:
    session_id, kept = create_session_sandbox(workspace_root=root)
    with get_session_sandbox(session_id, workspace_root=root) as borrowed:
        assert borrowed is kept
    assert kept.execute("print('goes on')").stdout == "goes on\n"
    with kept:
        pass
    assert kept.closed


def test_the_last_of_several_with_blocks_closes(root: Path) -> None:
    with get(root) as outer:
        with get(root) as inner, inner:
            assert inner is outer
        assert not outer.closed
        with outer:
            pass
        assert not outer.closed
    assert outer.closed


def test_close_ends_it_for_everybody_and_the_next_goes_on(root: Path) -> None:
    first, second = get(root), get(root)
    first.execute("x = 1")
    first.close()
    with pytest.raises(SandboxClosed):
        second.execute("x")
    again = get(root)
    assert again is not first
    assert again.execute("print(x)").stdout == "1\n"
    first.close()  # once more: does not touch the new one
    assert get(root) is again
    assert again.execute("print(x)").stdout == "1\n"


def test_many_threads_get_one(root: Path) -> None:
    found: list[BaseSandbox] = []
    gate = threading.Barrier(8)

    def ask() -> None:
        gate.wait()
        with get(root) as sandbox:
            found.append(sandbox)
            sandbox.execute("count = globals().get('count', 0) + 1")

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert get(root).execute("print(count)").stdout == "8\n"
    assert len(found) == 8


def test_one_that_is_being_closed_is_waited_for(root: Path) -> None:
    for number in range(5):
        sandbox = get(root)
        sandbox.execute(f"x = {number}")
        closing = threading.Thread(target=sandbox.close)
        closing.start()
        while not sandbox.closed:
            pass
        again = get(root)
        assert again is not sandbox
        assert again.execute("print(x)").stdout == f"{number}\n"
        closing.join()


def test_another_policy_is_refused_while_it_is_open(root: Path) -> None:
    policy = ExecutionPolicy(stdout_bytes=1000)
    first = get(root, policy=policy)
    assert get(root) is first
    assert get(root, policy=ExecutionPolicy(stdout_bytes=1000)) is first
    with pytest.raises(SessionInUse, match="another policy"):
        get(root, policy=ExecutionPolicy(stdout_bytes=2000))
    first.close()
    assert get(root, policy=ExecutionPolicy(stdout_bytes=2000)).policy.stdout_bytes == 2000


def test_deleting_closes_what_is_open_here(root: Path) -> None:
    sandbox = get(root)
    sandbox.execute("x = 1; open('file', 'w').write('y')")
    delete_session_workspace(ID, root)
    assert sandbox.closed
    assert list(root.iterdir()) == []
    assert get(root).execute("print('x' in globals())").stdout == "False\n"


@pytest.mark.parametrize(
    ("wrong", "error"), [({"runtime": "ruby"}, ValueError), ({"policy": {}}, TypeError)]
)
def test_a_session_that_can_not_be_made_leaves_no_folder(
    root: Path, wrong: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        create_session_sandbox(workspace_root=root, **wrong)
    assert not root.exists() or list(root.iterdir()) == []


def test_a_bad_runtime_leaves_nothing_open(root: Path) -> None:
    with pytest.raises(ValueError, match="can't run"):
        get(root, runtime="cobol")
    delete_session_workspace(ID, root)
    assert list(root.iterdir()) == []


def test_what_nobody_closed_is_saved_when_the_process_ends(root: Path) -> None:
    for number in ("1", "2", "3"):
        command = [sys.executable, "-W", "error", "-c", NEVER_CLOSED, str(root)]
        ran = subprocess.run(
            command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert (ran.stdout.strip(), ran.stderr) == (number, "")


FORKING = """
import os, sys
from wasm_kernel import get_session_sandbox
from wasm_kernel.engine.folders import walk
from wasm_kernel.sessions.presence import is_used
with get_session_sandbox("abc-123", workspace_root=sys.argv[1]) as sandbox:
    sandbox.execute("x = 1")
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
    with walk.opened(sandbox.workspace) as folder:
        print(is_used(folder))
    print(sandbox.execute("print(x)").stdout, end="")
"""
SERVER = """
import os, sys
from wasm_kernel import get_session_sandbox
get_session_sandbox("abc-123", workspace_root=sys.argv[1])  # open, but no guest yet
child = os.fork()
sandbox = get_session_sandbox("abc-123" if child else "child-1", workspace_root=sys.argv[1])
sandbox.execute("x = 1")
if child:
    os.waitpid(child, 0)
"""


def in_a_process(script: str, root: Path) -> str:
    command = [sys.executable, "-c", script, str(root)]
    ran = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return ran.stdout


def test_a_forked_child_that_ends_leaves_its_parents_session_open(root: Path) -> None:
    assert in_a_process(FORKING, root) == "True\n1\n"


def test_processes_that_a_server_forks_save_what_each_has_open(root: Path) -> None:
    in_a_process(SERVER, root)
    for name in ("abc-123", "child-1"):
        with get_session_sandbox(name, workspace_root=root) as sandbox:
            assert sandbox.execute("print(x)").stdout == "1\n"
