"""Capability: session management. A test for each scenario, in the specification's order."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

import wasm_kernel
from tests.documented import Heard
from tests.faces import error_of, says
from tests.specification.conftest import ID, Creating, Getting
from wasm_kernel import (
    BaseSandbox,
    ExecutionPolicy,
    RuntimeType,
    create_sandbox,
    delete_session_workspace,
)

SHAPE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
COUNT = """with open('/app/state.json', 'w') as f: f.write('{"count": 1}')"""
TRY_ALL = """
import os
for path in {}:
    for act in (open, os.stat):
        try: print(path, act(path))
        except FileNotFoundError: pass
"""
READ = "with open('/app/state.json', 'r') as f: print(f.read())"


# Session ID generation


def test_generate_unique_session_id(create: Creating) -> None:
    made = {create()[0] for _ in range(5)}
    assert len(made) == 5
    for session_id in made:
        assert uuid.UUID(session_id).version == 4
        assert Path(session_id).name == session_id


def test_session_id_format_validation(create: Creating, root: Path) -> None:
    session_id, _ = create()
    assert SHAPE.fullmatch(session_id)
    assert [path.name for path in root.iterdir()] == [session_id]


# Session workspace mapping


def test_create_session_workspace(get: Getting, root: Path) -> None:
    assert not root.exists()
    get()
    workspace = root / ID
    assert workspace.is_dir()
    (workspace / "host.txt").write_text("written")
    assert (workspace / "host.txt").read_text() == "written"
    get().close()
    get()  # an existing session does not matter


def test_resolve_existing_session_workspace(get: Getting, root: Path) -> None:
    (root / ID).mkdir(parents=True)
    for _ in range(2):
        with get() as sandbox:
            assert sandbox.workspace == Path("workspace") / ID
            assert sandbox.session_id == ID
    assert [path.name for path in root.iterdir()] == [ID]


def test_custom_workspace_root(create: Creating, tmp_path: Path, root: Path) -> None:
    session_id, sandbox = create(workspace_root=tmp_path / "custom")
    assert sandbox.workspace == tmp_path / "custom" / session_id
    assert sandbox.workspace.is_dir()
    assert not root.exists()


# Session-aware sandbox creation


def test_create_new_session_with_sandbox(create: Creating, root: Path) -> None:
    session_id, sandbox = create(runtime=RuntimeType.PYTHON)
    assert isinstance(session_id, str)
    assert isinstance(sandbox, BaseSandbox)
    assert sandbox.workspace == Path("workspace") / session_id
    assert SHAPE.fullmatch(session_id)


def test_a_sandbox_stays_where_it_is_when_the_process_goes_to_another_folder(
    create: Creating, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id, sandbox = create()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    sandbox.execute("open('first', 'w').write('x')")
    sandbox.execute("import os; os.abort()")  # a new instance
    assert sandbox.execute("open('second', 'w').write('x')").workspace_path == root / session_id
    (fork,) = sandbox.fork()
    with fork:
        assert fork.execute("1").success
        assert fork.workspace.parent.resolve() == root
    assert {path.name for path in (root / session_id).iterdir()} >= {"first", "second"}
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_create_session_with_custom_policy(create: Creating, warm_metered: None) -> None:
    policy = ExecutionPolicy(fuel_budget=500_000_000)
    _, sandbox = create(policy=policy)
    assert sandbox.policy is policy
    assert sandbox.policy.fuel_budget == 500_000_000
    assert error_of(sandbox.execute("open('missing')")).startswith("FileNotFoundError:")
    assert error_of(sandbox.execute("while True: pass")).startswith("OutOfFuel:")


def test_create_session_with_custom_logger(create: Creating, heard: Heard) -> None:
    session_id, sandbox = create(logger=heard.logger)
    sandbox.execute("1 + 1")
    assert {"session.created", "execution.start", "execution.complete"} <= {
        name for name, _ in heard.events
    }
    assert {fields["session_id"] for _, fields in heard.events} == {session_id}


def test_retrieve_sandbox_for_existing_session(get: Getting, root: Path) -> None:
    with get() as first:
        first.execute("open('/app/kept.txt', 'w').write('from before')")
    again = get()
    assert isinstance(again, BaseSandbox)
    assert again is not first
    assert again.workspace == Path("workspace") / ID
    assert again.execute("print(open('/app/kept.txt').read())").stdout == "from before\n"


# Session isolation


def test_files_isolated_between_sessions(get: Getting) -> None:
    a, b = get("aaa-111"), get("bbb-222")
    a.execute("open('data.txt', 'w').write('Session A data')")
    b.execute("open('data.txt', 'w').write('Session B data')")
    assert a.execute("print(open('data.txt').read())").stdout == "Session A data\n"
    assert b.execute("print(open('data.txt').read())").stdout == "Session B data\n"
    for path in ("/app/../bbb-222/data.txt", "../bbb-222/data.txt", "/bbb-222/data.txt"):
        name = error_of(a.execute(f"open({path!r})")).partition(":")[0]
        assert name in ("FileNotFoundError", "PermissionError", "OSError")


def test_wasi_preopen_scoped_to_session(get: Getting, root: Path) -> None:
    other, sandbox = get("other-session"), get()
    other.execute("open('/app/secret.txt', 'w').write('x')")
    sandbox.execute("open('/app/own.txt', 'w').write('x')")
    assert sandbox.execute("import os; print(os.listdir('/app'))").stdout == "['own.txt']\n"
    for path in ("/app/..", "..", "/workspace", str(root), str(root / "other-session")):
        refused = sandbox.execute(f"import os; print(os.listdir({path!r}))")
        seen = refused.stdout
        assert "secret" not in seen
        assert ID not in seen
        assert "other-session" not in seen


def test_no_sandbox_beside_sessions_reaches_them(get: Getting, create: Creating) -> None:
    """The default workspace of a sandbox without a session is the sessions' root, too."""
    new, _ = create()
    with create_sandbox() as before:
        get().execute("open('/app/secret.txt', 'w').write('x')")
        with create_sandbox() as after:
            for plain in (before, after):
                plain.execute("open('/app/own.txt', 'w').write('x')")
                seen = plain.execute("import os; print(sorted(os.listdir('/app')))")
                assert seen.stdout == "['own.txt']\n"
                paths = (f"{ID}/secret.txt", f"{ID}/.metadata.json", ID, new, ".metadata.json")
                tries = [f"/app/{up}{path}" for path in paths for up in ("", "own/../")]
                assert says(plain, TRY_ALL.format(tries)) == ""


