"""Forks from the disk, of a session named from outside; its files are taken as a stranger's."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.faces import open_files
from tests.private import private_of
from tests.tasks import cancelled_after
from wasm_kernel.errors import ForkError, WasmKernelError
from wasm_kernel.linux import trees
from wasm_kernel.linux.files import file_identity
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import QUIET
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.disk_use import DiskUse
from wasm_kernel.sessions.family import ForkLimits
from wasm_kernel.sessions.forking import ForkSession, ForkSessionReply, fork_session
from wasm_kernel.sessions.removal import delete_session_workspace
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session
from wasm_kernel.state.commits import CONTENTS, write_content
from wasm_kernel.state.index import Commit, ForkOrigin
from wasm_kernel.state.stored import StoredState, write_state
from wasm_kernel.state.tree import Tree
from wasm_kernel.wasi_files.open_files import OpenFile

IMAGE = "an image"
WHERE = (3, 4, {"early": 3}, (4,))


def save(workspace: Path, *opened: OpenFile) -> None:
    """Gives a session two states, the first of which had files open."""
    with Folder.open(private_of(workspace)) as private, private.enter("state", make=True) as state:
        with state.enter(CONTENTS, make=True) as contents:
            name, _ = write_content(contents, [bytes([7]) * 4096])
        first = Commit(3, 0, 1, 2, "x = 7", 0.0, 4096, runs=((0, 1),), files=opened, content=name)
        commits = {3: first, 4: Commit(4, 3, 2, 3, "del x", 0.0, 4096, zeros=((0, 1),))}
        write_state(state, IMAGE, Tree(commits, 3, {"early": 3}, (4,), 4))


def saved(workspace: Path) -> StoredState:
    """The content of a session's index."""
    with Folder.open(private_of(workspace) / "state") as state:
        return StoredState.read(state)


def where(workspace: Path) -> tuple[object, ...]:
    """The position in a session's index."""
    tree = saved(workspace).tree
    return tree.head, tree.last, tree.names, tree.undone


def contents_of(workspace: Path) -> Path:
    return private_of(workspace) / "state" / CONTENTS


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A session with a file, one in `/tmp`, one of a package, and two states."""
    session = Session(SessionsRoot(tmp_path / "sessions"), "parent")
    session.closed()
    app = session.workspace
    (app / "data.csv").write_text("1,2\n")
    (private_of(app) / "tmp" / "scratch").write_text("x")
    (private_of(app) / "packages" / "one.py").write_text("x")
    save(app)
    (contents_of(app) / ".5.aside").write_text("half a content")
    return app


def forking(parent: Path, limits: ForkLimits | None = None) -> Callable[..., ForkSessionReply]:
    """The function that makes forks of a session."""
    root = SessionsRoot(parent.parent)
    policy = None if limits is None else cast("ExecutionPolicy", limits)
    return fork_session(root, root.lineage_below(parent.name), policy)


def fork(parent: Path, name: str = "fork", *, reseed: bool = True) -> Path:
    """The workspace of a fork."""
    assert forking(parent)(ForkSession(name, reseed), QUIET).notice == ""
    return parent.parent / name


def test_forks_that_are_not_wanted_or_killed_leave_no_session(parent: Path) -> None:
    with pytest.raises(ForkError, match=r"it was interrupted.*Nothing of it is left"):
        forking(parent)(ForkSession("fork", reseed=True), cancelled_after(1))
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]
    done = subprocess.run([sys.executable, "-c", _KILLED, str(parent.parent)], check=False)
    assert done.returncode == -9
    left = [path.name for path in parent.parent.iterdir()]
    assert len(left) == 2
    assert "fork" not in left
    fork(parent)
    delete_session_workspace("fork", parent.parent)
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]


_KILLED = """
import os, sys
from wasm_kernel.linux.task import QUIET
from wasm_kernel.sessions import staging
from wasm_kernel.sessions.forking import ForkSession, fork_session
from wasm_kernel.sessions.metadata import Lineage
from wasm_kernel.sessions.root import SessionsRoot
staging.publish = lambda *given: os.kill(os.getpid(), 9)
lineage = Lineage("parent", "parent")
fork_session(SessionsRoot(sys.argv[1]), lineage)(ForkSession("fork", True), QUIET)
"""


def test_a_fork_has_contents_and_an_index_of_its_own(parent: Path) -> None:
    made = fork(parent)
    [content] = contents_of(made).iterdir()
    assert content.stat().st_nlink == 1
    assert content.read_bytes() == (contents_of(parent) / content.name).read_bytes()
    before, after = saved(parent), saved(made)
    assert (after.tree.commits, where(made), after.image) == (before.tree.commits, WHERE, IMAGE)
    assert after.tree.origin == ForkOrigin(4, True, {})
    assert after.reading.salt != before.reading.salt
    assert (private_of(made) / "tmp" / "scratch").read_text() == "x"
    assert (private_of(made) / "packages" / "one.py").read_text() == "x"


def opened(identities: Sequence[tuple[str, str, str]]) -> list[OpenFile]:
    """Open files, by identity, guest's folder, and path there."""
    numbered = enumerate(identities, start=9)
    return [OpenFile(fd, guest, path, 0, 0, 0, 0, one) for fd, (one, guest, path) in numbered]


