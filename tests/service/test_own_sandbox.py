"""Sandboxes that a program makes itself: their guests live in workers."""

from __future__ import annotations

import dataclasses
import fcntl
import gc
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import wasm_kernel
from tests.faces import (
    PATIENCE,
    completed,
    ends,
    error_of,
    fall_asleep,
    open_files,
    process_of,
    says,
    wait_for,
)
from tests.private import private_folders, private_of
from wasm_kernel import BatchError, NoListener
from wasm_kernel.errors import PolicyError, SandboxClosed
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.locks import FileLock
from wasm_kernel.policy import ExecutionPolicy, Mount
from wasm_kernel.result import SandboxResult
from wasm_kernel.service import fork_process
from wasm_kernel.service.fork_server import ForkServer
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.sessions.root import WorkspaceError

Making = Callable[..., Sandbox]
ID = "abc-123"


@pytest.fixture
def make(tmp_path: Path, ending: ExitStack) -> Making:
    """`create_sandbox`, or `get_session_sandbox` for an id; sandboxes are closed after the test."""

    def one(session_id: str = "", **options: Any) -> Sandbox:
        if session_id:
            get = wasm_kernel.get_session_sandbox
            sandbox = get(session_id, workspace_root=tmp_path / "root", **options)
        else:
            options.setdefault("workspace", tmp_path / "work")
            sandbox = wasm_kernel.create_sandbox(**options)
        assert isinstance(sandbox, Sandbox)
        return ending.enter_context(closing(sandbox))

    return one


def test_the_guest_is_behind_both_walls_in_a_process_that_ends_with_the_sandbox(
    make: Making, tmp_path: Path
) -> None:
    sandbox = make()
    result = sandbox.execute("open('f', 'w').close(); 6 * 7")
    assert result.outputs[0].data == {"text/plain": "42"}
    assert (result.workspace_path, result.metadata) == (tmp_path / "work", {})
    assert result.files_created == ("f",)
    assert result.memory_used_bytes > 0
    assert sandbox.execute("1 / 0").exit_code == 1
    shown = sandbox.execute("%session_info")
    assert "walls around" in f"{shown.stdout}{shown.outputs}"
    process = process_of(sandbox)
    sandbox.close()
    ends(process)
    with pytest.raises(SandboxClosed, match="can be opened again"):
        sandbox.execute("1")


def test_wrong_options_are_refused_before_anything_is_made(make: Making, tmp_path: Path) -> None:
    overlap = ExecutionPolicy(mounts=[Mount(tmp_path, "/data")])
    with pytest.raises(PolicyError, match="workspace"):
        make(policy=overlap)
    with pytest.raises(TypeError, match="policy is of type ExecutionPolicy"):
        make(policy={})
    with pytest.raises(TypeError, match="pip is of type bool"):
        make(pip="yes")
    with pytest.raises(TypeError, match="broker"):
        make(broker=None)
    with pytest.raises(PolicyError, match="is record, which needs a session"):
        make(policy=ExecutionPolicy(network_mode="record"))
    # formerly, the error was a plain OSError
    with pytest.raises(
        WorkspaceError, match=r"'w' can't .* \(No such .*\). No .* Set workspace to"
    ):
        wasm_kernel.create_sandbox(workspace="/proc/nowhere/w")
    assert not [*tmp_path.iterdir()]
    sandbox = make()
    with pytest.raises(PolicyError, match="is replay, which needs a session"):
        sandbox.reconfigure(ExecutionPolicy(network_mode="replay"), None)
    assert sandbox.policy == ExecutionPolicy()


def test_a_tilde_is_a_home_in_all_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formerly, a folder named `~` was made, except for mounts and `private_root`."""
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home / "data", here):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    (home / "limits.toml").write_text("cell_timeout = 9")
    limits = ExecutionPolicy.from_toml("~/limits.toml")
    policy = dataclasses.replace(limits, mounts=[Mount(Path("~/data"), "/data")])
    with wasm_kernel.create_sandbox(workspace="~/work", policy=policy) as sandbox:
        assert sandbox.workspace == home / "work"
    roots: Any = {"workspace_root": Path("~/root")}
    session_id, session = wasm_kernel.create_session_sandbox(**roots)
    session.close()
    wasm_kernel.write_session_file(session_id, "f", "1", **roots)
    wasm_kernel.export_session(session_id, "~/archive", **roots)
    wasm_kernel.delete_session_workspace(session_id, **roots)
    assert wasm_kernel.import_session("~/archive", **roots, same_id=True).session_id == session_id
    wasm_kernel.delete_session_path(session_id, "f", **roots)
    assert wasm_kernel.list_session_files(session_id, home / "root") == []
    with wasm_kernel.Service("~/root") as service:
        assert service.root == home / "root"
    with pytest.raises(BatchError, match=f"no notebook in the folder {home}/data"):
        wasm_kernel.run_notebooks(["~/data"], "~/out")
    assert not [*here.iterdir()]


LEFT_OPEN = """
import os, sys, wasm_kernel
sandbox = wasm_kernel.create_sandbox(workspace=sys.argv[1])
sandbox.execute("x = 1")
sandbox.checkpoint("named")
if not os.fork():
    sys.exit()  # the parent keeps its own
