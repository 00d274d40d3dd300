"""Folders that contain each other, and calls that are refused: F4, cases 42 and 43."""

from __future__ import annotations

import inspect
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import wasm_kernel
from tests.faces import host_tree, process_of
from tests.private import far, private_folders, private_of
from wasm_kernel import (
    BaseSandbox,
    ExecutionPolicy,
    PolicyError,
    SessionInUse,
    WasmKernelError,
    create_sandbox,
    create_session_sandbox,
    delete_session_path,
    get_session_sandbox,
    list_session_files,
    read_session_file,
    write_session_file,
)
from wasm_kernel.folders.hiding import OverlapError
from wasm_kernel.folders.places import beside
from wasm_kernel.sessions import ids

Open = Callable[[Path], None]


def _workspace(folder: Path) -> None:
    create_sandbox(workspace=folder).close()


def _root(folder: Path) -> None:
    create_session_sandbox(workspace_root=folder)[1].close()


def _again(folder: Path) -> None:
    root = folder.parent if folder.name[0] != "." else folder  # no id begins with a dot
    get_session_sandbox(folder.name.strip("."), workspace_root=root).close()


def _mount(folder: Path) -> None:
    policy = ExecutionPolicy(mounts=[f"{folder}:/data:ro"])
    create_sandbox(workspace=folder.parent / "elsewhere" / "app", policy=policy).close()


