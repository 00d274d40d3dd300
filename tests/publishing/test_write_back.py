"""`folder=write`: the notebook's folder follows the session, and gets its earlier files back."""

from __future__ import annotations

import os
import random
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.private import private_of
from tests.publishing.published import Publishing
from tests.tasks import WaitingCell
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux import files
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import QUIET, Task
from wasm_kernel.policy import MIB, ExecutionPolicy
from wasm_kernel.publishing.mirror import Mirror
from wasm_kernel.publishing.place import AdoptFiles, WriteFiles, WriteOutcome
from wasm_kernel.publishing.write_back import WriteBack


class Writing(Publishing):
    """A notebook's folder, which must be the current one, and a session that writes there."""

    def bring(self, *paths: str, task: Task = QUIET) -> WriteOutcome:
        """The answer of the handler."""
        return self.place.write(WriteFiles(paths), task)

    def adopted(self, *paths: str) -> dict[str, str]:
        """The files refused before a cell, after the user has changed files."""
        return self.place.adopt(AdoptFiles(paths), QUIET).refused

    def wrote(self, path: str, text: str = "1") -> dict[str, str]:
        """The files refused after a cell has written a file."""
        self.write(path, text)
        return self.bring(path).refused

    def deleted(self, path: str, *, covers: bool = True) -> dict[str, str]:
        """The files refused after a cell has deleted a file."""
        (self.app / path).unlink(missing_ok=True)
        if covers:
            above, _, name = path.rpartition("/")
            self.write(f"{above}/.wh.{name}".lstrip("/"), "")
        return self.bring(path).refused

    def undone(self, path: str) -> dict[str, str]:
        """The files refused after an undo has left nothing in the session."""
        (self.app / path).unlink(missing_ok=True)
        above, _, name = path.rpartition("/")
        (self.app / above / f".wh.{name}").unlink(missing_ok=True)
        return self.bring(path).refused

    @property
    def kept(self) -> list[str]:
        """The originals kept for an undo."""
        return [each.name for each in (private_of(self.app) / "written").glob("kept-*")]


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writing]:
    made = Writing(tmp_path)
    (made.book / "mine.csv").write_text("mine")
    monkeypatch.chdir(made.book)
    yield made
    made.session.closed()


