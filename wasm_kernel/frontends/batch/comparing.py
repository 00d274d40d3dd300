"""Compares the outputs of a run with the notebook's stored ones."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from difflib import unified_diff
from itertools import takewhile
from typing import Any

from nbformat import NotebookNode

from wasm_kernel.frontends.batch.notebooks import merged

IGNORABLE = ("images", "counts", "addresses", "metadata")
"""The parts of outputs that a comparison may ignore."""

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,16}")
_NOTE = "[wasm-kernel] "
_DIFFERENCE_CHARACTERS = 20_000
_PAIRS_MOST = 4_000_000  # pairs of lines that difflib compares, whose time grows by squares


def difference(
    stored: NotebookNode, now: NotebookNode, ignored: Collection[str]
) -> tuple[str, int]:
    """Returns how the outputs of two notebooks differ, as `diff` prints it; empty if they do not.

    The number is that of the first cell whose outputs differ, from 1; 0 if there is none. `ignored`
    names some of `IGNORABLE`. Our quiet notes, which JupyterLab stores as outputs, do not count.
    """
    found, first, left = list[str](), 0, _PAIRS_MOST
    pairs = zip(_cells_of(stored), _cells_of(now), strict=True)
    for number, (one, other) in enumerate(pairs, start=1):
        kept = [each for each in one.get("outputs", ()) if not _is_note(each)]
        old, new = _lines(one, kept, ignored), _lines(other, other.get("outputs", ()), ignored)
        if old == new:
            continue
        first = first or number
        found += [f"--- cell {number}, stored", f"+++ cell {number}, now"]
        for _ in range(2):  # without equal lines at the beginning, then at the end
            both = zip(old, new, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
            old, new = old[same:][::-1], new[same:][::-1]
        left -= len(old) * len(new)
        if left < 0:
            found += [*(f"-{line}" for line in old), *(f"+{line}" for line in new)]
        else:
            lines = unified_diff(old, new, lineterm="", n=0)
            found += [line for line in lines if line[0] != "@"][2:]
    return "\n".join(found)[:_DIFFERENCE_CHARACTERS], first


def _cells_of(book: NotebookNode) -> Iterator[NotebookNode]:
    tag = "injected-parameters"
    return (cell for cell in book.cells if tag not in cell.metadata.get("tags", []))


def _is_note(output: NotebookNode) -> bool:
    data = output.get("data", {})
    return [*data] == ["text/plain"] and "".join(data["text/plain"]).startswith(_NOTE)


def _lines(
    cell: NotebookNode, outputs: Sequence[NotebookNode], ignored: Collection[str]
) -> list[str]:
    """Returns the compared parts of a cell as lines of JSON: at least one for a line of output."""
    count = None if "counts" in ignored else cell.get("execution_count")
    parts = [count, *(_comparable(each, ignored) for each in merged(outputs))]
    text = json.dumps(parts, indent=1, sort_keys=True, ensure_ascii=False)
    text = _ADDRESS.sub("0x…", text) if "addresses" in ignored else text
    return text.replace("\\n", "\\n\n").split("\n")


def _comparable(output: NotebookNode, ignored: Collection[str]) -> dict[str, Any]:
    left_out = {"execution_count": "counts", "metadata": "metadata"}
    made = {key: each for key, each in output.items() if left_out.get(key) not in ignored}
    for kind, content in (made.get("data") or {}).items():
        if kind.startswith("image/"):
            digest = hashlib.sha256(repr(content).encode()).hexdigest()
            made["data"] = {**made["data"], kind: "" if "images" in ignored else digest}
    return made
