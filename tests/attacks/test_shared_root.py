"""A guest's folder is or holds a root of sessions, in either order: cases 39 and 42."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.test_places_inside import OUTER, Opening
from tests.faces import A_UUID, host_tree
from wasm_kernel import (
    BaseSandbox,
    ExecutionPolicy,
    PolicyError,
    create_sandbox,
    create_session_sandbox,
    get_session_sandbox,
)
from wasm_kernel.folders.hiding import OverlapError
from wasm_kernel.policy import Mount
from wasm_kernel.sessions import ids

UUID = ids.new()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shared") / "workspace"
    for name in ("named", UUID):
        with get_session_sandbox(name, workspace_root=root) as sandbox:
            sandbox.execute("open('secret', 'w').write('SECRET'); x = 1")
    (root / "copied").mkdir()
    (root / "copied" / ".metadata.json").write_text("{}")
    (root / "copied" / "secret").write_text("SECRET")
    (root / "below").mkdir()
    with get_session_sandbox("deep", workspace_root=root / "below") as sandbox:
        sandbox.execute("open('secret', 'w').write('SECRET')")
    (root / "mine" / UUID).mkdir(parents=True)
    (root / "mine" / "file").write_text("mine")
    return root


@pytest.fixture(scope="module")
def whole(root: Path) -> Iterator[BaseSandbox]:
    with create_sandbox(workspace=root) as sandbox:
        yield sandbox


def test_a_guest_on_the_root_sees_no_session(whole: BaseSandbox, root: Path) -> None:
    code = "import os\nprint(sorted(p[0] + '/' + n for p in os.walk('/app') for n in p[1] + p[2]))"
    assert whole.execute(code).stdout == f"['/app/mine', '/app/mine/{UUID}', '/app/mine/file']\n"


WAYS = ["{}", "up/{}", "up/mine/../{}", "link-{}", "mine/link-{}"]
ACTS = [
    "os.listdir({0!r})",
    "os.stat({0!r})",
    "open({0!r} + '/secret').read()",
    "open({0!r} + '/new', 'w')",
    "os.mkdir({0!r} + '/new')",
    "os.rename({0!r}, 'taken')",
    "os.symlink('x', {0!r} + '/new')",
    "os.link({0!r} + '/secret', 'taken')",
    "os.unlink({0!r} + '/secret')",
    "os.rmdir({0!r})",
]


ITSELF = ("os.lstat", "os.rename", "os.rmdir")
TRY = """
for act in {!r}:
    try:
        eval(act)
        print("worked:", act)
    except OSError as problem:
        print(type(problem).__name__)
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_guest_on_the_root_reaches_no_session(whole: BaseSandbox, root: Path, way: str) -> None:
    before = host_tree(root)
    whole.execute("import os; os.symlink('.', 'up'); os.symlink('..', 'mine/up')")
    for name in ("named", UUID, "copied", "below/deep"):
        links = f"link-{name}".replace("/", "-")
        target = way.format(name)
        if "link-" in way:
            target = way.replace("link-{}", links)
            above = "" if way.startswith("link") else "../"
            whole.execute(f"os.symlink({above + name!r}, {target!r})")
        acts = [act.format(target) for act in ACTS]
        if "link" in way:  # the link itself belongs to the guest
            acts = [act for act in acts if not act.startswith(ITSELF)]
        told = whole.execute(TRY.format(acts)).stdout
        assert set(told.split()) <= {"FileNotFoundError", "NotADirectoryError"}, (target, told)
    for link in (root / "up", root / "mine" / "up", *root.rglob("link-*")):
        link.unlink(missing_ok=True)
    assert host_tree(root) == before


@pytest.mark.parametrize(
    "name",
    [
        A_UUID,
        A_UUID.upper(),
        f"{A_UUID}. ",
        ".wasm_kernel-removed-x-01234567",
        "mine/.wasm_kernel-removed-x-01234567",
        ".metadata.json",
        "mine/.metadata.json",
    ],
)
def test_a_guest_on_the_root_makes_nothing_that_is_taken_for_a_session(
    whole: BaseSandbox, root: Path, name: str
) -> None:
    whole.execute("import os; os.mkdir('folder'); open('file', 'w').close()")
    for act in (
        "os.mkdir({!r})",
        "open({!r}, 'w')",
        "os.rename('folder', {!r})",
        "os.rename('file', {!r})",
        "os.link('file', {!r})",
        "os.symlink('folder', {!r})",
    ):
        assert whole.execute(act.format(name)).error is not None, act
    assert not (root / name).exists()
    assert whole.execute("open('still', 'w').write('works')").error is None
    whole.execute("os.rmdir('folder'); os.remove('file'); os.remove('still')")


