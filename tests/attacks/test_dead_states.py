"""F16, case 50: states in which no guest runs. The session opens fresh or at an earlier state, and
says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.stored import commits_in, rewritten, state_of
from wasm_kernel import BaseSandbox, get_session_sandbox
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions.archives import export_session, import_session
from wasm_kernel.state import texts
from wasm_kernel.state.commits import write_content
from wasm_kernel.state.index import Commit, Record
from wasm_kernel.state.pages import PAGE

ID = "dead"
SPINS = """
import sys
def hook(event, args):
    while True: pass
sys.addaudithook(hook)
"""


def opened(root: Path, session_id: str = ID) -> BaseSandbox:
    return get_session_sandbox(session_id, workspace_root=root)


@pytest.fixture
def saved(warm: None, tmp_path: Path) -> Path:
    with opened(tmp_path) as sandbox:
        assert sandbox.execute("open('kept', 'w').write('file'); x = 1").success
        assert sandbox.execute("x = 2").success
    return tmp_path


def zeros(commit: Commit) -> tuple[Commit, list[bytes]]:
    return replace(commit, runs=(), zeros=((0, commit.size // PAGE),)), []


def noise(commit: Commit) -> tuple[Commit, list[bytes]]:
    pages = commit.size // PAGE
    return replace(commit, runs=((0, pages),), zeros=()), [os.urandom(pages * PAGE)]


def spoil(root: Path, kind: Callable[[Commit], tuple[Commit, list[bytes]]], *, head: bool) -> None:
    """Replace the content of the last state, or of all states, by garbage with a right digest."""
    state = state_of(root / ID)
    newest = max(commits_in(state))

    def garbage(record: Record) -> Record:
        if not isinstance(record, Commit) or (head and record.id != newest):
            return record
        commit, content = kind(record)
        with Folder.open(state / "contents") as folder:
            name, _ = write_content(folder, content)
        return replace(commit, content=name)

    rewritten(state, garbage)


@pytest.mark.parametrize(
    ("kind", "imported"),
    [
        (zeros, True),
        *(pytest.param(kind, False, marks=pytest.mark.soak) for kind in (zeros, noise)),
    ],
)
def test_a_session_whose_states_are_garbage_begins_fresh_and_says_so(
    saved: Path, tmp_path: Path, kind: Callable[..., tuple[Commit, list[bytes]]], imported: bool
) -> None:
    spoil(saved, kind, head=False)
    session_id, root = ID, saved
    if imported:
        export_session(ID, tmp_path / "session.tar.gz", saved)
        root = tmp_path / "there"
        session_id = import_session(tmp_path / "session.tar.gz", root).session_id
    with opened(root, session_id) as sandbox:
        result = sandbox.execute("print('x' in globals(), open('kept').read())")
        assert (result.stdout, result.error) == ("False file\n", None)
        assert "The variables are gone: no guest runs in the states" in result.stderr
        assert sandbox.execute("y = 3").success
    with opened(root, session_id) as sandbox:
        result = sandbox.execute("print(y)")
        assert (result.stdout, "damaged" in result.stderr) == ("3\n", False)
        assert 2 in [state.cell for state in sandbox.checkpoints()], "what may be wanted is kept"


@pytest.mark.parametrize("kind", [zeros, pytest.param(noise, marks=pytest.mark.soak)])
def test_a_state_that_is_garbage_is_left_for_the_one_before(
    saved: Path, kind: Callable[..., tuple[Commit, list[bytes]]]
) -> None:
    spoil(saved, kind, head=True)
    with opened(saved) as sandbox:
        result = sandbox.execute("print(x)")
        assert (result.stdout, result.error) == ("1\n", None)
        assert re.search(r"No guest runs in the saved state after In\[2\]", result.stderr)


def test_a_state_that_never_answers_is_left_for_the_one_before(
    saved: Path, hasty_workers: None
) -> None:
    """Before, no cell of such a session ever ran again: each worker began in that state."""
    with opened(saved) as sandbox:
        assert sandbox.execute(SPINS).success
    with opened(saved) as sandbox:
        error = sandbox.execute("print(x)").error
        assert error is not None
        assert (error.ename, texts.SPOILT in error.evalue) == ("NeverBegan", True)
        result = sandbox.execute("print(x)")
        assert (result.stdout, result.error) == ("2\n", None)


def test_a_history_that_began_twice_is_exported_whole(saved: Path, tmp_path: Path) -> None:
    spoil(saved, zeros, head=False)
    with opened(saved) as sandbox:
        assert sandbox.execute("y = 3").success
    export_session(ID, tmp_path / "session.tar.gz", saved)
    made = import_session(tmp_path / "session.tar.gz", tmp_path / "there")
    assert made.note == ""
    with opened(tmp_path / "there", made.session_id) as sandbox:
        assert sandbox.execute("print(y)").stdout == "3\n"
