# mypy: disable-error-code="no-untyped-call"

"""`--resume`: finished cells are not run again, after an edit, a raised budget or a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nbformat import NotebookNode

from tests.faces import wait_for
from tests.frontends.batch.conftest import Making, Running, code, executed
from wasm_kernel.frontends.batch import batch_session
from wasm_kernel.frontends.batch.notebooks import METADATA
from wasm_kernel.frontends.batch.reporting import Progress
from wasm_kernel.frontends.batch.resuming import state_counts
from wasm_kernel.sessions.overview import sessions_in
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

NOTE = "open('/app/log', 'a').write('{}');"
LOG = "print(x, open('/app/log').read())"


def test_mended_notebooks_go_on_from_there(make: Making, run: Running, tmp_path: Path) -> None:
    first, second = "import random; x = [random.random()]", "x.append(2); " + NOTE.format("b")
    make("a.ipynb", NOTE.format("a") + first, second, NOTE.format("half") + "1/0", LOG)
    failed = run()["a.ipynb"]
    assert (failed.verdict, failed.cell, failed.cells) == ("error", 3, 3)
    (left,) = sessions_in(SessionsRoot(tmp_path / "sessions"))
    assert left.notebook == tmp_path / "out" / "a.ipynb"
    make("a.ipynb", NOTE.format("a") + first, second, NOTE.format("c"), LOG)
    mended = run(resume=True)["a.ipynb"]
    assert (mended.verdict, mended.kept, mended.cells) == ("ok", 2, 2)
    assert executed(tmp_path / "out" / "a.ipynb")[3][1].endswith(", 2] abc\n")
    assert not any((tmp_path / "sessions").glob("*-*"))
    again = run(resume=True)["a.ipynb"]
    assert (again.verdict, again.kept, again.cells) == ("ok", 4, 0)


def test_an_edit_above_the_failure_is_noticed(make: Making, run: Running, tmp_path: Path) -> None:
    make("a.ipynb", "x = [1]", "x.append(2)", "x.append(3)", "1/0")
    run()
    make("a.ipynb", "x = [1]", "x.append(20)", "x.append(3)", "print(x)")
    mended = run(resume=True)["a.ipynb"]
    assert (mended.verdict, mended.kept) == ("ok", 1)
    assert "code cell 2 was edited" in mended.note
    assert executed(tmp_path / "out" / "a.ipynb")[3][1] == "[1, 20, 3]\n"


def test_cells_without_states_are_run_again(make: Making, run: Running, tmp_path: Path) -> None:
    crash = code("import os; os._exit(0)", "raises-exception")
    make("a.ipynb", "x = [1]", crash, "x.append('half'); 1/0")
    failed = run()["a.ipynb"]
    assert failed.note == "--resume goes on after code cell 1, as later states are not kept"
    make("a.ipynb", "x = [1]", crash, "print(x); 1/0")
    assert run(resume=True)["a.ipynb"].kept == 1
    assert executed(tmp_path / "out" / "a.ipynb")[2][1].startswith("[1]\n")
    (session,) = (tmp_path / "sessions").glob("*-*")
    session.rename(tmp_path / "gone")
    make("a.ipynb", "x = [1]", "x.append(2)", "print(x)")
    mended = run(resume=True)["a.ipynb"]
    assert (mended.verdict, mended.kept, mended.cells) == ("ok", 0, 3)


def running(folder: Path, *words: str) -> list[str]:
    """The command that runs the notebooks of a test."""
    command = [sys.executable, "-P", "-m", "wasm_kernel.frontends.cli.main", "run"]
    command += [str(folder / "in"), "-o", str(folder / "out"), "--sessions", str(folder / "kept")]
    return [*command, *words]


def test_a_run_that_was_killed_goes_on_and_runs_no_cell_twice(
    make: Making, run: Running, tmp_path: Path
) -> None:
    body = ["import time; x = [1]; " + NOTE.format("a"), "x.append(2); " + NOTE.format("b")]
    make("a.ipynb", *body, NOTE.format("c") + "time.sleep(600)", LOG)
    out = tmp_path / "out" / "a.ipynb"
    runner = subprocess.Popen(running(tmp_path))
    try:
        wait_for(lambda: out.exists() and _record(out).get("done") == 2, "the second cell")
        assert _record(out)["verdict"] == "running"
    finally:
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    make("a.ipynb", *body, NOTE.format("c"), LOG)
    roots = {
        "workspace_root": tmp_path / "kept/sessions",
        "private_root": tmp_path / "kept/private",
    }
    outcome = run(resume=True, **roots)["a.ipynb"]
    assert (outcome.verdict, outcome.kept) == ("ok", 2)
    assert executed(out)[3][1] == "[1, 2] abc\n"


@pytest.mark.parametrize("resume", [False, True])
def test_a_notebook_that_waits_for_its_session_says_so(
    make: Making, run: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, resume: bool
) -> None:
    """Formerly, a run was silent for up to three minutes."""
    monkeypatch.setattr(batch_session, "_TELL_SECONDS", 0.1)
    make("a.ipynb", "x = 1", "1/0")
    assert run()["a.ipynb"].verdict == "error"
    session = batch_session.BatchSession(
        SessionsRoot(tmp_path / "sessions"), tmp_path / "out" / "a.ipynb"
    )
    user, told = Session(session.root, session.id), list[str]()

    class Heard(Progress):
        def noted(self, text: str) -> None:
            told.append(text)
            user.closed()
            user.folders.close()

    make("a.ipynb", "x = 1", "x")
    assert run(resume=resume, progress=Heard())["a.ipynb"].ok
    [text] = told
    assert text.startswith("a.ipynb: its session is in use")


def test_ctrl_c_ends_what_runs_and_says_so(make: Making, tmp_path: Path) -> None:
    for name in ("a.ipynb", "b.ipynb"):
        make(name, "1", "import time; time.sleep(600)")
    out = tmp_path / "out"
    command = running(tmp_path, "--jobs", "1")

    def has_run_one() -> bool:
        return (out / "a.ipynb").exists() and _record(out / "a.ipynb").get("done") == 1

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
        wait_for(has_run_one, "the first cell")
        runner.send_signal(signal.SIGINT)
        told, _ = runner.communicate()
    assert runner.returncode == 1
    assert "2 notebooks: 2 cancelled" in told
    assert "--resume goes on" in told
    assert _record(out / "a.ipynb")["verdict"] == "cancelled"
    assert not (out / "b.ipynb").exists()


def _record(file: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(file.read_text())["metadata"][METADATA]
    return found


def test_states_of_many_cells_are_counted_in_time_that_grows_with_their_number() -> None:
    """Formerly, 100,000 cells took 40 s."""
    cells = [NotebookNode(execution_count=count) for count in (None, *range(50_000), 7)]
    began = time.process_time()
    counts = state_counts(cells)
    assert time.process_time() - began < 5.0
    assert (counts[0], counts[8], counts[9], counts[-1]) == (0, 0, 8, 7)
