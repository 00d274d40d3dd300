"""Capability: metadata and pruning. A test for each scenario, in the specification's order."""

from __future__ import annotations

import errno
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.aged import aged_session, metadata_of
from tests.documented import Heard
from tests.faces import error_of
from tests.faults import faulty
from tests.nobody import as_nobody
from tests.specification.conftest import ID, Creating, Getting
from wasm_kernel import (
    PruneResult,
    SandboxClosed,
    WasmKernelError,
    delete_session_workspace,
    get_session_sandbox,
    list_session_files,
    prune_sessions,
    read_session_file,
    write_session_file,
)
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.overview import session_in, sessions_in
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

FIELDS = {"session_id", "created_at", "updated_at", "version"}


def time_of(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    assert time.utcoffset() == timedelta(0)
    return time


def a_session(root: Path, hours: float | None, content: bytes = b"") -> str:
    """A session's folder that was last used this many hours ago; None: without metadata."""
    workspace = aged_session(root, hours or 0, content)
    if hours is None:
        (workspace / ".metadata.json").unlink()
    return workspace.name


# Session workspace creation


def test_create_session_with_metadata(create: Creating) -> None:
    before = datetime.now(UTC)
    session_id, sandbox = create()
    after = datetime.now(UTC)
    found = metadata_of(sandbox.workspace)
    assert set(found) == FIELDS
    assert found["session_id"] == session_id
    assert found["created_at"] == found["updated_at"]
    assert before <= time_of(found["created_at"]) <= after
    assert len(found["created_at"].partition(".")[2]) == len("123456+00:00")


def test_session_creation_fails_gracefully_if_metadata_write_fails(
    create: Creating, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = os.open

    def full(name: Any, flags: int, *args: Any, **options: Any) -> int:
        if name == ".metadata.json" and flags & os.O_CREAT:
            raise OSError(28, "No space left on device")
        return opening(name, flags, *args, **options)

    monkeypatch.setattr(os, "open", full)
    session_id, sandbox = create(logger=heard.logger)
    monkeypatch.setattr(os, "open", opening)
    warning = heard.one("session.metadata.failed")
    assert warning["level"] == "warning"
    assert warning["session_id"] == session_id
    assert "No space left" in warning["error"]
    assert not (sandbox.workspace / ".metadata.json").exists()
    assert sandbox.execute("print('usable')").stdout == "usable\n"


# Session metadata updates


def test_update_timestamp_on_successful_execution(get: Getting, root: Path) -> None:
    sandbox = get()
    file = sandbox.workspace / ".metadata.json"
    file.write_text(json.dumps({**metadata_of(sandbox.workspace), "tags": ["a", {"b": 1.5}]}))
    before = [metadata_of(sandbox.workspace)]
    for code in ("1 + 1", "x = 2"):
        assert sandbox.execute(code).success
        before.append(metadata_of(sandbox.workspace))
    times = [time_of(found["updated_at"]) for found in before]
    assert times == sorted(set(times))
    assert abs(datetime.now(UTC) - times[-1]) < timedelta(minutes=5)
    for code in ("1 / 0", "import os; os._exit(1)"):  # "after each `execute()` call"
        assert not sandbox.execute(code).success
        now = metadata_of(sandbox.workspace)
        assert time_of(now["updated_at"]) > time_of(before[-1]["updated_at"])
        before.append(now)
    for found in before:
        assert {**found, "updated_at": ""} == {**before[0], "updated_at": ""}


def test_a_failing_timestamp_fails_no_execution(root: Path, heard: Heard) -> None:
    with (
        faulty("wasm_kernel.sessions.metadata:swap_names") as faults,
        get_session_sandbox(ID, workspace_root=root, logger=heard.logger) as sandbox,
    ):
        sandbox.execute("x = 1")
        before = metadata_of(sandbox.workspace)
        with faults["swap_names"].on(errno.ENOSPC):
            for _ in range(2):
                assert sandbox.execute("print(x)").stdout == "1\n"
        assert metadata_of(root / ID) == before
    warning = heard.one("session.metadata.failed")
    assert (warning["level"], warning["session_id"]) == ("warning", ID)
    assert "No space left" in warning["error"]


def test_a_timestamp_is_updated_within_ten_milliseconds(get: Getting, root: Path) -> None:
    get()
    session = Session(SessionsRoot(root), ID)
    seconds = []
    for _ in range(20):
        begun = time.perf_counter()
        session.executed()
        seconds.append(time.perf_counter() - begun)
    session.closed()
    assert min(seconds) < 0.01


def test_skip_timestamp_update_for_sessions_without_metadata(
    get: Getting, root: Path, heard: Heard
) -> None:
    (root / ID).mkdir(parents=True)
    assert get(logger=heard.logger).execute("print('runs')").stdout == "runs\n"
    assert not (root / ID / ".metadata.json").exists()
    assert [fields for _, fields in heard.events if fields["level"] == "warning"] == []


def test_handle_corrupted_metadata_gracefully(get: Getting, root: Path, heard: Heard) -> None:
    (root / ID).mkdir(parents=True)
    (root / ID / ".metadata.json").write_text('{"session_id": ')
    sandbox = get(logger=heard.logger)
    for _ in range(3):
        assert sandbox.execute("print('runs')").stdout == "runs\n"
    warning = heard.one("session.metadata.corrupted")
    assert warning["level"] == "warning"
    assert warning["session_id"] == ID
    assert "JSON" in warning["error"]
    assert (root / ID / ".metadata.json").read_text() == '{"session_id": '


# Session metadata model


def test_metadata_schema_validation(create: Creating) -> None:
    session_id, sandbox = create()
    sandbox.execute("1 + 1")
    found = metadata_of(sandbox.workspace)
    assert found["session_id"] == session_id == sandbox.workspace.name
    assert time_of(found["created_at"]) < time_of(found["updated_at"])
    assert type(found["version"]) is int
    assert found["version"] == 1


def test_metadata_is_hidden_from_guest_code(create: Creating) -> None:
    _, sandbox = create()
    before = metadata_of(sandbox.workspace)
    assert sandbox.execute("import os; print(os.listdir('/app'))").stdout == "[]\n"
    for path in ("/app/.metadata.json", ".metadata.json", "/app/x/../.metadata.json"):
        assert error_of(sandbox.execute(f"open({path!r})")).startswith("FileNotFoundError:")
    for code in (
        "open('/app/.metadata.json', 'w')",
        "open('/app/.metadata.json', 'a')",
        "os.remove('/app/.metadata.json')",
        "os.rename('/app/.metadata.json', '/app/other')",
        "open('/app/mine', 'w').close(); os.rename('/app/mine', '/app/.metadata.json')",
        "os.link('/app/.metadata.json', '/app/other')",
        "os.chdir('/app'); os.stat('./.metadata.json')",
        "os.symlink('.metadata.json', '/app/link'); open('/app/link').read()",
    ):
        assert error_of(sandbox.execute(code)).startswith("FileNotFoundError:"), code
    found = metadata_of(sandbox.workspace)
    assert {**found, "updated_at": ""} == {**before, "updated_at": ""}
    assert time_of(found["updated_at"]) > time_of(before["updated_at"])


# Workspace pruning API


def test_prune_sessions_older_than_threshold(root: Path) -> None:
    old, recent, legacy = a_session(root, 25), a_session(root, 23), a_session(root, None)
    result = prune_sessions(older_than_hours=24)
    assert isinstance(result, PruneResult)
    assert result.deleted_sessions == [old]
    assert result.skipped_sessions == [legacy]
    assert {path.name for path in root.iterdir()} == {recent, legacy}


def test_a_session_that_was_never_closed_is_deleted_when_due(
    create: Creating, heard: Heard
) -> None:
    session_id, sandbox = create()
    sandbox.execute("x = 1")
    workspace = Path("workspace", session_id).absolute()
    assert prune_sessions(24).deleted_sessions == []
    assert prune_sessions(0, dry_run=True).deleted_sessions == [session_id]
    assert sandbox.execute("print(x)").stdout == "1\n"
    result = prune_sessions(0, logger=heard.logger)
    assert (result.deleted_sessions, result.skipped_sessions) == ([session_id], [])
    assert result.in_use == {}
    assert not workspace.exists()
    with pytest.raises(SandboxClosed, match="prune_sessions was to delete its session"):
        sandbox.execute("x")
    assert heard.one("session.prune.deleted")["session_id"] == session_id
    with get_session_sandbox(session_id) as anew:
        assert anew.execute("print('x' in globals())").stdout == "False\n"


def test_a_session_with_a_running_cell_is_spared(create: Creating, heard: Heard) -> None:
    session_id, sandbox = create()
    sandbox.execute("1")
    (idle, _), cell = create(), sandbox.submit("import time\nwhile True: time.sleep(0.01)")
    for dry_run in (True, False):
        result = prune_sessions(0, dry_run=dry_run, logger=heard.logger)
        assert result.deleted_sessions == [idle]
        assert (result.skipped_sessions, result.errors) == ([], {})
        assert result.in_use == {session_id: "running_cell"}
        assert "1 session" in str(result)
        assert f"in use {session_id}: running cell" in str(result)
    assert {fields["session_id"] for fields in heard.of("session.prune.candidate")} == {
        session_id, idle
    }  # fmt: skip
    assert {fields["reason"] for fields in heard.of("session.prune.in_use")} == {"running_cell"}
    assert heard.of("session.prune.skipped") == []
    sandbox.interrupt()
    assert cell.result().error is not None
    assert sandbox.execute("print('works')").stdout == "works\n"
    assert prune_sessions(0).deleted_sessions == [session_id]


def test_dry_run_mode_lists_candidates_without_deleting(root: Path) -> None:
    sessions = [a_session(root, hours) for hours in (25, 23, 100)]
    before = sorted(root.rglob("*"))
    preview = prune_sessions(older_than_hours=24, dry_run=True)
    assert preview.dry_run is True
    assert set(preview.deleted_sessions) == {sessions[0], sessions[2]}
    assert sorted(root.rglob("*")) == before
    assert prune_sessions(older_than_hours=24).deleted_sessions == preview.deleted_sessions


def test_calculate_disk_space_reclaimed(root: Path) -> None:
    old = a_session(root, 48, b"x" * 12_345)
    (root / old / "deep" / "er").mkdir(parents=True)
    (root / old / "deep" / "er" / "file").write_bytes(b"y" * 55)
    a_session(root, 1, b"z" * 999)
    expected = sum(path.stat().st_size for path in (root / old).rglob("*") if path.is_file())
    preview = prune_sessions(older_than_hours=24, dry_run=True)
    assert preview.reclaimed_bytes == expected > 12_400
    assert prune_sessions(older_than_hours=24).reclaimed_bytes == expected


def test_private_bytes_do_not_count_as_reclaimed_bytes(create: Creating, heard: Heard) -> None:
    _, sandbox = create()
    sandbox.execute("import random; x = random.randbytes(3_000_000); open('f', 'w').write('abc')")
    sandbox.close()
    files = [path for path in sandbox.workspace.rglob("*") if path.is_file()]
    workspace_size = sum(path.stat().st_size for path in files)
    for dry_run in (True, False):
        result = prune_sessions(0, dry_run=dry_run, logger=heard.logger)
        assert result.reclaimed_bytes == workspace_size < 1000
        assert result.reclaimed_private_bytes > 3_000_000
        assert "of private files" in str(result)
        told = heard.of("session.prune.completed")[-1]
        assert told["reclaimed_bytes"] == workspace_size
        assert told["reclaimed_private_bytes"] == result.reclaimed_private_bytes


def test_handle_permission_errors_gracefully(root: Path, heard: Heard) -> None:
    first, closed, last = (a_session(root, hours) for hours in (90, 60, 30))
    (root / closed).chmod(0o500)
    with as_nobody(root):
        result = prune_sessions(older_than_hours=24, logger=heard.logger)
    assert result.deleted_sessions == [first, last]
    assert list(result.errors) == [closed]
    assert "Permission denied" in result.errors[closed]
    assert heard.one("session.prune.failed")["session_id"] == closed
    assert (root / closed / ".metadata.json").exists()
    candidates = heard.of("session.prune.candidate")
    assert [fields["session_id"] for fields in candidates] == [first, closed, last]


def test_a_session_that_cannot_be_entered_is_a_candidate(root: Path, heard: Heard) -> None:
    closed, unread, young, old = (a_session(root, hours) for hours in (60, 50, 1, 30))
    for name, hours in ((closed, 60), (young, 1)):
        then = time.time() - hours * 3600
        os.utime(root / name, (then, then))
        (root / name).chmod(0)
    (root / unread / ".metadata.json").chmod(0)
    os.utime(root / unread, (then, then - 49 * 3600))
    with as_nobody(root):
        preview = prune_sessions(24, dry_run=True)
        result = prune_sessions(24, logger=heard.logger)
    assert result.deleted_sessions == preview.deleted_sessions == [old]
    assert result.errors == preview.errors == dict.fromkeys((closed, unread), "Permission denied")
    candidates = {one.pop("session_id"): one for one in heard.of("session.prune.candidate")}
    ages = {name: round(fields["age_hours"]) for name, fields in candidates.items()}
    assert ages == {closed: 60, unread: 50, old: 30}
    assert candidates[closed]["size_bytes"] == 0  # the folder's content can't be read
    assert candidates[unread]["size_bytes"] > 0


def test_custom_workspace_root(root: Path, tmp_path: Path) -> None:
    custom = tmp_path / "custom"
    there, here = a_session(custom, 48), a_session(root, 48)
    assert prune_sessions(24, workspace_root=custom).deleted_sessions == [there]
    assert (root / here).exists()
    with pytest.raises(FileNotFoundError, match="workspace_root"):
        prune_sessions(24, workspace_root=tmp_path / "nowhere")


# Pruning result model


def test_pruneresult_contains_operation_details(root: Path) -> None:
    old, legacy = a_session(root, 48), a_session(root, None)
    result = prune_sessions(24)
    assert result.deleted_sessions == [old]
    assert result.skipped_sessions == [legacy]
    assert type(result.reclaimed_bytes) is int
    assert result.reclaimed_bytes > 0
    assert result.errors == {}
    assert result.dry_run is False
    assert result.skip_reasons == {legacy: "no_metadata"}


def test_pruneresult_supports_string_representation() -> None:
    result = PruneResult(["a", "b"], ["c"], 1_572_864, {"d": "Permission denied"}, False)
    assert "2 sessions deleted, 1 skipped, 1.5 MB reclaimed." in str(result)
    assert "d: Permission denied" in str(result)
    assert "Dry run" not in str(result)
    assert "1.0 MB reclaimed" in str(PruneResult(reclaimed_bytes=1024 * 1024 - 1))
    assert "32768.0 EB reclaimed" in str(PruneResult(reclaimed_bytes=2**75))
    dry = str(PruneResult(["a"], [], 10, {}, True))
    assert dry == "Dry run: 1 session would be deleted, 0 skipped, 10 bytes would be reclaimed."


# Structured logging for pruning


def test_log_pruning_lifecycle_events(root: Path, heard: Heard) -> None:
    old = a_session(root, 48, b"x" * 100)
    prune_sessions(older_than_hours=24, logger=heard.logger)
    assert [name for name, _ in heard.events] == [
        f"session.prune.{stage}" for stage in ("started", "candidate", "deleted", "completed")
    ]
    started, candidate, deleted, completed = (fields for _, fields in heard.events)
    assert started["threshold"] == 24
    assert started["workspace_root"] == "workspace"
    assert started["dry_run"] is False
    assert candidate["session_id"] == deleted["session_id"] == old
    assert candidate["age_hours"] == pytest.approx(48, abs=0.01)
    assert candidate["size_bytes"] == completed["reclaimed_bytes"] > 100
    assert (completed["deleted_count"], completed["skipped_count"]) == (1, 0)
    assert completed["duration"] >= 0
    assert {fields["level"] for _, fields in heard.events} == {"info"}


def test_log_warnings_for_skipped_sessions(root: Path, heard: Heard) -> None:
    legacy, corrupted = a_session(root, None), a_session(root, 48)
    (root / corrupted / ".metadata.json").write_text("[]")
    prune_sessions(older_than_hours=24, logger=heard.logger)
    skipped = heard.of("session.prune.skipped")
    assert {(fields["session_id"], fields["reason"]) for fields in skipped} == {
        (legacy, "no_metadata"),
        (corrupted, "corrupted_metadata"),
    }
    assert len(skipped) == 2
    assert {fields["level"] for fields in skipped} == {"warning"}


# Path safety for pruning


def test_validate_workspace_root_before_pruning(root: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="workspace_root"):
        prune_sessions(24)
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="workspace_root") as caught:
        prune_sessions(24, workspace_root=tmp_path / "file")
    assert isinstance(caught.value, WasmKernelError)
    assert str(tmp_path) not in str(caught.value)
    outside = a_session(tmp_path / "elsewhere", 48)
    inside = a_session(root, 48)
    (root / ids.new()).symlink_to(tmp_path / "elsewhere" / outside)
    (root / inside / "way out").symlink_to(tmp_path / "elsewhere")
    assert prune_sessions(24).deleted_sessions == [inside]
    assert (tmp_path / "elsewhere" / outside / ".metadata.json").exists()


def test_links_to_sessions_are_followed_their_targets_validated_and_counted_once(
    root: Path, tmp_path: Path, heard: Heard
) -> None:
    old, recent = a_session(root, 48, b"x" * 500), a_session(root, 1)
    outside = a_session(tmp_path / "elsewhere", 48)
    chained, absolute, to_recent, leads_out, roundabout = (root / ids.new() for _ in range(5))
    absolute.symlink_to(root / old)
    chained.symlink_to(absolute.name)
    to_recent.symlink_to(f"../workspace/./{recent}")
    leads_out.symlink_to(f"../elsewhere/{outside}")
    roundabout.symlink_to(f"../elsewhere/../workspace/{old}")
    size = sum(path.stat().st_size for path in (root / old).iterdir())
    preview = prune_sessions(24, dry_run=True)
    result = prune_sessions(24, logger=heard.logger)
    for found in (preview, result):
        assert (found.deleted_sessions, found.reclaimed_bytes) == ([old], size)
        assert (found.skipped_sessions, found.errors, found.in_use) == ([], {}, {})
    assert heard.one("session.prune.candidate")["session_id"] == old
    left = {path.name for path in root.iterdir()}
    assert left == {recent, to_recent.name, leads_out.name, roundabout.name}
    assert (tmp_path / "elsewhere" / outside / ".metadata.json").exists()


def test_a_link_to_a_session_is_that_session(get: Getting, root: Path, heard: Heard) -> None:
    sandbox = get()
    sandbox.execute("x = 1; open('file', 'w').write('mine')")
    alias = ids.new()
    (root / alias).symlink_to(ID)
    again = get(alias, logger=heard.logger)
    assert again is sandbox
    assert heard.one("session.retrieved")["session_id"] == ID
    sandbox.close()
    again = get(alias)
    assert (again.session_id, again.workspace.name) == (ID, ID)
    assert again.execute("print(x)").stdout == "1\n"
    assert read_session_file(alias, "file") == b"mine"
    write_session_file(alias, "new", b"too")
    assert list_session_files(alias) == list_session_files(ID) == ["file", "new"]
    assert [one.session_id for one in sessions_in(SessionsRoot(root))] == [ID]
    assert session_in(SessionsRoot(root), alias).session_id == ID
    again.close()
    delete_session_workspace(alias)
    assert list(root.iterdir()) == []


def test_prevent_deletion_of_non_session_directories(root: Path, heard: Heard) -> None:
    old = a_session(root, 48)
    for name in ("notes", "abc-123", old[:-1], old + "-copy", f"{{{old}}}", old.replace("-", "")):
        aged_session(root, 48, name=name)  # also a session whose id a person chose
    result = prune_sessions(0, logger=heard.logger)
    assert result.deleted_sessions == [old]
    assert result.skipped_sessions == []
    assert result.errors == {}
    assert len(list(root.iterdir())) == 6
    assert {fields["level"] for _, fields in heard.events} == {"info"}


# Backwards compatibility for metadata


def test_execute_legacy_session_without_metadata(get: Getting, root: Path, heard: Heard) -> None:
    (root / ID).mkdir(parents=True)
    (root / ID / "old.txt").write_text("from before")
    sandbox = get(logger=heard.logger)
    assert sandbox.execute("print(open('old.txt').read())").stdout == "from before\n"
    sandbox.close()
    assert not (root / ID / ".metadata.json").exists()
    assert {fields["level"] for _, fields in heard.events} == {"info"}


def test_prune_skips_legacy_sessions(root: Path) -> None:
    kept = {a_session(root, None) for _ in range(3)}
    gone = {a_session(root, hours) for hours in (0.001, 5, 500)}
    result = prune_sessions(older_than_hours=0)
    assert set(result.deleted_sessions) == gone
    assert set(result.skipped_sessions) == kept
    assert {path.name for path in root.iterdir()} == kept
    with Folder.open(root) as folder:
        assert walks.size_of(folder.fd) == 0
