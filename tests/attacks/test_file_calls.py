"""The guest's file calls, which the host answers itself: what a hostile guest gets from them."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.attacks.conftest import Making, Victim
from tests.engine.tiny import APP, RIGHTS, Guest
from tests.faces import open_files
from tests.private import kept_sandbox
from tests.sampled import but_for
from wasm_kernel import ExecutionPolicy, create_sandbox, create_session_sandbox
from wasm_kernel.engine import abi
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.linux.task import QUIET
from wasm_kernel.linux.trees import remove_tree
from wasm_kernel.policy import Mount
from wasm_kernel.state.file_journal import JOURNAL
from wasm_kernel.state.file_restore import restore_files
from wasm_kernel.state.file_versions import FileVersions
from wasm_kernel.state.fork import fork_stored
from wasm_kernel.state.history import History
from wasm_kernel.state.index import Commit
from wasm_kernel.wasi_files import listing
from wasm_kernel.wasi_files.file_history import Change
from wasm_kernel.wasi_files.open_files import OpenFile

READ_WRITE = abi.RIGHT_READ | abi.RIGHT_WRITE
KEPT = "files"


def file(fd: int, **fields: object) -> OpenFile:
    plain = OpenFile(fd, "/app", "f", 0, 0, READ_WRITE, 0)
    return replace(plain, **fields)


def test_a_file_of_a_read_only_folder_that_is_opened_again_is_not_written_to(guest: Guest) -> None:
    """A table of open files may come from an archive, or from days when the mount was writable."""
    path = guest.app.parent / "ro" / "f"
    path.write_text("own")
    for number, flags in enumerate((0, abi.O_TRUNC, abi.O_CREAT | abi.O_TRUNC)):
        table = [file(20 + number, guest="/ro", flags=flags)]
        guest.files.reopen(table)
        assert guest.write(20 + number, b"EVIL") != abi.SUCCESS
        assert guest.call("fd_filestat_set_size", 20 + number, 0) != abi.SUCCESS
        assert guest.call("fd_filestat_set_times", 20 + number, 0, 0, 5) != abi.SUCCESS
    assert path.read_text() == "own"


def test_a_mount_that_becomes_read_only_is_that_for_open_files_too(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "f").write_text("own")
    for access in ("rw", "ro"):
        policy = ExecutionPolicy(mounts=(Mount.parse(f"{project}:/project:{access}"),))
        with kept_sandbox(workspace=tmp_path / "w", policy=policy) as sandbox:
            if access == "rw":
                assert sandbox.execute("f = open('/project/f', 'r+')").success
            else:
                assert not sandbox.execute("f.write('EVIL'); f.flush()").success
                assert sandbox.execute("print(open('/project/f').read())").stdout == "own\n"
    assert (project / "f").read_text() == "own"


@pytest.mark.parametrize("offset", [1 << 62, (1 << 64) - 1])
def test_an_odd_table_of_open_files_costs_the_file_alone(guest: Guest, offset: int) -> None:
    (guest.app / "f").write_text("own")
    before = len(open_files())
    table = [file(20, offset=offset), *[file(21)] * 50, file(3), file(0), file(22, path="../x")]
    guest.files.reopen(table)
    assert len(open_files()) <= before + 3
    errno, _ = guest.open("f")
    assert errno == abi.SUCCESS


def test_endless_listings_take_little_memory(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formerly, 200 listings took a gigabyte."""
    monkeypatch.setattr(listing, "MOST_BYTES", 1 << 20)
    for number in range(400):
        (guest.app / f"{number:0240}").touch()
    for _ in range(30):
        errno, fd = guest.open(".", abi.O_DIRECTORY)
        assert errno == abi.SUCCESS
        guest.read_folder(fd, 512)
    kept = [found for found in gc.get_objects() if isinstance(found, listing.Listing)]
    assert sum(each.size for each in kept) <= 1 << 20
    assert len(guest.names(fd, 4096)) == 400


