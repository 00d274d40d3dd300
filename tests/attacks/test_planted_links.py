"""A link in the place of a folder that is named by a relative path, as in a cloned repository (F1).

The default `workspace` is such a path: a user who opens a sandbox in a stranger's folder did not
choose the target of its links. An absolute path may lead through links.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faces import host_tree
from wasm_kernel import (
    ExecutionPolicy,
    create_sandbox,
    create_session_sandbox,
    delete_session_workspace,
    export_session,
    get_session_sandbox,
    import_session,
    prune_sessions,
)
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.kernels.settings import KernelSettings
from wasm_kernel.linux.folders import PlantedLinkError, real_path
from wasm_kernel.sessions import (
    delete_session_path,
    list_session_files,
    read_session_file,
    write_session_file,
)
from wasm_kernel.sessions.overview import session_in, sessions_in
from wasm_kernel.sessions.root import SessionsRoot

CALLS: dict[str, Callable[[Path], object]] = {
    "create_sandbox": lambda root: create_sandbox(workspace=root),
    "a workspace below": lambda root: create_sandbox(workspace=root / "app"),
    "create_session_sandbox": lambda root: create_session_sandbox(workspace_root=root),
    "get_session_sandbox": lambda root: get_session_sandbox("one", workspace_root=root),
    "delete_session_workspace": lambda root: delete_session_workspace("one", root),
    "prune_sessions": lambda root: prune_sessions(0, root),
    "list_session_files": lambda root: list_session_files("one", root),
    "read_session_file": lambda root: read_session_file("one", "id", root),
    "write_session_file": lambda root: write_session_file("one", "id", b"x", root),
    "a session's first file": lambda root: write_session_file("new", "id", b"x", root),
    "delete_session_path": lambda root: delete_session_path("one", "id", root),
    "export_session": lambda root: export_session("one", "../one.tar.gz", root),
    "import_session": lambda root: import_session("../archive.tar.gz", root),
    "sessions_in": lambda root: sessions_in(SessionsRoot(root)),
    "session_in": lambda root: session_in(SessionsRoot(root), "one"),
    "private_root": lambda root: create_sandbox(workspace="app", private_root=root),
    "the kernel's trait": lambda root: KernelSettings(workspace_root=str(root)).root,
}
WAYS = {"workspace": "../dotssh", "deep/workspace": "../../dotssh", "dangling": "../none"}
WAYS |= {"chain": "workspace", "absolute": ""}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    repository, secret = tmp_path / "repository", tmp_path / "dotssh"
    get_session_sandbox("one", workspace_root=secret).close()
    (secret / "id").write_text("SECRET")
    (secret / "one" / "id").write_text("SECRET")
    export_session("one", tmp_path / "archive.tar.gz", secret)
    (repository / "deep").mkdir(parents=True)
    for name, target in WAYS.items():
        (repository / name).symlink_to(target or secret)
    (repository / "up").symlink_to("..")
    monkeypatch.chdir(repository)
    return repository


@pytest.mark.parametrize("call", CALLS)
def test_f1_a_relative_path_leads_through_no_link(repository: Path, call: str) -> None:
    before = host_tree(repository.parent)
    for root in (*map(Path, WAYS), Path("./workspace"), Path("up/dotssh"), Path("up/none/new")):
        with pytest.raises(PlantedLinkError, match="absolute path") as caught:
            CALLS[call](root)
        assert str(repository.parent) not in str(caught.value)
        assert host_tree(repository.parent) == before, (call, root)


def test_f1_the_defaults_lead_through_no_link(repository: Path) -> None:
    for call in (create_sandbox, create_session_sandbox):
        with pytest.raises(PlantedLinkError):
            call()


@pytest.mark.parametrize("path", ["workspace", "up/dotssh", "absolute"])
def test_f1_a_mount_leads_through_no_link(repository: Path, path: str) -> None:
    policy = ExecutionPolicy(mounts=[f"{path}:/data"])
    with pytest.raises(ValueError, match="/data by a relative path that leads through a link"):
        create_sandbox(workspace="app", policy=policy)
    with pytest.raises(ValueError, match="/data by a relative path that leads through a link"):
        create_session_sandbox(workspace_root="root", policy=policy)


def test_f1_a_link_that_comes_later_is_not_followed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that is swapped in after the check does not matter: the checked folder is opened."""
    (repository / "mine").mkdir()

    def swapped(path: Path | str) -> Path:
        found = real_path(path)
        (repository / "mine").rename(repository / "moved")
        (repository / "mine").symlink_to("../dotssh")
        return found

    monkeypatch.setattr("wasm_kernel.folders.folders.real_path", swapped)
    with pytest.raises(PlantedLinkError):
        SandboxFolders.of_workspace(Path("mine"))


def test_plain_folders_and_absolute_paths_are_opened(repository: Path) -> None:
    create_sandbox(workspace="a/b").close()
    create_sandbox(workspace="deep/../a/./b").close()
    create_sandbox(workspace="../beside").close()
    create_sandbox(workspace=repository / "workspace").close()
    create_session_sandbox(workspace_root=repository / "workspace")[1].close()
    assert read_session_file("one", "id", repository / "absolute") == b"SECRET"
    os.chdir("deep")
    session_id, sandbox = create_session_sandbox(workspace_root="../a/root")
    with sandbox:
        assert sandbox.workspace == Path("../a/root", session_id)
    assert (repository / "a" / "root" / session_id).is_dir()
