"""A notebook that is opened again finds its session, its files and its named checkpoints.

Kernels are started for a notebook as Jupyter's server starts them; `tests/browser` has a server.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Starting
from tests.faces import completed

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


def test_the_command_that_a_fork_prints_opens_it_in_one_step(
    start: Starting, work: Path, root: Path
) -> None:
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
