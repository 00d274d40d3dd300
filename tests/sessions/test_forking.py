"""Making a fork of what is on disk: of a session named from outside, by a stranger's plan."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.private import private_of
from tests.stored import state_of
from tests.tasks import cancelled_after
from wasm_kernel.errors import ForkError, WasmKernelError
from wasm_kernel.folders.locks import HistoryLock, Resume
from wasm_kernel.linux import files, trees
from wasm_kernel.linux.files import file_identity
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import QUIET
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.forking import ForkSession, fork_session
from wasm_kernel.sessions.lifecycle import delete_session_workspace
from wasm_kernel.sessions.session import Session
from wasm_kernel.state.commits import write_content
from wasm_kernel.state.copying import OpenThere
from wasm_kernel.state.index import Commit, Head, Name, Origin
from wasm_kernel.state.pages import PAGE
from wasm_kernel.state.plan import Plan
from wasm_kernel.state.stored import Position, StoredState, write_state

PLAN = Plan(Position(3, 4, {"early": 3}, (4,)), True, ())


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A session with a file, a scratch file and a commit, as far as files go."""
    session = Session(tmp_path / "sessions", "parent")
    session.closed()
    app = session.workspace
    (app / "data.csv").write_text("1,2\n")
    own = private_of(app)
    (own / "tmp" / "scratch").write_text("x")
    (own / "state" / "contents").mkdir(parents=True)
    (own / "state" / "contents" / ".4.aside").write_text("half a commit")
    with Folder.open(own / "state") as state, state.enter("contents") as contents:
        name, _ = write_content(contents, [bytes([7]) * PAGE])
        commit = Commit(3, 0, 1, 2, "x = 1", 0.0, 9 * PAGE, runs=((1, 1),), content=name)
        other = replace(commit, id=4, parent=3, runs=(), content="")
        write_state(state, "image", [Origin(), commit, other, Name("theirs", 3), Head(3, 3)])
    return app


def stored_in(workspace: Path) -> StoredState:
    with Folder.open(state_of(workspace)) as folder:
        return StoredState.read(folder)


def content_in(parent: Path) -> Path:
    """The only content of the parent's."""
    return state_of(parent) / "contents" / stored_in(parent).commits[3].content


def fork(parent: Path, plan: Any = PLAN, name: str = "fork") -> Path:
    """The workspace of a fork."""
    raw = plan.as_json() if isinstance(plan, Plan) else plan
    assert fork_session(parent.parent, "parent")(ForkSession(name, raw), QUIET).notice == ""
    return parent.parent / name


def test_a_fork_has_copies_of_the_files(parent: Path) -> None:
    made = fork(parent)
    assert (made / "data.csv").read_text() == "1,2\n"
    assert (private_of(made) / "tmp" / "scratch").read_text() == "x"
    (made / "data.csv").write_text("")
    assert (parent / "data.csv").read_text() == "1,2\n"


def test_a_fork_that_is_not_wanted_any_more_leaves_nothing(parent: Path) -> None:
    with pytest.raises(ForkError, match=r"it was interrupted.*Nothing of it is left"):
        fork_session(parent.parent, "parent")(
            ForkSession("fork", PLAN.as_json()), cancelled_after(1)
        )
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]


_KILLED = """
import json, os, pathlib, sys
from wasm_kernel.linux.task import QUIET
from wasm_kernel.sessions import staging
from wasm_kernel.sessions.forking import ForkSession, fork_session
staging.settle = lambda *given: os.kill(os.getpid(), 9)
request = ForkSession("fork", json.loads(sys.argv[2]))
fork_session(pathlib.Path(sys.argv[1]), "parent")(request, QUIET)
"""


def test_who_is_killed_in_the_midst_leaves_no_session(parent: Path) -> None:
    words = [str(parent.parent), json.dumps(PLAN.as_json())]
    done = subprocess.run([sys.executable, "-c", _KILLED, *words], check=False)
    assert done.returncode == -9
    left = [path.name for path in parent.parent.iterdir()]
    assert len(left) == 2
    assert "fork" not in left
    fork(parent)
    delete_session_workspace("fork", parent.parent)
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]


def test_a_fork_is_a_session_of_its_own(parent: Path) -> None:
    made = fork(parent)
    assert '"fork"' in (made / ".metadata.json").read_text()
    assert Session(parent.parent, "fork").made is False


def test_a_fork_shares_the_commits_and_nothing_else_of_the_history(parent: Path) -> None:
    made = fork(parent)
    assert {path.name for path in state_of(made).iterdir()} == {"index", "contents"}
    (content,) = (state_of(made) / "contents").iterdir()
    assert content.samefile(content_in(parent))
    stored = stored_in(made)
    assert (stored.image, stored.commits) == ("image", stored_in(parent).commits)
    assert stored.position == PLAN.mark
    assert stored.origin == Origin(4, True, {})


