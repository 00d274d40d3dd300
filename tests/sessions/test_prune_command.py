"""The words of `%prune_sessions`, and what its handler accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import CapturingLogger

from tests.aged import aged_session
from wasm_kernel.events import SandboxLogger
from wasm_kernel.guests.base import AfterCellAction, CommandLine, CommandRefused
from wasm_kernel.linux.broker import Broker, LocalBroker
from wasm_kernel.linux.task import QUIET, Cancelled
from wasm_kernel.sessions import pruning
from wasm_kernel.sessions.pruning import (
    Pruned,
    PruneError,
    PruneSessions,
    prune,
    prune_command,
    request_of,
)
from wasm_kernel.sessions.root import SessionsRoot


class Patient:
    """A cell that waits, until its test says otherwise."""

    cancelled = False

    def __init__(self, root: Path) -> None:
        self.broker: Broker = LocalBroker({PruneSessions: prune(SessionsRoot(root))})

    def report(self, text: str) -> None:
        raise AssertionError(text)

    def say(self, text: str, stream: str = "stdout") -> None:
        raise AssertionError(text)

    def wait(self, seconds: float) -> bool:
        return self.cancelled

    def after_cell(self, action: AfterCellAction) -> None:
        raise AssertionError(action)


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("--older-than 24h", PruneSessions(24)),
        ("--older-than=24h --apply", PruneSessions(24, False)),
        ("--apply --older-than 7d", PruneSessions(168, False)),
        ("--older-than 30m", PruneSessions(0.5)),
        ("--dry-run --older-than 30m", PruneSessions(0.5)),
        ("--older-than 1.5w", PruneSessions(252)),
        ("--older-than 0h", PruneSessions(0)),
    ],
)
def test_the_words_are_understood(line: str, request_: PruneSessions) -> None:
    assert request_of(line) == request_


@pytest.mark.parametrize(
    "line",
    ["", "24h", "--older-than", "--older-than 24", "--older-than -1h", "--older-than infh",
     "--older-than 24h /tmp", "--older-than 1e9h", "--apply --apply --older-than 1h", "--apply",
     "--older-than 24h --dry-run --apply", "--dry-run", "--older-than 24h --older-than 1h",
     "--older-than 9999999999h"],
)  # fmt: skip
def test_other_words_are_refused_with_the_usage(line: str) -> None:
    with pytest.raises(CommandRefused, match="Usage: %prune_sessions"):
        request_of(line)


def test_it_prunes_and_its_events_are_heard(tmp_path: Path) -> None:
    old, young = aged_session(tmp_path, 72), aged_session(tmp_path, 0)
    heard = CapturingLogger()
    line = CommandLine("prune_sessions", "--older-than 24h --apply")
    told = prune_command(SandboxLogger(heard))(line, Patient(tmp_path))
    assert told["deleted"] == [old.name]
    assert told["summary"].startswith("1 session deleted")
    assert [path.name for path in tmp_path.iterdir()] == [young.name]
    assert [call.args[0] for call in heard.calls][-1] == "session.prune.completed"


def test_an_interrupt_ends_it_between_two_sessions(tmp_path: Path) -> None:
    old = aged_session(tmp_path, 72)
    gone = Patient(tmp_path)
    gone.cancelled = True
    line = CommandLine("prune_sessions", "--older-than 24h --apply")
    with pytest.raises(Cancelled):
        prune_command(SandboxLogger())(line, gone)
    assert old.is_dir()


def test_a_result_of_thousands_fits_into_a_message_and_all_events_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_SHOWN_MOST", 5)
    for _ in range(8):
        aged_session(tmp_path, 72)
    pruned = prune(SessionsRoot(tmp_path))(PruneSessions(24), QUIET)
    assert len(pruned.reply["deleted"]) == 5
    assert pruned.reply["summary"].endswith("Of 8 sessions, only the first are listed.")
    names = [event for event, _ in pruned.events]
    assert names.count("session.prune.candidate") == 8
    assert names[-1] == "session.prune.completed"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        *({"hours": hours} for hours in ("0", True, None, [1])),
        {"hours": 1, "dry_run": None},
        {"hours": 1, "dry_run": 0},
        {"hours": 1, "dry_run": "no"},
    ],
)
def test_a_request_with_other_types_is_not_one(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, PruneSessions)


@pytest.mark.parametrize("hours", [-1.0, float("nan"), float("inf")])
def test_the_handler_takes_no_strangers_word(tmp_path: Path, hours: float) -> None:
    aged_session(tmp_path, 72)
    with pytest.raises(PruneError):
        prune(SessionsRoot(tmp_path))(PruneSessions(hours, dry_run=False), QUIET)
    assert len(list(tmp_path.iterdir())) == 1


def test_pruning_deletes_only_with_apply(tmp_path: Path) -> None:
    aged_session(tmp_path, 72)
    for fields in ({}, {"root": "/"}, {"dry_run": True}):
        request = msgspec.convert({"hours": 1, **fields}, PruneSessions)
        assert prune(SessionsRoot(tmp_path))(request, QUIET) != Pruned()
    assert len(list(tmp_path.iterdir())) == 1
