"""Workspaces that a stranger filled before they were opened, and leftovers of an older version.

F1, F4, cases 39 to 42: whatever lies in a workspace, nothing outside is read, written, made or
removed, and no private state lies in a folder that a guest is given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.beneath import over
from tests.faces import error_of, host_tree, says
from tests.private import private_folders, private_of
from tests.sampled import sampled
from wasm_kernel import (
    BaseSandbox,
    ExecutionPolicy,
    WorkspaceError,
    create_sandbox,
    create_session_sandbox,
    delete_session_workspace,
    export_session,
    get_session_sandbox,
    list_session_files,
    prune_sessions,
    read_session_file,
)
from wasm_kernel.sessions import ids

ID = "planted"
OLD = ("", "/tmp", "/packages", "/files", "/loose", "/history", "/state", "/lock", "/present")
NAMES = [
    *(f".wasm_kernel{name}" for name in OLD),
    *("tmp", "packages", "state", "history", "files", "loose", "lock", "present"),
    *("record.json", "metadata.spare", "output-1-stdout.txt", ".metadata.json"),
    *(".metadata.json~write-0123456789abcdef", ".metadata.json~open-0123456789abcdef"),
]
USE = """
import os
for top in ('/tmp', '/app', '/usr/local/lib/python3.15', '/notebook'):
    for name in os.listdir(top) if os.path.isdir(top) else ():
        assert name not in ('key', '.bashrc', '123'), (top, name)
        try: assert top == '/app' or 'SECRET' not in open(f'{top}/{name}').read(), (top, name)
        except OSError: pass
open('/tmp/planted', 'w').write('x')
open('/app/made', 'w').write('y' * 100)
opened = open('/app/gone', 'w+'); opened.write('z'); opened.flush(); os.unlink('/app/gone')
os.rename('/app/made', '/app/made2'); os.unlink('/app/made2')
print('x' * 1000)
"""


def _folder(place: Path, outside: Path) -> None:
    place.mkdir()
    (place / "123").symlink_to(outside / "123")
    (place / ".bashrc").symlink_to(outside / ".bashrc")


Plant = Callable[[Path, Path], None]
KINDS: dict[str, Plant] = {
    "folder link": lambda place, outside: place.symlink_to(outside),
    "file link": lambda place, outside: place.symlink_to(outside / "key"),
    "dangling": lambda place, outside: place.symlink_to(outside / "new"),
    "pipe": lambda place, _: os.mkfifo(place),
    "device": lambda place, _: place.symlink_to("/dev/zero"),
    "folder": _folder,
    "hard link": lambda place, outside: place.hardlink_to(outside / "key"),
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the host with files that have the names that the first version removed."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("key", ".bashrc", "123", "0000000001.commit", "index", "contents"):
        (folder / name).write_text("SECRET")
    return folder


def plant(workspace: Path, outside: Path, kind: Plant, names: list[str]) -> None:
    """Put something in the place of every name, in the workspace and in two folders below it."""
    for top in (workspace, workspace / "sub", workspace / "sub" / "sub"):
        for name in names:
            place = top / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                kind(place, outside)


def deepest_first() -> Iterator[list[str]]:
    """Groups of names that fit into one workspace: a name may be a folder of another one."""
    for depth in (0, 1):
        yield [name for name in NAMES if name.count("/") == depth]


POLICY = ExecutionPolicy(stdout_bytes=100, text_file_bytes=10_000)


def _lone(root: Path) -> BaseSandbox:
    return create_sandbox(workspace=root / ID, policy=POLICY)


def _session(root: Path) -> BaseSandbox:
    return get_session_sandbox(ID, workspace_root=root, policy=POLICY)


def _notebook(root: Path) -> BaseSandbox:
    """A kernel's sandbox."""
    book = root.parent / "book"
    plant(
        book, root.parent / "outside", KINDS["file link"], NAMES[-14:]
    )  # as hostile as the workspace
    return over(book, root, ID, POLICY)


PLANTED = {f"{name} in a session": (kind, _session) for name, kind in KINDS.items()}
PLANTED |= {f"{name} without": (KINDS[name], _lone) for name in ("folder", "folder link")}
PLANTED |= {f"{name} beneath": (KINDS[name], _notebook) for name in ("folder link", "pipe")}


@pytest.mark.parametrize(("kind", "opening"), sampled(PLANTED, 6))
def test_case_40_a_planted_workspace_is_as_safe_as_an_empty_one(
    tmp_path: Path, outside: Path, kind: Plant, opening: Callable[[Path], BaseSandbox]
) -> None:
    """F1, and case 41: it is also safe if the guest is lost or the session opened once more."""
    before = host_tree(outside)
    for names in deepest_first():
        workspace = tmp_path / "root" / ID
        plant(workspace, outside, kind, names)
        with opening(tmp_path / "root") as sandbox:
            assert sandbox.execute(USE).error is None
            sandbox.execute("import os; os._exit(1)")
            assert sandbox.execute(USE).error is None
            sandbox.execute("%undo --files")
            assert "planted" in sandbox.execute("import os; print(os.listdir('/tmp'))").stdout
        assert host_tree(outside) == before
        workspace.rename(tmp_path / f"done-{len(names)}")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_case_41_the_hosts_operations_on_a_planted_workspace_are_safe(
    tmp_path: Path, outside: Path, kind: Plant
) -> None:
    before, root = host_tree(outside), tmp_path / "root"
    for names in deepest_first():
        plant(root / ID, outside, kind, names)
        list_session_files(ID, root)
        with suppress(OSError):
            export_session(ID, tmp_path / "archive.tar.gz", root)
        prune_sessions(0, root)
        delete_session_workspace(ID, root)
        assert not (root / ID).exists()
        assert host_tree(outside) == before


