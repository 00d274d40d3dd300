"""The words of `%prune_sessions`, and what its duty accepts."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.errands import ErrandInterrupted, ErrandRefused
from wasm_kernel.frontends.jupyter.magics import prune_duty
from wasm_kernel.guests.base import CommandLine
from wasm_kernel.result import PruneResult
from wasm_kernel.sessions.prune_errand import Wish, as_json, pruner, pruning, wish_of


class Patient:
    """A cell that waits, until its test says otherwise."""

    gone = False

    def say(self, text: str, stream: str = "stdout") -> None:
        raise AssertionError(text)

    def wait(self, seconds: float) -> bool:
        return self.gone


def session(root: Path, days: int) -> str:
    name = str(uuid.uuid4())
    (root / name).mkdir(parents=True)
    then = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    fields = {"session_id": name, "created_at": then, "updated_at": then, "version": 1}
    (root / name / ".metadata.json").write_text(json.dumps(fields))
    return name


@pytest.mark.parametrize(
    ("line", "wish"),
    [
        ("--older-than 24h", Wish(24, False)),
        ("--older-than=24h --apply", Wish(24, True)),
        ("--apply --older-than 7d", Wish(168, True)),
        ("--older-than 30m", Wish(0.5, False)),
        ("--older-than 1.5w", Wish(252, False)),
        ("--older-than 0h", Wish(0, False)),
    ],
)
def test_the_words_are_understood(line: str, wish: Wish) -> None:
    assert wish_of(line) == wish


@pytest.mark.parametrize(
    "line",
    ["", "24h", "--older-than", "--older-than 24", "--older-than -1h", "--older-than infh",
     "--older-than 24h /tmp", "--older-than 1e9h", "--apply --apply --older-than 1h", "--apply",
     "--older-than 24h --older-than 1h", "--older-than 9999999999h"],
)  # fmt: skip
def test_other_words_are_refused_with_the_usage(line: str) -> None:
    with pytest.raises(ErrandRefused, match="Usage: %prune_sessions"):
        wish_of(line)


def test_it_prunes_and_its_events_are_heard(tmp_path: Path) -> None:
    old, young = session(tmp_path, 3), session(tmp_path, 0)
    heard = CapturingLogger()
    errand = pruning(pruner(tmp_path), SandboxLogger(heard))
    told = errand(CommandLine("prune_sessions", "--older-than 24h --apply"), Patient())
    assert told["deleted"] == [old]
    assert told["summary"].startswith("1 session deleted")
    assert [path.name for path in tmp_path.iterdir()] == [young]
    assert [call.args[0] for call in heard.calls][-1] == "session.prune.completed"


def test_an_interrupt_ends_it_between_two_sessions(tmp_path: Path) -> None:
    old = session(tmp_path, 3)
    gone = Patient()
    gone.gone = True
    errand = pruning(pruner(tmp_path), SandboxLogger())
    with pytest.raises(ErrandInterrupted):
        errand(CommandLine("prune_sessions", "--older-than 24h --apply"), gone)
    assert (tmp_path / old).is_dir()


def test_a_result_of_thousands_fits_into_a_message() -> None:
    names = [str(uuid.uuid4()) for _ in range(3000)]
    told = as_json(PruneResult(names, names, 0, {}, True, dict.fromkeys(names, "alive")))
    assert len(json.dumps(told)) < 100_000
    assert "only the first are listed" in told["summary"]


@pytest.mark.parametrize(
    "fields", [{}, {"hours": "0"}, {"hours": True}, {"hours": None}, {"hours": [1]}]
)
def test_the_duty_takes_no_strangers_word(tmp_path: Path, fields: dict[str, Any]) -> None:
    session(tmp_path, 3)
    with pytest.raises(WasmKernelError):
        prune_duty(tmp_path)({**fields, "dry_run": False}, lambda text: None, lambda: False)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_duty_deletes_only_where_it_is_told_so_in_so_many_words(tmp_path: Path) -> None:
    session(tmp_path, 3)
    for fields in ({}, {"dry_run": None}, {"dry_run": 0}, {"dry_run": "no"}, {"root": "/"}):
        prune_duty(tmp_path)({"hours": 1, **fields}, lambda text: None, lambda: False)
    assert len(list(tmp_path.iterdir())) == 1
