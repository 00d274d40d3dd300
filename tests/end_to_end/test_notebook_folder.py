"""The folder of a notebook as its cells see it: beside them, and never changed by them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from nbclient import NotebookClient

from tests.end_to_end.driving import Notebook, opened
from tests.wasi_files.overlays import host_tree
from wasm_kernel.engine.cache import default_folder

pytestmark = pytest.mark.usefixtures("installed_kernelspec")

CELLS = [
    "import pandas as pd; print(pd.read_csv('orders.csv').n.sum())",
    "import helper; print(helper.double(21))",
    "pd.DataFrame({'a': [1]}).to_csv('result.csv'); print(open('data/x.csv').read())",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A notebook's folder."""
    made = tmp_path_factory.mktemp("notebook")
    (made / "orders.csv").write_text("n\n40\n2\n")
    (made / "helper.py").write_text("def double(n):\n    return 2 * n\n")
    (made / "script.py").write_text("print('ran', __file__)\n")
    (made / "data").mkdir()
    (made / "data" / "x.csv").write_text("x")
    (made / ".env").write_text("KEY=secret")
    (made / "out").symlink_to("/etc")
    return made


@pytest.fixture(scope="module")
def book(folder: Path, installed_kernelspec: Path) -> Iterator[Notebook]:
    """A kernel that was started in it."""
    with opened(cwd=folder) as notebook:
        yield notebook


@pytest.fixture(autouse=True)
def _unchanged(folder: Path) -> Iterator[None]:
    before = host_tree(folder)
    yield
    assert host_tree(folder) == before


def said(book: Notebook, code: str) -> str:
    shown = book.run(code)
    assert not shown.traceback, shown.traceback
    return shown.stream()


def test_a_cell_begins_there_and_reads(book: Notebook) -> None:
    assert said(book, "import os; print(os.getcwd())") == "/notebook\n"
    assert "'notebook'" in said(book, "print(os.listdir('/'))")
    assert said(book, CELLS[0]) == "42\n"
    assert said(book, CELLS[1]) == "42\n"
    assert said(book, CELLS[2]) == "x\n"
    assert said(book, "print(open('/app/result.csv').read())") == ",a\n0,1\n\n"


def test_magics_find_its_files(book: Notebook) -> None:
    assert said(book, "%run script.py") == "ran /notebook/script.py\n"
    listed = said(book, "!ls").split()
    assert {"data/", "helper.py", "orders.csv", "script.py"} <= set(listed)
    assert not {".env", "out"} & set(listed)
    found = said(book, "import glob; print(sorted(glob.glob('*.csv') + glob.glob('**/x.csv')))")
    assert "'data/x.csv', 'orders.csv'" in found
    assert said(book, "%cd data\n!ls\n%cd -") == "/notebook/data\nx.csv\n/notebook\n"


def test_names_of_files_are_completed(book: Notebook) -> None:
    book.client.complete("open('ord", 9)
    reply = book.client.get_shell_msg(timeout=60)["content"]
    assert any("orders.csv" in match for match in reply["matches"])


def test_a_module_that_changes_is_loaded_again(book: Notebook, folder: Path) -> None:
    module = folder / "changing.py"
    try:
        module.write_text("x = 1\n")
        assert said(book, "%load_ext autoreload\n%autoreload 2\nimport changing; print(changing.x)")
        time.sleep(1.1)
        module.write_text("x = 2  # again\n")
        assert said(book, "print(changing.x)") == "2\n"
    finally:
        module.unlink()


def test_a_module_that_is_new_is_found(book: Notebook, folder: Path) -> None:
    module = folder / "later.py"
    try:
        assert "ModuleNotFoundError" in book.run("import later").traceback
        module.write_text("x = 3\n")
        assert said(book, "import later; print(later.x)") == "3\n"
    finally:
        module.unlink()


def test_what_is_hidden_is_missing_and_the_error_says_so(book: Notebook) -> None:
    for code in ("open('.env')", "open('out/passwd')", "open('/etc/passwd')", "open('no.csv')"):
        shown = book.run(code)
        assert "FileNotFoundError" in shown.traceback
        assert "Cells see the notebook's folder as /notebook" in shown.traceback


def test_changes_stay_in_the_session_and_are_undone(book: Notebook) -> None:
    code = (
        "import os, shutil\n"
        "open('orders.csv', 'a').write('1\\n'); os.remove('helper.py'); shutil.rmtree('data')\n"
        "os.rename('script.py', 'moved.py'); os.makedirs('data/new')\n"
        "print(sorted(each for each in os.listdir() if each != '__pycache__'), os.listdir('data'))"
    )
    assert said(book, code) == "['data', 'moved.py', 'orders.csv', 'result.csv'] ['new']\n"
    assert ".wh." not in said(book, "%session_files")
    told = book.run("%undo 2 --files").stream()
    assert "3 of the notebook's folder seen again (data, helper.py, script.py)" in told
    assert ".wh." not in told
    again = "print(open('orders.csv').read().count('\\n'), os.listdir('data'))"
    assert said(book, f"import os, helper; {again}") == "3 ['x.csv']\n"
    assert "script.py" in said(book, "!ls")


