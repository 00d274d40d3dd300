"""Upkeep: histories go for room, fairly, of idle sessions only; files by age, after a warning."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aged import aged
from tests.faces import says, wait_for
from tests.private import folders_of, private_of
from tests.sessions.other_process import ROOT
from wasm_kernel import get_session_sandbox
from wasm_kernel.engine.cache import ENVIRONMENT
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.locks import SERVED, Holder, ServiceLock
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import disk_use, ids, removal, upkeep
from wasm_kernel.sessions.disk_use import DiskUse
from wasm_kernel.sessions.notebooks import bind
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.upkeep import Record, Upkeep, to_evict

KIB = 1024
HOUR, DAY = 3600.0, 24 * 3600.0


def a_session(root: Path, kib: int, idle: float = HOUR, *, files: int = 0) -> str:
    """A session that was left this many seconds ago, with a history and files of some KiB."""
    name = ids.new()
    with closing(folders_of(root / name)) as folders:
        contents = folders.private.path / "state" / "contents"
        contents.mkdir(parents=True)
        (contents / "one").write_bytes(os.urandom(kib * KIB))
        (contents.parent / "index").write_text("an index")
        Holder().write(folders.private)
    (root / name / "file").write_bytes(os.urandom(files * KIB))
    aged(root / name, idle / HOUR)
    left(root, name, idle)
    return name


def left(root: Path, name: str, idle: float) -> None:
    """Makes a session look as if it had been left this many seconds ago."""
    private = private_of(root / name)
    for each in (private / "holder", private / "state" / "index"):
        if each.exists():
            os.utime(each, (time.time() - idle,) * 2)


def kept(root: Path, kib: int = 0, days: float = 0.0) -> Upkeep:
    """The upkeep of a root after a round."""
    found = Upkeep(SessionsRoot(root), most_bytes=kib * KIB, days=days)
    found.round()
    return found


def has_history(root: Path, name: str) -> bool:
    return (private_of(root / name) / "state" / "index").exists()


def with_history(root: Path, *names: str) -> list[bool]:
    return [has_history(root, name) for name in names]


def opened(root: Path, name: str) -> SandboxFolders:
    """The folders of a session, opened like a user's."""
    from wasm_kernel.sessions.session import Session

    return Session(SessionsRoot(root), name).folders


# -- the order of removal


def a_record(total: int, idle: float, *, history: int | None = None, busy: bool = False) -> Record:
    kept = total if history is None else history
    stamp = (time.time_ns() - int(idle * 1e9),)
    return Record("any", DiskUse(stamp, kept, total - kept, in_use=busy))


def test_the_oldest_go_and_no_user_pushes_out_another() -> None:
    ages = {"new": 11 * 60.0, "old": DAY, "middle": HOUR, "just now": 60.0}
    records = {name: a_record(100, idle) for name, idle in ages.items()}
    assert to_evict(records, 200) == ["old"]
    assert set(to_evict(records, 100)) == {"old", "middle"}
    assert set(to_evict(records, 0)) == {"old", "middle", "new"}
    others = {f"small {each}": a_record(100, 30 * DAY) for each in range(30)}
    others["larger"] = a_record(900, 30 * DAY)
    for most in (10_000, 4000):
        assert to_evict(others | {"filler": a_record(9000, 0.0, busy=True)}, most) == []
        assert to_evict(others | {"filler": a_record(9000, 60.0)}, most) == []
        assert to_evict(others | {"filler": a_record(9000, 700.0)}, most) == ["filler"]
        # files don't go either
        assert to_evict(others | {"files": a_record(9000, DAY, history=0)}, most) == []
    assert to_evict(others, 3500) == ["larger"]


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 99))), st.integers(0, 2000))
def test_all_have_room_and_none_goes_in_vain(sessions: list[tuple[int, int]], most: int) -> None:
    records = {
        str(number): a_record(size, idle * HOUR) for number, (size, idle) in enumerate(sessions)
    }
    sizes = {key: record.use.total for key, record in records.items()}
    gone = to_evict(records, most)
    left = sum(sizes.values()) - sum(sizes[key] for key in gone)
    assert left <= most
    for key in gone:
        assert left + sizes[key] > most
        assert sizes[key] > most // len(sizes)


