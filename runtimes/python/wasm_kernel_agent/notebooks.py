"""Notebooks as files: `%run other.ipynb` and `%notebook file.ipynb`.

IPython leaves them to nbformat, which needs compiled packages that the sandbox has not.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

_INFO = {
    "name": "python",
    "version": platform.python_version(),
    "mimetype": "text/x-python",
    "codemirror_mode": {"name": "ipython", "version": 3},
    "pygments_lexer": "ipython3",
    "nbconvert_exporter": "python",
    "file_extension": ".py",
}
_SPEC = {"name": "wasm-python", "display_name": "Python (wasm)", "language": "python"}


def code_cells(path: Path) -> list[str]:
    """The sources of the code cells of the notebook at `path`, of format 3 or 4.

    Raises:
        UsageError: the file is no such notebook.
    """
    try:
        book = json.loads(path.read_text(encoding="utf-8"))
        sheets = book.get("worksheets") or [book]
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        return [_source(cell) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UsageError(f"{path.name} is no notebook") from problem


def _source(cell: dict[str, Any]) -> str:
    text = cell["source"] if "source" in cell else cell["input"]
    return text if isinstance(text, str) else "".join(text)


def of_history(manager: Any) -> dict[str, Any]:
    """This session's inputs, results and errors as a notebook of format 4.5; the last one not."""
    cells = []
    for _, number, source in list(manager.get_range())[:-1]:
        outputs = [_result(each, number) for each in manager.outputs.get(number, ())]
        if number in manager.exceptions:
            outputs.append({"output_type": "error", **manager.exceptions[number]})
        cells.append(
            {
                "cell_type": "code",
                "id": f"in-{number}",
                "metadata": {},
                "execution_count": number,
                "source": source,
                "outputs": [each for each in outputs if each],
            }
        )
    metadata = {"kernelspec": _SPEC, "language_info": _INFO}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}


def _result(output: Any, number: int) -> dict[str, Any]:
    if output.output_type not in ("execute_result", "display_data"):
        return {}
    shown = {"output_type": output.output_type, "data": dict(output.bundle), "metadata": {}}
    return shown | ({"execution_count": number} if output.output_type == "execute_result" else {})


def write(book: dict[str, Any], path: Path) -> None:
    """Write a notebook to a file."""
    path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