def test_a_folder_is_moved_by_a_copy(book: Notebook) -> None:
    moves = "import shutil, os; shutil.move('data', 'kept')"
    looks = "print(os.listdir('kept'), os.path.exists('data'))"
    assert said(book, f"{moves}; {looks}") == "['x.csv'] False\n"
    book.run("%undo --files")
    assert said(book, "import os; print(os.listdir('data'))") == "['x.csv']\n"


def test_a_restart_keeps_what_cells_did(folder: Path) -> None:
    with opened(cwd=folder) as book:
        assert said(book, "import os; os.remove('orders.csv'); print(len(os.listdir()) > 2)")
        book.client.stop_channels()
        book.manager.restart_kernel()
        book.client = book.manager.blocking_client()
        book.client.start_channels()
        book.client.wait_for_ready(timeout=60)
        assert said(book, "import os; print(os.path.exists('orders.csv'), os.getcwd())") == (
            "False /notebook\n"
        )


def test_none_shows_nothing(folder: Path) -> None:
    with opened("--WasmKernel.folder=none", cwd=folder) as book:
        shown = book.run("import os; print(os.getcwd(), os.path.exists('/notebook'))")
        assert shown.stream() == "/app False\n"
        assert "not the folder of the notebook" in book.run("open('orders.csv')").traceback


def test_write_is_refused_in_words(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wasm_kernel", "--WasmKernel.folder=write"],
        cwd=folder,
        env=os.environ | {"WASM_KERNEL_WORKSPACE_ROOT": str(tmp_path / "sessions")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "WasmKernel.folder can't be write yet" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_home_shows_nothing_and_says_why(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "orders.csv").write_text("n\n1\n")
    env = {"HOME": str(tmp_path), "WASM_KERNEL_CACHE": str(default_folder())}
    with opened(cwd=tmp_path, XDG_STATE_HOME=str(tmp_path_factory.mktemp("state")), **env) as book:
        shown = book.run("import os; print(os.getcwd(), os.listdir())")
        assert shown.stream() == "/app []\n"
        assert "as its folder is, or holds, a home folder" in shown.stream("stderr")
        assert not book.run("1").stream("stderr")


def test_variables_go_on_where_the_folder_is_another(folder: Path, tmp_path: Path) -> None:
    named = "--WasmKernel.session_id=6f9619ff-8b86-4011-b42d-00c04fc964ff"
    always = "--WasmKernel.resume=always"
    (tmp_path / "own.csv").write_text("o")
    with opened(named, always, cwd=folder) as book:
        assert said(book, "%cd data\nx = 5") == "/notebook/data\n"
        book.client.stop_channels()
        book.manager.shutdown_kernel()
    with opened(named, always, cwd=tmp_path) as book:
        assert said(book, "import os; print(x, os.getcwd(), os.listdir())") == (
            "5 /notebook ['own.csv']\n"
        )
        book.client.stop_channels()
        book.manager.shutdown_kernel()
    with opened(named, always, "--WasmKernel.folder=none", cwd=tmp_path) as book:
        assert said(book, "import os; print(x, os.getcwd())") == "5 /app\n"


def notebook_at(place: Path) -> Any:
    """A notebook of the cells above, written to a file."""
    made: Any = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[nbformat.v4.new_code_cell(code) for code in CELLS],  # type: ignore[no-untyped-call]
        metadata={"kernelspec": {"name": "wasm-python", "display_name": "w", "language": "python"}},
    )
    nbformat.write(made, place)  # type: ignore[no-untyped-call]
    return made


def texts(notebook: Any) -> list[str]:
    outputs = [output for cell in notebook["cells"] for output in cell["outputs"]]
    return ["".join(output["text"]) for output in outputs]


def test_nbclient_runs_a_notebook_in_its_folder(folder: Path, tmp_path: Path) -> None:
    made = notebook_at(tmp_path / "book.ipynb")
    NotebookClient(made, resources={"metadata": {"path": str(folder)}}).execute()
    assert texts(made) == ["42\n", "42\n", "x\n"]


def test_papermill_runs_a_notebook_in_its_folder(folder: Path, tmp_path: Path) -> None:
    notebook_at(tmp_path / "book.ipynb")
    out = papermill.execute_notebook(
        str(tmp_path / "book.ipynb"),
        str(tmp_path / "out.ipynb"),
        cwd=str(folder),
        progress_bar=False,
    )
    assert texts(out) == ["42\n", "42\n", "x\n"]


def test_jupyter_execute_runs_a_notebook_in_its_folder(folder: Path, tmp_path: Path) -> None:
    notebook_at(folder / "book.ipynb")
    out = tmp_path / "out.ipynb"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "jupyter", "execute", f"--output={out}", "book.ipynb"],
            cwd=folder,
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert texts(json.loads(out.read_text())) == ["42\n", "42\n", "x\n"]
    finally:
        (folder / "book.ipynb").unlink()
