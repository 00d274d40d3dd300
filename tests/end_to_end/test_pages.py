"""The cells on the pages run in a notebook, and show what the pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.real_kernel import RealKernel, Shown
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
