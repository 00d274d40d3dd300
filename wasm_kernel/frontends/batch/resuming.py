"""`PreviousRun`: an earlier run of a notebook, and the cells that need not run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.batch.notebooks import Cell, code_cells, read_executed
from wasm_kernel.service.sandbox import Sandbox

DONE = "done"
"""The key of a run's record that holds the number of code cells that succeeded."""


def state_counts(cells: Sequence[NotebookNode]) -> list[int]:
    """Returns the number of the state after each cell; 0 if there can be no such state.

    A cell that crashed the guest left no state, and the next one got its number.
    """
    counts = [cell.execution_count for cell in cells]
    last = {count: place for place, count in enumerate(counts)}
    return [
        count if isinstance(count, int) and last[count] == place else 0
        for place, count in enumerate(counts)
    ]


class PreviousRun:
    """The executed notebook of an earlier run, compared with the notebook as it is now.

    The first `done` code cells of the executed notebook succeeded.
    """

    def __init__(
        self, book: NotebookNode, record: Mapping[str, Any], cells: Sequence[Cell]
    ) -> None:
        self._executed = [cell for _, cell in code_cells(book)]
        self._cells = [cell for _, cell in cells]
        self._done = min(max(record[DONE], 0), len(self._executed))
        pairs = zip(self._executed[: self._done], self._cells, strict=False)
        self._same = len([*takewhile(lambda pair: pair[0].source == pair[1].source, pairs)])
        was_ok = record.get("verdict") == "ok" and not record.get("left")
        self.is_whole = was_ok and self._same == len(self._executed) == len(self._cells)
        """True if there is nothing left to do."""

    @classmethod
    def found(cls, output: Path, cells: Sequence[Cell]) -> PreviousRun | None:
        """Returns the earlier run that wrote `output`; None if nothing there can be used."""
        found = read_executed(output)
        if found is None or not isinstance(found[1].get(DONE), int):
            return None
        return cls(*found, cells)

    @property
    def can_resume(self) -> bool:
        """True if the state after some cell can be used."""
        return self._same > 0

    def go_back(self, sandbox: Sandbox) -> int:
        """Restores the last usable state with its files; returns how many cells that saves."""
        counts = state_counts(self._executed)
        for kept in range(self._same, 0, -1):
            if count := counts[kept - 1]:
                with suppress(WasmKernelError):
                    sandbox.restore(f"[{count}]", files=True)  # a plain number may be a name
                    sandbox.worker.usage.first_count = count + 1
                    return kept
        return 0

    def copy_outputs(self, kept: int) -> None:
        """Gives the first `kept` cells of the notebook their earlier outputs."""
        for old, new in zip(self._executed[:kept], self._cells, strict=False):
            new.outputs, new.execution_count = old.outputs, old.execution_count

    def note(self, kept: int) -> str:
        """Returns a note about resuming after `kept` cells; empty if there is nothing to say."""
        if kept < self._same:
            first, last = kept + 1, self._same
            ran = f"cell {first}" if first == last else f"cells {first} to {last}"
            return f"code {ran} ran again, as later states are not kept"
        if kept < min(self._done, len(self._cells)):
            return f"code cell {kept + 1} was edited; it and those after it ran again"
        return ""
