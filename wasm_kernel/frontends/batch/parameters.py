"""Reads parameters of notebooks, checks them, and puts them in with papermill."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from wasm_kernel.errors import describe
from wasm_kernel.frontends.batch.notebooks import NotebookError, runtime_of
from wasm_kernel.frontends.batch.outcome import BatchError, require
from wasm_kernel.policy import RuntimeType

_WORDS = {"True": True, "False": False, "None": None}
_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.\d*|\.?\d+)([eE][+-]?\d+)?")
_ASSIGNED = re.compile(r"^[ \t]*+([^\W\d]\w*+)[ \t]*+(?::[^=\n]*+)?=(?!=)", re.MULTILINE)
"""A name that a cell assigns to; papermill's own pattern takes hours for some cells."""

_CELL_ID = "injected-parameters"
_TAG = "parameters"


def value_of(text: str) -> Any:
    """Returns the value of a parameter on the command line, by papermill's rules."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def read_parameters(files: Iterable[Path], pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Returns parameters by name; pairs win over files, and later ones over earlier ones.

    Raises `BatchError` if a file can't be read, or does not hold a table.
    """
    require("A parameter", "papermill", "yaml")
    import yaml

    found: dict[str, Any] = {}
    for file in files:
        try:
            table = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as problem:
            why = describe(problem)
            raise BatchError(f"{file.name} can't be read ({why}). Nothing was run.") from None
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table):
            raise BatchError(f"{file.name} holds no names with values. Nothing was run.")
        found |= table
    return found | {name: value_of(text) for name, text in pairs}


def check_parameters(book: NotebookNode, name: str, parameters: Mapping[str, Any]) -> None:
    """Raises `BatchError` if a notebook's cell tagged `parameters` lacks one of these."""
    tagged = (cell for cell in book.cells if _TAG in cell.metadata.get("tags", []))
    cell = next(tagged, None)
    known = [] if cell is None else _ASSIGNED.findall(cell.source)
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        has = f"it has {', '.join(known)}" if known else "it has no cell tagged parameters"
        raise BatchError(f"{name} has no parameter {unknown[0]}; {has}. Nothing was run.")


def put_in(book: NotebookNode, parameters: Mapping[str, Any]) -> NotebookNode:
    """Returns the notebook with a cell that sets parameters, after the cell that declares them.

    Raises `NotebookError` if its language has no parameters.
    """
    from papermill.parameterize import parameterize_notebook

    if runtime_of(book) is not RuntimeType.PYTHON:
        raise NotebookError("Parameters are for notebooks in Python.")
    book.metadata["papermill"] = {}
    for cell in book.cells:
        cell.metadata.setdefault("tags", [])  # papermill reads them from each cell
    made: NotebookNode = parameterize_notebook(
        book, dict(parameters), kernel_name="python3", language="python"
    )
    for cell in made.cells:
        if _CELL_ID in cell.metadata.tags:
            cell.id = _CELL_ID  # papermill draws it at random
        if not cell.metadata.tags:
            del cell.metadata["tags"]
    return made
