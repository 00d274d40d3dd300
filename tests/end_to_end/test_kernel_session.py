"""A kernel's session: metadata, events, and its protection from deletion while the kernel lives."""

from __future__ import annotations

import ast
import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.aged import metadata_of
from tests.end_to_end.conftest import Starting
from wasm_kernel import (
    SandboxClosed,
    SessionInUse,
    delete_session_workspace,
    get_session_sandbox,
    prune_sessions,
)

YEAR = timedelta(days=366)


def workspace_in(root: Path) -> Path:
    (workspace,) = root.iterdir()
    return workspace


def age(workspace: Path) -> None:
    """Make the session look as if it had not been used for a year."""
    found = metadata_of(workspace)
    found["updated_at"] = found["created_at"] = (datetime.now(UTC) - YEAR).isoformat()
    (workspace / ".metadata.json").write_text(json.dumps(found))


def test_a_living_kernels_session_is_neither_deleted_nor_pruned(
    start: Starting, root: Path
) -> None:
    kernel = start(event_log="/dev/full")  # a broken log costs no cell
    kernel.run("x = 1")
    workspace = workspace_in(root)
    assert metadata_of(workspace)["updated_at"] > metadata_of(workspace)["created_at"]
    age(workspace)
    result = prune_sessions(24, root)
    assert result.deleted_sessions == []
    assert result.in_use == {workspace.name: "another_process"}
    assert result.skipped_sessions == []
    with pytest.raises(SessionInUse, match="Nothing was deleted"):
        delete_session_workspace(workspace.name, root)
    assert kernel.run("x").value == "1"

    # here, a second user of the session keeps it no longer than the kernel does
    with get_session_sandbox(workspace.name, workspace_root=root) as second:
        told = second.execute("print('x' in globals())")
        assert told.stdout == "False\n"
        assert "This session is already open" in told.stderr
        age(workspace)
        assert prune_sessions(24, root).in_use == {workspace.name: "another_process"}
        assert second.execute("print('works')").stdout == "works\n"
        kernel.shut_down()
        age(workspace)
        assert prune_sessions(24, root).deleted_sessions == [workspace.name]
        assert list(root.iterdir()) == []
        with pytest.raises(SandboxClosed, match="prune_sessions"):
            second.execute("1")


def test_events_go_to_the_file_that_the_trait_names(
    start: Starting, root: Path, tmp_path: Path
) -> None:
    log = tmp_path / "events.jsonl"
    kernel = start(event_log=str(log))
    kernel.run("1 + 1")
    kernel.run("1 / 0")
    session_id = workspace_in(root).name
    fork_id = ast.literal_eval(kernel.run("%fork").value)
    assert (root / fork_id / ".metadata.json").exists()
    kernel.shut_down()
    found = [json.loads(line) for line in log.read_text().splitlines()]
    names = [event["event"] for event in found]
    assert [event["fork_id"] for event in found if event["event"] == "session.forked"] == [fork_id]
    created = [event["session_id"] for event in found if event["event"] == "session.created"]
    assert created == [session_id, fork_id]
    assert names[:2] == ["session.created", "session.retrieved"]
    assert names.count("execution.start") == names.count("execution.complete")
    of_others = [event["event"] for event in found if event["session_id"] != session_id]
    assert of_others == ["session.created"]  # the fork's event; all others are the kernel's
    assert [event for event in found if event.get("error") == "ZeroDivisionError"]
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
