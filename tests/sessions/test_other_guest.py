"""A session saved by another build of the guest is announced, kept, and back with that guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faces import says
from tests.stored import rewritten, state_of
from wasm_kernel import get_session_sandbox
from wasm_kernel.frontends.cli import doctor


def said_by_doctor(root: Path) -> list[str]:
    return [f.text for f in doctor.examine(root) if "saved by another version" in f.text]


@pytest.mark.usefixtures("warm")
def test_doctor_announces_sessions_that_this_guest_can_not_go_on_with(tmp_path: Path) -> None:
    with get_session_sandbox("analysis", workspace_root=tmp_path) as sandbox:
        says(sandbox, "x = 7")
    assert said_by_doctor(tmp_path) == []
    rewritten(state_of(tmp_path / "analysis"), lambda record: record, image="of another build")
    (said,) = said_by_doctor(tmp_path)
    assert said.startswith("1 of 1 sessions with variables")


@pytest.mark.usefixtures("warm")
def test_variables_wait_for_the_guest_that_saved_them(tmp_path: Path) -> None:
    """Of another language here, which is not called another version alone."""
    cells = {
        "javascript": "x = 7; require('fs').writeFileSync('kept.txt', 'here')",
        "python": "print('x' in dir(), open('kept.txt').read()); x = 8",
    }
    for runtime, code in cells.items():
        with get_session_sandbox("analysis", runtime, workspace_root=tmp_path) as sandbox:
            found = sandbox.execute(code)
    assert found.stdout == "False here\n"
    assert "saved by another version of the sandbox or by its other language" in found.stderr
    assert "kept for that version" in found.stderr
    assert "The files in /app are all there" in found.stderr
    with get_session_sandbox("analysis", "javascript", workspace_root=tmp_path) as sandbox:
        assert sandbox.execute("x").outputs[0].data["text/plain"] == "7"
