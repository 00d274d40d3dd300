"""Mounts that are refused once are always refused, and all mounts are judged together (F4, case
42).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faces import full_disk
from wasm_kernel import (
    BaseSandbox,
    ExecutionPolicy,
    PolicyError,
    create_sandbox,
    get_session_sandbox,
)


def mounting(*mounts: str) -> ExecutionPolicy:
    return ExecutionPolicy(mounts=mounts)


def session(folder: Path, policy: ExecutionPolicy | None = None) -> BaseSandbox:
    return get_session_sandbox("one", workspace_root=folder / "ws", policy=policy)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "a" / "b").mkdir(parents=True)


def test_f4_a_refused_mount_is_refused_at_every_try(tmp_path: Path) -> None:
    with session(tmp_path) as sandbox:
        for _ in range(3):
            with pytest.raises(PolicyError, match="/all can't be"):
                session(tmp_path, mounting(f"{tmp_path}:/all:rw"))
        assert sandbox.policy.mounts == ()


def test_f4_mounts_that_are_known_one_by_one_are_refused_together(tmp_path: Path) -> None:
    one, two = f"{tmp_path}/a:/a:rw", f"{tmp_path}/a/b:/b"
    with session(tmp_path):
        for mount in (one, two):
            session(tmp_path, mounting(mount))
        for both in ((one, two), (two, one)):
            with pytest.raises(PolicyError, match="can't be a folder that is, contains or lies in"):
                session(tmp_path, mounting(*both))


def test_f4_a_mount_is_judged_by_where_it_lies_now(tmp_path: Path) -> None:
    with session(tmp_path):
        session(tmp_path, mounting(f"{tmp_path}/a/b:/b"))
        session(tmp_path, mounting())
        (tmp_path / "a" / "b").rename(tmp_path / "state" / "wasm-kernel" / "b")
        (tmp_path / "a" / "b").mkdir()
        with pytest.raises(PolicyError, match="private state"):
            session(tmp_path, mounting(f"{tmp_path}/a/b:/b"))


def test_case_43_a_fork_that_can_not_begin_leaves_no_folder(
    sandbox: BaseSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.execute("x = 1")
    before = sorted(path.name for path in tmp_path.iterdir())

    with monkeypatch.context() as patch:
        patch.setattr("wasm_kernel.folders.private.PrivateFolders.open_temporary", full_disk)
        with pytest.raises(Exception, match="No space left"):
            sandbox.fork()
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with create_sandbox(workspace=tmp_path / "app-fork-1"):
        pass
