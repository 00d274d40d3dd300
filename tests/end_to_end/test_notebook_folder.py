"""Cells see the files of the notebook's folder beside them, and never change them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.real_kernel import RealKernel
from tests.faces import A_UUID, host_tree
from wasm_kernel.engine.cache import default_folder

pytestmark = pytest.mark.usefixtures("installed_kernelspec")

CELLS = [
    "import pandas as pd; print(pd.read_csv('orders.csv').n.sum())",
    "import helper; print(helper.double(21))",
    "pd.DataFrame({'a': [1]}).to_csv('result.csv'); print(open('data/x.csv').read())",
]
ONE_SESSION: dict[str, Any] = {"session_id": A_UUID, "resume": "always"}


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
def book(folder: Path, installed_kernelspec: Path) -> Iterator[RealKernel]:
    """A kernel that was started in the folder."""
    with RealKernel(cwd=folder) as notebook:
        yield notebook


@pytest.fixture(autouse=True)
def _unchanged(folder: Path) -> Iterator[None]:
    before = host_tree(folder)
    yield
    assert host_tree(folder) == before


def said(book: RealKernel, code: str) -> str:
    shown = book.run(code)
    assert not shown.traceback, shown.traceback
    return shown.stdout


def test_a_cell_begins_in_the_folder_and_reads_all_but_hidden_files(book: RealKernel) -> None:
    assert said(book, "import os; print(os.getcwd())") == "/notebook\n"
    assert "'notebook'" in said(book, "print(os.listdir('/'))")
    assert [said(book, cell) for cell in CELLS] == ["42\n", "42\n", "x\n"]
    assert said(book, "print(open('/app/result.csv').read())") == ",a\n0,1\n\n"
    for code in ("open('.env')", "open('out/passwd')", "open('/etc/passwd')", "open('no.csv')"):
        shown = book.run(code)
        assert "FileNotFoundError" in shown.traceback
        assert "Cells see the notebook's folder as /notebook" in shown.traceback


def test_a_folder_above_is_read_once_it_is_mounted(
    book: RealKernel, tmp_path: Path, installed_kernelspec: Path
) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("n\n5\n")
    cell = "import pandas as pd; print(pd.read_csv('../data/x.csv').n.sum())"
    setting = "c.WasmKernel.mounts = ['/path/of/data:/data']"
    assert setting in str(book.run(cell).traceback)
    mounts = [f"{tmp_path / 'data'}:/data"]
    with RealKernel(cwd=tmp_path / "notebooks", mounts=str(mounts)) as other:
        assert said(other, cell) == "5\n"


def test_magics_find_its_files(book: RealKernel) -> None:
    assert said(book, "%run script.py") == "ran /notebook/script.py\n"
    listed = said(book, "!ls").split()
    assert {"data", "helper.py", "orders.csv", "script.py"} <= set(listed)
    assert not {".env", "out"} & set(listed)
    found = said(book, "import glob; print(sorted(glob.glob('*.csv') + glob.glob('**/x.csv')))")
    assert "'data/x.csv', 'orders.csv'" in found
    assert said(book, "%cd data\n!ls\n%cd -") == "/notebook/data\nx.csv\n/notebook\n"
    assert book.reply(book.client.complete("open('ord", 9))["matches"] == ["orders.csv"]


def test_a_module_that_is_new_or_changes_is_loaded(book: RealKernel, folder: Path) -> None:
    module = folder / "changing.py"
    try:
        assert "ModuleNotFoundError" in book.run("import changing").traceback
        module.write_text("x = 1\n")
        assert said(book, "%load_ext autoreload\n%autoreload 2\nimport changing; print(changing.x)")
        time.sleep(1.1)
        module.write_text("x = 2  # again\n")
        assert said(book, "print(changing.x)") == "2\n"
    finally:
        module.unlink()


def test_changes_stay_in_the_session_and_are_undone(book: RealKernel) -> None:
    code = (
        "import os, shutil\n"
        "open('orders.csv', 'a').write('1\\n'); os.remove('helper.py'); shutil.rmtree('data')\n"
        "os.rename('script.py', 'moved.py'); os.makedirs('data/new')\n"
        "print(sorted(each for each in os.listdir() if each != '__pycache__'), os.listdir('data'))"
    )
    assert said(book, code) == "['data', 'moved.py', 'orders.csv', 'result.csv'] ['new']\n"
    assert ".wh." not in said(book, "%session_files")
    told = book.run("%undo 2 --files").stdout
    assert "3 of the notebook's folder seen again (data, helper.py, script.py)" in told
    assert ".wh." not in told
    again = "print(open('orders.csv').read().count('\\n'), os.listdir('data'))"
    assert said(book, f"import os, helper; {again}") == "3 ['x.csv']\n"
    assert "script.py" in said(book, "!ls")


def test_a_restart_keeps_what_cells_did(folder: Path) -> None:
    with RealKernel(cwd=folder) as book:
        assert said(book, "import os; os.remove('orders.csv'); print(len(os.listdir()) > 2)")
        book.restart()
        assert said(book, "import os; print(os.path.exists('orders.csv'), os.getcwd())") == (
            "False /notebook\n"
        )


def test_write_lands_in_the_folder_and_is_undone(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("n\n1\n")
    (tmp_path / "old.csv").write_text("old")
    before = host_tree(tmp_path)
    with RealKernel(cwd=tmp_path, folder="write") as book:
        shown = book.run(
            "import os, pandas as pd\n"
            "pd.DataFrame({'a': [1]}).to_csv('result.csv', index=False)\n"
            "open('orders.csv', 'a').write('2\\n'); os.remove('old.csv')\n"
            "os.mkdir('data'); open('data/x.csv', 'w').write('x'); open('x.py', 'w').close()\n"
            "from IPython.display import FileLink; FileLink('result.csv')"
        )
        assert '<a href="result.csv"' in shown.data("text/html")[0]
        told = shown.page
        assert "In the session, but not beside the notebook: x.py: only files of data" in told
        assert str(tmp_path) not in told
        written = {p.name: p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
        assert written == {"orders.csv": "n\n1\n2\n", "result.csv": "a\n1\n", "x.csv": "x"}
        assert not (tmp_path / "result.csv").stat().st_mode & 0o111
        book.run("os.rename('result.csv', 'r2.csv'); os._exit(1)")  # the guest is lost
        assert (tmp_path / "r2.csv").exists()
        assert not (tmp_path / "result.csv").exists()
        book.run("%undo --files")
        assert (tmp_path / "data").is_dir()
        (tmp_path / "data").rmdir()
        assert host_tree(tmp_path) == before
        book.run("%redo --files")
        assert (tmp_path / "data" / "x.csv").read_text() == "x"
        assert not (tmp_path / "old.csv").exists()


def test_cells_see_what_the_user_makes_of_their_files(tmp_path: Path) -> None:
    with RealKernel(cwd=tmp_path, folder="write") as book:
        seen, reads = tmp_path / "seen.csv", "print(open('seen.csv').read())"
        book.run("open('seen.csv', 'w').write('session')")
        seen.write_text("edited")
        assert said(book, reads) == "edited\n"
        said(book, "open('seen.csv', 'a').write(' twice')")
        assert seen.read_text() == "edited twice"
        seen.write_text("again")
        assert said(book, reads) == "again\n"
        book.run("%undo 2 --files")
        assert seen.read_text() == "edited"
        book.run("open('gone.csv', 'w').close()")
        (tmp_path / "gone.csv").unlink()
        assert "FileNotFoundError" in book.run("open('gone.csv')").traceback

        code = "import ipywidgets as w\nb = w.Text()\n"
        code += "b.observe(lambda _: open('late.csv', 'w').close(), 'value'); print(b.model_id)"
        model = said(book, code).strip()
        data = {"method": "update", "state": {"value": "x"}, "buffer_paths": []}
        book.comm("msg", model, data)  # a callback writes, too
        book.client.kernel_info()
        assert said(book, "print(1)") == "1\n"
        assert (tmp_path / "late.csv").exists()


def test_a_home_shows_nothing_and_every_start_says_why(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "orders.csv").write_text("n\n1\n")
    env = {"HOME": str(tmp_path), "WASM_KERNEL_CACHE": str(default_folder())}
    env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    root = tmp_path_factory.mktemp("sessions")
    for _ in range(2):
        with RealKernel(root, variables=env, cwd=tmp_path, **ONE_SESSION) as book:
            shown = book.run("import os; print(os.getcwd(), os.listdir())")
            assert shown.stdout == "/app []\n"
            assert "as its folder is, or holds, a home folder" in shown.page
            assert "home folder" not in shown.stderr and not book.run("1").page
            book.shut_down()


def test_variables_are_kept_if_the_folder_is_another(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("o")
    with RealKernel(cwd=folder, **ONE_SESSION) as book:
        assert said(book, "%cd data\nx = 5") == "/notebook/data\n"
        book.shut_down()
    with RealKernel(cwd=tmp_path, **ONE_SESSION) as book:
        assert said(book, "import os; print(x, os.getcwd(), os.listdir())") == (
            "5 /notebook ['own.csv']\n"
        )
        book.shut_down()
    with RealKernel(cwd=tmp_path, folder="none", **ONE_SESSION) as book:
        looks = "import os; print(x, os.getcwd(), os.path.exists('/notebook'))"
        assert said(book, looks) == "5 /app False\n"
        told = book.run("open('own.csv')").traceback
        assert "not the folder of the notebook" in told
        assert 0 < told.find("to a folder of their own") < told.find("FileUpload")


VS_CODE = """
import os as _VSCODE_os
import sys as _VSCODE_sys
%cd "{folder}"
if _VSCODE_os.getcwd() not in _VSCODE_sys.path:
    _VSCODE_sys.path.insert(0, _VSCODE_os.getcwd())

del _VSCODE_sys
del _VSCODE_os
__vsc_ipynb_file__ = "{folder}/book.ipynb"
%config Completer.use_jedi = False
"""


def test_vs_code_begins_in_the_folder(
    folder: Path, installed_kernelspec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts the kernel like VS Code's Jupyter extension, which runs its own code first."""
    name = "kernels/wasm-python/kernel.json"
    spec = json.loads((installed_kernelspec / name).read_text())
    assert spec["argv"][-2:] == ["-f", "{connection_file}"]
    spec["argv"][-2:] = ["--f={connection_file}"]
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    with RealKernel(cwd=folder) as book:
        book.client.execute(VS_CODE.format(folder=folder), silent=True)
        assert said(book, CELLS[0]) == said(book, CELLS[1]) == "42\n"
        assert said(book, "import os; print(os.getcwd())") == "/notebook\n"