def test_open_files_are_called_as_their_copies(parent: Path) -> None:
    here = file_identity(str(parent / "data.csv"))
    there = [(here, "/app", "data.csv"), ("another", "/app", "data.csv"), ("m", "/data", "x")]
    save(parent, *opened(there))
    made = fork(parent, reseed=False)
    names = {here: file_identity(str(made / "data.csv")), "another": "gone"}
    assert saved(made).tree.origin == ForkOrigin(4, False, names)


@pytest.mark.parametrize("path", ["../other/secret", "a/../../other/secret", ".."])
def test_an_index_can_not_ask_about_files_elsewhere(parent: Path, path: str) -> None:
    other = parent.parent / "other"
    other.mkdir()
    (other / "secret").touch()
    known = file_identity(str(other / "secret"))
    save(parent, *opened([(known, "/app", path)]))
    assert saved(fork(parent)).tree.origin.files == {known: "gone"}


@pytest.mark.parametrize("name", ["parent", "other"])
def test_no_session_that_is_there_is_touched(parent: Path, name: str) -> None:
    other = Session(SessionsRoot(parent.parent), "other")
    (other.workspace / "mine").write_text("mine")
    before = sorted(path.name for path in (parent.parent / name).rglob("*"))
    with pytest.raises(ForkError, match="a session of that id already"):
        fork(parent, name=name)
    assert sorted(path.name for path in (parent.parent / name).rglob("*")) == before
    other.closed()


@pytest.mark.parametrize("damage", ["missing", "a record flipped", "no content", "short"])
def test_a_history_that_is_not_whole_is_not_forked(parent: Path, damage: str) -> None:
    index = private_of(parent) / "state" / "index"
    [content] = [path for path in contents_of(parent).iterdir() if path.name[0] != "."]
    data = index.read_bytes()
    match damage:
        case "missing":
            index.unlink()
        case "a record flipped":
            at = data.index(b"x = 7")
            index.write_bytes(data[:at] + b"y" + data[at + 1 :])
        case "no content":
            content.unlink()
        case "short":
            content.chmod(0o600)
            os.truncate(content, 99)
    with pytest.raises(ForkError):
        fork(parent)
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]


@pytest.mark.parametrize("place", [".", "tmp", "state"])
def test_link_for_a_private_folder_leads_nowhere(parent: Path, tmp_path: Path, place: str) -> None:
    for name in ("tmp", "state"):
        (tmp_path / "secret" / name).mkdir(parents=True)
        (tmp_path / "secret" / name / "key").write_text("secret")
    (tmp_path / "secret" / "scratch").write_text("secret")
    planted = (private_of(parent) / place).resolve()
    planted.rename(tmp_path / "aside")
    planted.symlink_to(tmp_path / "secret")
    try:
        made = private_of(fork(parent))
    except ForkError:
        assert [path.name for path in parent.parent.iterdir()] == ["parent"]
    else:
        assert not [path for path in made.rglob("*") if path.name in ("scratch", "key")]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_pipe_among_the_commits_is_refused(parent: Path, tmp_path: Path, kind: str) -> None:
    """F11. Formerly, a pipe blocked its reader."""
    (tmp_path / "secret").write_text("secret")
    [place] = [path for path in contents_of(parent).iterdir() if path.name[0] != "."]
    place.unlink()
    if kind == "link":
        place.symlink_to(tmp_path / "secret")
    else:
        os.mkfifo(place)
    with pytest.raises(ForkError, match="not a regular file"):
        fork(parent)
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]


