"""A crash, a full disk, a damaged file or a second process never costs the last commit."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.conftest import Making, Victim
from tests.execution.committing import CELL, FILES, WHOLE
from tests.faces import full_disk, wait_for
from tests.local import Inside
from tests.sampled import lasting, sampled
from tests.stored import commits_in, state_of
from wasm_kernel import create_sandbox
from wasm_kernel.folders import locks
from wasm_kernel.folders.locks import Resume
from wasm_kernel.linux import trees
from wasm_kernel.linux.folders import Folder
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import commits
from wasm_kernel.state.pages import Content

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60
TENTHS = 10
WHOLE_ENDING = "True True True"


def commit_in(folder: Path, **env: str) -> subprocess.Popen[str]:
    """Start a process that commits in a loop."""
    command = [sys.executable, "-m", "tests.execution.committing", str(folder)]
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | env, stdout=subprocess.PIPE, text=True
    )


def kill_after(folder: Path, seconds: float) -> None:
    """Let cells be committed for this time, then `kill -9`."""
    child = commit_in(folder)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(seconds)
    child.kill()
    child.wait(SECONDS)
    child.stdout.close()


def found_in(folder: Path) -> tuple[int, str]:
    """The number of cells that a later process finds done, and its warnings.

    Each cell is found whole or not at all, and its files can be restored.
    """
    with create_sandbox(workspace=folder, resume=Resume.CRASH) as sandbox:
        assert sandbox.rollback(files=True).files_missed == {}
        told = sandbox.execute("print('n' in globals())")
        if told.stdout != "True\n":
            return 0, told.stderr
        result = sandbox.execute(WHOLE)
        assert result.success, result.error
        number, _, whole = result.stdout.strip().partition(" ")
        assert whole == WHOLE_ENDING or (number == "0" and whole.startswith("True"))
        text = "{'" + f"{int(number):06}" * 500 + "'}" if int(number) else "set()"
        assert sandbox.execute(FILES).stdout == f"True {text}\n"
        assert sandbox.execute(CELL).success
        return int(number), told.stderr


def crashes(folder: Path, times: Iterable[int], seed: int) -> None:
    dice = random.Random(seed)
    for _ in times:
        kill_after(folder, dice.uniform(0, 0.25))
        number, told = found_in(folder)
        assert number > 0 or "the beginning" in told or "In[1]" in told


def test_killed_at_any_moment_a_whole_commit_is_found(warm: None, tmp_path: Path) -> None:
    crashes(tmp_path, range(2), 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_killed_again_and_again(warm: None, tmp_path: Path, seed: int) -> None:
    crashes(tmp_path, lasting(), seed)


def kill_at(folder: Path, operation: int) -> bool:
    """Kill the process at the N-th operation of a commit; False if the commit had fewer of them."""
    child = commit_in(folder, KILL_AT=str(operation), CELLS="12")
    _, _ = child.communicate(timeout=SECONDS)
    if child.returncode == 0:
        return False
    assert child.returncode == -signal.SIGKILL
    return True


@pytest.mark.parametrize("operation", [2, 17, 78])
def test_killed_at_the_nth_operation(warm: None, tmp_path: Path, operation: int) -> None:
    kill_at(tmp_path, operation)
    found_in(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(2))
def test_killed_at_every_operation(warm: None, tmp_path: Path, part: int) -> None:
    """A run tries every tenth of some hundred operations: other ones each day, all of them in five
    days.
    """
    day = int(time.time()) // 86_400
    first = (2 * day + part) % TENTHS + 1
    for operation in itertools.count(first, TENTHS):
        folder = tmp_path / str(operation)
        if not kill_at(folder, operation):
            break
        found_in(folder)
        trees.remove_tree(folder)
    assert operation > 100  # their number depends on how much was folded before


@pytest.fixture
def saved(warm: None, tmp_path: Path) -> Path:
    """A workspace whose process was killed after three cells."""
    kill_after(tmp_path, 0.3)
    return tmp_path


@pytest.mark.parametrize("seed", sampled({str(seed): seed for seed in range(6)}, 6))
def test_a_history_flipped_or_cut_anywhere_is_never_half_loaded(saved: Path, seed: int) -> None:
    dice = random.Random(seed)
    file = dice.choice(sorted(p for p in state_of(saved).rglob("[!.]*") if p.is_file()))
    file.chmod(0o600)
    data = bytearray(file.read_bytes())
    at = dice.randrange(len(data))
    if seed % 2:
        data[at] ^= 1 << dice.randrange(8)
    else:
        del data[at:]
    file.write_bytes(data)
    found_in(saved)


def test_a_history_that_is_damaged_as_a_whole_is_told(saved: Path) -> None:
    for file in [path for path in state_of(saved).rglob("*") if path.is_file()]:
        file.chmod(0o600)
        file.write_bytes(b"x" * 100)
    number, told = found_in(saved)
    assert number == 0
    assert "The variables begin fresh" in told
    assert "files in /app are all there" in told


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("nth", [0, 2])
def test_a_failing_disk_is_told_and_rollback_works(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, number: int, nth: int
) -> None:
    sandbox: Any = inside()
    victim = Victim(sandbox)
    write, done = commits.write_content, 0

    def failing(folder: Folder, parts: Iterable[Content | memoryview]) -> object:
        nonlocal done
        done += 1
        if done > nth:
            raise OSError(number, os.strerror(number))
        return write(folder, parts)

    monkeypatch.setattr(commits, "write_content", failing)
    told: list[str] = []

    def heard() -> bool:
        told.append(victim.run(f"x = {len(told)}").stderr)
        return len(told) >= 5 and any(told)

    wait_for(heard)
    assert sum("can't be saved to disk" in text for text in told) == 1
    assert os.strerror(number) in "".join(told)
    assert victim.says("info = %session_info\nprint(info['history_is_saved'])") == "False"
    assert victim.fails("x = 99; import os; os._exit(1)") == "GuestExited"
    assert victim.says("print(x)") == str(len(told) - 1)


def test_with_room_again_a_crash_loses_nothing(inside: Inside) -> None:
    sandbox: Any = inside()
    victim = Victim(sandbox)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "write_content", full_disk)
        victim.run("x = 1")
        victim.run("y = 2")
        time.sleep(0.1)
    victim.run("z = 3")
    assert resumed(victim) == "1 2 3"


def resumed(victim: Victim) -> str:
    """The values of x, y and z in a later process."""
    victim.sandbox.close()
    with create_sandbox(workspace=victim.app, resume=Resume.ALWAYS) as sandbox:
        return sandbox.execute("print(x, y, z)").stdout.strip()


def test_a_disk_that_is_full_at_the_start_leaves_a_session_in_memory(
    monkeypatch: pytest.MonkeyPatch, inside: Inside
) -> None:
    monkeypatch.setattr(locks.HistoryLock, "take", full_disk)
    sandbox = inside()
    assert "can't be saved to disk (No space left on device)" in sandbox.execute("x=1").stderr
    sandbox.execute("import os; x = 2; os._exit(1)")
    assert sandbox.execute("print(x)").stdout == "1\n"


def test_a_history_that_is_removed_under_a_session_is_told(fresh_victim_of: Making) -> None:
    victim = fresh_victim_of()
    state = state_of(victim.app)
    victim.run("x = 1")
    wait_for(lambda: 2 in commits_in(state), "a commit")
    trees.remove_tree(state)
    victim.run("import os; os._exit(1)")
    assert "can't be read any more" in victim.run("1").stderr
    victim.lives()


def test_the_lock_of_a_killed_process_is_free(saved: Path) -> None:
    _, told = found_in(saved)
    assert "already open" not in told


def test_a_memory_limit_below_the_sessions_size_is_told_and_loses_nothing(
    fresh_victim_of: Making,
) -> None:
    victim = fresh_victim_of(memory_bytes=800 << 20)
    victim.run("x = 1; y = 2; z = bytes(420 << 20); z = 3")
    victim.sandbox.close()
    small = ExecutionPolicy(memory_bytes=512 << 20)
    with (
        create_sandbox(workspace=victim.app, policy=small, resume=Resume.ALWAYS) as sandbox,
        pytest.raises(Exception, match="memory_bytes is too small for this session"),
    ):
        sandbox.execute("1")
    assert resumed(victim) == "1 2 3"
