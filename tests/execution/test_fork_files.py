"""A fork's files: copies of everything that can lie in a workspace, also of open files."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.execution.conftest import Forking, Opening
from tests.faces import error_of, says
from tests.private import private_of
from wasm_kernel import Sandbox
from wasm_kernel.policy import Mount


def test_a_file_that_was_replaced_under_its_name_is_not_taken_for_the_open_one(
    parent: Sandbox, forked: Forking
) -> None:
    parent.execute("f = open('f', 'w+'); _ = f.write('old'); f.flush()")
    (parent.workspace / "f").unlink()
    (parent.workspace / "f").write_text("new")
    assert error_of(forked(parent).execute("f.seek(0); f.read()")).startswith("OSError:")


def test_a_file_that_was_made_again_before_the_fork_is_not_the_one_of_older_states(
    parent: Sandbox, forked: Forking
) -> None:
    parent.execute("f = open('f', 'w+'); _ = f.write('old'); f.flush()")
    parent.execute("f.close(); import os; os.unlink('f'); g = open('f', 'w+'); g.write('new')")
    fork = forked(parent)
    fork.undo(1)
    assert error_of(fork.execute("f.seek(0); f.read()")).startswith("OSError:")


def test_a_file_without_a_name_is_the_fork_s_own(parent: Sandbox, forked: Forking) -> None:
    parent.execute(
        "import os; f = open('f', 'w+'); _ = f.write('unnamed'); f.flush(); os.unlink('f')"
    )
    fork = forked(parent)
    fork.execute("_ = f.write(' fork'); f.flush()")
    parent.execute("_ = f.write(' parent'); f.flush()")
    assert says(fork, "f.seek(0); print(f.read())") == "unnamed fork"
    assert says(parent, "f.seek(0); print(f.read())") == "unnamed parent"
    (grandchild,) = fork.fork()
    assert says(grandchild, "f.seek(0); print(f.read())") == "unnamed fork"
    grandchild.close()


def test_an_open_file_that_an_undo_brought_back_is_open_in_a_fork(
    parent: Sandbox, forked: Forking
) -> None:
    parent.execute("f = open('f', 'w+'); _ = f.write('old'); f.flush()")
    parent.execute("import os; open('g', 'w').write('new'); os.replace('g', 'f')")
    assert parent.execute("%undo --files").success
    assert says(parent, "f.seek(0); print(f.read())") == "old"
    assert says(forked(parent), "f.seek(0); print(f.read())") == "old"


def test_a_fork_brings_back_files_from_before_it_was_forked(
    parent: Sandbox, forked: Forking
) -> None:
    parent.execute("open('f', 'w').write('one')")
    parent.execute("open('f', 'w').write('two')")
    fork = forked(parent)
    fork.execute("open('f', 'w').write('three')")
    assert fork.execute("%undo --files").success
    assert (fork.workspace / "f").read_text() == "two"
    assert fork.execute("%undo --files").success
    assert (fork.workspace / "f").read_text() == "one"
    assert (parent.workspace / "f").read_text() == "two"


def test_mounted_folders_are_the_same_for_both(
    opened: Opening, forked: Forking, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    parent = opened(mounts=(Mount(tmp_path / "shared", "/shared", True),))
    parent.execute("f = open('/shared/f', 'w+'); _ = f.write('hello'); f.flush()")
    fork = forked(parent)
    assert says(fork, "f.seek(0); print(f.read())") == "hello"
    fork.execute("open('/shared/g', 'w').close()")
    assert says(parent, "import os; print(sorted(os.listdir('/shared')))") == "['f', 'g']"


def test_what_can_not_be_copied_is_named_in_the_first_cell(
    parent: Sandbox, forked: Forking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(parent.workspace)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("so\x1bcket")
        fork = forked(parent)
    said = fork.execute("x = 1").stderr
    assert "1 of the parent's files are not in this fork: 'so\\x1bcket' (it is neither" in said
    assert fork.execute("x = 1").stderr == ""
    assert parent.execute("x = 1").stderr == ""


def test_hidden_names_are_not_copied(parent: Sandbox, forked: Forking) -> None:
    parent.execute("x = 1")
    (parent.workspace / ".metadata.json").write_text("{}")
    (parent.workspace / ".METADATA.json").write_text("{}")
    (private_of(parent.workspace) / "notes").write_text("x")
    fork = forked(parent)
    assert list(fork.workspace.iterdir()) == []
    assert not (private_of(fork.workspace) / "notes").exists()