def test_files_that_forks_leave_out_are_told(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refused(path: Any, *args: Any, **options: Any) -> int:
        if path == "data.csv":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", refused)
    request = ForkSession(ids.new(), reseed=True)
    told = forking(parent)(request, QUIET).notice
    assert "1 of the parent's files are not in this fork: 'data.csv' (Permission denied)" in told


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the limits of a policy, which could not be as small."""
    monkeypatch.setattr(ForkLimits, "of", lambda limits: limits)


def use_of(workspace: Path) -> DiskUse:
    with Folder.open(workspace) as here, Folder.open(private_of(workspace)) as private:
        return DiskUse.measure(here, private)


def refused(
    parent: Path, limits: ForkLimits, match: str = "Delete forks that you no longer need"
) -> None:
    """Checks that a fork is refused and leaves no trace."""
    before = sorted(parent.parent.iterdir())
    with pytest.raises(ForkError, match=match):
        forking(parent, limits)(ForkSession(ids.new(), reseed=True), QUIET)
    assert sorted(parent.parent.iterdir()) == before


def test_all_forks_of_a_family_have_the_limits_of_one_session(parent: Path) -> None:
    (parent / "large").write_bytes(bytes(1024 * 1024))
    limits = ForkLimits(use_of(parent).total * 5 // 2, 1000)
    first, second = (parent.parent / ids.new() for _ in range(2))
    forking(parent, limits)(ForkSession(first.name, reseed=True), QUIET)
    forking(first, limits)(ForkSession(second.name, reseed=True), QUIET)
    for each in (parent, first, second):
        refused(
            each, limits, match=r"may take 2\.\d MiB and 1,000 files on disk together.*3\.\d MiB"
        )
    delete_session_workspace(first.name, parent.parent)
    delete_session_workspace("parent", parent.parent)
    third = fork(second)
    refused(third, limits)
    other = Session(SessionsRoot(parent.parent), "other")  # a session without a family
    other.closed()
    save(other.workspace)
    (other.workspace / "large").write_bytes(bytes(4 * 1024 * 1024))
    forking(other.workspace, limits)(ForkSession(ids.new(), reseed=True), QUIET)
    refused(other.workspace, limits)


def test_forks_of_very_many_small_files_are_bounded_too(parent: Path) -> None:
    limits = ForkLimits(10**9, use_of(parent).names * 5 // 2)
    forking(parent, limits)(ForkSession(ids.new(), reseed=True), QUIET)
    forking(parent, limits)(ForkSession(ids.new(), reseed=True), QUIET)
    refused(parent, limits)


def test_a_process_that_was_taken_over_does_not_leave_its_family(parent: Path) -> None:
    made = fork(parent, ids.new())
    make = forking(made, ForkLimits(1, 1))
    (made / ".metadata.json").unlink()
    with pytest.raises(ForkError, match="Delete forks"):
        fork(parent, ids.new())
        make(ForkSession(ids.new(), reseed=True), QUIET)


def test_forks_that_are_made_at_once_are_counted_one_after_the_other(parent: Path) -> None:
    fork(parent, ids.new())
    (parent / "large").write_bytes(bytes(1024 * 1024))
    limits = ForkLimits(use_of(parent).total * 5 // 2, 1000)

    def make(_: int) -> bool:
        try:
            forking(parent, limits)(ForkSession(ids.new(), reseed=True), QUIET)
        except ForkError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(make, range(8))) == 2


@pytest.mark.parametrize("looks", [0, 2])  # before the copying, and after it
def test_no_fork_fills_a_disk(parent: Path, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """Formerly, `fork(1000)` filled the disk."""
    sizes = itertools.chain([2**40] * looks, itertools.repeat(2**27))
    there = lambda folder: SimpleNamespace(f_bavail=next(sizes), f_frsize=1)  # noqa: E731
    monkeypatch.setattr(os, "statvfs", there)
    with pytest.raises(ForkError, match=r"less than 256\.0 MiB left.*Nothing.*Delete"):
        fork(parent)
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]


def test_a_disk_that_fails_at_any_operation_leaves_a_whole_fork_or_none(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parent / "folder").mkdir()
    (parent / "folder" / "link").symlink_to("nowhere")
    os.mkfifo(parent / "pipe")
    left = 0

    def failing(name: str) -> Any:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            nonlocal left
            if name != "open" or args[1] & os.O_CREAT:
                left -= 1
                if left == 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **options)

        return call

    for name in ("open", "mkdir", "link", "symlink", "mkfifo", "ftruncate", "utime", "rename"):
        monkeypatch.setattr(os, name, failing(name))
    for number in range(1, 200):
        left = number
        try:
            made = fork(parent, name="fork")
        except WasmKernelError:
            assert [path.name for path in parent.parent.iterdir()] == ["parent"], number
            continue
        assert (made / "folder" / "link").is_symlink(), number
        assert where(made) == WHERE, number
        assert (made / "data.csv").read_text() == "1,2\n", number
        if left > 0:
            break
        trees.remove_tree(made)
    assert number > 12
    assert [path for path in open_files() if "/.removed-" in path] == []
