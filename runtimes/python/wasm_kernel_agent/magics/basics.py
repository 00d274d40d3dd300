"""The magics that a notebook kernel adds to IPython's own, and `%limit`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from IPython.core import inputtransformer2, page
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.utils import openpy

from wasm_kernel_agent.notebook_face import notebook_of, write_notebook

_cell_magic: Any = inputtransformer2.cell_magic
_LIMIT_USAGE = (
    "%%limit takes seconds=NUMBER, fuel=NUMBER or both, such as: %%limit seconds=5 fuel=1e9"
)


def limit_in_place(lines: list[str]) -> list[str]:
    """Turns a leading `%%limit ...` into `%limit ...`, so that the rest of the cell runs as usual.

    Line numbers, top-level `await`, the last expression's value and a further cell magic on the
    next line keep their meaning; a nested cell would lose them.
    """
    if not lines or lines[0].split(None, 1)[:1] != ["%%limit"]:
        return lines
    return [lines[0].lstrip()[1:].rstrip("\n") + "\n", *_cell_magic(lines[1:])]


def parse_limits(line: str) -> dict[str, Any]:
    """Returns the limits that `line` names, as the fields of a `limit` frame.

    Raises:
        UsageError: `line` names no limit, an unknown one, or a number that is not positive.
    """
    fields: dict[str, Any] = {}
    for word in line.split():
        name, _, text = word.partition("=")
        if name not in ("seconds", "fuel") or name in fields:
            raise UsageError(_LIMIT_USAGE)
        try:
            value = float(text.replace("_", ""))
        except ValueError:
            raise UsageError(_LIMIT_USAGE) from None
        if not (math.isfinite(value) and value > 0):
            raise UsageError(_LIMIT_USAGE)
        fields[name] = max(1, int(value)) if name == "fuel" else value
    if not fields:
        raise UsageError(_LIMIT_USAGE)
    return fields


@magics_class
class BasicMagics(Magics):
    """Limits, paging and notebooks."""

    shell: Any

    @line_cell_magic
    def limit(self, line: str, cell: str | None = None) -> None:
        """Lower this cell's limits: `%%limit seconds=5 fuel=1e9`.

        `seconds` is wall-clock time from now on; `fuel` is roughly the number of WebAssembly
        instructions the cell may still run (only if the kernel counts fuel). Limits can only be
        lowered, and hold for this cell alone. A cell that exceeds one is stopped; its kernel tells
        which variables are kept.

            %%limit seconds=5
            while not done:
                step()
        """
        self.shell.outbox.send({"op": "limit", **parse_limits(line)})
        if cell is not None:
            self.shell.run_cell(cell)

    @line_magic
    def less(self, line: str) -> None:
        """Show a file in the pager; Python files are highlighted."""
        self._page(line.strip())

    @line_magic
    def more(self, line: str) -> None:
        """Show a file in the pager."""
        self._page(line.strip())

    def _page(self, name: str) -> None:
        if not name:
            raise UsageError("Missing filename.")
        path = Path(name)
        if path.suffix == ".py":
            source = openpy.read_py_file(name, skip_encoding_cookie=False)
            page.page(self.shell.pycolorize(source))
        else:
            page.page(path.read_text(errors="replace"))

    @line_magic
    def clear(self, line: str) -> None:
        """Clear the output of the cell."""
        self.shell.display_pub.clear_output()

    @line_magic
    def notebook(self, line: str) -> None:
        """Write this session's inputs, results and errors to a notebook: `%notebook FILE.ipynb`.

        The kernel does not keep printed text and displays; save the notebook in the front end to
        have them.
        """
        name = line.strip()
        if not name:
            raise UsageError("%notebook takes a file's name, such as: %notebook session.ipynb")
        book = notebook_of(self.shell.history_manager)
        write_notebook(book, Path(name).expanduser())
        print(f"Written: {name}")

    @line_magic
    def autosave(self, line: str) -> None:
        """The notebook's front end saves on its own; there is nothing to set in the kernel."""
        print("The autosave interval is set in the notebook's front end.")
