"""In a real Jupyter server, a notebook that is opened again finds its session, and other notebooks
don't.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.notebook_server import NotebookServer, serving
from tests.end_to_end.real_kernel import SECONDS

KEPT = "its files are here, its variables were not kept"
LOOK = "import os; print(sorted(os.listdir('/app')), 'x' in globals())"
CELLS = ("x = 1", "# " + "a notebook of some length " * 60)


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sessions") / "sessions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, sessions: Path) -> Iterator[NotebookServer]:
    with serving(tmp_path_factory.mktemp("server"), sessions) as server:
        yield server


def worked_on(server: NotebookServer, path: str) -> None:
    """A day's work in a notebook: a variable, a file, and a save before the end."""
    notebook = server.open(path)
    told = notebook.run("x = 1; _ = open('made.csv', 'w').write('1')")["page"]
    assert "`%session_publish made.csv` copies files beside the notebook" in told
    assert "\n" not in told
    server.save(path, *CELLS)
    notebook.close()


def test_a_notebook_opened_tomorrow_has_its_files_and_is_told_of_its_variables(
    server: NotebookServer,
) -> None:
    path = server.new()
    worked_on(server, path)
    tomorrow = server.open(path)
    said = tomorrow.run(LOOK)
    assert said["stdout"] == "['made.csv'] False\n"
    assert KEPT in said["stderr"]
    again = tomorrow.run(f"open('made.csv', 'a').close(); {LOOK}")
    assert again["stderr"] + again["page"] == ""  # the note on the file comes once per session
    tomorrow.restart()
    said = tomorrow.run(LOOK)
    assert (said["stdout"], said["stderr"]) == ("['made.csv'] False\n", "")

    # another kernel continues the session
    kernel = tomorrow.kernel_id
    tomorrow.change_kernel()
    assert tomorrow.kernel_id != kernel
    said = tomorrow.run(LOOK)
    assert said["stdout"] == "['made.csv'] False\n"
    assert KEPT in said["stderr"]

    # renamed by the server, restarted, saved; then moved with `mv` while the kernel runs
    tomorrow.rename("renamed.ipynb")
    published = server.work / "renamed.files" / "made.csv"
    for text in ("1", "2"):
        tomorrow.run(f"_ = open('made.csv', 'w').write({text!r})\n%session_publish made.csv")
        assert published.read_text() == text
        if text == "1":
            tomorrow.restart()
    assert tomorrow.run(LOOK)["stdout"] == "['made.csv'] False\n"
    server.save("renamed.ipynb", "x = 3", *CELLS)
    (server.work / "sub").mkdir()
    (server.work / "renamed.ipynb").rename(server.work / "sub" / "moved.ipynb")
    tomorrow.close()
    server.save("renamed.ipynb", "x = 4", *CELLS)
    new = server.open("renamed.ipynb")
    said = new.run(LOOK)  # the notebook that had this name is known to have moved
    assert (said["stdout"], said["stderr"]) == ("[] False\n", "")
    new.close()
    after = server.open("sub/moved.ipynb")
    assert after.run(LOOK)["stdout"] == "['made.csv'] False\n"
    after.close()


def test_named_checkpoints_outlive_restart_and_shut_down(server: NotebookServer) -> None:
    path = server.new()
    notebook = server.open(path)
    notebook.run("x = 'clean'; print(x)\n%checkpoint clean")
    notebook.run("x = 'spoilt'")
    server.save(path, *CELLS)
    notebook.restart()
    first = notebook.run("'x' in globals()")
    assert (first["value"], first["stderr"]) == ("False", "")  # gone, as after any restart
    assert "Named checkpoints of earlier runs: clean. `%restore clean`" in first["page"]
    assert notebook.run("1")["page"] == ""
    assert notebook.run("%restore clean")["error"] == ""
    assert notebook.run("x")["value"] == "'clean'"
    notebook.close()
    tomorrow = server.open(path)
    first = tomorrow.run("'x' in globals()")
    assert first["value"] == "False"
    assert KEPT in first["stderr"]
    assert "`%restore clean`" in first["page"]
    tomorrow.run("%restore clean")
    assert tomorrow.run("x")["value"] == "'clean'"
    tomorrow.close()


def command(words: str, folder: Path, typed: str = "") -> str:
    """The output of a command that a person pasted into a terminal of the server."""
    program = [sys.executable, "-m", "wasm_kernel.frontends.cli.main"]
    assert words.startswith("wasm-kernel ")
    done = subprocess.run(
        [*program, *shlex.split(words)[1:]],
        input=typed,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=folder,
        env=os.environ | {"JUPYTER_CONSOLE_TEST": "1"},  # the console also asks without a terminal
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_that_a_fork_prints_opens_it_in_one_step(server: NotebookServer) -> None:
    path = server.new()
    notebook = server.open(path)
    server.save(path, *CELLS)
    said = notebook.run("x = [1]; open('made.csv', 'w').close()\n%fork")["stdout"]
    assert "it gets this notebook's cells, as they were saved last" in said
    bind, console = (line.strip() for line in said.splitlines() if line.startswith("  "))

    (server.work / "jupyter_console.py").write_text("raise SystemExit('a stranger ran')")
    shown = command(console, server.work, "print(x, *__import__('os').listdir('/app'))\nexit\n")
    assert "[1] made.csv" in shown

    name = bind.split()[-1]
    assert command(bind, server.work).startswith(f"{name} has session")
    cells = json.loads((server.work / name).read_text())["cells"]
    assert tuple("".join(cell["source"]) for cell in cells) == CELLS
    fork = server.open(name)
    assert fork.run(LOOK)["stdout"] == "['made.csv'] False\n"  # the console got the variables
    fork.close()

    # opens the fork in the same notebook by restarting its kernel
    said = notebook.run("x = 2; open('later.csv', 'w').close()\n%fork")["stdout"]
    command(f"wasm-kernel sessions bind {said.split()[1]} {path}", server.work)
    notebook.run("x = 3; open('last.csv', 'w').close()")
    notebook.restart()
    said_of_fork = notebook.run(LOOK + "; print(x)")
    assert said_of_fork["stdout"] == "['later.csv', 'made.csv'] True\n2\n"
    assert "This session was forked off another one" in said_of_fork["stderr"]
    notebook.close()
