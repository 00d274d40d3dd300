"""The working folder, `%store` and notebooks as files, in a real guest."""

from __future__ import annotations

import tarfile
from pathlib import Path
from textwrap import dedent
from zipfile import ZipFile

import pytest

from tests.execution.conftest import Opening
from tests.faces import error_of, says
from wasm_kernel import Sandbox, create_sandbox

nbformat = pytest.importorskip("nbformat")
v4 = nbformat.v4


@pytest.mark.parametrize("there", ["a/../a/./..", "../app"])
def test_the_working_folder_is_one_plain_path(module_sandbox: Sandbox, there: str) -> None:
    code = f"import os; os.makedirs('/app/a', exist_ok=True); os.chdir('/app'); os.chdir({there!r})"
    assert module_sandbox.execute(code).success
    assert module_sandbox.execute("print(os.getcwd(), end='')").stdout == "/app"


@pytest.mark.parametrize(
    "call",
    [
        "shutil.rmtree('')",
        "os.makedirs('')",
        "os.chdir(b'')",
        "os.chmod('', 0)",
        "os.rename('', 'b')",
    ],
)
def test_an_empty_path_names_no_file(module_sandbox: Sandbox, call: str) -> None:
    module_sandbox.execute("import os, shutil; open('/app/kept', 'w').close(); os.chdir('/app')")
    assert error_of(module_sandbox.execute(call)).startswith("FileNotFoundError")
    seen = "print(os.path.exists(''), os.access('', os.R_OK), os.path.exists('kept'), end='')"
    assert module_sandbox.execute(seen).stdout == "False False True"


def test_all_files_belong_to_the_user(module_sandbox: Sandbox) -> None:
    code = (
        "import os, tarfile; open('/app/own', 'w').close(); os.chown('/app/own', 5, 5)\n"
        "with tarfile.open('/app/own.tar', 'w') as packed: packed.add('/app/own', 'unpacked')\n"
        "tarfile.open('/app/own.tar').extractall('/app', filter='fully_trusted')\n"
        "print(os.stat('/app/unpacked').st_uid == os.getuid() == os.geteuid(), end='')"
    )
    assert module_sandbox.execute(code).stdout == "True"


def test_cd_goes_back_and_forth(sandbox: Sandbox) -> None:
    sandbox.execute("%mkdir a")
    assert sandbox.execute("%cd a").stdout == "/app/a\n"
    assert sandbox.execute("%cd ..").stdout == "/app\n"
    assert sandbox.execute("%cd -").stdout == "/app/a\n"
    history = sandbox.execute("%dhist").stdout.splitlines()
    assert history[1:] == ["0: /app", "1: /app/a", "2: /app", "3: /app/a"]


def test_stored_variables_outlive_the_kernel(tmp_path: Path) -> None:
    with create_sandbox(workspace=tmp_path) as first:
        stored = first.execute("import numpy as np\nkept = {'a': np.ones(3)}\n%store kept")
        assert stored.stdout == "Stored 'kept' (dict)\n"
        first.execute("%alias greet echo hello\n%store greet\n%bookmark here")
    with create_sandbox(workspace=tmp_path) as second:
        assert "kept" in second.execute("%store").stdout
        second.execute("%store -r kept greet")
        assert second.execute("kept['a'].sum()").outputs[0].data["text/plain"] == "np.float64(3.0)"
        assert second.execute("%greet").stdout == "hello\n"
        assert "here" in second.execute("%bookmark -l").stdout
        second.execute("%store -d kept")
        assert "no stored variable" in second.execute("%store -r kept").stdout


def test_a_variable_that_cannot_be_stored_leaves_nothing_behind(sandbox: Sandbox) -> None:
    assert not sandbox.execute("hard = (n for n in ())\n%store hard").success
    assert "hard" not in sandbox.execute("%store").stdout


def test_a_notebook_runs_in_the_namespace_that_asks_or_tells_its_error(sandbox: Sandbox) -> None:
    book = v4.new_notebook(cells=[v4.new_markdown_cell("x = 0")])
    book.cells += map(v4.new_code_cell, ("x = 20\n%time y = 2", "z = x + y"))
    nbformat.write(book, sandbox.workspace / "other.ipynb")
    assert sandbox.execute("%run other.ipynb").success
    assert sandbox.execute("z").outputs[0].data["text/plain"] == "22"
    book = v4.new_notebook(cells=[*map(v4.new_code_cell, ("1/0", "after = 1"))])
    nbformat.write(book, sandbox.workspace / "bad.ipynb")
    assert error_of(sandbox.execute("%run bad.ipynb")).startswith("ZeroDivisionError:")
    assert not sandbox.execute("after").success


def test_history_becomes_a_valid_notebook(opened: Opening) -> None:
    sandbox = opened()
    for code in ("x = 41", "x + 1", "1/0", "%notebook out.ipynb"):
        sandbox.execute(code)
    book = nbformat.read(sandbox.workspace / "out.ipynb", as_version=4)
    nbformat.validate(book)
    assert [cell.source for cell in book.cells] == ["x = 41", "x + 1", "1/0"]
    assert book.cells[1].outputs[0].data["text/plain"] == "42"
    assert book.cells[2].outputs[0].ename == "ZeroDivisionError"


ARCHIVES = """
import os, shutil, stat
os.makedirs("given/in")
open("given/in/f", "w").close()
os.symlink("f", "given/in/l")
shutil.make_archive("packed", "zip", "given")
shutil.make_archive("packed", "tar", "given")
print(*(stat.filemode(os.lstat(f"given/in/{name}").st_mode) for name in ("", "f", "l")))
!ls -l given/in | tail -n 2 | cut -c-10; stat -c %a given given/in/f
"""


def test_files_have_modes_also_in_archives(tmp_path: Path) -> None:
    with create_sandbox(workspace=tmp_path) as sandbox:
        shown = "drwxr-xr-x -rw-r--r-- lrwxrwxrwx\n-rw-r--r--\nlrwxrwxrwx\n755\n644"
        assert says(sandbox, ARCHIVES) == shown
    with ZipFile(tmp_path / "packed.zip") as zipped:
        assert zipped.getinfo("in/f").external_attr >> 16 == 0o100644
    with tarfile.open(tmp_path / "packed.tar") as packed:
        assert [packed.getmember(name).mode for name in ("./in", "./in/f")] == [0o755, 0o644]


def test_the_null_device_takes_all_and_gives_nothing_also_after_an_undo(sandbox: Sandbox) -> None:
    code = """
        import contextlib, os
        null = open(os.devnull, 'w')
        with open(os.devnull) as file, contextlib.redirect_stdout(null):
            print('unseen', repr(file.read()))
        print(file.read if not file.closed else 'closed', os.path.getsize(os.devnull))
    """
    assert says(sandbox, dedent(code)) == "closed 0"
    sandbox.execute("x = 1")
    sandbox.execute("%undo")
    again = "print(null.write('unseen'), null.flush(), os.listdir('/dev'), 'x' in dir())"
    assert says(sandbox, again) == "6 None ['null'] False"
    assert error_of(sandbox.execute("open('/dev/other', 'w')")).startswith("PermissionError:")
