"""Pruning beside all else: no living session is lost, none half deleted, none outside touched."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.aged import aged, aged_session
from tests.faces import PATIENCE
from tests.sampled import SOAK_SECONDS
from wasm_kernel import (
    PruneResult,
    SandboxClosed,
    SessionInUse,
    delete_session_workspace,
    get_session_sandbox,
    prune_sessions,
)
from wasm_kernel.linux import trees
from wasm_kernel.sessions import ids

ROOT = Path(__file__).resolve().parents[2]
YEAR = 366 * 24.0
FILES = 20
PRUNE = "import sys; from wasm_kernel import prune_sessions; prune_sessions(0, sys.argv[1])"
EVIL = """
import os
os.makedirs('/'.join(['d'] * 300))
for name in ('n' * 255, 'new\\nline', 'tab\\t\\x1b]52;', 'ünï', '-rf', '*'):
    os.makedirs(name, exist_ok=True)
    open(os.path.join(name, 'file'), 'w').write('x')
os.symlink('..', 'up')
os.symlink('../../kept', 'out')
os.link('*/file', 'hard')
with open('sparse', 'w') as sparse:
    sparse.truncate(10**9)
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The sessions' folder, beside one that must not change."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    (tmp_path / "sessions").mkdir()
    yield tmp_path / "sessions"
    assert (tmp_path / "kept" / "file").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "sessions"]
    trees.remove_tree(tmp_path / "sessions")


def an_old_session(root: Path, hours: float = YEAR) -> Path:
    workspace = aged_session(root, hours)
    for number in range(FILES):
        (workspace / f"{number}").write_bytes(b"x" * 100)
    return workspace


