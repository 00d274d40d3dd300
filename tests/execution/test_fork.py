"""Forks of the real guest have their parent's variables, files and past, and go on independently.

Their random numbers are others, unless the same ones are asked for.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.execution.conftest import Forking, Opening
from tests.faces import error_of, says
from tests.private import private_of
from wasm_kernel import Sandbox, create_session_sandbox, get_session_sandbox
from wasm_kernel.errors import ForkError
from wasm_kernel.folders.locks import Resume
from wasm_kernel.linux import trees
from wasm_kernel.policy import Mount

STATE = """
import io, sqlite3, threading, numpy as np, pandas as pd
squares = (i * i for i in range(100)); next(squares); next(squares)
db = sqlite3.connect(':memory:'); _ = db.execute('create table t (x)')
_ = db.execute('insert into t values (7)')
double = lambda x: 2 * x
lock = threading.Lock(); _ = lock.acquire()
df = pd.DataFrame({'x': range(1000)}); a = np.arange(10.0); same = [a, a]
"""
TELL = """
print(next(squares), db.execute('select * from t').fetchall(), db.in_transaction, double(21),
      lock.locked(), int(df.x.sum()), a.sum(), same[0] is same[1], len(In), sorted(Out))
"""
TOLD = "4 [(7,)] True 42 True 499500 45.0 True"


def test_a_fork_has_the_same_variables(parent: Sandbox, forked: Forking) -> None:
    parent.execute(STATE)
    assert says(forked(parent), TELL) == says(parent, TELL) == f"{TOLD} 3 []"


def test_a_fork_before_the_first_cell(parent: Sandbox, forked: Forking) -> None:
    fork = forked(parent)
    assert says(fork, "x = 1; print(x)") == "1"
    assert fork.execute("x").reply["execution_count"] == 2


def test_a_fork_of_a_fork(parent: Sandbox, forked: Forking) -> None:
    parent.execute("x = [1]")
    child = forked(parent)
    child.execute("x.append(2); f = open('f', 'w+'); _ = f.write('child'); f.flush()")
    grandchild = forked(child)
    grandchild.execute("x.append(3); _ = f.write(' and grandchild'); f.flush()")
    assert says(grandchild, "print(x, open('f').read())") == "[1, 2, 3] child and grandchild"
    assert says(child, "print(x, open('f').read())") == "[1, 2] child"
    assert grandchild.undo(3).cells[:2] == (
        "x.append(2); f = open('f', 'w+'); _ = f.write('child'); f.flush()",
        "x.append(3); _ = f.write(' and grandchild'); f.flush()",
    )
    assert says(grandchild, "print(x)") == "[1]"


def test_the_parent_may_end_and_vanish(opened: Opening, forked: Forking) -> None:
    parent = opened()
    parent.execute("x = list(range(100_000))")
    fork = forked(parent)
    parent.close()
    trees.remove_tree(parent.workspace)
    assert fork.execute("import os; os._exit(3)").error is not None
    assert says(fork, "print(sum(x))") == "4999950000"


def test_a_fork_after_an_undo_stands_where_the_undo_led(parent: Sandbox, forked: Forking) -> None:
    for value in range(3):
        parent.execute(f"x = {value}")
    parent.undo(1)
    fork = forked(parent)
    fork.redo()
    assert says(fork, "print(x)") == "2"
    assert says(parent, "print(x)") == "1"


def test_a_fork_of_a_session_is_found_again(tmp_path: Path) -> None:
    _, parent = create_session_sandbox(workspace_root=tmp_path)
    with parent:
        parent.execute("x = 1; f = open('f', 'w+'); _ = f.write('hello'); f.flush()")
        (fork,) = parent.fork()
    with fork:
        fork.execute("x += 1")
    with get_session_sandbox(fork.session_id, workspace_root=tmp_path) as later:
        assert says(later, "f.seek(0); print(x, f.read())") == "2 hello"
        later.undo(2)
        assert says(later, "f.seek(0); print(x, f.read())") == "1 hello"


def test_a_fork_without_a_session_lives_beside_its_parent(parent: Sandbox, forked: Forking) -> None:
    (parent.workspace.parent / "app-fork-1").mkdir()
    fork = forked(parent)
    assert fork.workspace == parent.workspace.with_name("app-fork-2")
    assert fork.session_id == ""


def test_a_fork_while_a_cell_runs_comes_after_it(parent: Sandbox, forked: Forking) -> None:
    cell = parent.submit("import time; time.sleep(0.5); x = 'done'")
    assert says(forked(parent), "print(x)") == "done"
    assert cell.result().success


def test_a_fork_of_what_can_not_be_saved_is_refused(opened: Opening) -> None:
    first = opened(resume=Resume.ALWAYS)
    first.execute("y = 1")
    second = opened(resume=Resume.ALWAYS)  # the first one has the history
    second.execute("x = 2")
    with pytest.raises(ForkError, match="not saved"):
        second.fork()
    assert [path.name for path in second.workspace.parent.iterdir()] == ["app"]


def test_a_trap_in_a_fork_s_first_cell_keeps_its_seeds(parent: Sandbox, forked: Forking) -> None:
    parent.execute("import random")
    fork = forked(parent)
    lost = fork.execute("print(random.random()); import os; os._exit(3)").stdout.strip()
    assert says(fork, "print(random.random())") == lost


CHANCE = """
import random, sqlite3, uuid, numpy as np
own, rng, legacy = random.Random(5), np.random.default_rng(5), np.random.RandomState(5)
class Mine(random.Random): pass
mine, seeded = Mine(5), np.random.Generator(np.random.SFC64(5)); np.random.seed(5); random.seed(5)
_ = (legacy.standard_normal(), np.random.standard_normal(), own.gauss(), random.gauss())
def draw(): return [
    random.random(), random.gauss(), own.random(), own.gauss(), mine.random(),
    np.random.random(), np.random.standard_normal(), legacy.random(), legacy.standard_normal(),
    rng.random(), rng.integers(2**60), seeded.random(), rng.spawn(1)[0].random(),
    np.random.get_state()[1][0], uuid.uuid4().int, uuid.uuid1().int, uuid.uuid7().int % 2**60,
    sqlite3.connect(':memory:').execute('select random()').fetchone()[0],
]
"""
DRAW = "print([float(x) for x in draw()])"


def test_forks_draw_other_numbers_than_their_parent_and_each_other(parent: Sandbox) -> None:
    parent.execute(CHANCE)
    forks = parent.fork(3)
    try:
        drawn = [eval(says(sandbox, DRAW)) for sandbox in (parent, *forks)]
    finally:
        for fork in forks:
            fork.close()
    same = [n for n, values in enumerate(zip(*drawn, strict=True)) if len(set(values)) < 4]
    assert same == []


def test_the_parent_goes_on_with_its_own_numbers(parent: Sandbox, forked: Forking) -> None:
    parent.execute("import random; random.seed(5)")
    forked(parent)
    assert says(parent, "print(random.random())") == "0.6229016948897019"


def test_a_file_that_was_replaced_under_its_name_is_not_taken_for_the_open_one(
    parent: Sandbox, forked: Forking
) -> None:
    parent.execute("f = open('f', 'w+'); _ = f.write('old'); f.flush()")
    parent.execute("f.close(); import os; os.unlink('f'); g = open('f', 'w+'); g.write('new')")
    fork = forked(parent)
    fork.undo(1)
    assert error_of(fork.execute("f.seek(0); f.read()")).startswith("OSError:")
    parent.execute("f = open('f', 'w+'); _ = f.write('old'); f.flush()")
    (parent.workspace / "f").unlink()
    (parent.workspace / "f").write_text("new")
    assert error_of(forked(parent).execute("f.seek(0); f.read()")).startswith("OSError:")


def test_a_file_without_a_name_is_the_fork_s_own(parent: Sandbox, forked: Forking) -> None:
    parent.execute(
        "import os; f = open('f', 'w+'); _ = f.write('unnamed'); f.flush(); os.unlink('f')"
    )
    fork = forked(parent)
    fork.execute("_ = f.write(' fork'); f.flush()")
    parent.execute("_ = f.write(' parent'); f.flush()")
    assert says(fork, "f.seek(0); print(f.read())") == "unnamed fork"
    assert says(parent, "f.seek(0); print(f.read())") == "unnamed parent"
    (grandchild,) = fork.fork()
    assert says(grandchild, "f.seek(0); print(f.read())") == "unnamed fork"
    grandchild.close()


def test_open_files_that_an_undo_brought_are_in_forks(parent: Sandbox, forked: Forking) -> None:
    parent.execute("f = open('f', 'w+'); _ = f.write('old'); f.flush()")
    parent.execute("import os; open('g', 'w').write('new'); os.replace('g', 'f')")
    assert parent.execute("%undo --files").success
    assert says(parent, "f.seek(0); print(f.read())") == "old"
    assert says(forked(parent), "f.seek(0); print(f.read())") == "old"


def test_fork_brings_back_files_from_before_it_was_forked(parent: Sandbox, forked: Forking) -> None:
    parent.execute("open('f', 'w').write('one')")
    parent.execute("open('f', 'w').write('two')")
    fork = forked(parent)
    fork.execute("open('f', 'w').write('three')")
    assert fork.execute("%undo --files").success
    assert (fork.workspace / "f").read_text() == "two"
    assert fork.execute("%undo --files").success
    assert (fork.workspace / "f").read_text() == "one"
    assert (parent.workspace / "f").read_text() == "two"


def test_mounts_are_the_same_for_both(opened: Opening, forked: Forking, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    parent = opened(mounts=(Mount(tmp_path / "shared", "/shared", True),))
    parent.execute("f = open('/shared/f', 'w+'); _ = f.write('hello'); f.flush()")
    fork = forked(parent)
    assert says(fork, "f.seek(0); print(f.read())") == "hello"
    fork.execute("open('/shared/g', 'w').close()")
    assert says(parent, "import os; print(sorted(os.listdir('/shared')))") == "['f', 'g']"


def test_files_that_can_not_be_copied_are_named_in_the_first_cell(
    parent: Sandbox, forked: Forking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(parent.workspace)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("so\x1bcket")
        fork = forked(parent)
    said = fork.execute("x = 1").stderr
    assert "1 of the parent's files are not in this fork: 'so\\x1bcket' (it is neither" in said
    assert fork.execute("x = 1").stderr == ""
    assert parent.execute("x = 1").stderr == ""


def test_hidden_names_are_not_copied(parent: Sandbox, forked: Forking) -> None:
    parent.execute("x = 1")
    (parent.workspace / ".metadata.json").write_text("{}")
    (parent.workspace / ".METADATA.json").write_text("{}")
    (private_of(parent.workspace) / "notes").write_text("x")
    fork = forked(parent)
    assert list(fork.workspace.iterdir()) == []
    assert not (private_of(fork.workspace) / "notes").exists()