def test_files_that_come_and_go_leave_no_record(keeping: tuple[Guest, FileVersions]) -> None:
    """Formerly, the record of names that were never made took two gigabytes in 12 seconds."""
    guest, versions = keeping
    path = guest.app.parent / "private" / KEPT / JOURNAL
    guest.one_path("path_create_directory", "d")
    guest.make("d/f")
    versions.commit(2, [1, 2])
    for number in range(250):
        name = f"{number}-{'n' * 200}"
        assert guest.make(name) == abi.SUCCESS
        assert guest.one_path("path_unlink_file", name) == abi.SUCCESS
        assert guest.one_path("path_create_directory", f"missing/{name}") != abi.SUCCESS
        assert guest.one_path("path_create_directory", f"{name}{'x' * 300}") != abi.SUCCESS
        assert guest.one_path("path_create_directory", name) == abi.SUCCESS
        assert guest.one_path("path_remove_directory", name) == abi.SUCCESS
        assert guest.open(f"missing-{name}", abi.O_TRUNC)[0] == abi.ENOENT
        assert guest.rename("d", f"d/{name}") == abi.EINVAL  # the folder has a file in it
    assert path.stat().st_size < 200_000
    assert len(versions.ledger) < 10


def test_files_that_came_and_went_before_a_commit_are_right_after_it(
    keeping: tuple[Guest, FileVersions],
) -> None:
    guest, versions = keeping
    (guest.app / "old").write_text("old")
    guest.make("new", b"1")
    guest.one_path("path_unlink_file", "new")
    guest.one_path("path_unlink_file", "old")
    guest.make("old", b"another")
    guest.make("stays", b"1")
    versions.commit(2, [1, 2])
    guest.one_path("path_unlink_file", "stays")
    guest.one_path("path_unlink_file", "old")
    assert restore_files(versions, 2, lambda path, found: None, ()).missed == []
    assert {p.name: p.read_text() for p in guest.app.iterdir()} == {"old": "another", "stays": "1"}
    assert restore_files(versions, 1, lambda path, found: None, ()).missed == []
    assert {p.name: p.read_text() for p in guest.app.iterdir()} == {"old": "old"}


def test_files_deep_down_are_compared_in_the_time_of_the_tree(guest: Guest) -> None:
    """Formerly, the time was depth times files: a minute for 2,000 files in 1,900 folders."""
    fd = APP
    for _ in range(900):
        guest.call("path_create_directory", fd, *guest.text("d"))
        at = guest.text("d")
        how = (abi.O_DIRECTORY, abi.RIGHT_READ, RIGHTS, 0, 64)
        assert guest.call("path_open", fd, 0, *at, *how) == abi.SUCCESS
        below = guest.instance.memory.read_word(64)
        if fd != APP:
            guest.call("fd_close", fd)
        fd = below
    for number in range(600):
        assert guest.open(f"f{number}", abi.O_CREAT, fd=fd)[0] in (abi.SUCCESS, abi.EMFILE)
        guest.call("fd_close", fd + 1)
    begun = time.process_time()
    assert len(guest.changes.compare().created) > 500
    assert time.process_time() - begun < 5.0
    remove_tree(guest.app / "d")  # pytest's own removal can't go so deep


def test_moving_many_files_ends_with_the_cell(keeping: tuple[Guest, FileVersions]) -> None:
    guest, _ = keeping
    (guest.app / "d").mkdir()
    for number in range(300):
        (guest.app / "d" / str(number)).touch()
    guest.clock.interrupt()
    assert guest.rename("d", "e") in (abi.EINTR, abi.SUCCESS)
    assert sorted(path.name for path in guest.app.iterdir()) in (["d"], ["e"])


def test_a_forks_undo_does_not_write_to_its_parents_files(tmp_path: Path) -> None:
    """Formerly, a content too large to be copied lay in the fork's workspace itself."""
    places, root = (tmp_path / "parent", tmp_path / "fork"), tmp_path / "p"
    folders = [SandboxFolders.of_workspace(place, root) for place in places]
    parent, fork = (
        FileVersions(one.workspace, one.private, most_bytes=1 << 20, copy_bytes=2)
        for one in folders
    )
    history = History(folders[0].private.enter("state", make=True), "an image")
    history.clear()
    history.add_written(Commit(1, 0, 1, 2, "", 0.0, 4096), ())
    path, copy = (one.real / "f" for one in folders)
    path.write_text("AAAA")
    parent.begin_anew()
    parent.commit(1, [1])
    found = path.stat()
    parent.before_change("f", folders[0].workspace.fd, "f", found, Change.MOVE)
    path.unlink()
    assert not fork_stored(*folders, reseed=False, task=QUIET)
    assert fork.load(1)
    restore_files(fork, 1, lambda path, found: None, ())
    assert copy.read_text() == "AAAA"
    copy.write_text("EVIL")
    os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
    restore_files(parent, 1, lambda path, found: None, ())
    assert path.read_text() == "AAAA"
    for versions in (parent, fork):
        versions.close()
    history.close()
    for one in folders:
        one.close()