OPENINGS = (_workspace, _root, _again, _mount)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home with a cache and the private state of a session."""
    home = tmp_path / "home"
    (home / ".cache" / "wasm-kernel" / "below").mkdir(parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local" / "state"))
    create_sandbox(workspace=tmp_path / "other").close()
    monkeypatch.setenv("WASM_KERNEL_CACHE", str(home / ".cache" / "wasm-kernel"))
    return home


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize(
    "place",
    [
        "home",
        "home/.cache",
        "home/.cache/wasm-kernel",
        "home/.local/state",
        "home/.local/state/wasm-kernel/private",
        "link",
        "link/state/wasm-kernel/private",
    ],
)
def test_case_42_what_overlaps_private_state_or_the_cache_is_refused(
    home: Path, tmp_path: Path, opening: Open, place: str
) -> None:
    (tmp_path / "link").symlink_to(home / ".local")
    before, threads = host_tree(tmp_path), threading.active_count()
    with pytest.raises((WasmKernelError, PolicyError)) as caught:
        opening(tmp_path / place)
    assert "is, contains or lies in" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert host_tree(tmp_path) == before
    assert threading.active_count() == threads


@pytest.mark.parametrize("opening", OPENINGS)
def test_case_42_also_where_the_state_folder_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening: Open
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home" / ".local" / "state"))
    (tmp_path / "home").mkdir()
    with pytest.raises(WasmKernelError, match="is, contains or lies in"):
        opening(tmp_path / "home")
    assert [path.name for path in tmp_path.rglob("*")] == ["home"]


def test_case_42_a_place_that_is_named_is_guarded_from_then_on(tmp_path: Path) -> None:
    own = tmp_path / "data" / "private"
    with create_sandbox(workspace=tmp_path / "data" / "app", private_root=own):
        assert private_of(tmp_path / "data" / "app").parent == own
    for folder in (tmp_path / "data", own, own / "app"):
        with pytest.raises(WasmKernelError, match="private state"):
            create_sandbox(workspace=folder)
    for inside in (tmp_path / "ws", tmp_path / "ws" / "private"):
        with pytest.raises(WasmKernelError, match="is, contains or lies in"):
            create_sandbox(workspace=tmp_path / "ws", private_root=inside)
    assert not (tmp_path / "ws").exists()


@pytest.mark.parametrize(
    ("mounts", "match"),
    [
        ([".:/project:rw"], "/project can't be .* the workspace"),
        (["work:/project"], "/project can't be .* the workspace"),
        (["work/below:/project"], "/project can't be .* the workspace"),
        (["link:/project"], "/project can't be .* the workspace"),
        (["data:/one", "data:/two"], "/two can't be .* the mount /one"),
        (["data:/one", "data/below:/two:rw"], "/two can't be .* the mount /one"),
    ],
)
def test_f4_mounts_that_overlap_are_refused(tmp_path: Path, mounts: list[str], match: str) -> None:
    for name in ("work/below", "data/below"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("work")
    policy = ExecutionPolicy(mounts=[f"{tmp_path}/{one}" for one in mounts])
    before, private = host_tree(tmp_path), private_folders()
    with pytest.raises(PolicyError, match=match):
        create_sandbox(workspace=tmp_path / "work", policy=policy)
    assert (host_tree(tmp_path), private_folders()) == (before, private)


@pytest.mark.parametrize("place", ["root", "root/other", "."])
def test_f4_no_mount_shows_the_other_sessions(tmp_path: Path, place: str) -> None:
    (tmp_path / "root" / "other").mkdir(parents=True)
    policy = ExecutionPolicy(mounts=[f"{tmp_path / place}:/data"])
    before, private = host_tree(tmp_path), private_folders()
    for open_it in (create_session_sandbox, lambda **how: get_session_sandbox("new", **how)):
        with pytest.raises(PolicyError, match="workspace_root"):
            open_it(workspace_root=tmp_path / "root", policy=policy)
    assert (host_tree(tmp_path), private_folders()) == (before, private)


def test_f4_a_mount_is_the_folder_that_it_was_at_first(tmp_path: Path) -> None:
    for name in ("data", "secret"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    policy = ExecutionPolicy(mounts=[f"{tmp_path}/data:/data"])
    with create_sandbox(workspace=tmp_path / "app", policy=policy) as sandbox:
        sandbox.start().result()
        (tmp_path / "data").rename(tmp_path / "moved")
        (tmp_path / "data").symlink_to("secret")
        for _ in range(2):
            found = sandbox.execute("import os; print(os.listdir('/data'))")
            assert found.stdout == "['data']\n"
            sandbox.execute("os._exit(1)")
        (fork,) = sandbox.fork()
        with fork, pytest.raises(PolicyError, match="another folder in its place"):
            fork.execute("1")
        os.kill(process_of(sandbox), signal.SIGKILL)
        with pytest.raises(PolicyError, match="another folder in its place"):
            while not sandbox.execute("print(os.listdir('/data'))").stdout:
                """The cell that was lost with its worker says so."""


def test_case_42_a_folder_that_a_guest_may_have_open_becomes_no_session(tmp_path: Path) -> None:
    (tmp_path / "root" / "mine").mkdir(parents=True)
    known = get_session_sandbox("known", workspace_root=tmp_path / "root")
    known.close()
    uuid = ids.new()
    (tmp_path / "root" / uuid).mkdir()
    for whole in (tmp_path / "root", tmp_path):
        with create_sandbox(workspace=whole):
            with pytest.raises(SessionInUse, match="Close that sandbox first"):
                get_session_sandbox("mine", workspace_root=tmp_path / "root")
            get_session_sandbox("known", workspace_root=tmp_path / "root").close()
            get_session_sandbox(f"new-{len(str(whole))}", workspace_root=tmp_path / "root").close()
            if whole.name == "root":
                get_session_sandbox(uuid, workspace_root=whole).close()
    (tmp_path / "root" / "known" / ".metadata.json").unlink()  # the guest sees it from now on
    with (
        create_sandbox(workspace=tmp_path / "root"),
        pytest.raises(SessionInUse, match="Close that sandbox first"),
    ):
        get_session_sandbox("known", workspace_root=tmp_path / "root")
    assert os.listdir(tmp_path / "root" / "mine") == []  # noqa: PTH208
    get_session_sandbox("mine", workspace_root=tmp_path / "root").close()


def test_private_state_by_roots_is_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = far(Path(os.environ["XDG_STATE_HOME"]))
    monkeypatch.setattr("wasm_kernel.folders.places.can_link", away)
    with create_sandbox(workspace=tmp_path / "data" / "app") as sandbox:
        assert private_of(sandbox.workspace).parent == beside(sandbox.workspace)
    with pytest.raises(WasmKernelError, match="private state"):
        create_sandbox(workspace=tmp_path / "data")


@pytest.mark.parametrize("made", [True, False])
def test_case_42_a_root_of_sessions_lies_in_no_session(tmp_path: Path, made: bool) -> None:
    if not made:  # a folder that existed before has no metadata
        (tmp_path / "outer").mkdir()
    get_session_sandbox("outer", workspace_root=tmp_path).close()
    before = host_tree(tmp_path)
    for root in (tmp_path / "outer", tmp_path / "outer" / "below" / "root"):
        with pytest.raises(WasmKernelError, match="can't lie in the workspace of a session"):
            create_session_sandbox(workspace_root=root)
        with pytest.raises(WasmKernelError, match="can't lie in the workspace of a session"):
            get_session_sandbox("inner", workspace_root=root)
    assert host_tree(tmp_path) == before


def mounting(*mounts: str) -> ExecutionPolicy:
    return ExecutionPolicy(mounts=mounts)


def session(folder: Path, policy: ExecutionPolicy | None = None) -> BaseSandbox:
    return get_session_sandbox("one", workspace_root=folder / "ws", policy=policy)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "a" / "b").mkdir(parents=True)


def test_f4_a_mount_is_judged_by_where_it_lies_at_every_try(tmp_path: Path, state: None) -> None:
    with session(tmp_path) as sandbox:
        for _ in range(3):
            with pytest.raises(PolicyError, match="/all can't be"):
                session(tmp_path, mounting(f"{tmp_path}:/all:rw"))
        assert sandbox.policy.mounts == ()
    with session(tmp_path):
        session(tmp_path, mounting(f"{tmp_path}/a/b:/b"))
        session(tmp_path, mounting())
        (tmp_path / "a" / "b").rename(tmp_path / "state" / "wasm-kernel" / "b")
        (tmp_path / "a" / "b").mkdir()
        with pytest.raises(PolicyError, match="private state"):
            session(tmp_path, mounting(f"{tmp_path}/a/b:/b"))


def test_f4_mounts_known_one_by_one_are_refused_together(tmp_path: Path, state: None) -> None:
    one, two = f"{tmp_path}/a:/a:rw", f"{tmp_path}/a/b:/b"
    with session(tmp_path):
        for mount in (one, two):
            session(tmp_path, mounting(mount))
        for both in ((one, two), (two, one)):
            with pytest.raises(PolicyError, match="can't be a folder that is, contains or lies in"):
                session(tmp_path, mounting(*both))


FILES: dict[str, Callable[..., object]] = {
    "list": list_session_files,
    "read": lambda name, **how: read_session_file(name, "f", **how),
    "write": lambda name, **how: write_session_file(name, "f", b"x", **how),
    "delete": lambda name, **how: delete_session_path(name, "f", **how),
}


def test_every_function_that_takes_a_root_takes_it() -> None:
    lacking = []
    for name in wasm_kernel.__all__:
        public = getattr(wasm_kernel, name)
        if inspect.isfunction(public):
            names = inspect.signature(public).parameters
            if {"workspace_root", "workspace"} & names.keys() and "private_root" not in names:
                lacking.append(name)
    assert "private_root" in inspect.signature(wasm_kernel.create_sandbox).parameters
    assert lacking == []


@pytest.mark.parametrize("act", FILES)
def test_file_functions_take_a_named_place(tmp_path: Path, act: str) -> None:
    own, root = tmp_path / "private", tmp_path / "root"
    get_session_sandbox("one", workspace_root=root, private_root=own).close()
    write_session_file("one", "f", b"y", root, private_root=own)
    FILES[act]("one", workspace_root=root, private_root=own)
    for inside in (root, root / "one", root / "one" / "below", tmp_path):
        with pytest.raises(OverlapError, match="workspace_root"):
            FILES[act]("one", workspace_root=root, private_root=inside)
    assert not (root / "one" / "below").exists()
