"""Variables over the ends of kernels: crashes, restarts, tomorrow, two at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.real_kernel import RealKernel
from tests.faces import wait_for
from tests.private import private_of

Starting = Callable[..., RealKernel]
CONTINUED = "The session goes on: the variables are as they were after In[1] (x = 1)"
AFTER_A_BREAK = "The session goes on after a break: the variables are as they were after In[1]"


@pytest.fixture(scope="module", autouse=True)
def _installed(warm: None, installed_kernelspec: Path) -> None:
    """Kernels are started by name."""


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "analysis.ipynb"
    path.parent.mkdir()
    path.touch()
    return path


@pytest.fixture
def start(sessions: Path) -> Iterator[Starting]:
    """Starts kernels on one folder of sessions."""
    started: list[RealKernel] = []

    def one(notebook: Path | None = None, **traits: str) -> RealKernel:
        started.append(RealKernel(sessions, notebook, **traits))
        return started[-1]

    yield one
    for kernel in started:
        kernel.shut_down()


def tomorrow(start: Starting, notebook: Path, **traits: str) -> RealKernel:
    """A kernel for a notebook whose kernel set `x = 1` and was shut down."""
    first = start(notebook, **traits)
    first.run("x = 1")
    first.shut_down()
    return start(notebook, **traits)


def commits_in(sessions: Path) -> list[Path]:
    """The commits of all sessions in a folder."""
    found = [private_of(path) for path in sessions.iterdir() if (path / ".metadata.json").exists()]
    return [commit for private in found for commit in private.glob("state/contents/*")]


def saved(sessions: Path, commits: int = 2) -> None:
    """Wait until the one session has saved its beginning and its first cell."""
    wait_for(lambda: len(commits_in(sessions)) >= commits, "a commit on disk")


def test_the_same_notebook_finds_its_variables_tomorrow(start: Starting, notebook: Path) -> None:
    said = tomorrow(start, notebook, resume="always").run("print(x)")
    assert said["stdout"] == "1\n"
    assert CONTINUED in said["stderr"]


@pytest.mark.parametrize("resume", ["crash", "never"])
def test_another_day_begins_anew_unless_asked(start: Starting, notebook: Path, resume: str) -> None:
    assert tomorrow(start, notebook, resume=resume).run("x")["error"] == "NameError"


def test_another_notebook_has_other_variables(
    start: Starting, notebook: Path, sessions: Path
) -> None:
    start(notebook, resume="always").run("x = 1")
    other = notebook.with_name("other.ipynb")
    assert start(other, resume="always").run("x")["error"] == "NameError"
    assert len(list(sessions.iterdir())) == 2


def test_a_renamed_notebook_begins_anew(start: Starting, notebook: Path) -> None:
    first = start(notebook, resume="always")
    first.run("x = 1")
    first.shut_down()
    renamed = notebook.rename(notebook.with_name("renamed.ipynb"))
    assert start(renamed, resume="always").run("x")["error"] == "NameError"


def test_a_link_to_a_notebook_is_that_notebook(start: Starting, notebook: Path) -> None:
    first = start(notebook, resume="always")
    first.run("x = 1")
    first.shut_down()
    link = notebook.with_name("link.ipynb")
    link.symlink_to(notebook)
    assert start(link, resume="always").run("print(x)")["stdout"] == "1\n"


def test_the_notebook_s_path_stays_outside(start: Starting, notebook: Path) -> None:
    kernel = start(notebook, resume="always")
    said = kernel.run("import os; print(os.environ, os.listdir('/'), os.getcwd())")
    assert "JPY" not in said["stdout"]
    assert "analysis" not in said["stdout"]


def test_the_second_kernel_of_a_notebook_has_its_files_and_is_told(
    start: Starting, notebook: Path
) -> None:
    first, second = start(notebook, resume="always"), start(notebook, resume="always")
    first.run("x = 1; open('file', 'w').write('shared')")
    said = second.run("print(open('file').read(), 'x' in globals()); x = 2")
    assert said["stdout"] == "shared False\n"
    assert "This session is already open" in said["stderr"]
    second.shut_down()
    assert first.run("print(x)")["stdout"] == "1\n"
    first.shut_down()
    assert start(notebook, resume="always").run("print(x)")["stdout"] == "1\n"


@pytest.mark.parametrize("resume", ["always", "crash"])
def test_a_kernel_killed_in_the_middle_of_a_cell_goes_on(
    start: Starting, notebook: Path, sessions: Path, resume: str
) -> None:
    kernel = start(notebook, resume=resume)
    kernel.run("x = 1")
    saved(sessions)
    kernel.send("x = 2\nwhile True: pass")
    assert kernel.client.get_iopub_msg(timeout=60)["content"]["execution_state"] == "busy"
    kernel.kill()
    kernel.autorestart()
    said = kernel.run("print(x)")
    assert said["stdout"] == "1\n"
    assert AFTER_A_BREAK in said["stderr"]
    assert kernel.run("print(x)")["stderr"] == ""


def test_a_kernel_that_is_never_to_resume_does_not(
    start: Starting, notebook: Path, sessions: Path
) -> None:
    kernel = start(notebook, resume="never")
    kernel.run("x = 1")
    saved(sessions)
    kernel.kill()
    kernel.autorestart()
    assert kernel.run("x")["error"] == "NameError"


@pytest.mark.parametrize("resume", ["always", "crash", "never"])
def test_a_restart_that_was_asked_for_begins_anew(
    start: Starting, notebook: Path, resume: str
) -> None:
    kernel = start(notebook, resume=resume)
    kernel.run("x = 1; open('file', 'w').write('kept')")
    kernel.restart()
    said = kernel.run("print(open('file').read()); x")
    assert (said["stdout"], said["stderr"], said["error"]) == ("kept\n", "", "NameError")


def test_what_follows_a_restart_is_found_tomorrow(start: Starting, notebook: Path) -> None:
    kernel = start(notebook, resume="always")
    kernel.run("x = 1")
    kernel.restart()
    kernel.run("y = 2")
    kernel.shut_down()
    said = start(notebook, resume="always").run("print('x' in globals(), y)")
    assert said["stdout"] == "False 2\n"


def test_a_kernel_without_a_notebook_is_named_after_its_connection(
    start: Starting, sessions: Path
) -> None:
    kernel = start(resume="always")
    kernel.run("x = 1")
    saved(sessions)
    kernel.kill()
    kernel.autorestart()
    assert kernel.run("print(x)")["stdout"] == "1\n"


def test_a_named_session_comes_before_the_notebook_s(
    start: Starting, notebook: Path, sessions: Path
) -> None:
    start(notebook, resume="always", session_id="mine").run("x = 1")
    assert [path.name for path in sessions.iterdir()] == ["mine"]


def test_a_cell_that_kills_its_kernel_costs_no_variable(start: Starting) -> None:
    """`os.kill(os.getpid(), 9)` in a cell ends the kernel, as people expect, and nothing else."""
    first = start(session_id="killed")
    first.run("x = 1")
    first.client.execute("import os; os.kill(os.getpid(), 9)")
    wait_for(lambda: not first.manager.is_alive(), "the kernel's end")
    assert start(session_id="killed").run("print(x)")["stdout"] == "1\n"
