"""An application's own loggers, one of which fails."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import wasm_kernel
from wasm_kernel import SandboxLogger


class Raising:
    """An application's logger with a mistake in it."""

    def info(self, event: str, **fields: Any) -> None:
        raise RuntimeError("no room on the log's disk")

    warning = info


def a_whole_life(root: Path, logger: Any) -> list[str]:
    """Calls every session function once and returns the ids of the sessions."""
    session_id, sandbox = wasm_kernel.create_session_sandbox(workspace_root=root, logger=logger)
    with sandbox:
        assert sandbox.execute("x = 6 * 7\nx").success
        (fork,) = sandbox.fork()
        fork.close()
    with wasm_kernel.get_session_sandbox(session_id, workspace_root=root, logger=logger) as again:
        assert again.execute("assert x == 42").success
        again.execute("import os; os.abort()")  # the guest is lost, so that events tell of it
        assert again.execute("assert x == 42").success
    wasm_kernel.write_session_file(session_id, "a", b"1", root, logger=logger)
    assert wasm_kernel.read_session_file(session_id, "a", root, logger=logger) == b"1"
    assert wasm_kernel.list_session_files(session_id, root, logger=logger) == ["a"]
    wasm_kernel.export_session(session_id, root / "archive.tar.gz", root, logger=logger)
    made = wasm_kernel.import_session(root / "archive.tar.gz", root, logger=logger).session_id
    wasm_kernel.delete_session_path(session_id, "a", root, logger=logger)
    wasm_kernel.delete_session_workspace(session_id, root, logger=logger)
    pruned = wasm_kernel.prune_sessions(0, root, logger=logger)
    assert made in pruned.deleted_sessions
    return [session_id, made]


def test_a_logger_that_raises_stops_nothing(
    warm: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = SandboxLogger(Raising())
    name, sandbox = wasm_kernel.create_session_sandbox(workspace_root=tmp_path, logger=logger)
    with sandbox:
        assert sandbox.execute("1").success
    wasm_kernel.delete_session_workspace(name, tmp_path, logger=logger)
    assert "the logger failed with RuntimeError; its event session.created is lost" in caplog.text


def test_a_logger_of_the_logging_module_hears_the_events(
    warm: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    session_id, _ = a_whole_life(tmp_path / "root", SandboxLogger(logging.getLogger("application")))
    assert not [record for record in caplog.records if record.name == "wasm_kernel"]
    (made,) = (vars(one) for one in caplog.records if vars(one)["event"] == "session.deleted")
    assert made["fields"] == {"session_id": session_id}
    assert f"session.deleted session_id={session_id!r}" in caplog.text