def test_sessions_that_begin_later_are_hidden_at_once(whole: BaseSandbox, root: Path) -> None:
    whole.execute("import os; print(os.listdir('/app'))")
    session_id, sandbox = create_session_sandbox(workspace_root=root)
    with sandbox, get_session_sandbox("other", workspace_root=root) as other:
        other.execute("open('secret', 'w').write('x')")
        told = whole.execute("print(sorted(os.listdir('/app')))").stdout
        assert told == "['mine']\n"
        assert whole.execute("open('/app/other/secret')").error is not None
        assert whole.execute(f"os.listdir('/app/{session_id}')").error is not None


def test_a_folder_becomes_no_session_or_else_is_closed(whole: BaseSandbox, root: Path) -> None:
    for name in ("mine/copy", "later"):
        (root / name).mkdir()
        (root / name / "secret").write_text("SECRET")
    (root / "mine" / "copy" / ".metadata.json").write_text("{}")
    read = "os.read(os.open('secret', os.O_RDONLY, dir_fd=later), 9)"
    code = f"import os; later = os.open('later', os.O_RDONLY); print({read})"
    assert whole.execute(code).stdout == "b'SECRET'\n"
    assert whole.execute("os.rename('mine/copy', 'now')").error is not None
    (root / "later" / ".metadata.json").write_text("{}")
    for act in (read, "os.stat('secret', dir_fd=later)", "os.mkdir('new', dir_fd=later)"):
        assert whole.execute(act).error is not None, act
    for name in ("mine/copy", "later"):
        shutil.rmtree(root / name)


def test_hidden_files_do_not_count(root: Path) -> None:
    (root / "named" / "large").write_bytes(bytes(100_000))
    with create_sandbox(workspace=root, policy=ExecutionPolicy(workspace_bytes=50_000)) as sandbox:
        result = sandbox.execute("open('file', 'wb').write(bytes(40_000))")
        assert result.error is None
        assert result.files_created == ("file",)


SEE = """
import os
found = [os.path.join(folder, name) for top in ('/app', '/m', '/notebook') if os.path.isdir(top)
         for folder, names, files in os.walk(top) for name in (*names, *files)]
print([name for name in found if 'secret' in name or 'metadata' in name])
"""
REACH = """
for top in ('/app', '/m', '/notebook'):
    for act in (os.listdir, os.stat, os.rmdir, lambda p: os.rename(p, top + '/stolen'),
                lambda p: open(p + '/planted', 'w'), lambda p: os.listdir(p + '/../nested')):
        try:
            act(top + '/nested')
            print('reached', top, act)
        except OSError:
            pass
"""
EARLY = """
import os
places = [top + '/nested' for top in ('/app', '/m', '/notebook')
          if os.path.isdir(top + '/nested')]
early = [os.open(place, os.O_RDONLY) for place in places]
"""
LATE = "print([os.listdir(fd) for fd in early])"
KINDS = ("session", "mount", "notebook")
OPENINGS = [OUTER[kind] for kind in KINDS]


@pytest.fixture
def outer(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "aaa"
    (folder / "nested").mkdir(parents=True)
    return folder


def inhabit(outer: Path) -> str:
    """Make a session in a root that lies in the outer folder."""
    name, sandbox = create_session_sandbox(workspace_root=outer / "nested")
    with sandbox:
        (sandbox.workspace / "secret").touch()
    return name


@pytest.mark.parametrize("opening", OPENINGS, ids=KINDS)
def test_a_guest_reaches_no_session_whenever_it_comes(outer: Path, opening: Opening) -> None:
    """Formerly, the outer guest saw the session in its workspace, and could rename it."""
    name = inhabit(outer)
    with opening(outer) as sandbox:
        assert sandbox.execute(SEE).stdout == "[]\n"
        assert sandbox.execute(REACH).stdout == ""
    assert (outer / "nested" / name / "secret").exists()
    with opening(outer) as sandbox:
        assert sandbox.execute(EARLY).success
        try:
            name = inhabit(outer)
        except OverlapError:
            return  # a root inside a session's workspace is refused
        assert sandbox.execute(SEE).stdout == "[]\n"
        assert sandbox.execute(REACH).stdout == ""
        assert name not in sandbox.execute(LATE).stdout
    assert (outer / "nested" / name / "secret").exists()


@pytest.mark.parametrize("place", [".", "NAME", "NAME/sub", "plain"])
def test_no_mount_is_a_root_of_sessions_or_lies_in_one(tmp_path: Path, place: str) -> None:
    """Formerly, a cell listed the folders of other sessions, and could write to them."""
    root = tmp_path / "theirs"
    name, sandbox = create_session_sandbox(workspace_root=root)
    with sandbox:
        (sandbox.workspace / "sub").mkdir()
    (root / "plain").mkdir()
    folder = root / place.replace("NAME", name)
    with pytest.raises(PolicyError, match="root of sessions"):
        create_sandbox(
            workspace=tmp_path / "w", policy=ExecutionPolicy(mounts=(Mount(folder, "/m"),))
        )
    assert not (tmp_path / "w").exists()
