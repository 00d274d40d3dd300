"""A sandbox's events for the application's log: cells, traps, limits, travels, resumptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.documented import Heard
from tests.private import kept_sandbox
from wasm_kernel import ExecutionPolicy, Sandbox, get_session_sandbox
from wasm_kernel.folders.locks import Resume

Opening = Callable[..., Sandbox]
SECRET = "the_secret_name"


@pytest.fixture
def opened(tmp_path: Path, heard: Heard, ending: ExitStack) -> Iterator[Opening]:
    """Sandboxes on one workspace that write to the log."""

    def one(resume: Resume = Resume.NEVER, session: str = "", **limits: Any) -> Sandbox:
        logger, policy = heard.logger, ExecutionPolicy(**limits)
        if session:
            made = get_session_sandbox(session, "python", policy, tmp_path, logger)
        else:
            made = kept_sandbox("python", tmp_path / "app", policy, logger, resume=resume)
        return ending.enter_context(closing(made))

    yield one
    ending.close()
    assert SECRET not in str(heard.events)


def test_a_lost_guest_is_a_trap_and_a_rollback(opened: Opening, heard: Heard) -> None:
    sandbox = opened(session="abc-123")
    sandbox.execute("x = 1")
    sandbox.execute(f"import os; {SECRET} = 1; os.abort()")
    assert heard.of("execution.trap") == [
        {"runtime": "python", "trap": "GuestCrashed", "session_id": "abc-123", "level": "warning"}
    ]
    assert heard.of("memory.rollback") == [{"to_cell": 1, "session_id": "abc-123", "level": "info"}]
    assert [fields.get("error") for fields in heard.of("execution.complete")] == [
        None,
        "GuestCrashed",
    ]


def test_a_limit_is_named_by_its_field(opened: Opening, heard: Heard) -> None:
    sandbox = opened(
        stdout_bytes=100,
        stderr_bytes=5_000,
        display_count=3,
        display_bytes=10_000,
        workspace_bytes=1000,
        workspace_files=5,
    )
    met: dict[str, str] = {
        "print('x' * 200)": "stdout_bytes",
        "import sys; sys.stderr.write('x' * 9_000)": "stderr_bytes",
        "for i in range(9): display(i)": "display_count",
        "display('x' * 20_000)": "display_bytes",
        "open('f', 'w').write('x' * 2000)": "workspace_bytes",
        "for i in range(9): open(f'f{i}', 'w').close()": "workspace_files",
        "1 + 1": "",
    }
    for code, limit in met.items():
        heard.clear()
        sandbox.execute(code)
        found = heard.of("execution.limit")
        assert [fields["limit"] for fields in found] == ([limit] if limit else []), code
    sandbox.close()
    heard.clear()
    opened(cell_timeout=0.3).execute("while True: pass")
    assert heard.of("execution.limit")[0]["limit"] == "cell_timeout"


def test_a_fuel_budget_is_a_limit(opened: Opening, warm_metered: None, heard: Heard) -> None:
    opened(fuel_budget=500_000_000).execute("while True: pass")
    assert heard.of("execution.trap")[0]["trap"] == "OutOfFuel"
    assert heard.of("execution.limit")[0]["limit"] == "fuel_budget"


@pytest.mark.parametrize("inside", [True, False])
def test_travels_are_told(opened: Opening, heard: Heard, inside: bool) -> None:
    sandbox = opened()
    for code in (f"{SECRET} = 1", "b = 2", "c = 3"):
        sandbox.execute(code)
    heard.clear()
    if inside:
        for line in ("%undo 2", "%redo", "%checkpoint here", "%restore 1"):
            assert sandbox.execute(line).success, line
    else:
        sandbox.undo(2)
        sandbox.redo()
        sandbox.checkpoint("here")
        sandbox.restore(1)
        sandbox.rollback()
    assert [(f["to_cell"], f["cells"]) for f in heard.of("memory.undo")] == [(1, 2)]
    assert [f["cells"] for f in heard.of("memory.redo")] == [2]
    assert [f["name"] for f in heard.of("memory.checkpoint")] == ["here"]
    assert [f["to_cell"] for f in heard.of("memory.restore")] == [1]
    assert len(heard.of("memory.rollback")) == (0 if inside else 1)


def test_a_resumed_session_is_told(opened: Opening, heard: Heard) -> None:
    for session in ("", "abc-123"):
        with opened(Resume.ALWAYS, session) as sandbox:
            sandbox.execute(f"{SECRET} = 1")
        heard.clear()
        with opened(Resume.ALWAYS, session) as sandbox:
            said = sandbox.execute(f"print({SECRET})")
        assert said.stdout == "1\n"
        assert ("The session goes on" in said.stderr) is not bool(session)
        (resumed,) = heard.of("memory.resume")
        assert resumed["crashed"] is False
        assert resumed["cell"] >= 1


def test_trouble_is_told_without_the_cells_text(
    opened: Opening, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened()
    first.execute(f"{SECRET} = 1")
    second = opened()
    assert "This session is already open" in second.execute("1 + 1").stderr
    (trouble,) = heard.of("memory.trouble")
    assert trouble["error"] == "the session is already open"
    assert trouble["level"] == "warning"