@pytest.fixture(params=["swaps", "no swaps"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems: one that swaps names, and a plain one."""
    if request.param == "no swaps":
        monkeypatch.setattr(files, "renameat2", lambda *_: False)


@pytest.mark.usefixtures("disk")
def test_the_folder_follows_the_session_and_goes_back(one: Writing) -> None:
    mine = one.book / "mine.csv"
    mine.chmod(0o640)
    os.utime(mine, (1, 1))
    assert one.wrote("r.csv") == one.wrote("a/b/r.tsv") == {}
    assert one.wrote("mine.csv", "theirs") == one.wrote("mine.csv", "again") == {}
    assert one.files == {"mine.csv": "again", "r.csv": "1", "a/b/r.tsv": "1"}
    assert stat.S_IMODE(mine.stat().st_mode) == 0o640
    assert one.deleted("mine.csv") == one.deleted("r.csv") == {}
    assert one.files == {"a/b/r.tsv": "1"}
    assert one.wrote("mine.csv", "anew") == {}
    assert len(one.kept) == 1
    for path in ("mine.csv", "r.csv", "a/b/r.tsv"):
        assert one.undone(path) == {}
    assert one.files == {"mine.csv": "mine"}
    assert (mine.stat().st_mode & 0o777, mine.stat().st_mtime) == (0o640, 1)
    assert one.kept == []


def test_a_kept_original_is_no_other_name_of_the_users_file(one: Writing, tmp_path: Path) -> None:
    """Before, a worker that was taken over could change the file under its names elsewhere."""
    mine, elsewhere = one.book / "mine.csv", tmp_path / "elsewhere.csv"
    os.link(mine, elsewhere)
    assert one.wrote("mine.csv", "theirs") == {}
    (kept,) = (private_of(one.app) / "written").glob("kept-*")
    with kept.open("r+") as held:
        assert one.undone("mine.csv") == {}
        held.write("changed")
    assert mine.read_text() == elsewhere.read_text() == "mine"


@pytest.mark.usefixtures("disk")
def test_files_that_the_user_changed_since_stay(one: Writing) -> None:
    for act in (one.wrote, one.deleted, one.undone):
        one.wrote("r.csv", "session")
        (one.book / "r.csv").write_text("edited")
        (one.app / "r.csv").write_text("session again")
        assert "r.csv" in act("r.csv")
        assert one.files["r.csv"] == "edited"
        (one.book / "r.csv").unlink()
        one.undone("r.csv")
    one.wrote("r.csv", "session")
    (one.book / "r.csv").unlink()  # now it may be written again
    assert one.wrote("r.csv", "2") == {}
    assert one.files["r.csv"] == "2"


@pytest.mark.usefixtures("disk")
def test_cells_go_on_with_what_the_user_made_of_their_files(one: Writing) -> None:
    one.wrote("r.csv", "session")
    assert one.adopted("r.csv", "mine.csv", "none.csv") == {}
    (one.book / "r.csv").write_text("edited")
    assert one.adopted("r.csv") == {}
    assert (one.app / "r.csv").read_text() == "edited"
    assert one.wrote("r.csv", "edited, and more") == {}
    assert one.undone("r.csv") == {}
    assert one.files == {"mine.csv": "mine", "r.csv": "edited"}
    one.wrote("mine.csv", "session")
    (one.book / "mine.csv").write_text("edited")
    one.adopted("mine.csv")
    assert one.undone("mine.csv") == {}
    assert one.files["mine.csv"] == "edited"
    assert one.kept == []


def test_cells_see_files_that_the_user_deleted_or_made_again(one: Writing) -> None:
    one.wrote("r.csv", "session")
    (one.book / "r.csv").unlink()
    one.deleted("mine.csv")
    (one.book / "mine.csv").write_text("another")
    assert one.adopted("r.csv", "mine.csv") == {}
    assert not (one.app / "r.csv").exists()
    assert not (one.app / ".wh.mine.csv").exists()
    assert one.undone("r.csv") == one.undone("mine.csv") == {}
    assert one.files == {"mine.csv": "another"}
    one.wrote("mine.csv", "session")
    (one.book / "mine.csv").unlink()  # an undo still restores the original
    one.adopted("mine.csv")
    assert (one.app / "mine.csv").exists()
    one.undone("mine.csv")
    assert one.files == {"mine.csv": "another"}


def test_files_without_room_in_the_session_are_not_taken_over(one: Writing) -> None:
    one.place = replace(one.place, policy=ExecutionPolicy(workspace_bytes=100, workspace_files=50))
    one.wrote("r.csv", "session")
    (one.book / "r.csv").write_text("x" * 200)
    assert "workspace_bytes" in one.adopted("r.csv")["r.csv"]
    assert (one.app / "r.csv").read_text() == "session"
    (one.book / "r.csv").unlink()
    (one.book / "r.csv").symlink_to("mine.csv")
    assert one.adopted("r.csv") == {}
    assert (one.app / "r.csv").read_text() == "session"


def test_a_copy_that_says_the_same_is_not_written(one: Writing) -> None:
    before = (one.book / "mine.csv").stat()
    assert one.wrote("mine.csv", "mine") == {}
    after = (one.book / "mine.csv").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert one.wrote("mine.csv", "other") == one.undone("mine.csv") == {}
    assert one.files == {"mine.csv": "mine"}
    one.wrote("mine.csv", "mine")
    (one.book / "mine.csv").write_text("edited")
    assert "was changed there since" in one.wrote("mine.csv", "other")["mine.csv"]
    assert one.undone("mine.csv") == {}


def test_a_folder_goes_with_what_the_session_wrote(one: Writing) -> None:
    (one.book / "a").mkdir()
    (one.book / "a" / "mine.py").write_text("x")
    one.wrote("a/r.csv")
    (one.app / "a" / "r.csv").unlink()
    (one.app / "a").rmdir()
    one.write(".wh.a", "")
    assert "there is something in it" in one.bring("a").refused["a"]
    assert one.files == {"mine.csv": "mine", "a/mine.py": "x"}
    (one.book / "a" / "mine.py").unlink()
    (one.book / "a" / "b" / "c").mkdir(parents=True)
    one.write("a/new.csv")  # the session has another folder of that name
    assert one.bring("a", "a/new.csv").refused == {}
    assert one.files == {"mine.csv": "mine", "a/new.csv": "1"}
    shutil.rmtree(one.app / "a")
    assert one.bring("a").refused == {}
    assert not (one.book / "a").exists()
    assert not (one.app / ".wh.a").exists()


def test_read_only_files_stay(one: Writing) -> None:
    (one.book / "mine.csv").chmod(0o444)
    assert "read-only" in one.wrote("mine.csv", "x")["mine.csv"]
    assert "read-only" in one.deleted("mine.csv")["mine.csv"]
    assert one.files == {"mine.csv": "mine"}


def test_temporary_files_leave_no_notes(one: Writing) -> None:
    for n in range(3):
        one.wrote(f"{n}.csv")
        one.deleted(f"{n}.csv")
    assert [each.name for each in one.app.iterdir() if each.name.startswith(".wh.")] == []
    assert one.files == {"mine.csv": "mine"}


def test_files_that_can_not_be_kept_are_not_replaced(one: Writing) -> None:
    one.place = replace(one.place, policy=ExecutionPolicy(files_history_bytes=5))
    (one.book / "b.csv").write_text("b")
    (one.book / "c.csv").write_text("c")
    for name in ("mine.csv", "b.csv", "c.csv"):
        one.write(name, "x")
    assert [*one.bring("mine.csv", "b.csv").refused, *one.bring("c.csv").refused] == ["c.csv"]
    one.undone("mine.csv")
    one.undone("b.csv")
    for name in ("mine.csv", "b.csv", "c.csv"):
        one.write(name, "x")
    assert len(one.bring("mine.csv", "b.csv", "c.csv").refused) == 1
    one.undone("c.csv")
    assert one.wrote("mine.csv", "x") == one.wrote("b.csv", "x") == {}
    assert "files_history_bytes" in one.wrote("c.csv", "x")["c.csv"]
    assert "files_history_bytes" in one.deleted("c.csv")["c.csv"]
    assert one.undone("mine.csv") == {}
    assert one.wrote("c.csv", "x") == {}
    assert one.files == {"mine.csv": "mine", "b.csv": "x", "c.csv": "x"}


def killed_at(step: int, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if another process was killed at a step of its work on files."""
    pid = os.fork()
    if pid:
        return bool(os.waitpid(pid, 0)[1])
    steps, rename, bring = iter(range(1, 1_000_000)), files.renameat2, Mirror.bring
    begun = []

    def begin(mirror: Mirror, path: str) -> bool:
        begun.append(path)
        return bring(mirror, path)

    def watch(event: str, _: object) -> None:
        if begun and event.startswith(("os.", "open", "fcntl")) and next(steps) == step:
            os._exit(9)

    def renamed(*names: Any) -> bool:
        watch("os.", ())
        done = rename(*names)
        watch("os.", ())
        return done

    monkeypatch.setattr(files, "renameat2", renamed)
    monkeypatch.setattr(Mirror, "bring", begin)
    sys.addaudithook(watch)
    act()
    os._exit(0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("act", ["wrote", "deleted", "undone"])
def test_a_broker_that_is_killed_at_any_step_loses_no_file(
    one: Writing, monkeypatch: pytest.MonkeyPatch, act: str, every: int
) -> None:
    for step in range(1, 500, every):
        if act == "undone":
            assert one.wrote("mine.csv", "theirs") == {}
        killed = killed_at(step, lambda: getattr(one, act)("mine.csv"), monkeypatch)
        texts = [*one.files.values()]
        texts += [(private_of(one.app) / "written" / name).read_text() for name in one.kept]
        assert "mine" in texts, step
        one.undone("mine.csv")
        assert one.files["mine.csv"] == "mine", step
        if not killed:
            assert step > 10
            break
        for draft in one.book.glob(".*.part"):
            draft.unlink()


class Turn(WaitingCell):
    """A turn that is over."""

    def __init__(self, one: Writing) -> None:
        def write(request: WriteFiles, task: Task) -> WriteOutcome:
            assert sum(map(len, request.paths)) < 16 * MIB, "the owner would end the worker"
            return one.place.write(request, task)

        super().__init__({WriteFiles: write, AdoptFiles: one.place.adopt})
        self.notes: list[str] = []


def test_a_stop_in_the_midst_is_made_up_for_later(one: Writing) -> None:
    turn = Turn(one)
    for name in ("r.csv", "s.csv", "x.py", ".hidden", "__pycache__/m.pyc"):
        one.write(name)
    with Folder.open(one.book) as book:
        back = WriteBack(one.session, book, one.place.names, turn.notes.append)
        turn.cancelled = True
        back.files_changed(["r.csv", "s.csv"], turn)
        assert "After the next cell, the kernel tries again" in turn.heard.pop()
        turn.cancelled = False
        paths = ["x.py", "y.py", "m.json", ".hidden", "__pycache__/m.pyc", "\udc80.csv"]
        paths.append(f"{'long/' * 4 * MIB}l.csv")  # more than a request may hold
        for path in ("y.py", "m.json"):
            one.write(path)
        back.files_changed(paths, turn)
        (told,) = turn.notes
        assert told.startswith("[wasm-kernel] In the session, but not beside the notebook: ")
        assert "x.py, y.py: only files of data" in told and "m.json: some tools" in told
        assert "l.csv: its path is too long" in told
        assert told.count("\n") == 1
        back.files_changed(["x.py", ".wh.mine.csv"], turn)  # said once; nothing is covered
    assert turn.heard == [] and len(turn.notes) == 1
    assert set(one.files) == {"mine.csv", "r.csv", "s.csv"}


def test_files_that_the_user_changes_during_a_cell_are_seen_by_the_next(one: Writing) -> None:
    turn, place = Turn(one), one.book / "r.csv"
    with Folder.open(one.book) as book:
        for kernel in range(2):  # the second kernel finds the work of the first
            back = WriteBack(one.session, book, one.place.names, turn.notes.append)
            back.cell_begins(turn)
            one.write("r.csv", f"session {kernel}")
            back.files_changed(["r.csv"], turn)
            place.write_text("edited again")
            one.write("r.csv", "session again")
            back.files_changed(["r.csv"], turn)
            assert "was changed there since the cell began" in turn.heard.pop()
            back.cell_begins(turn)
            assert (one.app / "r.csv").read_text() == "edited again"
            place.write_text(f"edited after {kernel}")
        back = WriteBack(one.session, book, one.place.names, turn.notes.append)
        turn.cancelled = True  # the next cell repeats the work
        back.cell_begins(turn)
        assert (one.app / "r.csv").read_text() == "edited again"
        turn.cancelled = False
        back.cell_begins(turn)
    assert (one.app / "r.csv").read_text() == "edited after 1"
    assert turn.heard == []


@pytest.mark.parametrize("seed", range(3))
def test_whatever_both_do_nothing_of_the_users_is_lost(one: Writing, seed: int) -> None:
    chance, users = random.Random(seed), {"mine.csv": "mine"}
    names = ["mine.csv", "a.csv", "s/b.csv"]
    for step in range(40):
        path = chance.choice(names)
        there, what = one.book / path, chance.random()
        if what < 0.15:  # in place, or another file
            there.parent.mkdir(exist_ok=True)
            if chance.random() < 0.5:
                there.unlink(missing_ok=True)
            there.write_text(f"the user's {step}")
            users[path] = f"the user's {step}"
        elif what < 0.2:
            there.unlink(missing_ok=True)
            users.pop(path, None)
        elif what < 0.3:
            one.adopted(*names)
        elif what < 0.6:
            same = there.read_text() if there.exists() else ""
            one.wrote(path, chance.choice([f"a cell's {step}", same]))
        else:
            chance.choice([one.deleted, one.undone])(path)
        place = private_of(one.app) / "written"
        assert {*users.values()} <= {
            *one.files.values(),
            *(p.read_text() for p in place.glob("k*")),
        }
        assert set(one.files) <= set(names)
    for path in names:
        one.undone(path)
    assert one.files.items() >= users.items()


def test_nothing_is_written_to_a_folder_that_cells_do_not_see(
    one: Writing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(one.book))
    one.write("r.csv")
    with pytest.raises(WasmKernelError):
        one.bring("r.csv")
    assert one.files == {"mine.csv": "mine"}
