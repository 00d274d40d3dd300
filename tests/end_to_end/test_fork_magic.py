"""`%fork` in a real kernel, confined as it comes: another session, opened by another kernel."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.real_kernel import RealKernel
from tests.faces import happens
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.lifecycle import get_session_sandbox

Starting = Callable[..., RealKernel]


@pytest.fixture(scope="module", autouse=True)
def _installed(warm: None, installed_kernelspec: Path) -> None:
    """Kernels are started by name."""


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture
def start(sessions: Path) -> Iterator[Starting]:
    """Starts kernels on one folder of sessions."""
    started: list[RealKernel] = []

    def one(**traits: str) -> RealKernel:
        started.append(RealKernel(sessions, None, **traits))
        return started[-1]

    yield one
    for kernel in started:
        kernel.shut_down()


@pytest.fixture
def kernel(start: Starting) -> RealKernel:
    return start(session_id="parent")


def forked(kernel: RealKernel, cell: str = "%fork") -> str:
    """The id of a session that a cell forks off, as it prints it."""
    said = kernel.run(cell)
    assert said["error"] == ""
    return said["stdout"].split()[1]


def test_a_cell_forks_its_session(kernel: RealKernel, start: Starting, sessions: Path) -> None:
    kernel.run("x = [1]; f = open('f', 'w+'); _ = f.write('hello '); f.flush()")
    said = kernel.run("x.append(2)\nnew = %fork\nx.append(3)")
    assert (said["stderr"], said["error"]) == ("", "")
    session = ast.literal_eval(kernel.run("new")["value"])
    assert ids.checked(session) == session
    assert f"--WasmKernel.session_id={session}" in said["stdout"]
    assert f"get_session_sandbox('{session}', workspace_root=...)" in said["stdout"]
    assert sorted(path.name for path in sessions.iterdir()) == sorted(["parent", session])

    fork = start(session_id=session)
    told = fork.run("x.append(4); _ = f.write('fork'); f.flush(); print(x, new)")
    assert told["stdout"] == f"[1, 2, 3, 4] {session}\n"
    assert "This session was forked off another one" in told["stderr"]
    assert fork.run("x")["stderr"] == ""
    assert kernel.run("print(x, open('f').read())")["stdout"] == "[1, 2, 3] hello \n"
    assert fork.run("print(open('f').read())")["stdout"] == "hello fork\n"


def test_a_fork_alone_in_its_cell_shows_the_id(kernel: RealKernel) -> None:
    said = kernel.run("%fork")
    assert ast.literal_eval(said["value"]) == said["stdout"].split()[1]


def test_what_it_says_can_be_captured(kernel: RealKernel, sessions: Path) -> None:
    said = kernel.run("%%capture out\nnew = %fork")
    assert (said["stdout"], said["stderr"]) == ("", "")
    assert kernel.run("print(f'Session {new} begins' in out.stdout)")["stdout"] == "True\n"
    assert len(list(sessions.iterdir())) == 2


def test_forks_draw_other_numbers_unless_they_are_not_to(
    kernel: RealKernel, start: Starting
) -> None:
    kernel.run("import random, numpy as np; rng = np.random.default_rng(3)")
    free = forked(kernel)
    bound = forked(kernel, "%fork --deterministic")
    draw = "print(random.random(), np.random.random(), rng.random())"
    drawn = [start(session_id=one).run(draw)["stdout"] for one in (free, bound)]
    mine = kernel.run(draw)["stdout"]
    assert drawn[1] == mine
    assert not set(drawn[0].split()) & set(mine.split())


def test_a_fork_undoes_what_its_parent_did(kernel: RealKernel, start: Starting) -> None:
    kernel.run("x = 1")
    kernel.run("%checkpoint early")
    kernel.run("x = 2")
    fork = start(session_id=forked(kernel, "x = 3\n%fork"))
    fork.run("%undo")
    assert fork.run("print(x)")["stdout"] == "2\n"
    fork.run("%restore early")
    assert fork.run("print(x)")["stdout"] == "1\n"


def test_two_forks_in_one_cell_and_an_undo_before_them(kernel: RealKernel, start: Starting) -> None:
    kernel.run("x = 1")
    kernel.run("x = 2")
    said = kernel.run("a = %fork\nb = %fork\n%undo")
    first, second = said["stdout"].split()[1], said["stdout"].split("Session ")[2].split()[0]
    for session in (first, second):
        assert start(session_id=session).run("print(x)")["stdout"] == "1\n"


def test_a_cell_that_is_lost_makes_no_fork(kernel: RealKernel, sessions: Path) -> None:
    said = kernel.run("%fork\nimport os; os._exit(3)")
    assert said["error"] == "GuestExited"
    assert "was not made: the cell did not come to its end." in said["stderr"]
    assert [path.name for path in sessions.iterdir()] == ["parent"]


def test_a_cell_that_fails_makes_its_fork(kernel: RealKernel, start: Starting) -> None:
    said = kernel.run("x = 1\n%fork\n1/0")
    assert said["error"] == "ZeroDivisionError"
    assert start(session_id=said["stdout"].split()[1]).run("print(x)")["stdout"] == "1\n"


def test_a_kernel_that_is_killed_in_the_cell_makes_no_fork(
    kernel: RealKernel, sessions: Path
) -> None:
    kernel.send("%fork\nwhile True: pass")
    while kernel.client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
        pass
    kernel.kill()
    kernel.autorestart()
    assert [path.name for path in sessions.iterdir()] == ["parent"]


def begin_a_long_fork(kernel: RealKernel, sessions: Path) -> str:
    """Come back, with the message's id, while files are being copied."""
    kernel.run("for n in range(9000): open(str(n), 'w').close()")
    sent: str = kernel.client.execute("%fork")
    while len(list(sessions.iterdir())) < 2:
        time.sleep(0.001)
    return sent