# -- on disk


def test_histories_go_for_room_and_files_stay(root: Path) -> None:
    big, small = a_session(root, 900, files=100), a_session(root, 100)
    kept(root, 1300)
    assert with_history(root, big, small) == [True, True]
    kept(root, 900)
    assert with_history(root, big, small) == [False, True]
    assert (root / big / "file").stat().st_size == 100 * KIB
    private = private_of(root / big)
    assert not [path for path in private.iterdir() if path.name.startswith(".")]
    with Folder.open(private) as folder:
        assert Holder.of(folder).evicted == "room"


def test_a_session_in_use_stays_and_goes_when_it_is_left(root: Path, ending: ExitStack) -> None:
    filler, others = a_session(root, 2000), [a_session(root, 50) for _ in range(4)]
    used = opened(root, filler)
    ending.callback(used.close)
    left(root, filler, DAY)
    kept(root, 1000)
    assert with_history(root, filler, *others) == [True] * 5
    used.close()
    kept(root, 1000)
    assert with_history(root, filler, *others) == [False, *[True] * 4]


def test_sessions_of_a_living_service_are_left_alone(root: Path) -> None:
    """Formerly, sleeping sessions lost their variables to the limit of the kernels."""
    served, other = a_session(root, 900), a_session(root, 900)
    (private_of(root / served) / SERVED).write_text("{}")
    service = ServiceLock(root)
    kept(root, 100, days=1e-6)
    assert with_history(root, served, other) == [True, False]
    service.release()
    kept(root, 100)
    assert not has_history(root, served)


def test_a_user_before_the_removal_keeps_the_session(root: Path, ending: ExitStack) -> None:
    name = a_session(root, 10)
    with Folder.open(private_of(root / name)) as private:
        assert not removal.evict(private, "room", 2 * HOUR)
        ending.callback(opened(root, name).close)
        assert not removal.evict(private, "room", HOUR / 2)
        assert has_history(root, name)
        ending.close()
        assert removal.evict(private, "room", HOUR / 2)


def test_old_histories_go_by_age(root: Path) -> None:
    old, new = a_session(root, 10, 91 * DAY), a_session(root, 10, 89 * DAY)
    kept(root, days=90)
    assert with_history(root, old, new) == [False, True]
    with Folder.open(private_of(root / old)) as folder:
        assert Holder.of(folder).evicted == "age"
        assert disk_use.idle_seconds(disk_use.stamp_of(folder)) > 90 * DAY


def test_compiled_code_of_an_earlier_version_goes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv(ENVIRONMENT, str(cache))
    code = cache / f"{0:032x}-unchecked.cwasm"
    code.touch()
    kept(root)
    assert code.exists()
    now = time.time()
    monkeypatch.setattr("wasm_kernel.engine.cache.time.time", lambda: now + 40 * DAY)
    kept(root)
    assert not code.exists()


def used_by(root: Path, name: str) -> DiskUse:
    with Folder.open(root / name) as folder, Folder.open(private_of(root / name)) as private:
        return DiskUse.measure(folder, private)


def test_sizes_that_lie_do_not_count(root: Path) -> None:
    sparse = a_session(root, 50)
    for place in (root / sparse, private_of(root / sparse) / "state" / "contents"):
        with (place / "sparse").open("wb") as file:
            file.truncate(1 << 40)
        (place / "link").symlink_to("/usr")
        os.mkfifo(place / "pipe")
    for number in range(20):
        os.link(root / sparse / "file", root / sparse / f"name {number}")
    use = used_by(root, sparse)
    assert 50 * KIB <= use.history < 80 * KIB
    assert use.files < 60 * KIB
    (root / sparse / "file").write_bytes(bytes(100 * KIB))  # the same file under all its names
    assert 100 * KIB <= used_by(root, sparse).files < 160 * KIB


