"""Variables outlive a kernel: crashes, restarts, the next day, and two kernels at once."""

from __future__ import annotations

import ast
import json
import os
import shlex
import signal
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.aged import metadata_of
from tests.end_to_end.conftest import Starting
from tests.end_to_end.real_kernel import RealKernel
from tests.end_to_end.test_forker import children_of, process_of
from tests.faces import completed, ends, wait_for
from tests.linux.inside import needs_walls
from tests.private import private_of
from wasm_kernel import (
    SandboxClosed,
    SessionInUse,
    delete_session_workspace,
    get_session_sandbox,
    prune_sessions,
)
from wasm_kernel.folders.locks import LOCK
from wasm_kernel.linux.locks import FileLock

CONTINUED = "The session goes on: the variables are as they were after In[2] (y = 2)"
AFTER_A_BREAK = "The session goes on after a break: the variables are as they were after In[1]"


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "analysis.ipynb"
    path.parent.mkdir()
    path.touch()
    return path


def saved(root: Path) -> None:
    """Wait until the only session has saved its first state and its first cell."""
    (workspace,) = root.iterdir()
    contents = private_of(workspace) / "state" / "contents"
    wait_for(lambda: len(list(contents.glob("*"))) >= 2, "a commit on disk")


def killed_in_a_cell(kernel: RealKernel, root: Path) -> None:
    """A kernel that set `x = 1` is killed in a later cell; Jupyter starts it again."""
    saved(root)
    kernel.send("x = 2\nwhile True: pass")
    while kernel.client.get_iopub_msg(timeout=60)["content"].get("code", "")[:5] != "x = 2":
        pass
    process = process_of(kernel)
    kernel.kill()
    ends(process)  # a restart interrupts the cell of a kernel that has not ended with its launcher
    kernel.autorestart()


@needs_walls
def test_a_kernel_whose_helper_is_killed_ends_and_goes_on_as_after_a_crash(
    start: Starting, notebook: Path, root: Path
) -> None:
    """Formerly, the kernel stayed, and ran no cell until a restart without variables."""
    kernel = start(notebook)
    kernel.run("x = 1")
    saved(root)
    (broker,) = children_of(process_of(kernel))
    os.kill(broker, signal.SIGKILL)
    wait_for(lambda: not kernel.manager.is_alive(), "the kernel's end")
    kernel.autorestart()
    assert kernel.run("print(x)").stdout == "1\n"


def restarted_anew(kernel: RealKernel) -> None:
    """A restart by the user begins without variables, and keeps files."""
    kernel.run("x = 1; open('file', 'w').write('kept')")
    kernel.restart()
    said = kernel.run("print(open('file').read()); x")
    assert (said.stdout, said.stderr, said.error) == ("kept\n", "", "NameError")


def test_a_notebook_that_always_resumes(start: Starting, notebook: Path, root: Path) -> None:
    kernel = start(notebook, resume="always")
    kernel.run("x = 1")
    killed_in_a_cell(kernel, root)
    said = kernel.run("print(x)")
    assert said.stdout == "1\n"
    assert AFTER_A_BREAK in said.stderr
    assert kernel.run("print(x)").stderr == ""
    restarted_anew(kernel)
    kernel.run("y = 2")
    kernel.shut_down()

    # the next day it continues the restarted session, also by a link to the notebook's folder
    link = notebook.parent.with_name("link")
    link.symlink_to(notebook.parent)
    said = start(link / notebook.name, resume="always").run("print('x' in globals(), y)")
    assert said.stdout == "False 2\n"
    assert CONTINUED in said.stderr


def test_a_notebook_that_never_resumes(start: Starting, notebook: Path, root: Path) -> None:
    kernel = start(notebook, resume="never")
    kernel.run("x = 1")
    killed_in_a_cell(kernel, root)
    assert kernel.run("x").error == "NameError"
    restarted_anew(kernel)
    kernel.run("x = 1")
    kernel.shut_down()
    assert start(notebook, resume="never").run("x").error == "NameError"


def test_cells_that_kill_kernels_cost_nothing(start: Starting, notebook: Path, root: Path) -> None:
    """`os.kill(os.getpid(), 9)` in a cell ends the kernel, as expected, and costs nothing else."""
    first = start(notebook, session_id="mine")
    first.run("x = 1")
    assert [path.name for path in root.iterdir()] == ["mine"]  # not the notebook's session
    first.client.execute("import os; os.kill(os.getpid(), 9)")
    wait_for(lambda: not first.manager.is_alive(), "the kernel's end")
    assert start(notebook, session_id="mine").run("print(x)").stdout == "1\n"