def test_an_interrupt_ends_the_copying_for_a_fork(kernel: RealKernel, sessions: Path) -> None:
    sent = begin_a_long_fork(kernel, sessions)
    kernel.manager.interrupt_kernel()
    said = ""
    while True:
        message = kernel.client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != sent:
            continue
        if message["content"].get("name") == "stderr":
            said += message["content"]["text"]
        if message["content"].get("execution_state") == "idle":
            break
    assert "was not made" in said
    assert "it was interrupted" in said
    assert [path.name for path in sessions.iterdir()] == ["parent"]
    assert kernel.run("print('alive')")["stdout"] == "alive\n"


def test_a_kernel_that_is_killed_while_files_are_copied_leaves_no_part_of_a_fork(
    kernel: RealKernel, sessions: Path
) -> None:
    begin_a_long_fork(kernel, sessions)
    kernel.kill()
    kernel.autorestart()
    happens(lambda: len(list(sessions.iterdir())) == 1)
    assert [path.name for path in sessions.iterdir()] == ["parent"]


@pytest.mark.parametrize("words", ["now", "--deterministic 2", "../../x"])
def test_other_words_are_refused(kernel: RealKernel, sessions: Path, words: str) -> None:
    said = kernel.run(f"%fork {words}")
    assert "%fork takes no words but --deterministic" in said["stderr"]
    assert [path.name for path in sessions.iterdir()] == ["parent"]


@pytest.mark.parametrize("confinement", ["off", "required"])
def test_a_fork_is_made_with_and_without_walls(
    start: Starting, sessions: Path, confinement: str
) -> None:
    kernel = start(session_id="parent", confinement=confinement)
    session = forked(kernel, "x = 1\n%fork")
    with get_session_sandbox(session, workspace_root=sessions) as fork:
        assert fork.execute("print(x)").stdout == "1\n"
    assert (sessions / session / ".metadata.json").exists()


def test_a_fork_of_a_session_that_is_not_saved_is_refused_in_words(
    kernel: RealKernel, start: Starting, sessions: Path
) -> None:
    kernel.run("x = 1")
    second = start(session_id="parent")
    said = second.run("y = 1\n%fork")
    assert "not saved to disk" in said["stderr"]
    assert said["stdout"] == ""
    assert [path.name for path in sessions.iterdir()] == ["parent"]
