"""Workspaces and histories that strangers filled: F1, F4, F11, F12, F18, F24, cases 39 to 42, 49.

Nothing outside is read, written, made or removed. The session is opened, forked and exported
without delay and in bounded memory; it keeps what can be used, and says what can't.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.beneath import over
from tests.faces import error_of, host_tree, process_of, says
from tests.peak import MB, Peak, of_process
from tests.private import private_folders, private_of
from tests.sampled import sampled
from tests.stored import content_of, state_of
from wasm_kernel import (
    BaseSandbox,
    ExecutionPolicy,
    WorkspaceError,
    create_sandbox,
    create_session_sandbox,
    delete_session_workspace,
    export_session,
    get_session_sandbox,
    import_session,
    list_session_files,
    prune_sessions,
    read_session_file,
)
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.kernels.settings import KernelSettings
from wasm_kernel.linux import trees
from wasm_kernel.linux.folders import NotRegular, PlantedLinkError, real_path
from wasm_kernel.sessions import (
    delete_session_path,
    ids,
    write_session_file,
)
from wasm_kernel.sessions.overview import session_in, sessions_in
from wasm_kernel.sessions.root import SessionsRoot

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


SECONDS = 60
PLACES = ["contents", "index", "one content", "one too many", "unused"]
BIG = 8 << 30


def place_of(root: Path, name: str) -> Path:
    """The path at which something is planted."""
    state = state_of(root / ID)
    if name == "one content":
        return content_of(state, 2)
    return state / "contents" / ("0" * 64) if name == "one too many" else state / name


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The root of a session that has a history of two cells."""
    with get_session_sandbox(ID, workspace_root=tmp_path) as sandbox:
        assert sandbox.execute("x = 1").success
        assert sandbox.execute("x = 2").success
    return tmp_path


def in_time(work: Callable[[], object]) -> None:
    """The work must end, or be refused in words, before the test loses its patience."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "it hangs"
    if failed:
        raise failed[0]


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, BIG)


DIGITS = b"1" + b"0" * 400
OBJECTS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: (path / "inside").mkdir(parents=True),
    "huge": huge,
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
    "garbage": lambda path: path.write_bytes(os.urandom(5000)),
    # F23, F24: several lines, with numbers that no commit has
    "numbers": lambda path: path.write_bytes(
        b'{"index":2,"image":"x","salt":"%s"}\n' % DIGITS + b"%s x {}\n" % DIGITS
    ),
}


@pytest.mark.parametrize("name", sampled({name: name for name in PLACES}, 6))
@pytest.mark.parametrize("kind", sampled(OBJECTS, 4))
def test_a_session_is_exported_opened_and_saved_again_whatever_lies_there(
    saved: Path, kind: Callable[[Path], object], name: str
) -> None:
    place, archive = place_of(saved, name), saved / "session.tar.gz"
    if place.is_dir():
        trees.remove_tree(place)
    place.unlink(missing_ok=True)
    kind(place)
    peak = Peak()
    in_time(lambda: export_session(ID, archive, saved))
    assert archive.stat().st_size < 200 * MB

    def opened() -> None:
        with get_session_sandbox(ID, workspace_root=saved) as sandbox:
            result = sandbox.execute("y = 3; print(globals().get('x'))")
            assert result.success, result.error
            assert of_process(process_of(sandbox), "VmHWM") < 400 * MB
            assert result.stdout.strip() in {"1", "2", "None"}
            sandbox.checkpoint("here")

    in_time(opened)
    assert peak.grown < 400 * MB
    with get_session_sandbox(ID, workspace_root=saved) as sandbox:
        result = sandbox.execute("print(y)")
        assert (result.stdout, "can't be saved" in result.stderr) == ("3\n", False)
        assert [one.name for one in sandbox.checkpoints() if one.name] == ["here"]


@pytest.mark.parametrize("name", ["lock", "holder", "state"])
@pytest.mark.parametrize("kind", ["pipe", pytest.param("folder", marks=pytest.mark.soak)])
def test_session_opens_whatever_lies_beside_its_history(saved: Path, kind: str, name: str) -> None:
    place = state_of(saved / ID).parent / name
    if place.is_dir():
        trees.remove_tree(place)
    place.unlink(missing_ok=True)
    OBJECTS[kind](place)

    def opened() -> None:
        with get_session_sandbox(ID, workspace_root=saved) as sandbox:
            result = sandbox.execute("print(globals().get('x'))")
            assert result.error is None
            begun_anew = name == "state"
            assert result.stdout == "2\n" or "variables" in result.stderr or begun_anew

    with contextlib.suppress(NotRegular):  # in words: its lock can't be read
        in_time(lambda: export_session(ID, saved / "session.tar.gz", saved))
    in_time(opened)


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


def test_f1_later_links_are_not_followed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