def test_case_39_a_workspace_that_contains_a_session_does_not_lead_it_elsewhere(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default workspace is also the root of the sessions."""
    monkeypatch.chdir(tmp_path)
    session_id, sandbox = create_session_sandbox()
    with sandbox:
        sandbox.execute("1")
    with create_sandbox() as other:
        other.execute(
            f"import os\nfor place in ('/app/{session_id}', '/app/{session_id}/.wasm_kernel'):\n"
            "  for name in ('tmp', 'packages', 'history'):\n"
            "    try: os.rmdir(f'{place}/{name}')\n"
            "    except OSError: pass\n"
            "    try: os.makedirs(place)\n"
            "    except OSError: pass\n"
            "    try: os.symlink('../../../outside', f'{place}/{name}')\n"
            "    except OSError: pass\n"
        )
    before = host_tree(outside)
    with get_session_sandbox(session_id) as again:
        assert "key" not in again.execute("import os; print(os.listdir('/tmp'))").stdout
        again.execute("open('/tmp/planted', 'w').write('x')")
    assert host_tree(outside) == before


def test_a_folder_that_is_made_anew_never_gets_old_variables(tmp_path: Path) -> None:
    opened = partial(get_session_sandbox, ID, workspace_root=tmp_path)
    (tmp_path / "keep").mkdir()
    for _ in range(2):
        with opened() as sandbox:
            assert sandbox.execute("print('x' in globals())").stdout == "False\n"
            sandbox.execute("x = 1; open('/tmp/old', 'w').close()")
            assert sandbox.execute("import os; print(os.listdir('/tmp'))").stdout == "['old']\n"
        for path in sorted((tmp_path / ID).rglob("*")):
            path.unlink()
        (tmp_path / ID).rmdir()
    with opened() as sandbox:
        sandbox.execute("x = 2")
    (tmp_path / ID).rename(tmp_path / "aside")
    (tmp_path / ID).mkdir()
    (tmp_path / ID / ".metadata.json").write_bytes(
        (tmp_path / "aside" / ".metadata.json").read_bytes()
    )
    with opened() as sandbox:
        assert sandbox.execute("print('x' in globals())").stdout == "False\n"
    (tmp_path / ID).rename(tmp_path / "second")
    (tmp_path / "aside").rename(tmp_path / ID)
    with opened() as sandbox:
        assert sandbox.execute("print(x)").stdout == "2\n"


def test_no_guest_gives_a_user_the_session_of_another(root: Path, ending: ExitStack) -> None:
    """The guest of a sandbox on the sessions' folder itself makes links there (F1)."""
    alice, mine = ids.new(), ids.new()
    hers = ending.enter_context(closing(get_session_sandbox(alice, workspace_root=root)))
    says(hers, "open('secret', 'w').write('of alice')")
    with create_sandbox(workspace=root) as plain:
        plain.execute(f"import os; os.symlink({alice!r}, 'mallory')")
        for code in (f"os.symlink({alice!r}, {mine!r})", f"os.rename('mallory', {mine!r})"):
            assert error_of(plain.execute(code)).startswith("FileNotFoundError:")
        plain.execute(
            f"os.mkdir('d'); os.symlink('..', 'd/up'); os.symlink('d/up/{alice}', 'mallory-2')"
        )
    assert not (root / mine).is_symlink()
    for name in ("mallory", "mallory-2"):
        if not (root / name).is_symlink():
            (root / name).symlink_to(alice)  # a guest that was cleverer
        with pytest.raises(WorkspaceError):
            get_session_sandbox(name, workspace_root=root)
        with pytest.raises(FileNotFoundError):
            read_session_file(name, "secret", workspace_root=root)
    assert (root / alice / "secret").read_text() == "of alice"


def test_nothing_private_lies_in_the_workspace(tmp_path: Path) -> None:
    session_id, sandbox = create_session_sandbox(workspace_root=tmp_path / "root")
    with sandbox:
        sandbox.execute("x = 1; open('/tmp/a', 'w').write('x'); open('b', 'w').write('x')")
        sandbox.execute("open('b', 'a').write('more')")
        workspace = tmp_path / "root" / session_id
        assert {path.name for path in workspace.rglob("*")} == {".metadata.json", "b"}
        assert [path.name for path in (tmp_path / "root").iterdir()] == [session_id]
        private = private_of(workspace)
        assert private in private_folders()
        assert private.stat().st_mode & 0o777 == 0o700
