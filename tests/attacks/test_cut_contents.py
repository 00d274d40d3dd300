"""F13: another process truncates the file that a guest's memory is mapped from, or it can't be
read.

A read of a missing page raises SIGBUS. In the guest's code it is a trap; in the host's own code it
ends the worker.
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
        sandbox.undo()  # pages are mapped after this
        commits = commits_in(state)
        largest = max(commits, key=lambda one: commits[one].page_bytes)
        os.truncate(content_of(state, largest), left)
        done = sandbox.execute("print(sum(b[::4096]))")
        assert done.error is not None
        again = sandbox.execute("print(x, 'b' in globals())")
        assert again.stdout == "1 False\n"
        # chance decides which pages are missed first: those of the cell's array, or other ones
        told = done.error.evalue + done.stderr + again.stderr
        assert "as they were before" in told or "as they were after In[1]" in told
