"""F13: what a guest's memory is mapped from is cut by somebody, or can't be read any more.

The page's reader gets SIGBUS. The guest's code traps; the host's own code ends the worker.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faces import says, wait_for
from tests.stored import commits_in, content_of, state_of
from wasm_kernel import get_session_sandbox

ID = "abc-123"


@pytest.mark.parametrize("left", [0, 4096])
def test_a_content_that_is_cut_while_it_is_mapped_costs_its_states_alone(
    warm: None, tmp_path: Path, left: int
) -> None:
    with get_session_sandbox(ID, workspace_root=tmp_path) as sandbox:
        says(sandbox, "x = 1")
        says(sandbox, "b = bytearray(b'x' * 30_000_000)")
        says(sandbox, "y = 1")
        state = state_of(tmp_path / ID)
        wait_for(lambda: len(commits_in(state)) == 4)
        sandbox.undo()  # pages are mapped from now on
        commits = commits_in(state)
        largest = max(commits, key=lambda one: commits[one].page_bytes)
        os.truncate(content_of(state, largest), left)
        done = sandbox.execute("print(sum(b[::4096]))")
        assert done.error is not None
        again = sandbox.execute("print(x, 'b' in globals())")
        assert again.stdout == "1 False\n"
        # which pages are missed first is chance: the cell's array, or others of guest or host
        told = done.error.evalue + done.stderr + again.stderr
        assert "as they were before" in told or "as they were after In[1]" in told
