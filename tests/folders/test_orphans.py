"""Private folders whose workspaces are gone, the places of private folders, and their removal."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.aged import metadata_of
from tests.faces import PATIENCE, wait_for
from tests.nobody import mkdir
from tests.private import far, private_folders, private_of
from wasm_kernel import (
    create_sandbox,
    create_session_sandbox,
    delete_session_workspace,
    export_session,
    get_session_sandbox,
    import_session,
    prune_sessions,
    write_session_file,
)
from wasm_kernel.folders import orphans, places
from wasm_kernel.folders.folders import MISSED
from wasm_kernel.folders.places import PrivateFolderError, beside
from wasm_kernel.frontends.cli.doctor import examine
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Folder
from wasm_kernel.service.limits import ServiceLimits
from wasm_kernel.service.service import Service
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

HOUR = 3600.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "wasm-kernel"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "project" / "root"


def a_session(root: Path, name: str = "one", *, hours: float = 0) -> Path:
    """A session's private folder, whose workspace has been missed for some hours."""
    Session(SessionsRoot(root), name).closed()
    private = private_of(root / name)
    if hours:
        missed(private, hours)
    return private


def missed(private: Path, hours: float) -> None:
    (private / MISSED).touch()
    os.utime(private / MISSED, (time.time() - hours * HOUR,) * 2)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("place", ["one", "."])
def test_private_folders_that_rm_left_go_a_week_later(root: Path, place: str, anew: bool) -> None:
    young, old = a_session(root, "young", hours=24 * 6), a_session(root, hours=24 * 8)
    shutil.rmtree(root / place)
    if anew:
        (root / "one").mkdir(parents=True)
    orphans.remove_due()
    assert not old.exists()
    assert young.exists()


def test_folders_of_unreachable_workspaces_are_kept_far_longer(root: Path, tmp_path: Path) -> None:
    """Simulates an unmounted disk: no folder on the way to the workspace is the same."""
    private = a_session(root, hours=24 * 89)
    (tmp_path / "project").rename(tmp_path / "unmounted")
    for _ in range(2):
        orphans.remove_due()
        assert private.exists()
        (tmp_path / "project").mkdir(exist_ok=True)  # an empty mount point
    shutil.rmtree(tmp_path / "project")
    (tmp_path / "unmounted").rename(tmp_path / "project")
    assert private_of(root / "one") == private
    (tmp_path / "project").rename(tmp_path / "unmounted")
    missed(private, 24 * 91)
    orphans.remove_due()
    assert not private.exists()


def test_a_mount_point_is_not_taken_for_gone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = a_session(root, hours=24 * 8)
    with Folder.open(root) as folder:
        own = FileMark.of(folder.fd)
    of = FileMark.of

    def elsewhere(fd: int) -> FileMark:
        found = of(fd)
        if found.same(own):
            return FileMark(found.number, found.born, found.device + 1, found.boot)
        return found

    record = private / "record.json"
    device = f'"device": {own.device}'
    told = record.read_text().replace(device, f'"device": {own.device + 1}', 2)
    record.write_text(told)
    monkeypatch.setattr(FileMark, "of", elsewhere)
    shutil.rmtree(root)
    root.mkdir()
    orphans.remove_due()
    assert private.exists()


def test_a_private_folder_in_use_is_not_removed(root: Path) -> None:
    private = a_session(root)
    session = Session(SessionsRoot(root), "one")
    shutil.rmtree(root / "one")
    missed(private, 24 * 8)
    orphans.remove_due()
    assert private.exists()
    session.closed()
    orphans.remove_due()
    assert not private.exists()


def test_pruning_and_deleting_sweep_and_looking_does_not(root: Path, state: Path) -> None:
    for act in (
        lambda: prune_sessions(10**6, root),
        lambda: delete_session_workspace("another", root),
    ):
        private = a_session(root, hours=24 * 8)
        (state / "swept").unlink(missing_ok=True)
        shutil.rmtree(root / "one")
        prune_sessions(10**6, root, dry_run=True)
        assert private.exists()
        act()
        assert not private.exists()
        assert list((state / "private").iterdir()) == []


def test_a_service_sweeps(root: Path, tmp_path: Path) -> None:
    """Formerly, a service without `expire_seconds` never did."""
    private = a_session(root, hours=24 * 8)
    shutil.rmtree(root)
    with Service(tmp_path / "sessions"):
        wait_for(lambda: not private.exists(), "a sweep")


