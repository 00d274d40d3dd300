"""`%limit` and `%%limit`: a cell lowers its own limits."""

from __future__ import annotations

import math
from typing import Any

from IPython.core import inputtransformer2
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class

_cell_magic: Any = inputtransformer2.cell_magic
_USAGE = "%%limit takes seconds=NUMBER, fuel=NUMBER or both, such as: %%limit seconds=5 fuel=1e9"


def in_place(lines: list[str]) -> list[str]:
    """Turn a leading `%%limit ...` into `%limit ...`, so that the rest stays the cell it was.

    Line numbers, top-level `await`, the last expression's value and a further cell magic on the
    next line keep their meaning; a nested cell would lose them.
    """
    if not lines or lines[0].split(None, 1)[:1] != ["%%limit"]:
        return lines
    return [lines[0].lstrip()[1:].rstrip("\n") + "\n", *_cell_magic(lines[1:])]


def parse(line: str) -> dict[str, Any]:
    """The limits that `line` names, as the fields of a `limit` frame.

    Raises:
        UsageError: it names none, an unknown one, or no positive number.
    """
    fields: dict[str, Any] = {}
    for word in line.split():
        name, _, text = word.partition("=")
        if name not in ("seconds", "fuel") or name in fields:
            raise UsageError(_USAGE)
        try:
            value = float(text.replace("_", ""))
        except ValueError:
            raise UsageError(_USAGE) from None
        if not (math.isfinite(value) and value > 0):
            raise UsageError(_USAGE)
        fields[name] = max(1, int(value)) if name == "fuel" else value
    if not fields:
        raise UsageError(_USAGE)
    return fields


@magics_class
class LimitMagic(Magics):
    """The magic that sends the `limit` frame."""

    shell: Any

    @line_cell_magic
    def limit(self, line: str, cell: str | None = None) -> None:
        """Lower this cell's limits: `%%limit seconds=5 fuel=1e9`.

        `seconds` is wall-clock time from now on; `fuel` is roughly the number of WebAssembly
        instructions the cell may still run (only where the kernel counts fuel). Limits can only be
        lowered, and hold for this cell alone. A cell that exceeds one is stopped; its kernel tells
        what was kept.

            %%limit seconds=5
            while not done:
                step()
        """
        self.shell.outbox.plain({"op": "limit", **parse(line)})
        if cell is not None:
            self.shell.run_cell(cell)
