"""Forks of the real guest: the same variables, files of their own, other chances."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sandbox.keeping import Keeping
from wasm_kernel import BaseSandbox, create_sandbox
from wasm_kernel.engine import content, tree
from wasm_kernel.errors import ForkError, TravelError, WasmKernelError
from wasm_kernel.policy import ExecutionPolicy, Mount
from wasm_kernel.sandbox.claim import Resume

Opening = Callable[..., BaseSandbox]
TRAP = "import os; os._exit(3)"


@pytest.fixture
def opened(warm: None, tmp_path: Path) -> Iterator[Opening]:
    """Opens sandboxes; those and their forks are closed in the end."""
    made: list[BaseSandbox] = []

    def one(name: str = "app", resume: Resume = Resume.NEVER, **policy: object) -> BaseSandbox:
        limits = ExecutionPolicy(**policy)  # type: ignore[arg-type]
        made.append(create_sandbox(workspace=tmp_path / name, resume=resume, policy=limits))
        return made[-1]

    yield one
    for sandbox in made:
        sandbox.close()


@pytest.fixture
def parent(opened: Opening) -> BaseSandbox:
    return opened()


@pytest.fixture
def forked() -> Iterator[Callable[..., BaseSandbox]]:
    """Forks a sandbox, and closes the forks in the end."""
    made: list[BaseSandbox] = []

    def one(sandbox: BaseSandbox, **options: bool) -> BaseSandbox:
        made.extend(sandbox.fork(**options))
        return made[-1]

    yield one
    for sandbox in made:
        sandbox.close()


Forking = Callable[..., BaseSandbox]


def says(sandbox: BaseSandbox, code: str) -> str:
    result = sandbox.execute(code)
    assert result.success, result.error
    return result.stdout.strip()


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


def test_a_fork_has_the_same_variables(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute(STATE)
    fork = forked(parent)
    assert says(fork, TELL) == says(parent, TELL) == f"{TOLD} 3 []"


def test_both_go_their_own_ways(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute("x = [1]")
    fork = forked(parent)
    fork.execute("x.append('fork'); open('fork', 'w').close()")
    parent.execute("x.append('parent'); open('parent', 'w').close()")
    tell = "import os; print(x, os.listdir())"
    assert says(fork, tell) == "[1, 'fork'] ['fork']"
    assert says(parent, tell) == "[1, 'parent'] ['parent']"


def test_execution_counts_go_on(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute("x = 1")
    parent.execute("x")
    assert forked(parent).execute("Out[2]").reply["execution_count"] == 3


def test_many_forks_at_once(parent: BaseSandbox) -> None:
    parent.execute("x = 1")
    forks = parent.fork(5)
    try:
        for number, fork in enumerate(forks):
            fork.execute(f"x += {number}")
        assert [says(fork, "print(x)") for fork in forks] == ["1", "2", "3", "4", "5"]
        assert len({fork.workspace for fork in forks}) == 5
    finally:
        for fork in forks:
            fork.close()
    assert says(parent, "print(x)") == "1"


def test_a_fork_before_the_first_cell(parent: BaseSandbox, forked: Forking) -> None:
    fork = forked(parent)
    assert says(fork, "x = 1; print(x)") == "1"
    assert fork.execute("x").reply["execution_count"] == 2


def test_a_fork_of_a_fork(parent: BaseSandbox, forked: Forking) -> None:
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
    tree.remove(parent.workspace)
    assert fork.execute(TRAP).error is not None
    assert says(fork, "print(sum(x))") == "4999950000"


def test_a_fork_after_an_undo_stands_where_the_undo_led(
    parent: BaseSandbox, forked: Forking
) -> None:
    for value in range(3):
        parent.execute(f"x = {value}")
    parent.undo(1)
    fork = forked(parent)
    fork.redo()
    assert says(fork, "print(x)") == "2"
    assert says(parent, "print(x)") == "1"


def test_a_fork_goes_back_to_its_parents_states(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute("x = 1")
    parent.checkpoint("one")
    parent.execute("x = 2")
    fork = forked(parent)
    fork.execute("x = 3")
    fork.restore("one")
    assert says(fork, "print(x)") == "1"
    assert says(parent, "print(x)") == "2"


def test_a_trap_in_a_fork_leads_back_to_the_fork(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute("x = 1")
    fork = forked(parent)
    first = says(fork, "import random; print(random.random()); x = 2")
    assert fork.execute(TRAP).error is not None
    assert says(fork, "print(x)") == "2"
    assert says(parent, "print(x)") == "1"
    assert first


def test_a_trap_in_a_fork_s_first_cell_keeps_its_seeds(
    parent: BaseSandbox, forked: Forking
) -> None:
    parent.execute("import random")
    fork = forked(parent)
    lost = fork.execute("print(random.random()); import os; os._exit(3)").stdout.strip()
    assert says(fork, "print(random.random())") == lost


def test_a_fork_is_found_by_a_later_process(
    parent: BaseSandbox, opened: Opening, forked: Forking
) -> None:
    parent.execute("x = 1; f = open('f', 'w+'); _ = f.write('hello'); f.flush()")
    fork = forked(parent)
    fork.execute("x += 1")
    fork.close()
    later = opened(fork.workspace.name, Resume.ALWAYS)
    assert says(later, "f.seek(0); print(x, f.read())") == "2 hello"
    later.undo(2)
    assert says(later, "f.seek(0); print(x, f.read())") == "1 hello"


def test_a_fork_that_never_ran_a_cell_is_found_as_well(
    parent: BaseSandbox, opened: Opening, forked: Forking
) -> None:
    parent.execute("x = 1")
    fork = forked(parent)
    fork.close()
    assert says(opened(fork.workspace.name, Resume.ALWAYS), "print(x)") == "1"


# Files


def test_open_files_of_a_fork_are_its_own(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute("f = open('f', 'w+'); _ = f.write('both '); f.flush()")
    fork = forked(parent)
    for sandbox, name in ((fork, "fork"), (parent, "parent")):
        sandbox.execute(f"_ = f.write('{name}'); f.flush()")
    assert (fork.workspace / "f").read_text() == "both fork"
    assert (parent.workspace / "f").read_text() == "both parent"


def test_open_files_in_tmp_are_there_too(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute(
        "import tempfile; t = tempfile.NamedTemporaryFile('w+'); _ = t.write('scratch'); t.flush()"
    )
    fork = forked(parent)
    assert says(fork, "t.seek(0); print(t.read())") == "scratch"
    fork.execute("t.close()")
    assert says(parent, "t.seek(0); print(t.read())") == "scratch"


def test_a_database_on_disk_is_the_fork_s_own(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute(
        "import sqlite3; db = sqlite3.connect('x.db', isolation_level=None)\n"
        "_ = db.execute('create table t (x)'); _ = db.execute('insert into t values (1)')"
    )
    fork = forked(parent)
    fork.execute("_ = db.execute('insert into t values (2)')")
    assert says(fork, "print(db.execute('select * from t').fetchall())") == "[(1,), (2,)]"
    assert says(parent, "print(db.execute('select * from t').fetchall())") == "[(1,)]"


def test_a_file_that_was_replaced_under_its_name_is_not_taken_for_the_open_one(
    parent: BaseSandbox, forked: Forking
) -> None:
    parent.execute("f = open('f', 'w+'); _ = f.write('old'); f.flush()")
    (parent.workspace / "f").unlink()
    (parent.workspace / "f").write_text("new")
    error = forked(parent).execute("f.seek(0); f.read()").error
    assert error is not None
    assert error.ename == "OSError"


def test_a_file_that_was_made_again_before_the_fork_is_not_the_one_of_older_states(
    parent: BaseSandbox, forked: Forking
) -> None:
    parent.execute("f = open('f', 'w+'); _ = f.write('old'); f.flush()")
    parent.execute("f.close(); import os; os.unlink('f'); g = open('f', 'w+'); g.write('new')")
    fork = forked(parent)
    fork.undo(1)
    error = fork.execute("f.seek(0); f.read()").error
    assert error is not None
    assert error.ename == "OSError"


def test_a_file_without_a_name_is_the_fork_s_own(parent: BaseSandbox, forked: Forking) -> None:
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


def test_an_open_file_that_an_undo_brought_back_is_open_in_a_fork(
    parent: BaseSandbox, forked: Forking
) -> None:
    parent.execute("f = open('f', 'w+'); _ = f.write('old'); f.flush()")
    parent.execute("import os; open('g', 'w').write('new'); os.replace('g', 'f')")
    assert parent.execute("%undo --files").success
    assert says(parent, "f.seek(0); print(f.read())") == "old"
    assert says(forked(parent), "f.seek(0); print(f.read())") == "old"


def test_a_fork_brings_back_files_from_before_it_was_forked(
    parent: BaseSandbox, forked: Forking
) -> None:
    parent.execute("open('f', 'w').write('one')")
    parent.execute("open('f', 'w').write('two')")
    fork = forked(parent)
    fork.execute("open('f', 'w').write('three')")
    assert fork.execute("%undo --files").success
    assert (fork.workspace / "f").read_text() == "two"
    assert fork.execute("%undo --files").success
    assert (fork.workspace / "f").read_text() == "one"
    assert (parent.workspace / "f").read_text() == "two"


def test_mounted_folders_are_the_same_for_both(
    opened: Opening, forked: Forking, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    parent = opened(mounts=(Mount(tmp_path / "shared", "/shared", True),))
    parent.execute("f = open('/shared/f', 'w+'); _ = f.write('hello'); f.flush()")
    fork = forked(parent)
    assert says(fork, "f.seek(0); print(f.read())") == "hello"
    fork.execute("open('/shared/g', 'w').close()")
    assert says(parent, "import os; print(sorted(os.listdir('/shared')))") == "['f', 'g']"


def test_the_workspace_is_copied_with_all_that_can_lie_in_it(
    parent: BaseSandbox, forked: Forking, tmp_path: Path
) -> None:
    app = parent.workspace
    (tmp_path / "secret").write_text("secret")
    (app / "out").symlink_to(tmp_path / "secret")
    (app / "up").symlink_to("..")
    os.mkfifo(app / "pipe")
    with (app / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    parent.execute(
        "import os\nfor _ in range(600):\n    os.mkdir('d'); os.chdir('d')\n"
        "open('end', 'w').close(); os.chdir('/app')"
    )
    fork = forked(parent)
    names = sorted(path.name for path in fork.workspace.iterdir())
    assert names == [".wasm_kernel", "d", "out", "pipe", "sparse", "up"]
    assert (fork.workspace / "out").readlink() == tmp_path / "secret"
    assert (fork.workspace / "sparse").stat().st_blocks == 0
    assert fork.execute("open('out')").error is not None
    assert says(fork, "print(sum(1 for _ in os.walk('d')))") == "600"
    tree.remove(fork.workspace / "d")
    tree.remove(app / "d")


def test_what_can_not_be_copied_is_named_in_the_first_cell(
    parent: BaseSandbox, forked: Forking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(parent.workspace)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("so\x1bcket")
        fork = forked(parent)
    said = fork.execute("x = 1").stderr
    assert "1 of the parent's files are not in this fork: 'so\\x1bcket' (it is neither" in said
    assert fork.execute("x = 1").stderr == ""
    assert parent.execute("x = 1").stderr == ""


def test_hidden_names_are_not_copied(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute("x = 1")
    (parent.workspace / ".metadata.json").write_text("{}")
    (parent.workspace / ".METADATA.json").write_text("{}")
    (parent.workspace / ".wasm_kernel" / "notes").write_text("x")
    fork = forked(parent)
    assert [path.name for path in fork.workspace.iterdir()] == [".wasm_kernel"]
    assert not (fork.workspace / ".wasm_kernel" / "notes").exists()


# Chance


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


def test_forks_draw_other_numbers_than_their_parent_and_each_other(parent: BaseSandbox) -> None:
    parent.execute(CHANCE)
    forks = parent.fork(3)
    try:
        drawn = [eval(says(sandbox, DRAW)) for sandbox in (parent, *forks)]
    finally:
        for fork in forks:
            fork.close()
    same = [n for n, values in enumerate(zip(*drawn, strict=True)) if len(set(values)) < 4]
    assert same == []


def test_the_parent_goes_on_with_its_own_numbers(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute("import random; random.seed(5)")
    forked(parent)
    assert says(parent, "print(random.random())") == "0.6229016948897019"


def test_generators_keep_their_identity(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute(CHANCE + "\nboth = [rng, rng]; bits = rng.bit_generator")
    fork = forked(parent)
    tell = "print(both[0] is both[1] is rng, rng.bit_generator is bits, type(mine).__name__)"
    assert says(fork, tell) == "True True Mine"


def test_deterministic_forks_draw_the_same_numbers(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute("import random, numpy as np; rng = np.random.default_rng()")
    draw = "print(random.random(), np.random.random(), rng.random())"
    one, two = (forked(parent, deterministic=True) for _ in range(2))
    assert says(one, draw) == says(two, draw) == says(parent, draw)


def test_a_deterministic_fork_of_another_fork_has_that_fork_s_seeds(
    parent: BaseSandbox, forked: Forking
) -> None:
    parent.execute("import random")
    child = forked(parent)
    grandchild = forked(child, deterministic=True)
    draw = "print(random.random())"
    assert says(grandchild, draw) == says(child, draw) != says(parent, draw)


def test_going_back_beyond_the_fork_draws_other_numbers_too(parent: BaseSandbox) -> None:
    parent.execute("import random")
    parent.execute("x = 1")
    forks = parent.fork(2)
    try:
        drawn = []
        for fork in forks:
            fork.undo(1)
            drawn.append(says(fork, "print(random.random())"))
            fork.undo(1)
            assert says(fork, "print(random.random())") == drawn[-1]
    finally:
        for fork in forks:
            fork.close()
    parent.undo(1)
    assert len({*drawn, says(parent, "print(random.random())")}) == 3


def test_a_broken_random_module_does_not_keep_the_rest_from_being_reseeded(
    parent: BaseSandbox, forked: Forking
) -> None:
    parent.execute(
        "import random, numpy as np, sys, tempfile, uuid\n"
        "rng = np.random.default_rng(5); random.seed = None; random._inst.seed = 3\n"
        "class Wild(random.Random):\n"
        "    def seed(self, *a): 1/0\n"
        "    def __setattr__(self, *a): 1/0\n"
        "try: wild = Wild.__new__(Wild)\nexcept ZeroDivisionError: pass\n"
        "del sys.modules['uuid'], tempfile._name_sequence"
    )
    draw = "print(rng.random(), random.random(), np.random.random())"
    forks = [says(forked(parent), draw).split() for _ in range(2)]
    assert all(a != b for a, b in zip(*forks, strict=True))


def test_reseeding_writes_to_few_pages(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute("x = [[i] for i in range(300_000)]; import numpy as np")
    fork = forked(parent)
    sizes = {state.label: state.bytes for state in fork.checkpoints()}
    (reseeded,) = [size for label, size in sizes.items() if "fresh seeds" in label]
    assert reseeded < 4 << 20
    assert max(sizes.values()) > 20 << 20


# Sessions, failures, ends


def test_a_fork_of_a_session_is_a_session(warm: None, tmp_path: Path) -> None:
    keeper = Keeping(tmp_path, "first")
    with create_sandbox(workspace=keeper.workspace, session_id="first", keeper=keeper) as parent:
        parent.execute("x = 1")
        (fork,) = parent.fork()
        assert fork.session_id == "first-1"
        assert fork.workspace == tmp_path / "first-1"
        assert says(fork, "print(x)") == "1"
        (child,) = fork.fork()
        assert child.session_id == "first-1-1"
        child.close()
        fork.close()
    assert keeper.ended == ["first-1-1", "first-1", "first"]


def test_a_fork_without_a_session_lives_beside_its_parent(
    parent: BaseSandbox, forked: Forking
) -> None:
    (parent.workspace.parent / "app-fork-1").mkdir()
    fork = forked(parent)
    assert fork.workspace == parent.workspace.with_name("app-fork-2")
    assert fork.session_id is None


@pytest.mark.parametrize("n", [0, -1])
def test_a_fork_is_at_least_one(parent: BaseSandbox, n: int) -> None:
    with pytest.raises(ValueError, match="one sandbox or more"):
        parent.fork(n)


def test_a_full_disk_leaves_nothing_behind(
    parent: BaseSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent.execute("x = 1; open('a', 'w').write('a'); open('b', 'w').write('b')")
    copied, copy = [], content.Content.copy

    def full(self: content.Content, *args: int) -> None:
        copied.append(args)
        if len(copied) == 4:  # in the second fork
            raise OSError(28, "No space left on device")
        copy(self, *args)

    monkeypatch.setattr(content.Content, "copy", full)
    with pytest.raises(ForkError, match=r"No space left on device\). Nothing of it is left"):
        parent.fork(3)
    assert [path.name for path in parent.workspace.parent.iterdir()] == ["app"]
    assert says(parent, "print(x)") == "1"


def test_a_fork_that_does_not_start_leaves_nothing_behind(
    parent: BaseSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent.execute("x = 1")

    def fail(self: BaseSandbox, progress: object = None) -> None:
        raise ForkError("no thread")

    monkeypatch.setattr(BaseSandbox, "start", fail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseSandbox, "_between_cells", lambda self, job: job())
        with pytest.raises(WasmKernelError):
            parent.fork()
    monkeypatch.undo()
    assert [path.name for path in parent.workspace.parent.iterdir()] == ["app"]
    assert says(parent, "print(x)") == "1"


def test_a_fork_while_a_cell_runs_comes_after_it(parent: BaseSandbox, forked: Forking) -> None:
    cell = parent.submit("import time; time.sleep(0.5); x = 'done'")
    assert says(forked(parent), "print(x)") == "done"
    assert cell.result().success


def test_a_fork_of_what_can_not_be_saved_has_it_saved(
    opened: Opening, forked: Forking, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(resume=Resume.ALWAYS)
    first.execute("y = 1")
    second = opened(resume=Resume.ALWAYS)  # the first one has the history
    second.execute("x = 2")
    fork = forked(second)
    assert says(fork, "print(x)") == "2"
    fork.close()
    assert says(opened(fork.workspace.name, Resume.ALWAYS), "print(x)") == "2"


def test_a_closed_sandbox_can_not_be_forked(opened: Opening) -> None:
    sandbox = opened()
    sandbox.close()
    with pytest.raises(WasmKernelError):
        sandbox.fork()


def test_undo_in_a_fork_ends_where_the_parent_s_would(parent: BaseSandbox, forked: Forking) -> None:
    parent.execute("x = 1")
    with pytest.raises(TravelError, match="Only 1 cell"):
        forked(parent).undo(2)
