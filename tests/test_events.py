"""`SandboxLogger`: the right events with the right fields, silence without a log; its file.

The file has one JSON object a line, is readable by its owner only, and never an obstacle.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

import wasm_kernel
from tests import documented
from wasm_kernel import SandboxLogger, events
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import EventFile, Notices
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import CellError, SandboxResult


@pytest.fixture
def heard() -> Iterator[list[structlog.typing.EventDict]]:
    """The events that an application hears after it configured structlog."""
    with structlog.testing.capture_logs() as entries:
        yield entries
    structlog.reset_defaults()


def result(error: CellError | None = None) -> SandboxResult:
    return SandboxResult(
        success=error is None,
        stdout="",
        stderr="",
        exit_code=1 if error else 0,
        error=error,
        fuel_consumed=None,
        memory_used_bytes=1024,
        duration=0.5,
        files_created=(),
        files_modified=(),
        files_deleted=(),
        workspace_path=Path("workspace"),
    )


def test_every_event_is_documented_told_and_written_only_if_asked_for() -> None:
    constants = {value for name, value in vars(events).items() if name.isupper()}
    assert set(documented.fields_of()) == {each for each in constants if isinstance(each, str)}
    package = Path(events.__file__).parent
    sources = [f.read_text(encoding="utf-8") for f in package.rglob("*.py")]
    for name, value in vars(events).items():
        if name.isupper() and isinstance(value, str):
            assert sum(source.count(name) for source in sources) > 1, f"nobody tells {name}"
    code = (
        "import structlog; from wasm_kernel import SandboxLogger;"
        "SandboxLogger().log_event('session.prune.skipped', session_id='a')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (ran.stdout, ran.stderr) == (b"", b"")


def test_a_configured_structlog_hears_the_events(heard: list[structlog.typing.EventDict]) -> None:
    SandboxLogger().log_event(events.FILE_READ, session_id="abc-123", path="data.txt", size_bytes=5)
    expected = {"session_id": "abc-123", "path": "data.txt", "size_bytes": 5}
    assert heard == [{"event": "session.file.read", "log_level": "info", **expected}]


def test_warnings_are_sent_with_paths_as_text(heard: list[structlog.typing.EventDict]) -> None:
    for event in events.WARNINGS:
        SandboxLogger().log_event(event, workspace_path=Path("workspace/abc-123"))
    assert {each["log_level"] for each in heard} == {"warning"}
    assert {each["workspace_path"] for each in heard} == {str(Path("workspace/abc-123"))}


def test_the_start_of_a_cell_names_its_limits_and_the_end_the_class_of_its_error_alone(
    heard: list[structlog.typing.EventDict],
) -> None:
    logger = SandboxLogger().bind(session_id="abc-123")
    logger.log_execution_start("python", ExecutionPolicy(fuel_budget=500))
    assert documented.fields_of()[events.EXECUTION_START] <= {*heard.pop()}
    logger.log_execution_complete("python", result())
    error = CellError("ValueError", "the secret", ("a line",))
    logger.log_execution_complete("python", result(error))
    assert [each["event"] for each in heard] == ["execution.complete"] * 2
    assert [each["session_id"] for each in heard] == ["abc-123"] * 2
    assert [each.get("error") for each in heard] == [None, "ValueError"]
    assert "the secret" not in str(heard)


def test_a_notice_is_logged_at_once_and_told_once(heard: list[structlog.typing.EventDict]) -> None:
    notices = Notices(SandboxLogger(structlog.get_logger()))
    notices.tell("It is not kept.", error="no room")
    notices.log(events.MEMORY_ROLLBACK, to_cell=1)
    notices.tell("It goes on.", events.MEMORY_RESUME, cell=2)
    assert [entry["event"] for entry in heard] == [
        "memory.trouble",
        "memory.rollback",
        "memory.resume",
    ]
    assert notices.pop_unseen() == ["It is not kept.", "It goes on."]
    assert notices.pop_unseen() == []


class Raising:
    """An application's logger with a mistake in it."""

    def info(self, event: str, **fields: Any) -> None:
        raise RuntimeError("no room on the log's disk")

    warning = info


def test_logger_that_raises_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = SandboxLogger(Raising())
    name, sandbox = wasm_kernel.create_session_sandbox(workspace_root=tmp_path, logger=logger)
    with sandbox:
        assert sandbox.execute("1").success
    wasm_kernel.delete_session_workspace(name, tmp_path, logger=logger)
    assert "the logger failed with RuntimeError; its event session.created is lost" in caplog.text


def test_loggers_of_logging_hear_events(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def file(path: Path) -> Iterator[EventFile]:
    opened = EventFile(path)
    yield opened
    opened.close()


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n") or not text
    return [json.loads(line) for line in text.splitlines()]


def test_each_event_is_a_line_with_its_time_and_level(file: EventFile, path: Path) -> None:
    logger = SandboxLogger(file.logger()).bind(session_id="abc-123")
    logger.log_event(events.SESSION_CREATED, workspace_path=Path("a/b"))
    logger.log_event(events.PRUNE_SKIPPED, reason="line\nbreak \udcff \u2028", other={1, 2})
    created, skipped = lines(path)
    assert datetime.fromisoformat(created.pop("timestamp")).utcoffset() == timedelta(0)
    assert created == {
        "event": "session.created",
        "level": "info",
        "session_id": "abc-123",
        "workspace_path": str(Path("a/b")),
    }
    assert skipped["level"] == "warning"
    assert skipped["reason"] == "line\nbreak \udcff \u2028"
    assert skipped["other"] == "{1, 2}"  # not JSON


def test_the_file_is_its_owners_alone_and_appended_to(path: Path) -> None:
    for event in ("one", "two"):
        opened = EventFile(path)
        SandboxLogger(opened.logger()).log_event(event)
        opened.close()
        SandboxLogger(opened.logger()).log_event("after the end")
        opened.close()
    assert [line["event"] for line in lines(path)] == ["one", "two"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_line_that_was_cut_off_does_not_spoil_the_next(
    file: EventFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = SandboxLogger(file.logger())
    write = os.write

    def cut(descriptor: int, data: bytes) -> int:
        assert data.endswith(b"\n")  # a line is one write, as other processes append lines, too
        return write(descriptor, data[:10])

    monkeypatch.setattr(os, "write", cut)
    logger.log_event("cut off")
    monkeypatch.undo()
    logger.log_event("whole")
    logger.log_event("whole, too")
    found = path.read_text().splitlines()
    assert len(found) == 3
    assert [json.loads(line)["event"] for line in found[1:]] == ["whole", "whole, too"]


@pytest.mark.parametrize("name", ["no/such/folder", "pipe", "."])
def test_a_file_that_cannot_be_opened_is_an_error_in_words(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WasmKernelError, match="Set event_log") as caught:
        EventFile(tmp_path / name)
    assert str(tmp_path) not in str(caught.value)
