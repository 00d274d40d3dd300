"""A crash, a full disk, a damaged file or a second process never costs the last commit."""

from __future__ import annotations

import errno
import itertools
import os
import random
import re
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.attacks.conftest import Making, Victim, small
from tests.faces import error_of, says, wait_for
from tests.faults import Does, Fault, Faults
from tests.private import kept_sandbox
from tests.sampled import lasting, sampled
from tests.service.conftest import worker_of
from tests.stored import commits_in, content_of, rewritten, state_of
from wasm_kernel import BaseSandbox, Sandbox, get_session_sandbox
from wasm_kernel.errors import WorkerLost
from wasm_kernel.folders.locks import Resume
from wasm_kernel.linux import trees
from wasm_kernel.linux.folders import Folder
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.sessions.archives import export_session, import_session
from wasm_kernel.state import texts
from wasm_kernel.state.commits import write_content
from wasm_kernel.state.index import Commit, Record
from wasm_kernel.state.pages import PAGE

TENTHS = 10
WHOLE_ENDING = "True True True"
OPERATIONS = "tests.attacks.committing"
FAULTS = (OPERATIONS, "wasm_kernel.state.commits:write_content")
pytestmark = pytest.mark.usefixtures("faults")
SETUP = """
import numpy as np, os
for name in os.listdir():
    if name[0] in 'abcd': os.remove(name)
n = 0
def write(n):
    for name in 'abc':
        with open(name, 'r+' if os.path.exists(name) else 'w') as file:
            file.write(f'{n:06}' * 500)
    os.replace('c', f'd{n}')
    if os.path.exists(f'd{n - 1}'): os.remove(f'd{n - 1}')
a = np.zeros((64, 512), dtype='i8'); b = {i: 0 for i in range(2000)}; c = [[0] * 50 for _ in b]
"""
CELL = """
n += 1; write(n); a[:] = n; a = a.copy()
for i in b: b[i] = n
c = [[n] * 50 for _ in b]
"""
"""Changes many pages and some files together, so that a mixture of two commits would be noticed."""
FILES = """
names = sorted(name for name in os.listdir() if name[0] in 'abcd')
print(names == (['a', 'b', f'd{n}'] if n else []), {open(name).read() for name in names})
"""
WHOLE = (
    "print(n, a.min() == a.max() == n, set(b.values()) == {n}, {x for y in c for x in y} == {n})"
)


def opened(folder: Path, resume: Resume) -> Sandbox:
    policy = ExecutionPolicy(history_cells=2)
    return kept_sandbox(workspace=folder, policy=policy, resume=resume)


def commit_in(sandbox: Sandbox, cells: Iterable[int]) -> bool:
    """Commits in a loop, until the worker is killed; returns whether a cell ran then.

    If none ran, the next cell begins in another worker, and fails if its variables are lost.
    """
    worker = sandbox.worker.worker
    with suppress(WorkerLost):
        for number in cells:
            error = sandbox.execute(CELL).error
            if error is not None or sandbox.worker.worker is not worker:
                return error is not None and error.ename == "WorkerLost"
            if number % 5 == 4:
                sandbox.undo(1, files=number % 2 == 0)
            if number % 7 == 6:
                sandbox.checkpoint(f"at {number % 3}")
    return False


def kill_after(folder: Path, seconds: float) -> bool:
    """Lets cells be committed for a time, then kills their worker; returns whether a cell ran."""
    with opened(folder, Resume.CRASH) as sandbox:
        sandbox.execute(SETUP)
        killing = threading.Timer(seconds, worker_of(sandbox).kill)
        killing.start()
        is_in_cell = commit_in(sandbox, itertools.count())
        killing.join()
    return is_in_cell


def found_in(folder: Path) -> tuple[int, str]:
    """The number of cells that a later sandbox finds done, and its warnings.

    Each cell is found whole or not at all, and its files can be restored.
    """
    with kept_sandbox(workspace=folder, resume=Resume.CRASH) as sandbox:
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
        is_in_cell = kill_after(folder, dice.uniform(0, 0.25))
        number, told = found_in(folder)
        assert "already open" not in told, "the lock of a killed process is free"
        assert number > 0 or not is_in_cell or "the beginning" in told or "In[1]" in told


