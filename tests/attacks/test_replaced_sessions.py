"""A process deletes a session while another one deletes it and begins a session of the same id.

The tests force the interleaving. The new session may be open already and still be empty: it must
not be deleted or renamed, and no process gets a private folder without a session.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.private import private_of
from wasm_kernel import delete_session_workspace
from wasm_kernel.folders import locks
from wasm_kernel.folders.locks import is_used
from wasm_kernel.folders.private import PrivateFolders, discard
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.locks import try_lock
from wasm_kernel.sessions import metadata, removal, staging
from wasm_kernel.sessions.removal import ASKED, Deleter
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

ID = "abc-123"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def once_before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Any) -> None:
    """Do something just before a function is called for the first time."""
    real = getattr(owner, name)

    def called(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        act()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, called)


POINTS = [(PrivateFolders, "open"), (PrivateFolders, "find"), (removal, "exclusively")]


@pytest.mark.parametrize(("owner", "name"), POINTS, ids=[name for _, name in POINTS])
@pytest.mark.parametrize("files", [(), ("kept",)], ids=["empty", "with a file"])
def test_a_session_begun_during_a_deletion_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, files: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = tmp_path / "sessions"
    Session(SessionsRoot(root), ID).closed()
    if name == "open":
        discard(private_of(root / ID))  # a session of a copied root has no private folder
    begun: list[Session] = []

    def another() -> None:
        delete_session_workspace(ID, root)
        begun.append(Session(SessionsRoot(root), ID))
        for file in files:
            (root / ID / file).write_text(file)

    with Folder.open(root) as top:
        once_before(monkeypatch, owner, name, another)
        with pytest.raises(FileNotFoundError):
            Deleter(SessionsRoot(root), top).delete(ID, ASKED)
    (session,) = begun
    assert not session.folders.removed
    assert session.folders.private.path.exists()
    assert names(root) == [ID]
    assert names(root / ID) == [metadata.NAME, *files]
    others = [path.name for path in session.folders.private.path.parent.iterdir()]
    assert [one for one in others if one.startswith(ID)] == [session.folders.private.path.name]
    session.closed()


def test_a_folder_that_is_swapped_at_the_last_moment_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own `mv`, which takes no lock, swaps the folder."""
    Session(SessionsRoot(tmp_path), ID).closed()

    def swap() -> None:
        (tmp_path / ID).rename(tmp_path / "moved")
        (tmp_path / ID).mkdir()
        (tmp_path / ID / "file").write_text("kept")

    once_before(monkeypatch, removal, "aside_name", swap)
    delete_session_workspace(ID, tmp_path)
    assert (tmp_path / ID / "file").read_text() == "kept"
    assert names(tmp_path) == [ID, "moved"]
    assert (tmp_path / "moved" / metadata.NAME).exists()


def test_no_session_begins_in_a_folder_that_is_deleted_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that can't be renamed keeps its session's name and its lock until it is gone."""
    Session(SessionsRoot(tmp_path), ID).closed()
    seen = []

    def look() -> None:
        with Folder.open(tmp_path / ID) as workspace:
            found = PrivateFolders(tmp_path).find(ID, workspace)
        assert found is not None
        with found:
            seen.append(is_used(found))

    monkeypatch.setattr(locks, "_ASKING_SECONDS", 0.1)
    monkeypatch.setattr(removal, "_set_aside", lambda root, name, workspace: name)
    once_before(monkeypatch, removal, "_delete", look)
    delete_session_workspace(ID, tmp_path)
    assert seen == [True]
    assert names(tmp_path) == []


def test_an_arriving_session_takes_no_name_that_was_just_taken(tmp_path: Path) -> None:
    """An import or a fork: renaming a folder over an empty one would delete the empty one."""
    for name in ("aside", ID):
        (tmp_path / name).mkdir()
    before = (tmp_path / ID).stat().st_ino
    with Folder.open(tmp_path) as root:
        assert not staging.publish(root, "aside", ID)
    assert (tmp_path / ID).stat().st_ino == before
    assert names(tmp_path) == [ID, "aside"]


def new_session(root: Path) -> None:
    Session(SessionsRoot(root), ID).closed()


def arrived_session(root: Path) -> None:
    """Make a session like an import or a fork."""
    with staging.new_session(SessionsRoot(root), ID):
        pass


MAKERS = [new_session, arrived_session]


@pytest.mark.parametrize("make", MAKERS)
def test_a_session_is_not_emptied_by_a_removal_that_saw_it_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    """The removal opens the folder under its first name, and locks it when it has its last one."""
    seen, made = threading.Event(), threading.Event()

    def finish() -> None:
        with Folder.open(tmp_path) as top:
            removal.finish_removals(top)

    def wait() -> None:
        seen.set()
        assert made.wait(30)

    def begin() -> None:
        finishing.start()
        assert seen.wait(30)

    finishing = threading.Thread(target=finish)
    once_before(monkeypatch, removal, "wait_lock", wait)
    once_before(monkeypatch, staging, "publish", begin)
    make(tmp_path)
    made.set()
    finishing.join()
    assert names(tmp_path) == [ID]
    assert names(tmp_path / ID) == [metadata.NAME]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("done", [True, False], ids=["deleted", "being deleted"])
def test_a_session_is_made_although_a_removal_takes_its_folder_for_a_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, done: bool
) -> None:
    """Here the removal locks the folder first."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = tmp_path / "sessions"
    root.mkdir()
    with ExitStack() as held:
        top = held.enter_context(Folder.open(root))

        def finish() -> None:
            if done:
                removal.finish_removals(top)
            else:
                (aside,) = names(root)
                assert try_lock(held.enter_context(top.enter(aside)).fd)

        once_before(monkeypatch, staging, "try_lock", finish)
        make(root)
        assert len(names(root)) == (1 if done else 2)
    with Folder.open(root) as top:
        removal.finish_removals(top)
    assert names(root) == [ID]
    assert names(root / ID) == [metadata.NAME]
