# mypy: disable-error-code="no-untyped-call"
# (nbformat carries no types)

"""Notebooks for one test, and runs of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from wasm_kernel.frontends.batch.outcome import Outcome
from wasm_kernel.frontends.batch.runner import run_notebooks

Making = Callable[..., Path]
Running = Callable[..., dict[str, Outcome]]


def code(source: str, *tags: str) -> Any:
    """A code cell with tags."""
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)} if tags else {})


def executed(file: Path) -> list[tuple[str, str]]:
    """The source and the text of the outputs of each code cell of a notebook."""
    book: Any = nbformat.read(file, as_version=4)
    return [
        (cell.source, "".join(text_of(each) for each in cell.outputs))
        for cell in book.cells
        if cell.cell_type == "code"
    ]


def text_of(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    return str(output.ename if output.output_type == "error" else output.data["text/plain"])


@pytest.fixture
def make(tmp_path: Path) -> Making:
    """Writes a notebook whose kernelspec names another kernel into the folder `in`."""

    def make(name: str, *cells: Any, language: str = "python") -> Path:
        made = [code(cell) if isinstance(cell, str) else cell for cell in cells]
        spec = {"name": "python3", "display_name": "Python 3", "language": language}
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": spec}), file)
        return file

    return make


@pytest.fixture
def run(tmp_path: Path) -> Running:
    """Runs notebooks into the folder `out`; by default all of the folder `in`. Outcomes by name."""

    def run(*named: Path, **options: Any) -> dict[str, Outcome]:
        told: dict[str, Any] = {"workspace_root": tmp_path / "sessions", "jobs": 2, **options}
        found = run_notebooks(named or [tmp_path / "in"], tmp_path / "out", **told)
        return {each.notebook: each for each in found}

    return run
