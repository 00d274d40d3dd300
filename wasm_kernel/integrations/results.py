"""The texts and values of cells' results, as frameworks want them."""

from __future__ import annotations

import ast
from typing import Any

from wasm_kernel import SandboxResult

_LITERAL_MOST = 100_000  # characters of a text that is read as a value


def shown_text(result: SandboxResult) -> str:
    """Returns the text that a cell printed, its warnings, and the value of its last expression."""
    values = (each.data.get("text/plain", "") for each in result.outputs if each.kind == "result")
    parts = [result.stdout, result.stderr, *values]
    return "\n".join(text for part in parts if (text := str(part).rstrip("\n")))


def value_of(result: SandboxResult) -> Any:
    """Returns the value of a cell's last expression: a literal, or its text; None without one."""
    found = (each.data.get("text/plain") for each in result.outputs if each.kind == "result")
    text = next(found, None)
    try:  # a literal takes some 500 times the memory of its text
        return text if text is None or len(text) > _LITERAL_MOST else ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def error_text(result: SandboxResult) -> str:
    """Returns a cell's error in one line, or the empty text."""
    return "" if result.error is None else f"{result.error.ename}: {result.error.evalue}"
