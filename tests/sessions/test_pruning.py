"""Pruning: the plan, what it refuses, what it does where things change meanwhile."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nobody import as_nobody
from wasm_kernel import PruneError, WasmKernelError, prune_sessions
from wasm_kernel.linux.folders import Folder
from wasm_kernel.result import readable
from wasm_kernel.sessions import ids, metadata, pruning
from wasm_kernel.sessions.pruning import SessionAge, plan_pruning

HOUR = timedelta(hours=1)


def a_session(root: Path, hours: float) -> Path:
    workspace = root / ids.new()
    workspace.mkdir(parents=True)
    text = (datetime.now(UTC) - hours * HOUR).isoformat()
    fields = {"session_id": workspace.name, "created_at": text, "updated_at": text, "version": 1}
    (workspace / ".metadata.json").write_text(json.dumps(fields))
    return workspace


founds = st.one_of(
    st.builds(SessionAge, st.uuids().map(str), age=st.timedeltas()),
    st.builds(
        SessionAge, st.uuids().map(str), reason=st.sampled_from(["no_metadata", "corrupted"])
    ),
    st.builds(SessionAge, st.uuids().map(str), problem=st.just(OSError(13, "no"))),
)


@given(found=st.lists(founds), limit=st.timedeltas(min_value=timedelta(0)))
def test_the_plan_takes_what_is_older_and_accounts_for_all(
    found: list[SessionAge], limit: timedelta
) -> None:
    plan = plan_pruning(found, limit)
    ages = [one.age for one in plan.candidates if one.age is not None]
    assert ages == sorted(ages, reverse=True)
    assert all(age > limit for age in ages)
    kept = [one for one in found if one.age is not None and one.age <= limit]
    parts = [*plan.candidates, *plan.skipped, *plan.failed, *kept]
    assert sorted(parts, key=lambda one: one.session_id) == sorted(
        found, key=lambda one: one.session_id
    )


@pytest.mark.parametrize(
    "hours", [-1, -0.001, float("nan"), float("inf"), -float("inf"), True, "24", None]
)
def test_what_is_no_number_of_hours_is_refused(tmp_path: Path, hours: Any) -> None:
    old = a_session(tmp_path, 10**5)
    with pytest.raises(PruneError, match="older_than_hours") as caught:
        prune_sessions(hours, tmp_path)
    assert isinstance(caught.value, ValueError)
    assert old.exists()


def test_an_old_session_whose_id_was_chosen_is_skipped_with_a_word(tmp_path: Path) -> None:
    for name, hours in (("my-thesis", 48), ("yesterday", 1)):
        known = tmp_path / name
        a_session(tmp_path, hours).rename(known)
        fields = json.loads((known / ".metadata.json").read_text())
        (known / ".metadata.json").write_text(json.dumps({**fields, "session_id": name}))
    (tmp_path / "no-session").mkdir()
    result = prune_sessions(24, tmp_path)
    assert (result.deleted_sessions, result.skip_reasons) == ([], {"my-thesis": "not_a_uuid"})
    assert (tmp_path / "my-thesis").exists()
    assert "skipped my-thesis: not_a_uuid" in str(result)


def test_more_hours_than_there_are_delete_nothing(tmp_path: Path) -> None:
    old = a_session(tmp_path, 10**5)
    assert prune_sessions(1e300, tmp_path).deleted_sessions == []
    assert old.exists()


def test_a_root_that_is_missing_is_an_error_without_its_path(tmp_path: Path) -> None:
    with pytest.raises(WasmKernelError) as caught:
        prune_sessions(24, tmp_path / "nowhere")
    assert str(tmp_path) not in str(caught.value)


def test_a_session_that_was_used_since_it_was_found_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, unused, gone = (a_session(tmp_path, 48) for _ in range(3))
    look = pruning.survey

    def look_and_wait(*args: Any) -> list[SessionAge]:
        found = look(*args)
        with Folder.open(used) as folder:
            metadata.touch(folder, used.name, None)
        (gone / ".metadata.json").unlink()
        gone.rmdir()
        return found

    monkeypatch.setattr(pruning, "survey", look_and_wait)
    result = prune_sessions(24, tmp_path)
    assert result.deleted_sessions == [unused.name]
    assert (result.skipped_sessions, result.errors) == ([], {})
    assert used.exists()


def test_the_oldest_goes_first(tmp_path: Path) -> None:
    sessions = {hours: a_session(tmp_path, hours).name for hours in (30, 500, 100)}
    ordered = [sessions[hours] for hours in (500, 100, 30)]
    assert prune_sessions(24, tmp_path, dry_run=True).deleted_sessions == ordered
    assert prune_sessions(24, tmp_path).deleted_sessions == ordered


def test_metadata_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    closed, old = a_session(tmp_path, 48), a_session(tmp_path, 48)
    (closed / ".metadata.json").chmod(0)
    with as_nobody(tmp_path):
        result = prune_sessions(24, tmp_path)
    assert result.errors == {closed.name: "Permission denied"}
    assert result.deleted_sessions == [old.name]
    assert closed.exists()


def test_a_link_to_the_root_is_a_root(tmp_path: Path) -> None:
    old = a_session(tmp_path / "real", 48)
    (tmp_path / "link").symlink_to("real")
    assert prune_sessions(24, tmp_path / "link").deleted_sessions == [old.name]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (1_572_864, "1.5 MiB"),
        (10**12, "931.3 GiB"),
        (2**75, "32768.0 EiB"),
    ],
)
def test_bytes_are_told_as_people_read_them(size: int, text: str) -> None:
    assert readable(size) == text
