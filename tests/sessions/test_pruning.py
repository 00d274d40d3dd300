"""Pruning: refusals, changes during the work, and the words of `%prune_sessions`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.aged import aged_session
from tests.tasks import WaitingCell
from wasm_kernel import prune_sessions
from wasm_kernel.events import SandboxLogger
from wasm_kernel.guests.base import CommandLine, CommandRefused
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import QUIET, Cancelled
from wasm_kernel.sessions import metadata, pruning
from wasm_kernel.sessions.pruning import (
    PruneError,
    PruneSessions,
    prune,
    prune_command,
    request_of,
)
from wasm_kernel.sessions.root import SessionsRoot


@pytest.mark.parametrize("hours", [-0.001, float("nan"), float("inf"), True, "24"])
def test_an_invalid_number_of_hours_is_refused(tmp_path: Path, hours: Any) -> None:
    old = aged_session(tmp_path, 10**5)
    with pytest.raises(PruneError, match="older_than_hours") as caught:
        prune_sessions(hours, tmp_path)
    assert isinstance(caught.value, ValueError)
    assert prune_sessions(1e300, tmp_path).deleted_sessions == []
    assert old.exists()


def test_a_session_that_was_used_since_it_was_found_is_kept(tmp_path: Path) -> None:
    used, unused, gone = (aged_session(tmp_path, hours) for hours in (50, 49, 48))

    class Busy:
        """Another process uses one session and deletes another, when the first is about to go."""

        def info(self, event: str, **fields: Any) -> None:
            if event == "session.prune.candidate" and fields["session_id"] == used.name:
                with Folder.open(used) as folder:
                    metadata.touch(folder, used.name, None)
                (gone / ".metadata.json").unlink()
                gone.rmdir()

        warning = info

    result = prune_sessions(24, tmp_path, logger=SandboxLogger(Busy()))
    assert result.deleted_sessions == [unused.name]
    assert (result.skipped_sessions, result.errors) == ([], {})
    assert used.exists()


def test_a_link_to_the_root_is_a_root(tmp_path: Path) -> None:
    old = aged_session(tmp_path / "real", 48)
    (tmp_path / "link").symlink_to("real")
    assert prune_sessions(24, tmp_path / "link").deleted_sessions == [old.name]


def waiting(root: Path) -> WaitingCell:
    return WaitingCell({PruneSessions: prune(SessionsRoot(root))})


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("--older-than 24h", PruneSessions(24)),
        ("--apply --older-than 7d", PruneSessions(168, False)),
        ("--older-than 30m", PruneSessions(0.5)),
        ("--older-than 0h", PruneSessions(0)),
    ],
)
def test_the_words_are_understood(line: str, request_: PruneSessions) -> None:
    assert request_of(line) == request_


@pytest.mark.parametrize(
    "line",
    ["", "24h", "--older-than 24", "--older-than -1h", "--older-than 24h /tmp", "--apply",
     "--older-than 1e9h", "--older-than 24h --dry-run --apply"],
)  # fmt: skip
def test_other_words_are_refused_with_the_usage(line: str) -> None:
    with pytest.raises(CommandRefused, match="Usage: %prune_sessions"):
        request_of(line)


def test_an_interrupt_ends_it_between_two_sessions(tmp_path: Path) -> None:
    old = aged_session(tmp_path, 72)
    gone = waiting(tmp_path)
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