def test_a_page_says_that_its_kernel_waits_for_the_process_of_one_that_was_killed(
    start: Starting, notebook: Path, root: Path
) -> None:
    """Formerly, the kernel answered nothing for up to three minutes, and clients gave it up."""
    first = start(notebook, session_id="mine", resume="always")
    first.run("x = 1")
    first.shut_down()
    lock = FileLock(private_of(root / "mine") / LOCK)
    wait_for(lock.acquire, "the end of the first kernel's worker")
    kernel = start(notebook, session_id="mine", resume="always")
    sent = kernel.send("print(x)")
    while "an earlier process still saves: 170 s at most" not in kernel.hear("stream")["text"]:
        pass
    lock.release()
    assert kernel.heard(sent).stdout == "1\n"


YEAR = timedelta(days=366)


def workspace_in(root: Path) -> Path:
    (workspace,) = root.iterdir()
    return workspace


def age(workspace: Path) -> None:
    """Make the session look as if it had not been used for a year."""
    found = metadata_of(workspace)
    found["updated_at"] = found["created_at"] = (datetime.now(UTC) - YEAR).isoformat()
    (workspace / ".metadata.json").write_text(json.dumps(found))


def test_living_kernels_session_is_neither_deleted_nor_pruned(start: Starting, root: Path) -> None:
    kernel = start(event_log="/dev/full")  # a broken log costs no cell
    kernel.run("x = 1")
    workspace = workspace_in(root)
    assert metadata_of(workspace)["updated_at"] > metadata_of(workspace)["created_at"]
    age(workspace)
    result = prune_sessions(24, root)
    assert result.deleted_sessions == []
    assert result.in_use == {workspace.name: "another_process"}
    assert result.skipped_sessions == []
    with pytest.raises(SessionInUse, match="Nothing was deleted"):
        delete_session_workspace(workspace.name, root)
    assert kernel.run("x").value == "1"

    # here, a second user of the session keeps it no longer than the kernel does
    with get_session_sandbox(workspace.name, workspace_root=root) as second:
        told = second.execute("print('x' in globals())")
        assert told.stdout == "False\n"
        assert "This session is already open" in told.stderr
        age(workspace)
        assert prune_sessions(24, root).in_use == {workspace.name: "another_process"}
        assert second.execute("print('works')").stdout == "works\n"
        kernel.shut_down()
        age(workspace)
        assert prune_sessions(24, root).deleted_sessions == [workspace.name]
        assert list(root.iterdir()) == []
        with pytest.raises(SandboxClosed, match="prune_sessions"):
            second.execute("1")


