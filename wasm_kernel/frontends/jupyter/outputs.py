"""What a front end may be shown: pure functions, outputs in and outputs out.

Everything a cell sends to the notebook passes through here once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wasm_kernel.frontends.jupyter import terminal
from wasm_kernel.sandbox.frames import Display, Error, Output, Result

Bundle = Mapping[str, Any]


def clean_bundle(data: Bundle) -> dict[str, Any]:
    """A MIME bundle with each content made fit to be shown."""
    return {mime: _clean_content(mime, content) for mime, content in data.items()}


def _clean_content(mime: str, content: Any) -> Any:
    if mime == "text/plain" and isinstance(content, str):
        return terminal.clean(content)
    return content


def clean_error(error: Error) -> Error:
    """An error whose name, text and traceback hold colours and no other terminal control."""
    return Error(
        terminal.clean(error.ename),
        terminal.clean(error.evalue),
        tuple(terminal.clean(line) for line in error.traceback),
    )


def clean_output(output: Output) -> Output:
    """`output` as it may be shown.

    Streams pass: they come in pieces, which `terminal.StreamCleaner` puts together.
    """
    if isinstance(output, Display | Result):
        return replace(output, data=clean_bundle(output.data))
    if isinstance(output, Error):
        return clean_error(output)
    return output
