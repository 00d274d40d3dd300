"""One sandbox a session and process: how it is found, closed and refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documented import Heard
from tests.faces import completed, error_of, without_waits
from wasm_kernel import (
    BaseSandbox,
    ExecutionPolicy,
    PolicyError,
    SandboxClosed,
    create_session_sandbox,
    delete_session_workspace,
    get_session_sandbox,
)
from wasm_kernel.sessions.open_sandboxes import OPEN_SANDBOXES

ID = "abc-123"
ROOT = Path(__file__).resolve().parents[2]
NEVER_CLOSED = """
import atexit, sys, threading
from wasm_kernel import get_session_sandbox
sandbox = get_session_sandbox("abc-123", workspace_root=sys.argv[1])
print(sandbox.execute("count = globals().get('count', 0) + 1; print(count)").stdout.strip())
atexit.register(setattr, threading.Thread, "start", None)
"""
"""A program that leaves its sandbox open; at its end no thread can start, as in Python 3.12.1."""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    OPEN_SANDBOXES.close_all()


def get(root: Path, **options: Any) -> BaseSandbox:
    return get_session_sandbox(ID, workspace_root=root, **options)


def test_an_open_sandbox_is_found_and_left_to_other_users(root: Path) -> None:
    first = get(root)
    first.execute("x = 1")
    assert get(root) is first
    (root / "link").symlink_to(root)
    assert get(root / "link") is first
    assert get(root).execute("print(x)").stdout == "1\n"
    assert get_session_sandbox("other", workspace_root=root) is not first
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
    first.close()  # closing it again does not touch the new one
    assert get(root) is again
    assert again.execute("print(x)").stdout == "1\n"


def test_many_threads_get_one(root: Path) -> None:
    found: list[BaseSandbox] = []
    gate = threading.Barrier(4)

    def ask() -> None:
        gate.wait()
        with get(root) as sandbox:
            found.append(sandbox)
            sandbox.execute("count = globals().get('count', 0) + 1")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert get(root).execute("print(count)").stdout == "4\n"
    assert len(found) == 4


def test_one_that_is_being_closed_is_waited_for(root: Path) -> None:
    for number in range(2):
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


def test_a_later_policy_holds_from_the_next_cell_on(root: Path) -> None:
    first = get(root, policy=ExecutionPolicy(stdout_bytes=1000))
    first.execute("x = [1]; y = x; print('z' * 2000)")
    later = ExecutionPolicy(stdout_bytes=5000, env={"LATER": "yes"}, open_files=16)
    second = get(root, policy=later)
    assert second is first
    assert second.policy is later
    told = first.execute("import os; x.append(2); print(y, os.environ['LATER'], 'z' * 2000)")
    assert told.stdout.startswith("[1, 2] yes zzz")
    assert len(told.stdout) > 2000
    full = first.execute("files = [open('/app/' + str(n), 'w') for n in range(30)]")
    assert error_of(full).startswith("OSError:")
    assert get(root) is first
    assert first.policy is later
    assert first.execute("p = %policy\nprint(p['open_files'])").stdout == "16\n"
    first.execute("%undo")
    assert first.execute("print(y)").stdout == "[1, 2]\n"
    first.close()
    with get(root) as again:  # a new instance, without a policy
        assert again.policy == ExecutionPolicy()
        assert again.execute("print(y)").stdout == "[1, 2]\n"
    with get(root, policy=later) as again:
        assert again.execute("print(os.environ['LATER'])").stdout == "yes\n"


def test_a_later_policy_that_the_variables_do_not_fit_is_told(root: Path) -> None:
    sandbox = get(root)
    sandbox.execute("x = bytearray(450_000_000)")
    get(root, policy=ExecutionPolicy(memory_bytes=512 * 1024 * 1024))
    for _ in range(2):
        with pytest.raises(PolicyError, match="memory_bytes"):
            sandbox.execute("1")
    get(root, policy=ExecutionPolicy())
    assert sandbox.execute("print(len(x))").stdout == "450000000\n"


def test_a_later_logger_hears_from_the_next_cell_on(root: Path) -> None:
    first, second = Heard(), Heard()
    sandbox = get(root, logger=first.logger)
    sandbox.execute("1")
    before = first.events
    assert get(root, logger=second.logger) is sandbox
    sandbox.execute("1")
    assert first.events == before
    assert [(event, fields["session_id"]) for event, fields in second.events] == [
        (event, ID) for event in ("session.retrieved", "execution.start", "execution.complete")
    ]
    get(root).execute("1")
    assert len(second.events) == 5


def test_deleting_closes_what_is_open_here(root: Path) -> None:
    sandbox = get(root)
    sandbox.execute("x = 1; open('file', 'w').write('y')")
    delete_session_workspace(ID, root)
    assert sandbox.closed
    assert list(root.iterdir()) == []
    again = get(root)
    assert again.execute("print('x' in globals())").stdout == "False\n"
    root.rename(root.with_name("moved"))
    delete_session_workspace(ID, root)
    assert again.closed


def test_sandboxes_left_open_are_saved_when_the_process_ends(root: Path) -> None:
    for number in ("1", "2"):
        command = [sys.executable, "-W", "error", "-c", NEVER_CLOSED, str(root)]
        ran = completed(command, cwd=ROOT)
        assert (ran.stdout.strip(), without_waits(ran.stderr)) == (number, "")


FORKING = """
import os, sys
from wasm_kernel import get_session_sandbox
from wasm_kernel.folders.locks import is_used
from wasm_kernel.sessions.root import SessionsRoot
with get_session_sandbox("abc-123", workspace_root=sys.argv[1]) as sandbox:
    sandbox.execute("x = 1")
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
    with SessionsRoot(sys.argv[1]).private_of("abc-123")() as (private, _):
        print(is_used(private))
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


def test_forked_processes_save_their_own_sessions_alone(root: Path) -> None:
    assert in_a_process(FORKING, root) == "True\n1\n"
    in_a_process(SERVER, root)
    for name in ("abc-123", "child-1"):
        with get_session_sandbox(name, workspace_root=root) as sandbox:
            assert sandbox.execute("print(x)").stdout == "1\n"