def test_a_long_sweep_keeps_no_session_awake(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly, the thread that looks after sessions removed folders itself."""
    a_session(root, hours=24 * 8)
    shutil.rmtree(root)
    is_over, began = threading.Event(), threading.Event()

    @contextmanager
    def removing_much(path: Path) -> Iterator[None]:
        began.set()
        is_over.wait(PATIENCE)
        yield

    monkeypatch.setattr(orphans, "removing", removing_much)
    limits = ServiceLimits(idle_seconds=0.1)
    with Service(tmp_path / "sessions", limits=limits) as service, service.create() as sandbox:
        assert began.wait(PATIENCE)
        assert sandbox.execute("1").success
        wait_for(lambda: sandbox.worker.state == "asleep", "its sleep")
        assert not is_over.is_set()
        is_over.set()


def test_state_folder_forgets_places_that_are_gone(root: Path, state: Path, tmp_path: Path) -> None:
    """Each start of a kernel reads the notes of all places and roots."""
    for name in ("kept", "gone", "unmounted"):
        Session(SessionsRoot(root / name, tmp_path / name), "one").closed()
        assert private_of(root / name / "one").parent == tmp_path / name
    (note,) = [each for each in (state / "elsewhere").iterdir() if "unmounted" in each.read_text()]
    of_disk = note.name.replace(f".{tmp_path.stat().st_dev:x}.", ".fffff.")
    note.rename(note.with_name(of_disk))
    shutil.rmtree(tmp_path / "gone")
    shutil.rmtree(tmp_path / "unmounted")
    shutil.rmtree(root / "gone")
    orphans.remove_due_daily()
    for notes in ("elsewhere", "roots"):
        noted = {Path(each.read_text()).name for each in (state / notes).iterdir()}
        assert noted == {"kept", "unmounted"}
    delete_session_workspace("one", root / "kept")  # without the name of the place
    assert list((tmp_path / "kept").iterdir()) == []


def test_doctor_shows_them(root: Path, tmp_path: Path) -> None:
    a_session(root, "kept")
    (a_session(root, "gone") / "history").mkdir()
    shutil.rmtree(root / "gone")
    a_session(tmp_path / "disk" / "root", "away")
    shutil.rmtree(tmp_path / "disk")
    told = "\n".join(finding.text for finding in examine(root))
    assert "private state of 1 workspaces that are gone takes" in told
    assert "private state of 1 workspaces that can't be reached now takes" in told
    assert f"private state of sessions, such as variables, is kept in {tmp_path / 'state'}" in told


def test_no_private_folder_is_left_by_deleting_or_importing(root: Path, tmp_path: Path) -> None:
    session_id, sandbox = create_session_sandbox(workspace_root=root)
    with sandbox:
        sandbox.execute("x = 1; open('/tmp/a', 'w').write('x' * 1000)")
        (fork,) = sandbox.fork()
        with fork:
            assert fork.execute("print(x, len(open('/tmp/a').read()))").stdout == "1 1000\n"
        kept = fork.session_id
    assert kept is not None
    export_session(session_id, tmp_path / "a.tar.gz", root)
    made = import_session(tmp_path / "a.tar.gz", root)
    with pytest.raises(ValueError, match="archive"):
        import_session(Path(__file__), root)
    assert len(private_folders()) == 3
    delete_session_workspace(session_id, root)
    delete_session_workspace(kept, root)
    assert len(private_folders()) == 1
    assert prune_sessions(0, root).deleted_sessions == [made.session_id]
    assert private_folders() == []
    assert list(root.iterdir()) == []


def test_on_another_disk_it_lies_beside_the_root(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "can_link", far(state))
    with get_session_sandbox("one", workspace_root=root) as sandbox:
        assert sandbox.execute("x = 1").stderr == ""
    assert private_of(root / "one").parent == beside(root)
    assert beside(root).stat().st_mode & 0o777 == 0o700
    monkeypatch.undo()
    with get_session_sandbox("one", workspace_root=root) as sandbox:
        assert sandbox.execute("print(x)").stdout == "1\n"


UNSAFE: dict[str, Callable[[Path], object]] = {
    "a link": lambda place: place.symlink_to(mkdir(place.with_name("elsewhere"), 0o700)),
    "a file": lambda place: place.write_text("x"),
    "open to all": lambda place: mkdir(place, 0o755),
    "another's": lambda place: mkdir(place, 0o700, 65534),
    "in another's": lambda place: os.chown(place.parent, 65534, 65534),
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_an_unsafe_folder_beside_the_root_is_not_used(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if "another's" in kind and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    root.mkdir(parents=True)
    UNSAFE[kind](beside(root))
    monkeypatch.setattr(places, "can_link", far(state))
    told = []
    for _ in range(2):
        session = Session(SessionsRoot(root), "one")
        told.append("".join(session.folders.notices))
        session.closed()
    assert "another file system" in told[0]
    assert told[1] == ""
    assert private_of(root / "one").parent == state / "private"


def test_a_session_on_another_disk_has_copies(state: Path, other_disk: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give folders away")
    root = other_disk / "root"
    root.mkdir()
    os.chown(other_disk, 65534, 65534)
    with get_session_sandbox("one", workspace_root=root) as sandbox:
        told = sandbox.execute("x = 1; f = open('f', 'w'); f.write('x'); f.close()")
        assert "another file system" in told.stderr
        sandbox.execute("open('f', 'w').write('y' * 100)")
        sandbox.execute("import os; os.rename('f', 'g')")
        sandbox.execute("os.unlink('g')")
        sandbox.execute("%undo 3 --files")
        assert sandbox.execute("print(x, open('f').read())").stdout == "1 x\n"
        assert sandbox.execute("os._exit(1)").error is not None
        assert sandbox.execute("print(x)").stdout == "1\n"
    private = private_of(root / "one")
    assert private.parent == state / "private"
    fields = metadata_of(root / "one")
    assert fields["updated_at"] > fields["created_at"]
    assert {p.name for p in (root / "one").iterdir()} == {".metadata.json", "f"}
    write_session_file("one", "h", b"h", root)
    delete_session_workspace("one", root)
    assert not private.exists()


def test_without_a_place_nothing_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (tmp_path / "project").mkdir()
    if os.geteuid() == 0:
        os.chown(tmp_path / "project", 65534, 65534)
    with pytest.raises(PrivateFolderError, match="Name a folder of your own with private_root"):
        create_session_sandbox(workspace_root=tmp_path / "project" / "root")
    with pytest.raises(PrivateFolderError):
        create_sandbox(workspace=tmp_path / "project" / "app", private_root=tmp_path / "file")
    assert list((tmp_path / "project").iterdir()) == []


def test_a_folder_that_cant_be_told_from_a_later_one_is_not_gone_on_with(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = FileMark.of

    def forgetful(fd: int) -> FileMark:
        return FileMark(of(fd).number, "", of(fd).device, of(fd).boot)

    monkeypatch.setattr(FileMark, "of", forgetful)
    for _ in range(2):
        with get_session_sandbox("one", workspace_root=root) as sandbox:
            assert sandbox.execute("print('x' in globals())").stdout == "False\n"
            sandbox.execute("x = 1")


def test_a_damaged_record_loses_nothing(root: Path) -> None:
    with get_session_sandbox("one", workspace_root=root) as sandbox:
        sandbox.execute("x = 1")
    record = private_of(root / "one") / "record.json"
    before = record.read_bytes()
    for content in (b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"version": 1}', None):
        record.unlink()
        if content is not None:
            record.write_bytes(content)
        with get_session_sandbox("one", workspace_root=root) as sandbox:
            assert sandbox.execute("print(x)").stdout == "1\n"
        assert record.read_bytes() == before


def test_a_record_of_another_workspace_is_not_used(root: Path) -> None:
    private, other = a_session(root), a_session(root, "other")
    (private / "secret").touch()
    (private / "record.json").write_bytes((other / "record.json").read_bytes())
    assert not (a_session(root) / "secret").exists()


def test_sandboxes_that_come_and_go_do_not_fill_the_disk(tmp_path: Path, state: Path) -> None:
    """A sandbox removes its private folder; that of a killed program is swept a day later."""
    with create_sandbox(workspace=tmp_path / "task"):
        left = private_of(tmp_path / "task").with_name(".sandbox-left")
        left.mkdir()
        for path in (private_of(tmp_path / "task"), left, state / "swept"):
            os.utime(path, (time.time() - 25 * HOUR,) * 2)
        create_sandbox(workspace=tmp_path / "task").close()
        assert [*(state / "private").iterdir()] == [private_of(tmp_path / "task")]
    assert not [*(state / "private").iterdir()]
