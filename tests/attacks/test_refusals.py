"""A refused call leaves nothing behind: no folder, no file, no lock, no thread (case 43)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.faces import host_tree, wait_for
from tests.linux.inside import run
from tests.stored import commits_in, state_of
from wasm_kernel import (
    ExecutionPolicy,
    Service,
    WasmKernelError,
    create_sandbox,
    create_session_sandbox,
    delete_session_path,
    delete_session_workspace,
    export_session,
    get_session_sandbox,
    import_session,
    list_session_files,
    prune_sessions,
    read_session_file,
    write_session_file,
)
from wasm_kernel.service.program_home import own_workers

NEW, OLD = "new-session", "old-session"
BAD_IDS = ("../up", "", ".", "a/b", "a\\b", "/abs", "x" * 65, "nul\0", "ü", None, 5)
BAD_PATHS = ("../x", "a/../../x", "/etc/x", "..\\x", "", "nul\0", ".metadata.json", "C:\\x", None)
LONG = "n" * 300
Call = Callable[[Path], Any]


def calling(function: Callable[..., Any], *arguments: Any, at: str = "", **options: Any) -> Call:
    """Makes a call with a root, or with a folder below it."""
    return lambda root: function(*arguments, workspace_root=root / at, **options)


def _sandbox(workspace_root: Path, **options: Any) -> Any:
    return create_sandbox(workspace=workspace_root, **options)


def _at_empty(workspace_root: Path) -> Any:
    """Formerly, the current folder was the workspace, or the root of sessions."""
    for make in (create_session_sandbox, Service):
        with suppress(ValueError):
            return make(workspace_root="")
    return create_sandbox(workspace="")


READING = (read_session_file, delete_session_path)
CALLS: dict[str, Call] = {
    "create_sandbox, empty workspace": _at_empty,
    "write, other data": calling(write_session_file, NEW, "x", 5),
    "write, no text": calling(write_session_file, NEW, "x", "\ud800"),
    "write, exists": calling(write_session_file, OLD, "file", b"", overwrite=False),
    "write, below a file": calling(write_session_file, OLD, "file/a/b", b""),
    "list, missing": calling(list_session_files, NEW),
    "list, bad pattern": calling(list_session_files, OLD, pattern="../*"),
    "delete folder": calling(delete_session_path, OLD, "folder"),
    "prune, negative": calling(prune_sessions, -1),
    "prune, text": calling(prune_sessions, "1"),
    "prune, no root": calling(prune_sessions, 1, at="missing"),
    "export, missing": lambda root: export_session(NEW, root.parent / "a.tar.gz", root),
    "export, bad id": lambda root: export_session("../x", root.parent / "a.tar.gz", root),
    "export, into itself": lambda root: export_session(OLD, root / OLD / "a.tar.gz", root),
    "export, exists": lambda root: export_session(OLD, root / OLD / "file", root),
    "export, nowhere": lambda root: export_session(OLD, root / "no" / "folder" / "a.tar.gz", root),
    "import, missing": lambda root: import_session(root / "missing.tar.gz", root),
    "import, none": lambda root: import_session(root / OLD / "file", root),
    "import, bad id": lambda root: import_session(root / OLD / "file", root, session_id="../x"),
    "import, new root": lambda root: import_session(root / OLD / "file", root / "new" / "root"),
}
for _bad in BAD_IDS:
    for _one in (get_session_sandbox, delete_session_workspace, list_session_files):
        CALLS[f"{_one.__name__}({_bad!r})"] = calling(_one, _bad)
    for _each in READING:
        CALLS[f"{_each.__name__}({_bad!r}, x)"] = calling(_each, _bad, "x")
    CALLS[f"write_session_file({_bad!r}, x)"] = calling(write_session_file, _bad, "x", b"")
for _session in (NEW, OLD):
    for _path in (*BAD_PATHS, ".", "missing", f"a/b/{LONG}"):
        for _each in READING:
            CALLS[f"{_each.__name__}({_session}, {_path!r})"] = calling(_each, _session, _path)
    for _path in (*BAD_PATHS, ".", f"a/b/{LONG}", f"{LONG}/a", "a/\udcff\ud800"):
        CALLS[f"write_session_file({_session}, {_path!r})"] = calling(
            write_session_file, _session, _path, b"x"
        )
WRONG: dict[str, dict[str, Any]] = {
    "policy": {"policy": 5},
    "logger": {"logger": 5},
    "runtime": {"runtime": "ruby"},
    "private root": {"private_root": "/proc/nowhere"},
    "empty private root": {"private_root": ""},
    "private root of nobody": {"private_root": "~no-such-user/x"},
}
for _name, _wrong in WRONG.items():
    CALLS |= {
        f"create_sandbox, {_name}": calling(_sandbox, at="a/b", **_wrong),
        f"create_session_sandbox, {_name}": calling(create_session_sandbox, at="a/b", **_wrong),
        f"get_session_sandbox, {_name}": calling(get_session_sandbox, NEW, at="a/b", **_wrong),
    }


def held() -> tuple[list[str], int]:
    """The threads of this process, and the number of its open files."""
    threads = sorted(thread.name for thread in threading.enumerate())
    return threads, len(list(Path("/proc/self/fd").iterdir()))


def is_refused(call: Call, root: Path) -> bool:
    try:
        call(root)
    except (ValueError, TypeError, OSError, WasmKernelError):
        return True
    return False


def refuse_calls(folder: Path) -> None:
    """Makes all calls, in a process without other threads."""
    root = folder / "root"
    own_workers().fork_server.start()  # a refused call may start it, and it stays
    write_session_file(OLD, "file", b"kept", root)
    write_session_file(OLD, "folder/file", b"kept", root)
    before = host_tree(root.parent), held()
    for name, call in CALLS.items():
        assert is_refused(call, root), name
        assert (host_tree(root.parent), held()) == before, name


def refuse_policies(folder: Path) -> None:
    """Opens an open sandbox again with wrong options, in a process without other threads."""
    policy, root = ExecutionPolicy(stdout_bytes=1000), folder / "root"
    with get_session_sandbox(OLD, policy=policy, workspace_root=root) as sandbox:
        sandbox.execute("x = 1")
        wait_for(lambda: 2 in commits_in(state_of(root / OLD)), "a commit")
        time.sleep(0.1)  # the writer closes its files
        before = host_tree(folder), held()
        for name in ("policy", "logger", "runtime"):
            assert is_refused(calling(get_session_sandbox, OLD, **WRONG[name]), root), name
        assert (host_tree(folder), held()) == before
        assert sandbox.policy is policy
        assert sandbox.execute("print(x)").stdout == "1\n"


@pytest.mark.parametrize("refuse", [refuse_calls, refuse_policies])
def test_a_refused_call_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Callable[[Path], None]
) -> None:
    state = tmp_path / "state"  # the user's state folder, empty
    state.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    code = "import sys; from pathlib import Path; from tests.attacks import test_refusals\n"
    run(f"{code}test_refusals.{refuse.__name__}(Path(sys.argv[1]))", tmp_path)