def test_a_plain_sandbox_on_a_sessions_folder_sees_its_files(tmp_path: Path) -> None:
    """Formerly, a second sandbox on a session's folder saw none of the session's files."""
    name, sandbox = create_session_sandbox(workspace_root=tmp_path)
    with sandbox:
        sandbox.execute("open('/app/mine', 'w').close()")
    with create_sandbox(workspace=tmp_path / name) as plain:
        assert plain.execute("import os; print(os.listdir('/app'))").stdout == "['mine']\n"


def test_a_table_of_too_many_open_files_is_cut(tmp_path: Path) -> None:
    small = Guest(tmp_path, open_files=16)
    (small.app / "f").write_text("own")
    before = len(open_files())
    assert len(small.files.reopen([file(number) for number in range(100, 400)])) == 300 - 16
    assert len(open_files()) == before + 16
    small.close()


KINDS = ("pipe", "socket", "device")


@pytest.fixture(params=but_for({kind: kind for kind in KINDS}, "socket", "device"))
def put_special(request: pytest.FixtureRequest, victim: Victim) -> Iterator[Callable[[], None]]:
    """The host puts a file that may block into the workspace, named `special`."""
    victim.says("import os, pathlib, shutil\nos.chdir('/app')")
    path = victim.app / "special"
    with contextlib.ExitStack() as stack:

        def put() -> None:
            if request.param == "pipe":
                os.mkfifo(path)
            elif request.param == "socket":
                with contextlib.chdir(victim.app):
                    stack.enter_context(socket.socket(socket.AF_UNIX)).bind("special")
            else:
                try:
                    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
                except PermissionError:
                    pytest.skip("only root makes devices")

        yield put


USES = [
    "open({0})",
    "open({0}, 'w')",
    "open({0}, 'r+b', buffering=0)",
    "os.open({0}, os.O_RDONLY | os.O_NONBLOCK)",
    "os.symlink({0}, 'way'); open('way')",
    "os.link({0}, 'twin'); open('twin')",
    "os.rename({0}, 'other'); open('other')",
    "import pandas; pandas.read_csv({0})",
    "os.truncate({0}, 0)",
    "import sqlite3; sqlite3.connect({0}).execute('select 1 from x')",
    "os.listdir({0})",
    "os.open({0}, os.O_RDONLY, dir_fd=os.open('.', 0))",
]


REFUSALS = {"OSError", "PermissionError", "NotADirectoryError", "FileExistsError"}
REFUSALS |= {"OperationalError", "SpecialFileError"}


def test_files_that_may_block_are_refused(victim: Victim, put_special: Callable[[], None]) -> None:
    for use in USES:
        put_special()
        begun = time.monotonic()
        result = victim.run(use.format("'special'"))
        assert time.monotonic() - begun < 15, use
        assert result.error is not None, use
        assert result.error.ename in REFUSALS, use
        victim.says(
            "print([os.stat(e.name, follow_symlinks=False) for e in os.scandir('.')])\n"
            "for name in os.listdir('.'): os.remove(name)"
        )


def test_a_session_with_a_pipe_goes_on(victim: Victim, put_special: Callable[[], None]) -> None:
    put_special()
    victim.run("os.mkdir('d'); os.rename('special', 'd/special')")  # Landlock refuses the second
    victim.says("shutil.rmtree('d'); pathlib.Path('special').unlink(missing_ok=True)")
    assert not (victim.app / "special").exists()


def test_a_pipe_in_a_mount_is_refused_at_once(fresh_victim_of: Making, tmp_path: Path) -> None:
    for name in ("ro", "rw"):
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / "pipe")
    mounts = (Mount(tmp_path / "ro", "/ro"), Mount(tmp_path / "rw", "/rw", writable=True))
    sandbox = fresh_victim_of(mounts=mounts)
    for path in ("/ro/pipe", "/rw/pipe", "/rw/./pipe", "/ro/../ro/pipe"):
        assert sandbox.fails(f"open({path!r})") in ("OSError", "FileNotFoundError")
    sandbox.lives()
