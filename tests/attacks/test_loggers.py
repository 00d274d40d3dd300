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


def test_a_logger_that_raises_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = SandboxLogger(Raising())
    name, sandbox = wasm_kernel.create_session_sandbox(workspace_root=tmp_path, logger=logger)
    with sandbox:
        assert sandbox.execute("1").success
    wasm_kernel.delete_session_workspace(name, tmp_path, logger=logger)
    assert "the logger failed with RuntimeError; its event session.created is lost" in caplog.text


def test_a_logger_of_the_logging_module_hears_the_events(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    logger = SandboxLogger(logging.getLogger("application"))
    session_id, sandbox = wasm_kernel.create_session_sandbox(workspace_root=tmp_path, logger=logger)
    with sandbox:
        assert sandbox.execute("import os; os.abort()").error is not None
        assert sandbox.execute("1").success
    wasm_kernel.delete_session_workspace(session_id, tmp_path, logger=logger)
    assert not [record for record in caplog.records if record.name == "wasm_kernel"]
    (made,) = (vars(one) for one in caplog.records if vars(one)["event"] == "session.deleted")
    assert made["fields"] == {"session_id": session_id}
    assert f"session.deleted session_id={session_id!r}" in caplog.text
