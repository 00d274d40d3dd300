"""ATTACKS 12, 13, 15: a cell exhausts the disk by bytes, files, names or descriptors.

Each attempt ends in an `OSError` inside the guest, takes no more of the host than the policy
allows, and leaves a session that goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.attacks.conftest import SMALL, Making, Victim
from tests.faces import error_of, happens, wait_for
from tests.private import private_of
from tests.sampled import sampled
from tests.stored import state_of
from wasm_kernel import create_sandbox
from wasm_kernel.errors import TravelError
from wasm_kernel.policy import ExecutionPolicy

MB = 1_000_000
FULL = "No space left on device"


def everything(victim: Victim) -> Iterator[Path]:
    """All paths in the guest's own folders."""
    for path in victim.app.iterdir():
        yield path
        yield from path.rglob("*")
    yield from (private_of(victim.app) / "tmp").rglob("*")


def used(victim: Victim) -> int:
    """The bytes of the files in the guest's own folders, by their lengths."""
    files = {p.lstat() for p in everything(victim) if p.is_file() and not p.is_symlink()}
    return sum({file.st_ino: file.st_size for file in files}.values())


def size_of(folder: Path) -> int:
    """The bytes of a folder's files, of which some may be deleted at the same time."""
    with suppress(FileNotFoundError):
        return sum(path.stat().st_size for path in folder.iterdir())
    return size_of(folder)


@pytest.fixture(scope="module")
def _small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    fields = {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}
    policy = ExecutionPolicy(**{**fields, "workspace_bytes": 10 * MB, "workspace_files": 200})
    sandbox = create_sandbox(workspace=tmp_path_factory.mktemp("app"), policy=policy)
    yield Victim(sandbox)
    sandbox.close()


@pytest.fixture
def small(_small: Victim) -> Iterator[Victim]:
    """A session limited to 10 MB and 200 files; after the attack it is within them, and goes on."""
    _small.says("import errno, os, shutil\nos.chdir('/app')")
    yield _small
    size = used(_small)
    _small.says(CLEAR)
    assert size <= 10 * MB
    _small.lives()


CLEAR = """
import gc, sys
f = kept = base = sys.last_exc = sys.last_value = sys.last_traceback = None
gc.collect()
for folder in ("/app", "/tmp"):
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)
"""


TERABYTES = [
    "open('a', 'wb').truncate(10**12)",
    "os.ftruncate(os.open('a', os.O_RDWR | os.O_CREAT), 10**12)",
    "f = open('a', 'wb'); f.seek(10**12); f.write(b'x'); f.flush()",
    "os.pwrite(os.open('a', os.O_RDWR | os.O_CREAT), b'x', 10**12)",
    "open('a', 'wb').truncate(3 * 10**9)",
]


def test_case_13_a_terabyte_is_refused_by_the_default_policy(victim: Victim) -> None:
    victim.says("import os; open('a', 'wb').close()")
    for code in TERABYTES:
        assert FULL in error_of(victim.run(code))
        assert (victim.app / "a").stat().st_size <= ExecutionPolicy().workspace_bytes
    victim.says("import os, gc\nf = None; gc.collect(); os.remove('/app/a')")


def test_case_13_twenty_thousand_files_are_more_than_the_default_policy_allows() -> None:
    assert ExecutionPolicy().workspace_files < 20_000  # all kinds of names count: see below


