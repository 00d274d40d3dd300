"""The tables that a sandbox reads, beside those of pandas with pyarrow for the same files."""

from __future__ import annotations

import json
import re
from typing import Any

from wasm_kernel import BaseSandbox


def said(sandbox: BaseSandbox, code: str) -> str:
    """Returns the text that a cell prints, or its error."""
    result = sandbox.execute(code)
    return result.stdout.strip() if result.error is None else str(result.error.evalue)


def check_table(sandbox: BaseSandbox, read: str, wanted: dict[str, Any]) -> None:
    """Asserts that the expression `read` gives the wanted index, and columns of the same types."""
    code = f"df = {read}\n"
    code += "found = {c: [str(df[c].dtype), repr(df[c].tolist())] for c in df.columns}\n"
    code += "import json; print(json.dumps([repr(df.index.tolist()), found]))"
    index, columns = json.loads(said(sandbox, code))
    assert index == wanted["index"]
    assert {name: _as_numbers(*each) for name, each in columns.items()} == {
        name: _as_numbers(*each) for name, each in wanted["columns"].items()
    }


def _as_numbers(kind: str, values: str) -> tuple[str, str]:
    """Returns a column's type, and its values without spaces and without `.0`.

    In dicts and maps with gaps, pyarrow makes floats of integers, which stay integers here.
    """
    return kind, re.sub(r"(?<=\d)\.0(?!\d)", "", "".join(values.split()))