def test_planted_files_lead_nowhere_and_end_nothing(root: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    names = [a_session(root, 300, days * DAY) for days in (3, 2, 1)]
    (root / ids.new()).symlink_to(precious)
    (root / "a file").write_text("")
    os.mkfifo(root / ids.new())
    private = private_of(root / names[0])
    (private / "files").symlink_to(precious)
    (private / ".evicted-1").symlink_to(precious)
    (root / names[1] / ".metadata.json").write_text("{" * 10_000)
    (root / names[1] / "loop").symlink_to(".")
    deep = root / names[1]
    for _ in range(50):
        deep = deep / "deep"
        deep.mkdir()
    deep.chmod(0)
    kept(root, 1)
    assert with_history(root, *names) == [False] * 3
    assert (precious / "file").read_text() == "mine"
    deep.chmod(0o700)


def test_damaged_records_are_made_again(root: Path) -> None:
    big = a_session(root, 900)
    kept(root, 5000)
    place = Path(os.environ["XDG_STATE_HOME"], "wasm-kernel", "upkeep")
    for path in place.glob("*.json"):
        path.write_text('{"a": 1, "b": [')
    kept(root, 100)
    assert not has_history(root, big)


_CLEANS = """
import os, signal, sys, time
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.upkeep import Upkeep
root, most, left = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def dying(call):
    def act(*args, **options):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)
    return act
for name in ("rename", "utime", "unlink", "rmdir"):
    setattr(os, name, dying(getattr(os, name)))
print("ready", flush=True)
sys.stdin.readline()
Upkeep(SessionsRoot(root), most_bytes=most, days=0).round()
"""


def a_cleaner(root: Path, most: int, dies_at: int = 0) -> subprocess.Popen[str]:
    made = subprocess.Popen(
        [sys.executable, "-c", _CLEANS, str(root), str(most), str(dies_at)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "ready\n"
    return made


def test_a_kill_in_the_midst_leaves_a_history_or_word_of_its_end(root: Path) -> None:
    name, seen = a_session(root, 100), set()
    for at in range(1, 30):
        died = a_cleaner(root, 1, at)
        died.communicate("\n")
        private = private_of(root / name)
        with Folder.open(private) as folder:
            is_there, told = has_history(root, name), Holder.of(folder).evicted
        assert is_there or told == "room"
        assert not is_there or (private / "state" / "contents" / "one").exists()
        seen.add((died.returncode, is_there, bool(told)))
        if died.returncode == 0:
            break
        left(root, name, HOUR)
    assert seen >= {(-9, True, False), (-9, True, True), (-9, False, True)}
    assert sorted(each.name for each in private.iterdir() if each.name.startswith(".")) == []


def test_two_that_clean_at_once(root: Path) -> None:
    names = [a_session(root, 40, hours * HOUR) for hours in range(1, 13)]
    both = [a_cleaner(root, 300 * KIB) for _ in range(2)]
    for each in both:
        assert each.stdin is not None
        print(file=each.stdin, flush=True)
    assert [each.wait(60) for each in both] == [0, 0]
    for each in both:
        each.communicate()
    assert 3 < sum(with_history(root, *names)) < 9  # not twice as many histories


# -- files


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    (tmp_path / "books").mkdir()
    return tmp_path / "books" / "orders\n.ipynb"


def bound(root: Path, name: str, notebook: Path) -> None:
    """Makes a notebook, and records that a session belongs to it."""
    notebook.write_text("{}")
    bind(SessionsRoot(root), name, notebook)


def test_files_go_if_their_notebook_is_gone_and_a_user_was_warned(
    root: Path, notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, unknown = a_session(root, 10, DAY), a_session(root, 10), a_session(root, 10, DAY)
    for name, path in ((old, notebook), (new, notebook.with_name("new.ipynb"))):
        bound(root, name, path)
        path.unlink()
    (told,) = kept(root, days=0.5).warnings()
    assert "(orders\\n.ipynb)" in told
    assert not Upkeep(SessionsRoot(root), most_bytes=0, days=0.5).warnings()  # none until tomorrow
    kept(root, days=0.5)
    assert (root / old / "file").exists()
    monkeypatch.setattr(upkeep, "TOLD_SECONDS", 0.0)
    kept(root, days=0.5)
    assert not (root / old).exists()
    assert (root / new / "file").exists()
    assert (root / unknown / "file").exists()


def test_files_go_as_announced(root: Path, notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "TOLD_SECONDS", 0.0)
    name = a_session(root, 10, DAY)
    bound(root, name, notebook)

    def stays() -> Upkeep:
        found = [kept(root, days=0.5) for _ in range(2)][-1]
        assert (root / name / "file").exists()
        return found

    monkeypatch.setattr(upkeep, "AGAIN_SECONDS", 0.0)
    assert not stays().warnings()
    notebook.unlink()
    assert stays().warnings()
    notebook.write_text("another file, or restored")
    assert not stays().warnings()
    time.sleep(0.02)
    notebook.unlink()
    assert stays().warnings()  # the notebook is gone again
    notebook.parent.rename(notebook.parent.with_name("moved"))
    assert not stays().warnings()  # for example a disk that is not mounted


@pytest.mark.parametrize("how", ["metadata", "corrupted", "used", "another notebook"])
def test_files_stay_if_anything_speaks_for_them(
    root: Path, notebook: Path, ending: ExitStack, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(upkeep, "TOLD_SECONDS", 0.0)
    name = a_session(root, 10, DAY)
    bound(root, name, notebook)
    notebook.unlink()
    assert kept(root, days=0.5).warnings()
    if how == "metadata":
        (root / name / ".metadata.json").unlink()
    elif how == "corrupted":
        (root / name / ".metadata.json").write_text("{")
    elif how == "used":
        ending.callback(opened(root, name).close)
        left(root, name, DAY)
    else:
        bound(root, name, notebook.with_name("copy.ipynb"))
    for _ in range(2):
        kept(root, days=0.5)
    assert (root / name / "file").exists()


# -- the words for users


def test_a_session_whose_history_went_says_so(root: Path) -> None:
    for name in ("a", "b"):
        with get_session_sandbox(name, workspace_root=root) as sandbox:
            says(sandbox, "x = 1; open('kept', 'w').write('text')")
        left(root, name, HOUR)
    with Folder.open(private_of(root / "b")) as private:
        Holder(evicted="room").write(private)  # the writer was killed before it removed anything
    left(root, "b", 1.0)
    kept(root, 1)
    with get_session_sandbox("a", workspace_root=root) as sandbox:
        result = sandbox.execute("print('x' in globals(), open('kept').read())")
        assert result.stdout == "False text\n"
        assert "removed to make room" in result.stderr
        assert "WasmKernel.sessions_bytes" in result.stderr
        assert sandbox.execute("y = 2").stderr == ""
    with get_session_sandbox("a", workspace_root=root) as sandbox:
        assert sandbox.execute("print(y)").stderr == ""
    with get_session_sandbox("b", workspace_root=root) as sandbox:
        result = sandbox.execute("print(x)")
        assert (result.stdout, result.stderr) == ("1\n", "")


_KERNEL = """
import sys
from wasm_kernel.frontends.jupyter.app import main
from wasm_kernel.sessions import upkeep
upkeep._SOON_SECONDS = 0.2
main(sys.argv[1:])
"""


@pytest.mark.parametrize("confinement", ["auto", pytest.param("off", marks=pytest.mark.soak)])
def test_a_kernel_looks_after_the_others(root: Path, tmp_path: Path, confinement: str) -> None:
    big, small = a_session(root, 900), a_session(root, 50)
    settings = {"sessions_bytes": 500 * KIB, "workspace_root": root, "confinement": confinement}
    words = [f"--WasmKernel.{name}={value}" for name, value in settings.items()]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    kernel = subprocess.Popen(
        [sys.executable, "-c", _KERNEL, "-f", str(tmp_path / "kernel.json"), *words],
        env=env,
        cwd=tmp_path,
    )
    try:
        wait_for(lambda: not has_history(root, big), "making room")
        assert has_history(root, small)
        assert kernel.poll() is None
    finally:
        kernel.terminate()
        kernel.wait()
