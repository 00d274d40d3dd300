"""A session saved by another build of the guest is announced, kept, and back with that guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import local
from wasm_kernel import SandboxResult, get_session_sandbox
from wasm_kernel.frontends.cli import doctor
from wasm_kernel.state.image import BaseImage


def first_cell(root: Path, code: str) -> SandboxResult:
    sandbox = local.get_session_sandbox("analysis", workspace_root=root)
    try:
        return sandbox.execute(code)
    finally:
        sandbox.close()


def said_by_doctor(root: Path) -> list[str]:
    return [f.text for f in doctor.examine(root) if "saved by another version" in f.text]


def test_variables_wait_for_the_guest_that_saved_them(
    warm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "sessions"
    assert first_cell(root, "x = 7; open('kept.txt', 'w').write('here')").success
    assert said_by_doctor(root) == []
    with monkeypatch.context() as later:
        later.setattr(BaseImage, "id", property(lambda _: "of another build"))
        (said,) = said_by_doctor(root)
        assert said.startswith("1 of 1 sessions with variables")
        found = first_cell(root, "print('x' in dir(), open('kept.txt').read()); x = 8")
        assert found.stdout == "False here\n"
        assert "saved by another version" in found.stderr
        assert "kept for that version" in found.stderr
        assert "The files in /app are all there" in found.stderr
    assert first_cell(root, "print(x)").stdout == "7\n"


@pytest.mark.usefixtures("warm")
def test_a_session_of_the_other_language_is_not_called_another_version_alone(
    tmp_path: Path,
) -> None:
    root = tmp_path / "sessions"
    for runtime, code in (("javascript", "x = 7"), ("python", "print('x' in dir())")):
        sandbox = get_session_sandbox("analysis", runtime, workspace_root=root)
        found = sandbox.execute(code)
        sandbox.close()
    assert found.stdout == "False\n"
    assert "or by its other language" in found.stderr
    again = get_session_sandbox("analysis", "javascript", workspace_root=root)
    assert again.execute("x").outputs[0].data["text/plain"] == "7"
    again.close()
