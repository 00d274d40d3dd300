"""Pipes, sockets and devices in the workspace: they are refused, and never waited for."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attacks.conftest import Making, Victim
from tests.sampled import but_for
from wasm_kernel.policy import Mount

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


def test_files_that_may_block_are_refused_at_once(
    victim: Victim, put_special: Callable[[], None]
) -> None:
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


def test_a_session_with_something_that_may_hang_goes_on(
    victim: Victim, put_special: Callable[[], None]
) -> None:
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