WAYS = {
    "write": "f = open('a', 'wb')\nwhile True: f.write(bytes(70_000))",
    "at a position": (
        "f = open('a', 'wb', 0)\n"
        "for i in range(10**6): os.pwrite(f.fileno(), bytes(10_000), 10_000 * i)"
    ),
    "many files": (
        "for i in range(10**6):\n    with open(f'f{i % 90}', 'ab') as f: f.write(bytes(20_000))"
    ),
    "tempfile": "import tempfile\nf = tempfile.TemporaryFile()\nwhile True: f.write(bytes(70_000))",
    "copies": (
        "open('a', 'wb').write(bytes(900_000))\n"
        "for i in range(10**6): shutil.copyfile('a', f'b{i}')"
    ),
    "replaced": (
        "for i in range(50):\n"
        "    open('a.new', 'wb').write(bytes(4_000_000)); os.replace('a.new', 'a')\n"
        "while True:\n    with open('b', 'ab') as f: f.write(bytes(100_000))"
    ),
    "without a name": (
        "kept = []\n"
        "for i in range(50):\n"
        "    kept.append(open('a', 'wb', 0)); os.remove('a'); kept[-1].write(bytes(2_000_000))"
        " == 2_000_000 or kept[-1].write(b'x')"
    ),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_case_13_no_way_of_writing_goes_beyond_the_quota(small: Victim, way: str) -> None:
    result = small.run(way)
    assert error_of(result).startswith("OSError:"), result.error
    assert FULL in error_of(result)
    assert small.fails(
        "open('z', 'ab', 0).write(bytes(11_000_000)); open('z', 'ab', 0).write(b'x')"
    )
    small.says("import gc\nf = kept = None; gc.collect()")


def test_case_13_a_database_on_a_full_disk_keeps_what_was_committed(small: Victim) -> None:
    small.says(
        "import sqlite3\nbase = sqlite3.connect('a.db'); base.execute('create table t (x)')\n"
        "base.execute('insert into t values (1)'); base.commit()"
    )
    assert small.fails("base.execute('insert into t values (zeroblob(20000000))'); base.commit()")
    small.says("base.rollback()")
    assert small.says("print(base.execute('select x from t').fetchall())") == "[(1,)]"
    small.says("base.close()")


def test_case_13_removing_gives_back_at_once_and_holes_stay_holes(small: Victim) -> None:
    code = "for i in range(20):\n    open('a', 'wb').write(bytes(9_000_000)); os.remove('a')\n"
    small.says(code + "print(1)")
    small.says("f = open('a', 'wb'); f.seek(9_000_000); f.write(b'x'); f.close()")
    assert (small.app / "a").stat().st_blocks * 512 < MB


def test_case_13_files_without_a_name_take_space_as_their_guest_dies(small: Victim) -> None:
    small.says("f = open('a', 'wb', 0); f.write(bytes(9_000_000)); os.remove('a')")
    small.run("os._exit(1)")
    assert small.fails("with open('b', 'wb', 0) as b: b.write(bytes(2_000_000)); b.write(b'x')")
    small.says("f.close()")
    small.says("open('b', 'wb').write(bytes(9_000_000))")


def test_case_13_what_the_host_adds_and_removes_counts(small: Victim) -> None:
    small.says("open('a', 'wb').write(bytes(1_000_000))")
    (small.app / "b").write_bytes(bytes(9 * MB))
    # after a slow measurement the next one comes later
    wait_for(lambda: not small.run("open('c', 'wb').write(bytes(1_000_000))").success, "a limit")
    (small.app / "b").unlink()
    small.says("open('c', 'wb').write(bytes(8_000_000))")


NAMES = {
    "files": "open(f'n{i}', 'w').close()",
    "links": "os.symlink('nowhere', f'n{i}')",
    "second names": "i or open('n', 'w').close(); os.link('n', f'n{i}')",
    "in scratch": "open(f'/tmp/n{i}', 'w').close()",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_case_13_names_of_every_kind_are_counted(small: Victim, name: str) -> None:
    assert FULL in error_of(small.run(f"for i in range(1000): {name}"))
    assert len(list(everything(small))) <= 200
    small.says("os.listdir('/app'); os.listdir('/tmp')")


def test_case_13_a_full_session_can_do_everything_but_grow(small: Victim) -> None:
    small.run("f = open('a', 'wb', 0)\nwhile True: f.write(bytes(70_000))")
    small.run("for i in range(1000): os.mkdir(f'n{i}')")
    small.says("f.close()")
    small.says("%matplotlib inline\nimport matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
    small.says("%timeit -n 1 -r 1 1")
    small.says("import pandas; print(pandas.DataFrame({'a': [1]}))")
    small.says("print(len(open('a', 'rb').read()), os.stat('a'), os.listdir('.'))")
    small.says("os.rename('a', 'b'); os.utime('b'); os.truncate('b', 5)")
    small.run("os._exit(1)")
    small.says("print(plt)")


def test_case_13_loops_of_refusals_cost_little_and_can_be_interrupted(small: Victim) -> None:
    small.run("f = open('a', 'wb')\nwhile True: f.write(bytes(70_000))")
    code = (
        "print('begun')\nwhile True:\n    try: f.write(bytes(70_000))\n    except OSError: pass\n"
        "    try: os.mkdir('/tmp/d' * 600)\n    except OSError: pass"
    )
    assert error_of(small.run(code, interrupt="begun")).startswith("KeyboardInterrupt:")


def test_case_12_a_name_has_255_bytes_and_a_path_4096_at_most(small: Victim) -> None:
    small.says("open('n' * 255, 'w').close(); open('é' * 127, 'w').close()")
    for name in ("'n' * 256", "'é' * 128"):
        assert small.fails(f"open({name}, 'w')") == "OSError"
        assert small.fails(f"os.stat({name})") == "OSError"
    for path in ("'n/' * 2100 + 'a'", "'./' * 2100 + 'a'", "'n' * 5000"):
        assert small.fails(f"os.stat({path})") in ("OSError", "FileNotFoundError")


def test_case_14_folders_600_deep(small: Victim) -> None:
    """The folders are made, walked, committed and removed inside; the quota counts each."""
    code = (
        "fd = os.open('.', os.O_RDONLY)\n"
        "try:\n"
        "    for i in range(600):\n"
        "        os.mkdir('d', dir_fd=fd)\n"
        "        deeper = os.open('d', os.O_RDONLY, dir_fd=fd); os.close(fd); fd = deeper\n"
        "except OSError as full: print(i, full.errno == errno.ENOSPC)\n"
        "os.close(fd)"
    )
    assert small.says(code) == "200 True"


@pytest.mark.soak
def test_case_14_600_levels_in_a_session_that_may_have_them(victim: Victim) -> None:
    victim.says(
        "import os\nfd = os.open('/app', os.O_RDONLY)\n"
        "for i in range(600):\n"
        "    os.mkdir('d', dir_fd=fd)\n"
        "    deeper = os.open('d', os.O_RDONLY, dir_fd=fd); os.close(fd); fd = deeper\n"
        "os.close(os.open('end', os.O_CREAT | os.O_WRONLY, dir_fd=fd)); os.close(fd)"
    )
    assert victim.says("print(len(list(os.walk('/app/d'))))") == "600"
    moved = victim.run("os.rename('/app/d', '/app/e')").files_created
    assert moved == ("e" + "/d" * 599 + "/end",)
    victim.says(
        "import shutil, sys\nbefore = sys.getrecursionlimit(); sys.setrecursionlimit(3000)\n"
        "shutil.rmtree('/app/e'); sys.setrecursionlimit(before)"
    )
    assert not (victim.app / "e").exists()


def test_case_15_every_kind_of_descriptor_is_capped(victim: Victim) -> None:
    victim.says("import os; open('/app/f', 'w').close()")
    for what in ("os.open('/app/f', os.O_RDONLY)", "os.open('/app', os.O_RDONLY)"):
        result = victim.run(f"fds = []\nwhile True: fds.append({what})")
        assert "No file descriptors available" in error_of(result)
        assert victim.says("print(len(fds) <= 64); [os.close(fd) for fd in fds] and None") == "True"
    result = victim.run("its = []\nwhile True: its.append(os.scandir('/app')); next(its[-1])")
    assert error_of(result).startswith("OSError:")
    victim.says("for it in its: it.close()\nos.remove('/app/f')")


def test_two_kernels_on_one_session_share_its_quota(small: Victim, tmp_path: Path) -> None:
    """Each looks before it grows; together they may exceed the quota by what both write at once."""
    other = Victim(create_sandbox(workspace=small.app, policy=small.sandbox.policy))
    try:
        small.says("open('a', 'wb').write(bytes(6_000_000))")
        assert other.fails("open('/app/b', 'wb').write(bytes(6_000_000))") == "OSError"
        assert used(small) == 10 * MB
        other.says("import os; os.remove('/app/a')")
        small.says("open('c', 'wb').write(bytes(5_000_000))")
        assert used(small) <= 10 * MB
    finally:
        other.sandbox.close()


def test_case_13_deleted_files_do_not_pile_up_in_the_history(fresh_victim_of: Making) -> None:
    """A file that only earlier cells had open is kept for travels back to them, up to a limit."""
    victim = fresh_victim_of(workspace_bytes=10 * MB, files_history_bytes=20 * MB)
    loose = private_of(victim.app) / "loose"
    victim.says("import os, tempfile; os.chdir('/app')")
    for i in range(8):
        victim.says(
            f"f = open('a', 'wb+', 0); os.remove('a'); f.write(b'{i}' + bytes(9_000_000)); n = {i}"
        )
        victim.says("f.close(); f = None")
        wait_for(lambda: size_of(loose) < 30 * MB)
    victim.sandbox.undo(3)
    assert victim.says("print(n, f.seek(0), f.read(1))") == "6 0 b'6'"
    victim.sandbox.undo(9)
    assert victim.says("print(n)") == "2"
    assert victim.fails("f.seek(0); f.read(1)") == "OSError"
    victim.lives()


MEGABYTE = 1 << 20
MOST, STATE = 64 * MEGABYTE, 8 * MEGABYTE
TOUCHED = 3 * STATE  # the data, and the copies from which it is made
FILL = f"import os; data = bytearray(os.urandom({STATE}))"
ASK = """
import _host, json
def ask(**frame): return json.loads(_host.call(json.dumps(frame | {'op': 'command'}).encode()))
"""


def by_call(victim: Victim, name: str) -> str:
    """Names the state from outside."""
    victim.says(FILL)
    try:
        victim.sandbox.checkpoint(name)
    except TravelError as problem:
        return str(problem)
    return ""


def by_magic(victim: Victim, name: str) -> str:
    victim.says(FILL)
    result = victim.run(f"%checkpoint {name}")
    return "" if result.success else f"{result.stderr}{result.error}"


def by_host_call(victim: Victim, name: str) -> str:
    """Names states as a hostile cell does it, with the data that it fills in the same turn."""
    result = victim.run(f"{FILL}\n{ASK}\nprint(ask(name='checkpoint', line={name!r}))")
    assert result.success
    words = result.stdout + result.stderr
    return words if "not made" in words else ""


def on_disk(victim: Victim) -> int:
    folder = state_of(victim.app) / "contents"
    return sum(path.stat().st_size for path in folder.iterdir())


def settled(victim: Victim, most: int) -> int:
    """The bytes on disk as soon as they are below a bound, or after some seconds."""
    happens(lambda: on_disk(victim) <= most, 20)
    return on_disk(victim)


@pytest.mark.parametrize(
    "way", sampled({way.__name__: way for way in (by_host_call, by_magic, by_call)}, 3)
)
def test_named_states_take_no_more_than_the_limit(
    fresh_victim_of: Making, way: Callable[[Victim, str], str]
) -> None:
    victim = fresh_victim_of(history_bytes=MOST)
    told = {f"state {number}": way(victim, f"state {number}") for number in range(9)}
    named = [one.name for one in victim.sandbox.checkpoints() if one.name]
    assert named == [name for name, words in told.items() if not words]
    assert 2 <= len(named) <= 8
    assert all("history_bytes" in words for words in told.values() if words)
    victim.lives()
    assert settled(victim, MOST + 2 * TOUCHED) <= MOST + 2 * TOUCHED
    for name in named:
        victim.sandbox.restore(name)
        assert victim.says("print(len(data))") == str(STATE)


def test_a_name_used_again_makes_room_and_a_thousand_are_enough(fresh_victim_of: Making) -> None:
    victim = fresh_victim_of(history_bytes=MOST)
    for number in range(9):
        victim.says(f"{FILL}\nnumber = {number}")
        victim.sandbox.checkpoint("best")
    victim.says("number = 'lost'")
    victim.sandbox.restore("best")
    assert victim.says("print(number)") == "8"
    victim = fresh_victim_of()
    names = "print(sum('refused' in ask(name='checkpoint', line=f'n{i}') for i in range(*most)))"
    assert victim.says(f"{ASK}\nmost = 0, 600\n{names}") == "0"
    assert victim.says(f"most = 600, 1200\n{names}") == "200"
    assert len([one for one in victim.sandbox.checkpoints() if one.name]) == 1000
    victim.lives()


def test_going_back_and_forth_for_ever_takes_time_in_proportion(fresh_victim_of: Making) -> None:
    """One cell travels to its own state over and over."""
    victim = fresh_victim_of()
    victim.says("x = 1")
    victim.says("x = 2")
    took = []
    for count in (250, 1000):
        code = f"for i in range({count}): ask(how='restore', line=str(i % 2 + 1))"
        begun = victim.sandbox.process_usage().cpu_seconds
        victim.says(f"{ASK}\n{code}")
        took.append(victim.sandbox.process_usage().cpu_seconds - begun)
    assert took[1] < 8 * took[0] + 1
