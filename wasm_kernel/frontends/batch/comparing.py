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
from itertools import takewhile
from typing import Any

from nbformat import NotebookNode

from wasm_kernel.frontends.batch.notebooks import merge_streams

IGNORABLE = ("images", "counts", "addresses", "metadata")
"""The parts of outputs that a comparison may ignore."""

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,16}")
_NOTE = "[wasm-kernel] "
_DIFFERENCE_CHARACTERS = 20_000
_OUTPUTS_MOST = 100  # outputs; those of a cell with more are compared as one
_PAIRS_MOST = 4_000_000  # pairs of lines; beyond it, a cell's outputs are compared as one


def difference(
    before: NotebookNode, after: NotebookNode, ignored: Collection[str]
) -> tuple[str, int]:
    """Returns how the outputs of two notebooks differ, as nbdime prints it; empty if they do not.

    The number is that of the first cell whose outputs differ, from 1; 0 if there is none. `ignored`
    names some of `IGNORABLE`.
    """
    from nbdime.diff_format import op_patch
    from nbdime.prettyprint import PrettyPrintConfig, pretty_print_notebook_diff

    old, new = _comparable(before, ignored), _comparable(after, ignored)
    pairs = enumerate(zip(old.cells, new.cells, strict=True))
    left = _PAIRS_MOST
    found: list[Any] = []
    for number, (one, other) in [pair for pair in pairs if pair[1][0] != pair[1][1]]:
        left -= _pairs_of_lines(one, other)
        if left < 0:
            one.outputs, other.outputs = [_summed_up(one.outputs)], [_summed_up(other.outputs)]
        if change := _cell_difference(one, other):
            found.append(op_patch(number, change))
    if not found:
        return "", 0
    written = io.StringIO()
    told = PrettyPrintConfig(out=written, use_git=False, use_diff=False, use_color=False)
    pretty_print_notebook_diff("stored", "now", old, [op_patch("cells", found)], told)
    return written.getvalue()[:_DIFFERENCE_CHARACTERS], found[0].key + 1


def _cell_difference(one: NotebookNode, other: NotebookNode) -> Any:
    """Returns nbdime's difference of two cells; given notebooks, it would compare all pairs."""
    from nbdime.diffing.generic import diff
    from nbdime.diffing.notebooks import notebook_config

    return diff(one, other, path="/cells/*", config=notebook_config)


def _pairs_of_lines(one: NotebookNode, other: NotebookNode) -> int:
    """Returns the number of pairs of lines that nbdime may compare, those between equal lines."""
    texts = (json.dumps(cell.get("outputs")) for cell in (one, other))
    old, new = (text.replace("\\n", "\n").split("\n") for text in texts)
    for _ in range(2):
        same = takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
        count = sum(1 for _ in same)
        old, new = old[count:][::-1], new[count:][::-1]
    return len(old) * len(new)


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
    text = f"{len(outputs):,} outputs, too much to compare in full; the digest is {digest[:16]}\n"
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