os.wait()
print(sandbox.fork()[0].execute("print(x)").stdout)
"""


def test_private_state_ends_with_its_sandbox(make: Making, tmp_path: Path) -> None:
    """Formerly, two sandboxes on one folder had one private folder, which stayed."""
    before = private_folders()
    command = [sys.executable, "-W", "ignore:This process", "-c", LEFT_OPEN, str(tmp_path / "work")]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    assert (told.stdout, told.stderr) == ("1\n\n", "")
    assert private_folders() == before
    first, second = make(), make()
    for each in (first, second):
        assert says(each, "print('x' in dir()); y = 2") == "False"
        assert not any(state.name for state in each.checkpoints())
    first.close()
    assert len(private_folders()) == len(before) + 1
    second.undo()
    second.redo()
    second.worker.sleep()
    second.worker.wait_asleep()
    assert says(second, "print(y)") == "2"


def test_a_lost_worker_costs_the_running_cell_alone(make: Making) -> None:
    sandbox = make(ID)
    says(sandbox, "x = 41; print('kept')")
    sandbox.undo()
    sandbox.redo()
    wait_for(lambda: not sandbox.busy)
    fall_asleep(sandbox)
    assert says(sandbox, "print(x)") == "41"
    number, begun = sandbox.next_count, sandbox.workspace / "begun"

    def lose() -> SandboxResult:
        begun.unlink(missing_ok=True)
        cell = sandbox.submit(
            "lost = True; open('begun', 'w').close(); import time; time.sleep(3600)"
        )
        wait_for(begun.exists)
        os.kill(process_of(sandbox), signal.SIGKILL)
        return cell.result(60)

    lost = lose()
    assert "has ended, or was killed" in error_of(lost)
    assert "as they were after the last cell that was kept" in error_of(lost)
    result = sandbox.execute("print(x, 'lost' in dir())")
    assert result.stdout == "41 False\n"
    assert "The session goes on after a break" in result.stderr
    numbers = [each.reply["execution_count"] for each in (lost, result)]  # each number is used once
    assert numbers == [number, number + 1]
    sandbox.close()
    sandbox = make(ID)  # the lost cell is the first one of this object
    assert lose().reply["execution_count"] == number + 2
    assert sandbox.execute("1").reply["execution_count"] == number + 3


def test_a_program_may_set_a_time_out_for_its_sockets(make: Making) -> None:
    """Formerly, the connection to each worker broke when no message came for a moment."""
    socket.setdefaulttimeout(0.05)
    try:
        assert says(make(), "import time; time.sleep(0.2); print(1)") == "1"
    finally:
        socket.setdefaulttimeout(None)


def test_other_limits_mounts_and_packages_hold_from_the_next_cell_on(
    make: Making, tmp_path: Path, warm_metered: None
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "f").write_text("mounted")
    sandbox = make(ID)
    cell = sandbox.submit("import time; time.sleep(0.5); x = 1; print('a' * 1000)")
    mounts = [Mount(tmp_path / "data", "/data")]
    policy = ExecutionPolicy(5 * 10**8, cell_timeout=60, stdout_bytes=100, mounts=mounts)
    assert make(ID, policy=policy, pip=True) is sandbox
    assert len(sandbox.execute("print(x, open('/data/f').read(), 'b' * 1000)").stdout) < 300
    assert len(cell.result(60).stdout) == 1001
    assert sandbox.policy is policy
    assert "not allowed" not in sandbox.execute("%pip list").stdout
    assert "OutOfFuel" in error_of(sandbox.execute("while True: pass"))
    with pytest.raises(PolicyError, match="is not there"):
        make(ID, policy=ExecutionPolicy(mounts=[Mount(tmp_path / "none", "/none")]))
    assert make(ID, policy=ExecutionPolicy()).execute("x").fuel_consumed is None
    assert says(sandbox, "print(x)") == "1"


def test_events_reach_the_programs_logger_and_another_one_later(
    make: Making, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sandbox = make(ID, logger=logging.getLogger("first"))
    says(sandbox, "1")
    make(ID, logger=logging.getLogger("second"))
    says(sandbox, "1")
    heard = [(one.name, vars(one)["event"]) for one in caplog.records if "event" in vars(one)]
    assert heard == [
        ("first", "session.created"),
        ("first", "session.retrieved"),
        ("first", "execution.start"),
        ("first", "execution.complete"),
        ("second", "session.retrieved"),
        ("second", "execution.start"),
        ("second", "execution.complete"),
    ]


def test_an_open_session_is_not_taken_away(make: Making, tmp_path: Path) -> None:
    sandbox = make(ID)  # the sandbox has no worker yet
    code = (
        "import sys, wasm_kernel\n"
        "try: wasm_kernel.delete_session_workspace('abc-123', sys.argv[1])\n"
        "except wasm_kernel.SessionInUse: print('in use')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "root")]
    for use in ("1", "2"):
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert told == "in use\n"
        says(sandbox, use)
    wasm_kernel.delete_session_workspace(ID, tmp_path / "root")
    for call in (sandbox.execute, lambda _: sandbox.reconfigure(ExecutionPolicy(), None)):
        with pytest.raises(SandboxClosed, match="session was about to be deleted"):
            call("1")


def test_after_a_change_of_limits_a_session_that_another_program_took_is_not_waited_for(
    make: Making, tmp_path: Path
) -> None:
    sandbox = make(ID)
    says(sandbox, "1")
    sandbox.reconfigure(ExecutionPolicy(cell_timeout=50), None)
    fall_asleep(sandbox)
    with Folder.open(private_of(tmp_path / "root" / ID)) as private:
        other = FileLock("lock", private)
        assert other.acquire()
        result = sandbox.submit("1").result(timeout=60)  # it waited for 170 s
        other.release()
    assert "already open, in another process" in result.stderr


def test_a_listener_or_callback_that_waits_for_its_own_session_is_told(make: Making) -> None:
    """Formerly, the listener waited for ever, and the sandbox with it."""
    sandbox, told = make(), list[str]()

    def wait(_: object) -> None:
        for call in (sandbox.undo, lambda: sandbox.execute("1")):
            try:
                call()
            except RuntimeError as problem:
                told.append(str(problem))

    class Waiting(NoListener):
        def emit(self, output: object) -> None:
            wait(output)

    cell = sandbox.submit("print(1)", listener=Waiting())
    cell.add_done_callback(wait)
    assert cell.result(PATIENCE).stdout == "1\n"
    assert says(sandbox, "print(2)") == "2"
    assert len(told) == 4
    assert all("can't wait for its own session" in each for each in told)


@pytest.mark.parametrize("session_id", ["", ID])
def test_a_listener_may_close_its_sandbox(make: Making, tmp_path: Path, session_id: str) -> None:
    """Formerly, the folders were closed under the worker, and the cell ended with `HostFailed`."""
    sandbox = make(session_id)

    class Closing(NoListener):
        def emit(self, output: object) -> None:
            sandbox.close()

    code = "import time\nprint(1, flush=True)\ntime.sleep(600)"
    assert "as its sandbox was closed" in error_of(sandbox.execute(code, listener=Closing()))
    with pytest.raises(SandboxClosed, match="can be opened again"):
        sandbox.execute("1")
    wait_for(lambda: not [file for file in open_files() if file.startswith(str(tmp_path))])


def test_a_sandbox_that_was_not_closed_warns_and_ends(make: Making, tmp_path: Path) -> None:
    sandbox: Any = wasm_kernel.create_sandbox(workspace=tmp_path / "left")
    sandbox.execute("1")
    process = process_of(sandbox)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del sandbox
        gc.collect()
    ends(process)
    with pytest.warns(ResourceWarning, match="was not closed"):
        cell = wasm_kernel.create_sandbox(workspace=tmp_path / "left").submit("1")
        gc.collect()
    with pytest.raises(SandboxClosed, match="the program no longer has this sandbox"):
        cell.result(PATIENCE)


def test_a_sandbox_that_is_there_when_python_ends_says_nothing(tmp_path: Path) -> None:
    """Formerly, its `__del__` printed tracebacks, as the modules' names are None by then."""
    code = (
        "import threading, wasm_kernel\n"
        "threading.lasting = wasm_kernel.create_sandbox(workspace='left')\nprint('done')"
    )
    ended = completed([sys.executable, "-c", code], cwd=tmp_path)
    assert (ended.stdout, ended.stderr) == ("done\n", "")


def test_no_descriptor_of_its_program_reaches_the_process_that_forks(tmp_path: Path) -> None:
    """The process starts even if a descriptor's number is above a limit that was lowered."""
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (tmp_path / "own").open("w") as file:
        own = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD, 500)  # programs that it starts have it
        resource.setrlimit(resource.RLIMIT_NOFILE, (own, hard))
        try:
            server = ForkServer(fork_process.start())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            os.close(own)

    own_file = str(tmp_path / "own")
    with closing(server):
        wait_for(
            lambda: own_file not in open_files(server.process), "that it closes what is not its own"
        )
        assert any(each.startswith("socket:") for each in open_files(server.process))


def test_the_variables_are_there_although_a_killed_programs_worker_takes_long_to_leave(
    make: Making, tmp_path: Path
) -> None:
    with make(ID) as sandbox:
        says(sandbox, "x = 1")
    with (private_of(tmp_path / "root" / ID) / "lock").open("r+") as history:
        fcntl.flock(history, fcntl.LOCK_EX)
        leaving = threading.Timer(2.0, fcntl.flock, (history, fcntl.LOCK_UN))
        leaving.start()
        assert says(make(ID), "print(x)") == "1"
        leaving.join()