def test_events_go_to_the_file_of_the_trait(start: Starting, root: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    kernel = start(event_log=str(log))
    kernel.run("1 + 1")
    kernel.run("1 / 0")
    session_id = workspace_in(root).name
    fork_id = ast.literal_eval(kernel.run("%fork").value)
    assert (root / fork_id / ".metadata.json").exists()
    kernel.shut_down()
    found = [json.loads(line) for line in log.read_text().splitlines()]
    names = [event["event"] for event in found]
    assert [event["fork_id"] for event in found if event["event"] == "session.forked"] == [fork_id]
    created = [event["session_id"] for event in found if event["event"] == "session.created"]
    assert created == [session_id, fork_id]
    assert names[:2] == ["session.created", "session.retrieved"]
    assert names.count("execution.start") == names.count("execution.complete")
    of_others = [event["event"] for event in found if event["session_id"] != session_id]
    assert of_others == ["session.created"]  # the fork's event; all others are the kernel's
    assert [event for event in found if event.get("error") == "ZeroDivisionError"]
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


KEPT = "its files are here, its variables were not kept"
LOOK = "import os; print(sorted(os.listdir('/app')), 'x' in globals())"
CELLS = ("x = 1", "# " + "a notebook of some length " * 60)


def save(notebook: Path, *cells: str) -> Path:
    """Saves a notebook in its place."""
    made = [
        {"cell_type": "code", "source": cell, "metadata": {}, "outputs": [], "id": f"cell-{n}"}
        | {"execution_count": None}
        for n, cell in enumerate(cells)
    ]
    book = {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    notebook.write_text(json.dumps(book))
    return notebook


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the notebooks, where kernels and commands begin."""
    (folder := tmp_path / "work").mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_notebook_opened_tomorrow_has_its_files_and_is_told_of_its_variables(
    start: Starting, work: Path
) -> None:
    notebook = save(work / "orders.ipynb")
    kernel = start(notebook)
    told = kernel.run("x = 1; _ = open('/app/made.csv', 'w').write('1')").page
    assert "`%session_publish made.csv` copies files beside the notebook" in told
    assert "\n" not in told
    save(notebook, *CELLS)
    kernel.shut_down()
    tomorrow = start(notebook)
    said = tomorrow.run(LOOK)
    assert said.stdout == "['made.csv'] False\n"
    assert KEPT in said.stderr
    again = tomorrow.run(f"open('/app/made.csv', 'a').close(); {LOOK}")
    assert again.stderr + again.page == ""  # the note on the file comes once per session
    tomorrow.restart()
    said = tomorrow.run(LOOK)
    assert (said.stdout, said.stderr) == ("['made.csv'] False\n", "")

    # renamed, published, restarted, saved, moved while the kernel runs
    renamed = notebook.rename(work / "renamed.ipynb")
    tomorrow.run("_ = open('/app/made.csv', 'w').write('2')\n%session_publish made.csv")
    assert (work / "renamed.files" / "made.csv").read_text() == "2"
    tomorrow.restart()
    save(renamed, "x = 3", *CELLS)
    (work / "sub").mkdir()
    moved = renamed.rename(work / "sub" / "moved.ipynb")
    tomorrow.shut_down()
    new = start(save(renamed, "x = 4", *CELLS)).run(LOOK)
    assert (new.stdout, new.stderr) == ("[] False\n", "")
    assert start(moved).run(LOOK).stdout == "['made.csv'] False\n"


def test_named_checkpoints_outlive_restart_and_shut_down(start: Starting, work: Path) -> None:
    notebook = save(work / "orders.ipynb", *CELLS)
    kernel = start(notebook)
    kernel.run("x = 'clean'; print(x)\n%checkpoint clean")
    kernel.run("x = 'spoilt'")
    kernel.restart()
    first = kernel.run("'x' in globals()")
    assert (first.value, first.stderr) == ("False", "")  # gone, as after any restart
    assert "Named checkpoints of earlier runs: clean. `%restore clean`" in first.page
    assert kernel.run("1").page == ""
    assert kernel.run("%restore clean").error == ""
    assert kernel.run("x").value == "'clean'"
    kernel.shut_down()
    tomorrow = start(notebook)
    first = tomorrow.run("'x' in globals()")
    assert first.value == "False"
    assert KEPT in first.stderr
    assert "`%restore clean`" in first.page
    tomorrow.run("%restore clean")
    assert tomorrow.run("x").value == "'clean'"


def command(words: str, sessions: Path, typed: str = "") -> str:
    """The output of a command that a person pasted into a terminal of the server."""
    program = [sys.executable, "-m", "wasm_kernel.frontends.cli.main"]
    assert words.startswith("wasm-kernel ")
    # the console also asks without a terminal
    own = {"WASM_KERNEL_WORKSPACE_ROOT": str(sessions), "JUPYTER_CONSOLE_TEST": "1"}
    done = completed([*program, *shlex.split(words)[1:]], input=typed, env=os.environ | own)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_that_a_fork_prints_opens_it(start: Starting, work: Path, root: Path) -> None:
    notebook = save(work / "orders.ipynb", *CELLS)
    kernel = start(notebook)
    said = kernel.run("x = [1]; open('/app/made.csv', 'w').close()\n%fork").stdout
    assert "it gets this notebook's cells, as they were saved last" in said
    bind, console = (line.strip() for line in said.splitlines() if line.startswith("  "))

    (work / "jupyter_console.py").write_text("raise SystemExit('a stranger ran')")
    shown = command(console, root, "print(x, *__import__('os').listdir('/app'))\nexit\n")
    assert "[1] made.csv" in shown

    name = bind.split()[-1]
    assert command(bind, root).startswith(f"{name} has session")
    cells = json.loads((work / name).read_text())["cells"]
    assert tuple("".join(cell["source"]) for cell in cells) == CELLS
    # the console got the variables
    assert start(work / name).run(LOOK).stdout == "['made.csv'] False\n"

    # opens the fork in the same notebook by restarting its kernel
    said = kernel.run("x = 2; open('/app/later.csv', 'w').close()\n%fork").stdout
    command(f"wasm-kernel sessions bind {said.split()[1]} {notebook.name}", root)
    kernel.run("x = 3; open('/app/last.csv', 'w').close()")
    kernel.restart()
    of_fork = kernel.run(LOOK + "; print(x)")
    assert of_fork.stdout == "['later.csv', 'made.csv'] True\n2\n"
    assert "This session was forked off another one" in of_fork.stderr
