"""A session's variables in another process, and in another version of the guest: found, taken over
after a kill, not shared by two, and kept for the guest that saved them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.faces import happens, says, wait_for
from tests.faults import faulty
from tests.private import folders_of
from tests.sessions.other_process import Other
from tests.stored import commits_in, content_of, rewritten, state_of
from wasm_kernel import BaseSandbox, get_session_sandbox
from wasm_kernel.frontends.cli import doctor
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.index import read_index

ID = "shared"
Opening = Callable[[], Other]


@pytest.fixture
def history(root: Path) -> Path:
    with closing(folders_of(root / ID)) as folders:
        return folders.private.path / "state"


@pytest.fixture
def other(root: Path, ending: ExitStack) -> Opening:
    """Starts processes on one session, and ends them."""

    def one() -> Other:
        started = Other(root, ID)
        ending.callback(started.end)
        return started

    return one


@pytest.fixture
def here(root: Path, ending: ExitStack) -> Callable[[], BaseSandbox]:
    """Opens the session in this process."""
    return lambda: ending.enter_context(closing(get_session_sandbox(ID, workspace_root=root)))


def left(sandbox: BaseSandbox, *cells: str) -> None:
    """Runs cells, and closes the sandbox."""
    for code in cells:
        says(sandbox, code)
    sandbox.close()


def saved(history: Path, states: int) -> None:
    """Wait until this number of states is on disk."""
    wait_for(lambda: len(commits_in(history)) >= states, "a state on disk")


STATE = """
import sqlite3
squares = (i * i for i in range(100)); next(squares); next(squares)
db = sqlite3.connect(':memory:'); _ = db.execute('create table t (x)')
_ = db.execute('insert into t values (7)')
f = open('notes', 'w+'); _ = f.write('hello'); f.flush()
"""
TELL = "print(next(squares), db.execute('select * from t').fetchall(), f.tell(), double(4))"


def test_another_process_finds_variables_that_can_not_be_pickled_and_undoes_cells(
    other: Opening, here: Callable[[], BaseSandbox]
) -> None:
    first = other()
    first.run(STATE)
    first.run("double = lambda x: 2 * x")
    first.end()
    sandbox = here()
    result = sandbox.execute(TELL)
    assert (result.stdout, result.stderr) == ("4 [(7,)] 5 8\n", "")
    sandbox.undo(2)
    assert says(sandbox, "print('double' in dir(), next(squares))") == "False 4"


def test_after_a_kill_in_the_middle_of_a_cell_the_last_cell_counts(
    other: Opening, here: Callable[[], BaseSandbox], root: Path, history: Path
) -> None:
    first = other()
    first.run(STATE)
    first.run("double = lambda x: 2 * x")
    saved(history, 3)
    first.send("double = None; _ = next(squares); open('begun', 'w').close()\nwhile True: pass")
    wait_for((root / ID / "begun").exists)
    first.kill()
    result = here().execute(TELL)
    assert result.stdout == "4 [(7,)] 5 8\n"
    assert "goes on after a break: the variables are as they were after In[2]" in result.stderr


def test_the_worker_of_a_killed_program_writes_its_state_however_slow_the_disk(
    root: Path, ending: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Formerly, the worker had two seconds, and the next program's cells began 0.5 s later."""
    told: list[str] = []
    with faulty("wasm_kernel.state.commits:write_content") as faults:
        other = Other(root, ID)
        with faults["write_content"].held() as writes:
            other.run("x = 1")
            writes()
            other.kill()
            sandbox = ending.enter_context(closing(get_session_sandbox(ID, workspace_root=root)))
            cell = sandbox.submit("print(x)", progress=told.append)
            wait_for(lambda: told, "a sentence about the wait")
            assert not happens(cell.done, 1.0)
        assert cell.result().stdout == "1\n"
    assert told == ["an earlier process still saves: 170 s at most"]
    assert f"waiting for a session: {told[0]}" in caplog.text


@pytest.mark.parametrize("how", [pytest.param("end", marks=pytest.mark.soak), "kill"])
def test_the_second_process_can_not_damage_the_first_ones_history(
    other: Opening, here: Callable[[], BaseSandbox], how: str
) -> None:
    first, second = other(), other()
    first.run("x = [1]")
    second.run("x = ['second']; import os; y = os.getpid()")
    second.run("%undo")
    second.run("x.append(2)\n%checkpoint mine")
    second.run("import os; os._exit(3)")
    getattr(second, how)()
    assert first.run("x.append(3); print(x)")["stdout"] == "[1, 3]\n"
    assert first.run("import os; os._exit(3)")["error"] == "GuestExited"
    assert first.run("print(x)")["stdout"] == "[1, 3]\n"
    first.end()
    sandbox = here()
    assert says(sandbox, "print(x)") == "[1, 3]"
    assert "mine" not in {state.name for state in sandbox.checkpoints()}


