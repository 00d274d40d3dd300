"""What a killed writer of a session's file leaves behind, and who removes it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wasm_kernel.engine.folders import walk
from wasm_kernel.sessions import drafts
from wasm_kernel.sessions.session import Session
from wasm_kernel.sessions.workspace import write_session_file

_KILLED = """
import os, signal, sys
from wasm_kernel.engine.folders import walk
from wasm_kernel.sessions import drafts
with walk.opened(sys.argv[1]) as private, drafts.written(private, b"x" * 1000, None):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """The private folder of a session in which a writer was killed a minute ago."""
    Session(tmp_path, "one").closed()
    private = tmp_path / "one" / ".wasm_kernel"
    subprocess.run([sys.executable, "-c", _KILLED, str(private)], check=False)
    (left,) = private.glob("write-*")
    _age(left)
    return private


def _age(file: Path) -> None:
    os.utime(file, (time.time() - 60,) * 2)


def test_the_next_write_removes_what_a_killed_writer_left(private: Path, tmp_path: Path) -> None:
    write_session_file("one", "a.txt", b"a", workspace_root=tmp_path)
    assert list(private.glob("write-*")) == []
    assert (tmp_path / "one" / "a.txt").read_bytes() == b"a"


def test_opening_the_session_removes_it(private: Path, tmp_path: Path) -> None:
    Session(tmp_path, "one").closed()
    assert list(private.glob("write-*")) == []


def test_what_is_being_written_stays(private: Path, tmp_path: Path) -> None:
    with walk.opened(private) as folder, drafts.written(folder, b"slow", None) as draft:
        _age(private / draft)
        (private / "write-begun").touch()
        write_session_file("one", "a.txt", b"a", workspace_root=tmp_path)
        assert sorted(path.name for path in private.glob("write-*")) == sorted(
            [draft, "write-begun"]
        )
