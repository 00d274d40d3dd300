"""Compares the outputs of a run with the notebook's stored ones, with nbdime."""

# mypy: disable-error-code="no-untyped-call"
# (nbformat carries no types)

from __future__ import annotations

import copy
import hashlib
import io
import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from nbformat import NotebookNode

from wasm_kernel.frontends.batch.notebooks import merge_streams

IGNORABLE = ("images", "counts", "addresses", "metadata")
"""The parts of outputs that a comparison may ignore."""

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,16}")
_NOTE = "[wasm-kernel] "
_DIFFERENCE_CHARACTERS = 20_000
_OUTPUTS_MOST = 100  # of a cell with more outputs, all are compared as one


def difference(
    before: NotebookNode, after: NotebookNode, ignored: Collection[str]
) -> tuple[str, int]:
    """Returns how the outputs of two notebooks differ, as nbdime prints it; empty if they do not.

    The number is that of the first cell whose outputs differ, from 1; 0 if there is none. `ignored`
    names some of `IGNORABLE`.
    """
    from nbdime import diff_notebooks
    from nbdime.prettyprint import PrettyPrintConfig, pretty_print_notebook_diff

    old, new = _comparable(before, ignored), _comparable(after, ignored)
    found: Any = diff_notebooks(old, new)
    if not found:
        return "", 0
    written = io.StringIO()
    pretty_print_notebook_diff(
        "stored", "now", old, found, PrettyPrintConfig(out=written, use_color=False)
    )
    cells = enumerate(zip(old.cells, new.cells, strict=False), 1)
    first = next((number for number, (one, other) in cells if one != other), 0)
    return written.getvalue()[:_DIFFERENCE_CHARACTERS], first


def without_notes(book: NotebookNode) -> NotebookNode:
    """Returns a stored notebook without our quiet notes, which JupyterLab stores as outputs."""
    made = copy.deepcopy(book)
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if not _is_note(each)]
    return made


def _comparable(book: NotebookNode, ignored: Collection[str]) -> NotebookNode:
    """A copy with only the parts that are compared: sources and outputs."""
    made = copy.deepcopy(book)
    made.metadata = {}
    made.cells = [
        cell for cell in made.cells if "injected-parameters" not in cell.metadata.get("tags", [])
    ]
    for number, cell in enumerate(made.cells, start=1):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        if cell.cell_type == "code":
            if "counts" in ignored:
                cell.execution_count = None
            merge_streams(cell)
            cell.outputs = [_output(each, ignored) for each in cell.outputs]
            if len(cell.outputs) > _OUTPUTS_MOST:
                cell.outputs = [_summed_up(cell.outputs)]
    return made


def _summed_up(outputs: Sequence[NotebookNode]) -> NotebookNode:
    """Returns one output in place of many, since nbdime compares each with each."""
    digest = hashlib.sha256(json.dumps(outputs, sort_keys=True).encode()).hexdigest()
    text = f"{len(outputs):,} outputs, too many to compare each; their digest is {digest[:16]}\n"
    return NotebookNode(output_type="stream", name="stdout", text=text)


def _is_note(output: NotebookNode) -> bool:
    data = output.get("data", {})
    return [*data] == ["text/plain"] and "".join(data["text/plain"]).startswith(_NOTE)


def _output(output: NotebookNode, ignored: Collection[str]) -> NotebookNode:
    if "counts" in ignored and "execution_count" in output:
        output.execution_count = None
    if "metadata" in ignored and "metadata" in output:
        output.metadata = {}
    for kind in [*output.get("data", {})]:
        if "images" in ignored and kind.startswith("image/"):
            output.data[kind] = ""
    return _without_addresses(output) if "addresses" in ignored else output


def _without_addresses(value: Any) -> Any:
    if isinstance(value, str):
        return _ADDRESS.sub("0x…", value)
    if isinstance(value, dict):
        for name in value:
            value[name] = _without_addresses(value[name])
        return value
    return [_without_addresses(each) for each in value] if isinstance(value, list) else value