def test_a_fork_waits_for_its_first_kernel(parent: Path) -> None:
    claim = HistoryLock(Folder.open(private_of(fork(parent))))
    claim.take()
    assert claim.wants(Resume.CRASH)
    assert not claim.wants(Resume.NEVER)
    claim.settled()
    claim.release()
    claim.take()
    assert not claim.wants(Resume.CRASH)
    claim.release()


def test_open_files_are_called_as_their_copies(parent: Path) -> None:
    here = file_identity(str(parent / "data.csv"))
    inventory = (
        OpenThere("written", here, "/app", "data.csv"),
        OpenThere("replaced", "another", "/app", "data.csv"),
        OpenThere("mounted", "mounted", "/data", "data.csv"),
    )
    made = fork(parent, Plan(PLAN.mark, False, inventory))
    assert stored_in(made).origin.files == {
        "written": file_identity(str(made / "data.csv")),
        "replaced": "gone",
    }


@pytest.mark.parametrize("path", ["../other/secret", "a/../../other/secret", ".."])
def test_a_plan_can_not_ask_about_files_elsewhere(parent: Path, path: str) -> None:
    other = parent.parent / "other"
    other.mkdir()
    (other / "secret").touch()
    known = file_identity(str(other / "secret"))
    made = fork(parent, Plan(PLAN.mark, False, (OpenThere("x", known, "/app", path),)))
    assert stored_in(made).origin.files == {"x": "gone"}


@pytest.mark.parametrize("name", ["parent", "other"])
def test_no_session_that_is_there_is_touched(parent: Path, name: str) -> None:
    other = Session(parent.parent, "other")
    (other.workspace / "mine").write_text("mine")
    before = sorted(path.name for path in (parent.parent / name).rglob("*"))
    with pytest.raises(ForkError, match="a session of that id already"):
        fork(parent, name=name)
    assert sorted(path.name for path in (parent.parent / name).rglob("*")) == before


@pytest.mark.parametrize("name", ["", "../x", "/etc", ".hidden", "a/b", "x" * 65])
def test_an_id_that_is_none_is_refused(parent: Path, name: str) -> None:
    with pytest.raises(WasmKernelError):
        fork(parent, name=name)
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]


@pytest.mark.parametrize(
    "plan",
    [
        {},
        [],
        {"mark": 3},
        {"mark": {}, "reseed": True, "inventory": []},
        {**PLAN.as_json(), "inventory": [["too", "short"]]},
        {**PLAN.as_json(), "inventory": 3},
        {**PLAN.as_json(), "mark": {"at": 1e999, "after": 1, "names": {}, "undone": []}},
        {**PLAN.as_json(), "mark": {"at": "x", "after": 1, "names": {}, "undone": []}},
        {**PLAN.as_json(), "mark": {"at": 1, "after": 1, "names": [], "undone": []}},
    ],
)
def test_a_plan_that_is_none_is_refused(parent: Path, plan: Any) -> None:
    with pytest.raises(ForkError, match="can't be read"):
        fork(parent, plan)
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]


def test_a_plan_survives_the_way_between_processes() -> None:
    plan = Plan(PLAN.mark, False, (OpenThere("a", "b", "/app", "x/y"),))
    assert Plan.from_json(plan.as_json()) == plan


@pytest.mark.parametrize("place", [".", "tmp", "state", "state/contents"])
def test_a_private_folder_that_is_a_link_leads_nowhere(
    parent: Path, tmp_path: Path, place: str
) -> None:
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
def test_what_is_no_file_among_the_contents_is_refused(
    parent: Path, tmp_path: Path, kind: str
) -> None:
    """F11: a pipe held whoever read it."""
    (tmp_path / "secret").write_text("secret")
    place = content_in(parent)
    place.unlink()
    if kind == "link":
        place.symlink_to(tmp_path / "secret")
    else:
        os.mkfifo(place)
    with pytest.raises(ForkError, match="not a regular file"):
        fork(parent)
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_among_the_contents_is_not_copied_either(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def no_links(*args: object, **options: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    (tmp_path / "secret").write_text("secret")
    place = content_in(parent)
    place.unlink()
    if kind == "link":
        place.symlink_to(tmp_path / "secret")
    else:
        os.mkfifo(place)
    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(ForkError):
        fork(parent)
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]


def test_a_full_disk_leaves_nothing_behind(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.FileCopier, "copy", full)
    with pytest.raises(ForkError, match="No space left on device"):
        fork(parent)
    assert [path.name for path in parent.parent.iterdir()] == ["parent"]


def test_what_is_left_out_is_told(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refused(path: Any, *args: Any, **options: Any) -> int:
        if path == "data.csv":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", refused)
    request = ForkSession(ids.new(), PLAN.as_json())
    notice = fork_session(parent.parent, "parent")(request, QUIET).notice
    assert "1 of the parent's files are not in this fork: 'data.csv' (Permission denied)" in notice


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
        assert stored_in(made).position == PLAN.mark, number
        assert (made / "data.csv").read_text() == "1,2\n", number
        if left > 0:
            break
        trees.remove_tree(made)
    assert number > 12
