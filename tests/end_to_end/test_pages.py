"""The cells on the pages, and of the tutorials' analysis, run in a notebook as the pages say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.real_kernel import RealKernel, Shown
from tests.faces import host_tree
from tests.pages import NOTEBOOKS, blocks_of, examples_of, says

TABLE = "city,amount\nOslo,120\n"
BESIDE_MY_FILES = {"helper.py": "", "orders.csv": TABLE, "data/more.csv": TABLE}


@pytest.mark.parametrize("page", NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_the_cells_of_a_page_show_what_it_says(page: Path, tmp_path: Path) -> None:
    files = {block.title: block.text for block in blocks_of(page) if block.title}
    if page == NOTEBOOKS["my-files"]:
        files = BESIDE_MY_FILES
    for name, text in {"orders.ipynb": "", **files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    with RealKernel(cwd=tmp_path, notebook=tmp_path / "orders.ipynb") as notebook:
        for code, printed in examples_of(page):
            shown = notebook.run(code)
            told = text_of(shown)
            if printed is None:
                assert shown.reply["status"] == "ok", told
            else:
                assert says(told, printed), told


def text_of(shown: Shown) -> str:
    """Returns what a cell printed, its displays and its value as text, and its error."""
    error = f"{shown.reply['ename']}: {shown.reply['evalue']}" if "ename" in shown.reply else ""
    parts = [shown.stdout, *shown.data("text/plain"), error]
    return "\n".join(part.rstrip("\n") for part in parts if part) + "\n"


FOLDER = Path(__file__).resolve().parents[2] / "notebooks" / "5-orders"
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.mark.soak
def test_an_analysis_runs_as_under_ipykernel() -> None:
    before = host_tree(FOLDER)
    cells = json.loads((FOLDER / "orders.ipynb").read_text(encoding="utf-8"))["cells"]
    code = {cell["id"]: cell for cell in cells if cell["cell_type"] == "code"}
    assert {cell["execution_count"] for cell in code.values()} == {None}
    shown: dict[str, Shown] = {}
    with RealKernel(cwd=FOLDER) as book:
        for name, cell in code.items():
            shown[name] = book.run("".join(cell["source"]))
            assert not shown[name].traceback, shown[name].traceback
            assert not shown[name].stderr, name
            assert shown[name].page[:17] == ("[wasm-kernel] by-" if name == "write" else ""), name
    # as ipykernel prints them
    assert shown["clean"].stdout == "10 prices were missing\n"
    assert shown["module"].stdout == "a year's turnover: 20,242.97\n"
    assert "7307.90  32.19" in shown["merge"].data("text/plain")[0]
    assert shown["bootstrap"].stdout == "the mean order: 33.74, between 32.03 and 35.43\n"
    assert "right in 0.82, always 'no' in 0.75" in shown["score"].stdout
    assert shown["write"].stdout == "12 months are in by-month.csv\n"
    for name in ("read", "describe", "merge", "pivot", "model"):
        assert shown[name].data("text/html"), name
    for name in ("lines", "heatmap", "picture"):
        assert len(shown[name].data("image/png")[0]) > 10_000, name
    for name in ("bootstrap", "widget"):
        assert shown[name].data(VIEW), name
    assert host_tree(FOLDER) == before
