"""Results beside the notebook: `%session_publish` and `FileLink` in a kernel, and batch runs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import papermill
import pytest
from nbclient import NotebookClient

from tests.end_to_end.real_kernel import RealKernel

CELLS = """
from IPython.display import FileLink, FileLinks
import pandas as pd
pd.DataFrame({"a": [1]}).to_csv("r.csv", index=False); open("x.py", "w").write("x = 1")
display(FileLink("r.csv"), FileLink("own.csv"))
%session_publish r.csv
display(FileLink("r.csv"), FileLink("x.py"), FileLinks("."))
"""


@pytest.fixture
def folder(tmp_path: Path, installed_kernelspec: Path) -> Path:
    """A notebook's folder."""
    made = tmp_path / "book"
    made.mkdir()
    (made / "orders.ipynb").write_text("{}")
    (made / "own.csv").write_text("own")
    return made


def test_a_cell_publishes_and_links_or_is_told_the_setting(folder: Path) -> None:
    with RealKernel(cwd=folder, notebook=folder / "orders.ipynb") as book:
        shown = book.run(CELLS)
        before, own, published, after, script, listing = shown.data("text/html")
        assert "`%session_publish r.csv` copies it beside the notebook" in before
        assert "<a" not in before + script + listing
        assert "own.csv" in listing and "r.csv" in listing and "can't" not in listing
        assert '<a href="own.csv"' in own
        assert '<a href="orders.files/r.csv"' in published
        assert '<a href="orders.files/r.csv"' in after
        assert (folder / "orders.files" / "r.csv").read_text() == "a\n1\n"
        refused = book.run("%session_publish x.py gone.csv")
        assert "x.py: only files of data" in refused.stderr
        assert "gone.csv: the session has no such file" in refused.stderr
        sneaked = book.run("get_ipython().run_line_magic('session_publish', 'r.csv')")
        assert "at top level" in sneaked.stderr
        told = shown.stdout + str(shown.data("text/html")) + refused.stderr
        assert str(folder) not in told
    assert sorted(each.name for each in (folder / "orders.files").iterdir()) == ["r.csv"]
    with RealKernel(cwd=folder) as book:
        told = book.run("open('r.csv', 'w').close()\n%session_publish r.csv").stderr
        assert "WasmKernel.publish_folder" in told


def test_batch_runs_publish(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "jupyter_wasm_kernel_config.py").write_text("c.WasmKernel.publish_folder = 'out'")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(config))
    cell = "import sys; n = 1\nopen('r.csv', 'w').write(f'{n}'); open('x.py', 'w').close()"
    made = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[nbformat.v4.new_code_cell(cell)],  # type: ignore[no-untyped-call]
        metadata={"kernelspec": {"name": "wasm-python", "display_name": "w", "language": "python"}},
    )
    nbformat.write(made, folder / "book.ipynb")  # type: ignore[no-untyped-call]
    NotebookClient(made, resources={"metadata": {"path": str(folder)}}).execute()
    assert (folder / "out" / "r.csv").read_text() == "1"
    made.cells[0].source = cell.replace("n = 1", "n = 22")
    nbformat.write(made, folder / "book.ipynb")  # type: ignore[no-untyped-call]
    papermill.execute_notebook(
        str(folder / "book.ipynb"), None, cwd=str(folder), progress_bar=False
    )
    assert [(p.name, p.read_text()) for p in (folder / "out").iterdir()] == [("r.csv", "22")]
