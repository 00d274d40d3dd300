"""The folder that a kernel was started in: whether its cells see it, and which files are hidden."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wasm_kernel import create_session_sandbox
from wasm_kernel.folders import notebook
from wasm_kernel.folders.notebook import NotShown, shown
from wasm_kernel.folders.private import PrivateFolders
from wasm_kernel.linux.folders import Folder
from wasm_kernel.service.program_home import own_workers
from wasm_kernel.wasi_files.preopens import is_hidden_folder


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a state folder and a cache of their own."""
    own_workers().fork_server.start()  # it keeps its first cache
    monkeypatch.setenv("HOME", str(tmp_path / "homes" / "me"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "private" / "state"))
    monkeypatch.setenv("WASM_KERNEL_CACHE", str(tmp_path / "caches" / "mine"))
    for name in ("homes/me/work", "private/state/wasm-kernel", "caches/mine/x", "work/notes"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def why(folder: Path, tmp_path: Path, private_root: Path | None = None) -> str:
    """The reason why a folder is not shown; empty if it is shown."""
    with Folder.open(folder) as opened:
        try:
            secret = tmp_path / "runtime" / "kernel.json"
            privates = PrivateFolders(tmp_path / "sessions", private_root)
            shown(opened, privates, secret, [tmp_path / "keys"])
        except NotShown as problem:
            return str(problem)
    return ""


def test_an_ordinary_folder_is_shown_and_a_home_by_no_way(tmp_path: Path) -> None:
    assert why(tmp_path / "work", tmp_path) == ""
    assert why(tmp_path / "homes" / "me" / "work", tmp_path) == ""
    (tmp_path / "link").symlink_to("homes/me")
    for name in ("homes/me", "homes", ".", "link"):
        assert "home folder" in why(tmp_path / name, tmp_path)


def test_homes_of_others_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = tmp_path / "passwd"
    lines = [f"she:x:1001:1001::{tmp_path}/work/she:/bin/sh", f"d:x:33:33::{tmp_path}/work/d:/x"]
    accounts.write_text("\n".join(lines))
    for name in ("she", "d"):
        (tmp_path / "work" / name).mkdir()
    monkeypatch.setattr(notebook, "ACCOUNTS", str(accounts))
    assert "home folder" in why(tmp_path / "work" / "she", tmp_path)
    assert why(tmp_path / "work" / "d", tmp_path) == ""


def test_the_systems_own_and_the_root_of_a_disk_are_not_shown(tmp_path: Path) -> None:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    roots = [line.split()[4] for line in lines if line.split()[3] == "/"]
    assert roots
    for root in ("/", "/proc", "/proc/self", "/sys", *roots):
        if Path(root).is_dir() and "\\" not in root and os.access(root, os.R_OK):
            assert why(Path(root), tmp_path), root


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("private", "private state"),
        ("private/state/wasm-kernel", "private state"),
        ("caches", "compiled code"),
        ("caches/mine", "compiled code"),
        ("caches/mine/x", "compiled code"),
    ],
)
def test_folders_of_the_kernels_own_are_not_shown(tmp_path: Path, name: str, words: str) -> None:
    assert words in why(tmp_path / name, tmp_path)


def test_a_named_private_folder_is_not_shown(tmp_path: Path) -> None:
    own = tmp_path / "work" / "own"
    own.mkdir()
    assert "private state" in why(tmp_path / "work", tmp_path, own)


def test_sessions_are_not_shown(tmp_path: Path) -> None:
    root = tmp_path / "work" / "sessions"
    session_id, sandbox = create_session_sandbox(workspace_root=root)
    try:
        assert "sessions" in why(root, tmp_path)
        assert "sessions" in why(root / session_id, tmp_path)
        with Folder.open(tmp_path / "work") as folder:
            rule = shown(folder, PrivateFolders(root), tmp_path / "kernel.json").hidden
            assert is_hidden_folder(rule, folder.fd, "sessions", 0)
            assert not is_hidden_folder(rule, folder.fd, "notes", 0)
    finally:
        sandbox.close()


def test_sessions_are_not_shown_if_nothing_can_be_noted(tmp_path: Path) -> None:
    (tmp_path / "private" / "state" / "wasm-kernel").chmod(0o775)  # so nothing in it is trusted
    root = tmp_path / "work" / "sessions"
    _, sandbox = create_session_sandbox(workspace_root=root)
    with sandbox, Folder.open(tmp_path / "work") as folder:
        rule = shown(folder, PrivateFolders(root), tmp_path / "runtime" / "kernel.json").hidden
        assert is_hidden_folder(rule, folder.fd, "sessions", 0)


def test_the_front_ends_own_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    assert "Jupyter's" in why(tmp_path / "keys", tmp_path)
    own = tmp_path / "work" / "share" / "jupyter"
    own.mkdir(parents=True)
    with Folder.open(tmp_path / "work") as folder, Folder.open(own.parent) as share:
        rule = shown(
            folder, PrivateFolders(tmp_path / "s"), tmp_path / "k", [own, tmp_path / "no"]
        ).hidden
        assert is_hidden_folder(rule, share.fd, "jupyter", 1)
        assert not is_hidden_folder(rule, folder.fd, "share", 0)


def test_connection_files_are_not_shown(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "runtime").mkdir()
    with Folder.open(work) as folder:
        rule = shown(
            folder, PrivateFolders(tmp_path / "sessions"), work / "runtime" / "kernel-1.json"
        ).hidden
        assert is_hidden_folder(rule, folder.fd, "runtime", 0)
        rule = shown(folder, PrivateFolders(tmp_path / "sessions"), work / "own-1.json").hidden
        assert rule.hides_name(0, "own-1.json")
        assert rule.hides_name(0, "OWN-1.json")
        assert not rule.hides_name(0, "other.json")
        assert not rule.hides_name(1, "own-1.json")


KEYS = [
    "kernel-123.json",
    "Kernel-123.JSON.",
    "kernel-6f9619ff-8b86-4011-b42d-00c04fc964ff.json",
    "kernel-v2-123AbC.json",
    "jpserver-7.json",
    "jpserver-7-open.html",
    "nbserver-7.json",
    "jupyter_cookie_secret",
    "notebook_cookie_secret",
    "notebook_secret",
]
DATA = ["kernel-smoothing.json", "kernel.json", "kernel-1.csv", "jpserver.json", "notes.json", "k"]


def test_files_with_keys_of_other_kernels_and_servers_are_not_shown(tmp_path: Path) -> None:
    with Folder.open(tmp_path / "work") as folder:
        rule = shown(
            folder, PrivateFolders(tmp_path / "sessions"), tmp_path / "kernel-1.json"
        ).hidden
    for depth in (0, 2):
        assert [name for name in (*KEYS, *DATA) if rule.hides_name(depth, name)] == KEYS
