"""`%fork` in a real kernel with its usual walls: the fork is opened by another kernel.

One kernel makes most of the forks. This process opens them, except for one that a kernel opens.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Starting, starting_in
from tests.end_to_end.real_kernel import RealKernel
from tests.faces import says
from wasm_kernel import Sandbox, get_session_sandbox
from wasm_kernel.sessions import ids

FILES = 9000
"""Copying them takes long enough for a test to stop it."""


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all sessions of this file."""
    return tmp_path_factory.mktemp("forks") / "sessions"


@pytest.fixture(scope="module")
def start(sessions: Path) -> Iterator[Starting]:
    with starting_in(sessions) as start:
        yield start


@pytest.fixture(scope="module")
def parent(start: Starting) -> RealKernel:
    return start(session_id="parent")


@pytest.fixture
def kernel(parent: RealKernel) -> RealKernel:
    """The file's kernel; each test begins without variables."""
    parent.run("%reset -f")
    return parent


@pytest.fixture
def before(kernel: RealKernel, sessions: Path) -> set[str]:
    """The sessions before the test."""
    return names_in(sessions)


def names_in(sessions: Path) -> set[str]:
    return {path.name for path in sessions.iterdir()}


def forked(kernel: RealKernel, cell: str = "%fork") -> str:
    """The id of a session that a cell forks off, as the cell prints it."""
    said = kernel.run(cell)
    assert said.error == ""
    return said.stdout.split()[1]


def opened(session: str, sessions: Path) -> Sandbox:
    return get_session_sandbox(session, workspace_root=sessions)


def test_a_cell_forks_its_session(
    kernel: RealKernel, start: Starting, sessions: Path, before: set[str]
) -> None:
    kernel.run("x = [1]; f = open('f', 'w+'); _ = f.write('hello '); f.flush()")
    said = kernel.run("x.append(2)\nnew = %fork\nx.append(3)")
    assert (said.stderr, said.error) == ("", "")
    session = ast.literal_eval(kernel.run("new").value)
    assert ids.checked(session) == session
    captured = kernel.run("%%capture out\nother = %fork")
    assert (captured.stdout, captured.stderr) == ("", "")
    assert kernel.run("print(f'Session {other} begins' in out.stdout)").stdout == "True\n"
    assert f"wasm-kernel sessions open {session}\n" in said.stdout
    assert f"get_session_sandbox('{session}', workspace_root=...)" in said.stdout
    assert len(names_in(sessions) - before) == 2

    fork = start(session_id=session)
    told = fork.run("x.append(4); _ = f.write('fork'); f.flush(); print(x, new)")
    assert told.stdout == f"[1, 2, 3, 4] {session}\n"
    assert "This session was forked off another one" in told.stderr
    assert fork.run("x").stderr == ""
    assert kernel.run("print(x, open('f').read())").stdout == "[1, 2, 3] hello \n"
    assert fork.run("print(open('f').read())").stdout == "hello fork\n"


def test_two_forks_in_one_cell_and_an_undo_before_them(kernel: RealKernel, sessions: Path) -> None:
    kernel.run("import random; x = 1")
    kernel.run("x = 2")
    said = kernel.run("a = %fork\nb = %fork --deterministic\n%undo")
    first, second = said.stdout.split()[1], said.stdout.split("Session ")[2].split()[0]
    third = kernel.run("%fork\n1/0").stdout.split()[1]  # a cell that fails makes its fork
    drawn = []
    for session in (first, second, third):
        with opened(session, sessions) as fork:
            drawn.append(says(fork, "print(x, random.random())"))
    mine = kernel.run("print(x, random.random())").stdout.strip()
    assert [each == mine for each in drawn] == [False, True, False]
    assert [each[:2] for each in (*drawn, mine)] == ["1 "] * 4


def test_nothing_else_makes_a_fork(kernel: RealKernel, sessions: Path, before: set[str]) -> None:
    said = kernel.run("%fork\nimport os; os._exit(3)")
    assert said.error == "GuestExited"
    assert "was not made: the cell did not come to its end." in said.stderr
    assert names_in(sessions) == before
    for words in ("now", "--deterministic 2", "../../x"):
        said = kernel.run(f"%fork {words}")
        assert "%fork takes no words but --deterministic" in said.stderr
    assert names_in(sessions) == before


# Stopped and killed


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealKernel, Path]]:
    """A kernel that is killed and restarted, and the folder of its one session."""
    root = tmp_path_factory.mktemp("killed") / "sessions"
    with starting_in(root) as start:
        yield start(session_id="parent"), root


def test_an_interrupt_ends_the_copying_for_a_fork(alone: tuple[RealKernel, Path]) -> None:
    kernel, sessions = alone
    for number in range(FILES):
        (sessions / "parent" / str(number)).touch()
    sent = kernel.send("%fork")
    while len(names_in(sessions)) < 2:
        time.sleep(0.001)
    kernel.manager.interrupt_kernel()
    said = kernel.heard(sent).stderr
    assert "was not made" in said
    assert "it was interrupted" in said
    assert names_in(sessions) == {"parent"}
    assert kernel.run("print('alive')").stdout == "alive\n"
