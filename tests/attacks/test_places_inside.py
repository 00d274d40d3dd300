"""Private folders of roots on another disk, inside folders that guests are given (case 42)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.beneath import over
from tests.private import far, private_of
from wasm_kernel import BaseSandbox, ExecutionPolicy, create_sandbox, get_session_sandbox
from wasm_kernel.folders import places
from wasm_kernel.folders.hiding import OverlapError


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder, treated as if it lay on another disk than everything else."""
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))

    monkeypatch.setattr(places, "can_link", far(state))
    return state


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


Opening = Callable[[Path], BaseSandbox]


def _mounted(folder: Path) -> BaseSandbox:
    policy = ExecutionPolicy(mounts=[f"{folder}:/m:rw"])
    return create_sandbox(workspace=folder.parent / "app", policy=policy)


def _in_session(folder: Path) -> BaseSandbox:
    return get_session_sandbox(folder.name, workspace_root=folder.parent)


OUTER: dict[str, Opening] = {
    "mount": _mounted,
    "session": _in_session,
    "lone": lambda folder: create_sandbox(workspace=folder),
    "notebook": lambda folder: over(folder, folder.parent.parent / "own" / "sessions"),
}


@pytest.fixture(params=OUTER)
def outer(request: pytest.FixtureRequest, disk: Path) -> Iterator[BaseSandbox]:
    (disk / "outer" / "below").mkdir(parents=True)
    with OUTER[request.param](disk / "outer") as sandbox:
        sandbox.execute("import os; here = '/app'")
        sandbox.execute("for here in ('/m', '/notebook', '/app'):\n  if os.path.isdir(here): break")
        sandbox.execute("early = os.open(here + '/below', os.O_RDONLY)")
        yield sandbox


SEARCH = """
found = []
for top in (here, here + '/below', here + '/below/..'):
    for folder, names, files in os.walk(top):
        found += [os.path.join(folder, name) for name in (*names, *files)]

print([name for name in found if 'wasm-kernel' in name or 'commit' in name])
"""
TRY = """
for act in (os.listdir, os.stat, os.lstat, os.chdir, os.rmdir, lambda p: os.listdir(p + '/.'),
            lambda p: os.rename(p, here + '/taken'),
            lambda p: os.rename(here + '/below', here + '/b'),
            lambda p: os.open(p, os.O_RDONLY), lambda p: os.mkdir(p + '/new'),
            lambda p: os.listdir(os.path.join(p, {key!r}))):
    try:
        print('worked', act({path!r}))
    except OSError:
        pass
try:
    print('worked', os.stat({name!r}, dir_fd=early))
except OSError:
    pass
"""


def _reaches_nothing(
    outer: BaseSandbox, disk: Path, root: Path, private_root: Path | None = None
) -> None:
    with get_session_sandbox("inner", workspace_root=root, private_root=private_root) as inner:
        inner.execute("secret = 'hunter2'")
        _is_hidden(outer, disk, root)
    _is_hidden(outer, disk, root)
    with get_session_sandbox("inner", workspace_root=root) as again:
        assert again.execute("print(secret)").stdout == "hunter2\n"


def _is_hidden(outer: BaseSandbox, disk: Path, root: Path) -> None:
    private = private_of(root / "inner")
    assert outer.execute(SEARCH).stdout == "[]\n"
    place = private.parent
    if place.is_relative_to(disk / "outer"):
        inside = place.relative_to(disk / "outer")
        for here in ("/m", "/notebook", "/app"):
            code = TRY.format(path=f"{here}/{inside}", key=private.name, name=place.name)
            assert outer.execute(code).stdout == ""


def test_no_guest_reaches_private_state_in_its_folder(outer: BaseSandbox, disk: Path) -> None:
    """Private state that would lie in the guest's folder is refused, or hidden from the guest."""
    place = disk / "outer" / "below" / "wasm-kernel"
    _reaches_nothing(outer, disk, disk / "root", private_root=place)
    try:
        _reaches_nothing(outer, disk, disk / "outer" / "below" / "ws")
    except OverlapError as problem:  # a session's workspace holds no root
        assert "can't lie in the workspace of a session" in str(problem)


@pytest.mark.parametrize("kind", ["session", "lone", "root"])
def test_no_private_place_lies_in_workspaces_or_roots(disk: Path, state: Path, kind: str) -> None:
    outer = disk / "outer"
    if kind == "root":
        get_session_sandbox("other", workspace_root=outer).close()
    inside = outer / "below" / "deep" / "app"
    with OUTER[kind](outer) if kind != "root" else nullcontext(), create_sandbox(workspace=inside):
        assert private_of(inside).parent == state / "wasm-kernel" / "private"
    assert not list(outer.rglob("*.wasm-kernel"))


def test_a_guest_that_begins_anew_goes_on_with_its_mounts(disk: Path) -> None:
    (disk / "outer").mkdir()
    with _mounted(disk / "outer") as sandbox:
        sandbox.execute("import os; x = 1")
        place = disk / "outer" / "mine"
        get_session_sandbox("one", workspace_root=disk / "root", private_root=place).close()
        assert sandbox.execute("os._exit(1)").error is not None
        assert sandbox.execute("print(x, os.listdir('/m'))").stdout == "1 []\n"
