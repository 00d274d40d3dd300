"""The file of events: one JSON object a line, readable by its owner only, and never an obstacle."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from wasm_kernel import events
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import EventFile, SandboxLogger


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
