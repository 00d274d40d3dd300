"""Variables outlive a kernel: crashes, restarts, the next day, and two kernels at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Starting
from tests.end_to_end.real_kernel import RealKernel
from tests.end_to_end.test_forker import children_of, process_of
from tests.faces import ends, wait_for
from tests.linux.inside import needs_walls
from tests.private import private_of
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


def test_a_cell_that_kills_its_kernel_costs_no_variable(
    start: Starting, notebook: Path, root: Path
) -> None:
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