@contextmanager
def begun(commands: list[list[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts Python processes; they are ended and their pipes closed, also when the test fails."""
    with ExitStack() as stack:
        processes = []
        for command in commands:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def users(root: Path, seconds: float, count: int) -> list[list[str]]:
    """The commands of processes that use sessions."""
    command = ["-m", "tests.attacks.session_user", str(root), str(seconds)]
    return [[*command, str(seed)] for seed in range(count)]


def prune_while(using: list[subprocess.Popen[str]], root: Path) -> list[PruneResult]:
    """Delete every session that is not alive, again and again."""
    done = []
    dice = random.Random(1)
    while any(process.poll() is None for process in using):
        done.append(prune_sessions(0, root))
        for workspace in root.iterdir():
            if dice.random() < 0.1 and ids.uuid_in(workspace.name):
                with suppress(SessionInUse):
                    delete_session_workspace(workspace.name, root)
        time.sleep(dice.uniform(0, 0.01))
    return done


def ends_of(using: list[subprocess.Popen[str]]) -> list[tuple[int, int]]:
    """How often each process found a session again, and how often it had been pruned."""
    ends = []
    for process in using:
        said, _ = process.communicate()
        assert process.returncode == 0, said
        found, pruned = said.splitlines()[-1].split()  # on a busy machine, it says that it waits
        ends.append((int(found), int(pruned)))
    return ends


def against_living_sessions(root: Path, seconds: float, rounds: int = 1) -> None:
    """Prunes beside two programs, again if too little happened because the machine is busy."""
    pruned, deleted, were_in_use = 0, False, False
    while rounds and not (pruned and deleted and were_in_use):
        rounds -= 1
        with begun(users(root, seconds, 2)) as using:
            results = prune_while(using, root)
            pruned += sum(pruned for _, pruned in ends_of(using))
        deleted = deleted or any(result.deleted_sessions for result in results)
        in_use = (result.in_use.values() for result in results)
        were_in_use = were_in_use or any("another_process" in reasons for reasons in in_use)
        assert [result.errors for result in results if result.errors] == []
        prune_sessions(0, root)
        assert list(root.iterdir()) == []
    assert pruned > 0
    assert deleted
    assert were_in_use


def test_pruning_in_a_loop_against_living_sessions(root: Path) -> None:
    against_living_sessions(root, 1.2, rounds=5)


@pytest.mark.soak
def test_pruning_in_a_loop_against_living_sessions_for_long(root: Path) -> None:
    against_living_sessions(root, 2 * SOAK_SECONDS)


def test_several_that_prune_at_once_share_the_work(root: Path) -> None:
    sessions = {an_old_session(root).name for _ in range(30)}
    with begun([["-c", PRUNE, str(root)]] * 3) as others:
        mine = prune_sessions(0, root)
        for process in others:
            said, _ = process.communicate()
            assert (process.returncode, said) == (0, "")
    assert mine.errors == {}
    assert set(mine.deleted_sessions) <= sessions
    assert list(root.iterdir()) == []


def test_killed_in_the_middle_no_session_is_half_deleted(root: Path) -> None:
    for _ in range(30):
        an_old_session(root)
    with begun([["-c", PRUNE, str(root)]]):
        while len(list(root.glob("[0-9a-f]*"))) > 28:
            time.sleep(0.0005)
        time.sleep(random.uniform(0, 0.004))
    for workspace in root.glob("[0-9a-f]*"):
        assert len(list(workspace.glob("[0-9]*"))) == FILES
        assert (workspace / ".metadata.json").exists()
    prune_sessions(0, root)
    assert list(root.iterdir()) == []  # also the folders that a removal had renamed


def test_a_session_that_seems_to_come_from_the_future_is_not_old(root: Path) -> None:
    """The clock went back a year. The times of the files do not matter."""
    future, old = an_old_session(root, -YEAR), an_old_session(root)
    for workspace in (future, old):
        for path in (workspace / ".metadata.json", workspace):
            os.utime(path, (0, 0) if workspace is future else (2**32, 2**32))
    assert prune_sessions(0, root, dry_run=True).deleted_sessions == [old.name]
    result = prune_sessions(0, root)
    assert result.deleted_sessions == [old.name]
    assert result.skipped_sessions == []
    assert future.exists()


def test_links_named_like_sessions_or_metadata_lead_nowhere(root: Path) -> None:
    old, recent = an_old_session(root), an_old_session(root, 0)
    for target in (root.parent / "kept", recent, Path("..", "kept"), Path("nowhere")):
        (root / ids.new()).symlink_to(target)
    (root / ids.new()).write_text("a file")
    borrowed = root / ids.new()
    borrowed.mkdir()
    (borrowed / ".metadata.json").symlink_to(old / ".metadata.json")
    hard = root / ids.new()
    hard.mkdir()
    (hard / ".metadata.json").hardlink_to(old / ".metadata.json")
    before = len(list(root.iterdir()))
    result = prune_sessions(1, root)
    assert result.deleted_sessions == [old.name]
    assert result.skip_reasons == dict.fromkeys((borrowed.name, hard.name), "corrupted_metadata")
    assert len(list(root.iterdir())) == before - 1
    assert (recent / "0").exists()


def test_whatever_a_guest_leaves_behind_is_pruned(root: Path) -> None:
    name = ids.new()
    with get_session_sandbox(name, workspace_root=root) as sandbox:
        made = sandbox.execute(EVIL)
        assert made.success, made.error
        assert not sandbox.execute("open('/app/.metadata.json', 'w').write('{}')").success
    aged(root / name, YEAR)
    preview = prune_sessions(24, root, dry_run=True)
    result = prune_sessions(24, root)
    assert result.errors == {}
    assert result.deleted_sessions == preview.deleted_sessions == [name]
    assert result.reclaimed_bytes == preview.reclaimed_bytes > 10**9
    assert list(root.iterdir()) == []


def test_pruning_in_the_process_that_uses_the_sessions(root: Path) -> None:
    """Each call runs, or says that its session was pruned; no cell is cut short."""
    begun = time.monotonic()
    problems: list[BaseException] = []
    ran, closed = [0], [0]

    def goes_on() -> bool:
        seconds, has_met = time.monotonic() - begun, ran[0] > 10 and closed[0] > 0
        return not problems and seconds < (1 if has_met else PATIENCE)

    def use(name: str) -> None:
        try:
            while goes_on():
                sandbox = get_session_sandbox(name, workspace_root=root)
                try:
                    for number in range(3):
                        told = sandbox.execute(f"x = {number}; print(x)")
                        assert told.stdout == f"{number}\n", told
                        ran[0] += 1
                        time.sleep(0.005)
                except SandboxClosed as problem:
                    assert "prune_sessions" in str(problem)
                    closed[0] += 1
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=use, args=(ids.new(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    while goes_on():
        result = prune_sessions(0, root)
        assert result.errors == {}
        assert set(result.in_use.values()) <= {"running_cell", "another_process"}
    for thread in threads:
        thread.join()
    assert problems == []
    assert ran[0] > 10
    assert closed[0] > 0
    prune_sessions(0, root)
    assert list(root.iterdir()) == []