def test_killed_at_any_moment_a_whole_commit_is_found(tmp_path: Path) -> None:
    crashes(tmp_path, range(2), 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    crashes(tmp_path, lasting(), seed)


def kill_at(fault: Fault, folder: Path, operation: int) -> bool:
    """Kills the worker at the N-th operation of commits; False if there were fewer of them."""
    before = fault.calls
    with fault.on(Does.KILL, at=operation), opened(folder, Resume.CRASH) as sandbox:
        if sandbox.execute(SETUP).success:
            commit_in(sandbox, range(12))
    return fault.calls - before >= operation


@pytest.mark.parametrize("operation", [17, 78])
def test_killed_at_the_nth_operation(faults: Faults, tmp_path: Path, operation: int) -> None:
    assert kill_at(faults[OPERATIONS], tmp_path, operation)
    found_in(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(2))
def test_killed_at_every_operation(faults: Faults, tmp_path: Path, part: int) -> None:
    """A run tries every tenth of some hundred operations; five days try all of them."""
    day = int(time.time()) // 86_400
    first = (2 * day + part) % TENTHS + 1
    for operation in itertools.count(first, TENTHS):
        folder = tmp_path / str(operation)
        if not kill_at(faults[OPERATIONS], folder, operation):
            break
        found_in(folder)
        trees.remove_tree(folder)
    assert operation > 100  # their number depends on how much was folded before


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A workspace whose worker was killed after three cells."""
    kill_after(tmp_path, 0.3)
    return tmp_path


@pytest.mark.parametrize("seed", sampled({str(seed): seed for seed in range(4)}, 4))
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


@pytest.mark.parametrize(
    ("number", "cells"), [(errno.ENOSPC, 0), (errno.EIO, 2), (errno.EDQUOT, 2)]
)
def test_a_failing_disk_is_told_and_rollback_works(
    fresh_victim_of: Making, faults: Faults, number: int, cells: int
) -> None:
    victim = fresh_victim_of()
    told = [victim.run(f"x = {count}").stderr for count in range(cells)]

    def heard() -> bool:
        told.append(victim.run(f"x = {len(told)}").stderr)
        return len(told) >= 5 and any(told)

    with faults["write_content"].on(number):
        wait_for(heard)
        assert sum("can't be saved to disk" in text for text in told) == 1
        assert os.strerror(number) in "".join(told)
        assert victim.says("info = %session_info\nprint(info['history_is_saved'])") == "False"
        assert victim.fails("x = 99; import os; os._exit(1)") == "GuestExited"
        assert victim.says("print(x)") == str(len(told) - 1)


def test_with_room_again_a_crash_loses_nothing(tmp_path: Path, faults: Faults) -> None:
    write = faults["write_content"]
    victim = Victim(kept_sandbox(workspace=tmp_path / "app", policy=small()))
    before = write.calls
    with write.on(errno.ENOSPC):
        victim.run("x = 1")
        victim.run("y = 2")
        wait_for(lambda: write.calls > before)
    victim.run("z = 3")
    assert resumed(victim) == "1 2 3"


def resumed(victim: Victim) -> str:
    """The values of x, y and z in a later process."""
    victim.sandbox.close()
    with kept_sandbox(workspace=victim.app, resume=Resume.ALWAYS) as sandbox:
        return sandbox.execute("print(x, y, z)").stdout.strip()


def test_a_history_that_is_removed_under_a_session_is_told(fresh_victim_of: Making) -> None:
    victim = fresh_victim_of()
    state = state_of(victim.app)
    victim.run("x = 1")
    wait_for(lambda: 2 in commits_in(state), "a commit")
    trees.remove_tree(state)
    victim.run("import os; os._exit(1)")
    assert "can't be read any more" in victim.run("1").stderr
    victim.lives()


ID = "dead"
SPINS = """
import sys
def hook(event, args):
    while True: pass
sys.addaudithook(hook)
"""


def opened_again(root: Path) -> BaseSandbox:
    return get_session_sandbox(ID, workspace_root=root)


@pytest.fixture
def kept_state(tmp_path: Path) -> Path:
    with opened_again(tmp_path) as sandbox:
        assert sandbox.execute("open('kept', 'w').write('file'); x = 1").success
        assert sandbox.execute("x = 2").success
    return tmp_path


def spoil(root: Path, *, head: bool) -> None:
    """Replace the content of the last state, or of all states, by zeros with a right digest."""
    state = state_of(root / ID)
    newest = max(commits_in(state))

    def garbage(record: Record) -> Record:
        if not isinstance(record, Commit) or (head and record.id != newest):
            return record
        with Folder.open(state / "contents") as folder:
            name, _ = write_content(folder, [])
        return replace(record, runs=(), zeros=((0, record.size // PAGE),), content=name)

    rewritten(state, garbage)


def moved(root: Path, there: Path) -> str:
    """The id of the session after its export and import in another root."""
    export_session(ID, there.with_suffix(".tar.gz"), root)
    made = import_session(there.with_suffix(".tar.gz"), there, session_id=ID)
    return made.note


def test_sessions_of_garbage_begin_fresh_and_say_so(kept_state: Path, tmp_path: Path) -> None:
    spoil(kept_state, head=False)
    moved(kept_state, tmp_path / "there")
    with opened_again(tmp_path / "there") as sandbox:
        result = sandbox.execute("print('x' in globals(), open('kept').read())")
        assert (result.stdout, result.error) == ("False file\n", None)
        assert "The variables are gone: no guest runs in the states" in result.stderr
        assert sandbox.execute("y = 3").success
    assert moved(tmp_path / "there", tmp_path / "further") == "", "all that began twice is exported"
    with opened_again(tmp_path / "further") as sandbox:
        result = sandbox.execute("print(y)")
        assert (result.stdout, "damaged" in result.stderr) == ("3\n", False)
        assert 2 in [state.cell for state in sandbox.checkpoints()], "what may be wanted is kept"


def test_a_state_that_is_garbage_is_left_for_the_one_before(kept_state: Path) -> None:
    spoil(kept_state, head=True)
    with opened_again(kept_state) as sandbox:
        result = sandbox.execute("print(x)")
        assert (result.stdout, result.error) == ("1\n", None)
        assert re.search(r"No guest runs in the saved state after In\[2\]", result.stderr)


def test_silent_states_are_left_for_earlier_ones(kept_state: Path, hasty_workers: None) -> None:
    """Formerly, no cell of such a session ever ran again: each worker began in that state."""
    with opened_again(kept_state) as sandbox:
        assert sandbox.execute(SPINS).success
    with opened_again(kept_state) as sandbox:
        error = error_of(sandbox.execute("print(x)"))
        assert (error.partition(":")[0], texts.SPOILT in error) == ("NeverBegan", True)
        result = sandbox.execute("print(x)")
        assert (result.stdout, result.error) == ("2\n", None)


@pytest.mark.parametrize("left", [0, 4096])
def test_a_content_cut_while_it_is_mapped_costs_its_states_alone(tmp_path: Path, left: int) -> None:
    """F13: a read of a missing page is a trap in the guest, and SIGBUS in the host's own code."""
    with opened_again(tmp_path) as sandbox:
        says(sandbox, "x = 1")
        says(sandbox, "b = bytearray(b'x' * 30_000_000)")
        says(sandbox, "y = 1")
        state = state_of(tmp_path / ID)
        wait_for(lambda: len(commits_in(state)) == 4)
        sandbox.undo()  # pages are mapped after this
        commits = commits_in(state)
        largest = max(commits, key=lambda one: commits[one].page_bytes)
        os.truncate(content_of(state, largest), left)
        done = sandbox.execute("print(sum(b[::4096]))")
        again = sandbox.execute("print(x, 'b' in globals())")
        assert again.stdout == "1 False\n"
        # chance decides which pages are missed first: those of the cell's array, or other ones
        told = error_of(done) + done.stderr + again.stderr
        assert "as they were before" in told or "as they were after In[1]" in told