# Session persistence


def test_persist_files_across_executions(get: Getting) -> None:
    sandbox = get()
    first = sandbox.execute(COUNT)
    assert '{"count": 1}' in sandbox.execute(READ).stdout
    assert "state.json" in first.files_modified


def test_track_file_changes_per_execution(get: Getting, root: Path) -> None:
    sandbox = get()
    (root / ID / "data.csv").write_text("a,b\n")
    result = sandbox.execute(
        "open('data.csv', 'a').write('1,2\\n'); open('output.txt', 'w').write('done')"
    )
    assert "data.csv" in result.files_modified
    assert "output.txt" in result.files_created
    assert "data.csv" not in result.files_created
    assert sandbox.execute("1").files_modified == ()


# Session deletion


def test_delete_session_workspace(get: Getting, root: Path) -> None:
    with get() as sandbox:
        sandbox.execute("import os; os.makedirs('a/b'); open('a/b/c', 'w').write('x'); kept = 1")
    delete_session_workspace(ID)
    assert not (root / ID).exists()
    assert list(root.iterdir()) == []
    fresh = get()
    assert fresh.workspace == Path("workspace") / ID
    seen = fresh.execute("import os; print(os.listdir('/app'), 'kept' in globals())")
    assert seen.stdout == "[] False\n"


def test_prevent_path_traversal_in_deletion(tmp_path: Path, root: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root.mkdir()
    for hostile in ("../../../tmp", "../outside", "..", ".", "", "/tmp", "a/../../outside"):
        with pytest.raises(ValueError, match="session id"):
            delete_session_workspace(session_id=hostile)
    assert outside.is_dir()
    assert root.is_dir()


def test_safe_deletion_when_workspace_missing(root: Path) -> None:
    delete_session_workspace(session_id="nonexistent-123")
    root.mkdir()
    delete_session_workspace(session_id="nonexistent-123")
    delete_session_workspace(session_id="nonexistent-123")


# Session context in logging


def test_log_session_creation(create: Creating, heard: Heard, root: Path) -> None:
    session_id, _ = create(logger=heard.logger)
    event = heard.one("session.created")
    assert event["session_id"] == session_id
    assert event["workspace_path"] == str(root / session_id)


def test_log_session_retrieval(get: Getting, heard: Heard, root: Path) -> None:
    get().close()
    get(logger=heard.logger)
    event = heard.one("session.retrieved")
    assert event["session_id"] == ID
    assert event["workspace_path"] == str(root / ID)
    assert heard.of("session.created") == []


def test_log_session_deletion(get: Getting, heard: Heard) -> None:
    get().close()
    delete_session_workspace(ID, logger=heard.logger)
    assert heard.one("session.deleted")["session_id"] == ID


def test_include_session_id_in_execution_logs(create: Creating, heard: Heard) -> None:
    session_id, sandbox = create(logger=heard.logger)
    sandbox.execute("1 + 1")
    for event in ("execution.start", "execution.complete"):
        assert heard.one(event)["session_id"] == session_id


# Session metadata in results


def test_include_session_id_in_result_metadata(get: Getting) -> None:
    assert get().execute("1 + 1").metadata["session_id"] == ID


def test_workspace_path_reflects_session(get: Getting) -> None:
    assert get().execute("1 + 1").workspace_path == Path("workspace", ID).absolute()


# Backwards compatibility


def test_non_session_sandbox_usage_unchanged(root: Path) -> None:
    with create_sandbox(runtime=RuntimeType.PYTHON) as sandbox:
        result = sandbox.execute("print(6 * 7); open('/app/file', 'w').write('x')")
    assert result.success
    assert result.stdout == "42\n"
    assert sandbox.workspace == Path("workspace")
    assert result.workspace_path == root
    assert (root / "file").read_text() == "x"
    assert "session_id" not in result.metadata
    assert not (root / ".metadata.json").exists()


def test_explicit_workspace_parameter_still_works(tmp_path: Path, root: Path) -> None:
    with create_sandbox(workspace=Path("custom_workspace")) as sandbox:
        result = sandbox.execute("open('/app/file', 'w').write('x')")
    assert result.workspace_path == tmp_path / "custom_workspace"
    assert (tmp_path / "custom_workspace" / "file").exists()
    assert "session_id" not in result.metadata
    assert not root.exists()


def test_public_api_surface_extended_additively() -> None:
    core = {"create_sandbox", "BaseSandbox", "ExecutionPolicy", "RuntimeType", "SandboxResult"}
    core |= {"SandboxLogger"}
    sessions = {"create_session_sandbox", "get_session_sandbox", "delete_session_workspace"}
    assert core | sessions <= set(wasm_kernel.__all__)
    assert all(getattr(wasm_kernel, name) for name in core | sessions)