def test_the_second_of_two_processes_is_told_and_goes_on_in_memory_after_the_first_has_ended(
    other: Opening, here: Callable[[], BaseSandbox]
) -> None:
    first, second = other(), other()
    first.run("x = 'first'; open('file', 'w').write('both see it')")
    said = second.run("print(open('file').read(), 'x' in globals()); x = 'second'")
    assert said["stdout"] == "both see it False\n"
    assert "This session is already open" in said["stderr"]
    first.end()
    said = second.run("print(x)")
    assert (said["stdout"], said["stderr"]) == ("second\n", "")
    assert says(here(), "print(x)") == "first"
    assert second.run("import os; os._exit(3)")["error"] == "GuestExited"
    assert second.run("print(x)")["stdout"] == "second\n"


@pytest.mark.parametrize("build", [False, True], ids=["another version", "another build"])
def test_a_session_of_another_version_keeps_its_files_and_says_so(
    here: Callable[[], BaseSandbox], history: Path, build: bool
) -> None:
    """The base image may only have been built again, as its cache was removed."""
    left(here(), "x = 1; open('file', 'w').write('kept')")
    with Folder.open(history) as folder:
        real = read_index(folder).image
    another = f"{real.rpartition('.')[0]}.another" if build else "0" * len(real)
    rewritten(history, lambda record: record, image=another)
    result = here().execute("print(open('file').read(), 'x' in globals())")
    assert result.stdout == "kept False\n"
    assert "The variables begin fresh: they were saved by another version" in result.stderr
    assert "before its cache was made anew" in result.stderr
    assert "The files in /app are all there" in result.stderr


def test_a_history_of_another_format_is_refused_in_words_and_the_files_stay(
    here: Callable[[], BaseSandbox], history: Path
) -> None:
    left(here(), "x = 1; open('file', 'w').write('kept')")
    data = (history / "index").read_bytes()
    (history / "index").write_bytes(data.replace(b'"index":2', b'"index":3', 1))
    sandbox = here()
    result = sandbox.execute("print(open('file').read(), 'x' in globals())")
    assert result.stdout == "kept False\n"
    assert "format version 3, this is 2" in result.stderr
    assert says(sandbox, "x = 2; print(x)") == "2"
    sandbox.close()
    assert says(here(), "print(x)") == "2"


@pytest.mark.parametrize("damage", ["content", "end"])
def test_states_that_are_lost_are_counted_and_the_one_that_is_used_is_named(
    here: Callable[[], BaseSandbox], history: Path, damage: str
) -> None:
    left(here(), *(f"x = {value}" for value in range(1, 5)))
    if damage == "content":
        content_of(history, 4).unlink()
    else:
        lines = (history / "index").read_bytes().splitlines(keepends=True)
        (history / "index").write_bytes(b"".join(lines[:-1]))
    result = here().execute("print(x)")
    lost, cell = ("2", 2) if damage == "content" else ("1", 4)
    assert result.stdout == f"{cell}\n"
    assert f"damaged or missing are left out: {lost}. The variables" in result.stderr
    assert f"after In[{cell}] (x = {cell})" in result.stderr
    assert "that may not be where the session was left" in result.stderr


def said_by_doctor(root: Path) -> list[str]:
    return [f.text for f in doctor.examine(root) if "saved by another version" in f.text]


def test_doctor_announces_sessions_that_this_guest_can_not_go_on_with(tmp_path: Path) -> None:
    with get_session_sandbox("analysis", workspace_root=tmp_path) as sandbox:
        says(sandbox, "x = 7")
    assert said_by_doctor(tmp_path) == []
    rewritten(state_of(tmp_path / "analysis"), lambda record: record, image="of another build")
    (said,) = said_by_doctor(tmp_path)
    assert said.startswith("1 of 1 sessions with variables")


def test_variables_wait_for_the_guest_that_saved_them(tmp_path: Path) -> None:
    """Here the guest is of another language, which the notice names as a possibility, too."""
    cells = {
        "javascript": "x = 7; require('fs').writeFileSync('kept.txt', 'here')",
        "python": "print('x' in dir(), open('kept.txt').read()); x = 8",
    }
    for runtime, code in cells.items():
        with get_session_sandbox("analysis", runtime, workspace_root=tmp_path) as sandbox:
            found = sandbox.execute(code)
    assert found.stdout == "False here\n"
    assert "saved by another version of the sandbox or by its other language" in found.stderr
    assert "kept for that version" in found.stderr
    assert "The files in /app are all there" in found.stderr
    with get_session_sandbox("analysis", "javascript", workspace_root=tmp_path) as sandbox:
        assert sandbox.execute("x").outputs[0].data["text/plain"] == "7"
