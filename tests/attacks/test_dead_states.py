"""F16, case 50: states in which no guest runs; the session opens fresh or earlier, and says so."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.faces import error_of, says, wait_for
from tests.stored import commits_in, content_of, rewritten, state_of
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


def opened(root: Path) -> BaseSandbox:
    return get_session_sandbox(ID, workspace_root=root)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with opened(tmp_path) as sandbox:
        assert sandbox.execute("open('kept', 'w').write('file'); x = 1").success
        assert sandbox.execute("x = 2").success
    return tmp_path


def spoil(root: Path, *, head: bool) -> None:
    """Replace the content of the last state, or of all states, by zeros with a right digest."""
    state = state_of(root / ID)
    newest = max(commits_in(state))

    def garbage(record: Record) -> Record:
        if not isinstance(record, Commit) or (head and record.id != newest):
            return record
        with Folder.open(state / "contents") as folder:
            name, _ = write_content(folder, [])
        return replace(record, runs=(), zeros=((0, record.size // PAGE),), content=name)

    rewritten(state, garbage)


def moved(root: Path, there: Path) -> str:
    """The id of the session after its export and import in another root."""
    export_session(ID, there.with_suffix(".tar.gz"), root)
    made = import_session(there.with_suffix(".tar.gz"), there, session_id=ID)
    return made.note


def test_a_session_whose_states_are_garbage_begins_fresh_and_says_so(
    saved: Path, tmp_path: Path
) -> None:
    spoil(saved, head=False)
    moved(saved, tmp_path / "there")
    with opened(tmp_path / "there") as sandbox:
        result = sandbox.execute("print('x' in globals(), open('kept').read())")
        assert (result.stdout, result.error) == ("False file\n", None)
        assert "The variables are gone: no guest runs in the states" in result.stderr
        assert sandbox.execute("y = 3").success
    assert moved(tmp_path / "there", tmp_path / "further") == "", "all that began twice is exported"
    with opened(tmp_path / "further") as sandbox:
        result = sandbox.execute("print(y)")
        assert (result.stdout, "damaged" in result.stderr) == ("3\n", False)
        assert 2 in [state.cell for state in sandbox.checkpoints()], "what may be wanted is kept"


def test_a_state_that_is_garbage_is_left_for_the_one_before(saved: Path) -> None:
    spoil(saved, head=True)
    with opened(saved) as sandbox:
        result = sandbox.execute("print(x)")
        assert (result.stdout, result.error) == ("1\n", None)
        assert re.search(r"No guest runs in the saved state after In\[2\]", result.stderr)


def test_a_state_that_never_answers_is_left_for_the_one_before(
    saved: Path, hasty_workers: None
) -> None:
    """Formerly, no cell of such a session ever ran again: each worker began in that state."""
    with opened(saved) as sandbox:
        assert sandbox.execute(SPINS).success
    with opened(saved) as sandbox:
        error = error_of(sandbox.execute("print(x)"))
        assert (error.partition(":")[0], texts.SPOILT in error) == ("NeverBegan", True)
        result = sandbox.execute("print(x)")
        assert (result.stdout, result.error) == ("2\n", None)


@pytest.mark.parametrize("left", [0, 4096])
def test_a_content_that_is_cut_while_it_is_mapped_costs_its_states_alone(
    tmp_path: Path, left: int
) -> None:
    """F13: a read of a missing page is a trap in the guest, and SIGBUS in the host's own code."""
    with opened(tmp_path) as sandbox:
        says(sandbox, "x = 1")
        says(sandbox, "b = bytearray(b'x' * 30_000_000)")
        says(sandbox, "y = 1")
        state = state_of(tmp_path / ID)
        wait_for(lambda: len(commits_in(state)) == 4)
        sandbox.undo()  # pages are mapped after this
        commits = commits_in(state)
        largest = max(commits, key=lambda one: commits[one].page_bytes)
        os.truncate(content_of(state, largest), left)
        done = sandbox.execute("print(sum(b[::4096]))")
        again = sandbox.execute("print(x, 'b' in globals())")
        assert again.stdout == "1 False\n"
        # chance decides which pages are missed first: those of the cell's array, or other ones
        told = error_of(done) + done.stderr + again.stderr
        assert "as they were before" in told or "as they were after In[1]" in told
