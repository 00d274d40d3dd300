"""`LiveTable`: the progress of a run on a terminal, with rich."""

from __future__ import annotations

from rich import progress
from rich.console import Console
from rich.text import Text

from wasm_kernel.frontends.batch.outcome import Outcome, plain
from wasm_kernel.frontends.batch.reporting import Progress, line_of

_STYLES = {"ok": "green", "cancelled": "yellow"}
_ROW = ("{task.description}", "{task.completed}/{task.total} cells", "{task.elapsed:.0f} s")


class LiveTable(Progress):
    """A table of the notebooks that run now, and a line for each that ended.

    It is shown in the `with` block of `live`.
    """

    def __init__(self, console: Console | None = None) -> None:
        columns = [progress.TextColumn(each, markup=False) for each in _ROW]
        self.live = progress.Progress(
            *columns, console=console, refresh_per_second=4, transient=True
        )
        self._rows: dict[str, progress.TaskID] = {}

    def began(self, name: str, cells: int) -> None:
        """Adds a row, in place of an earlier one: a cluster may begin a notebook again."""
        self._remove(name)
        self._rows[name] = self.live.add_task(plain(name), total=cells)

    def cell_ended(self, name: str, done: int, cells: int) -> None:
        """Updates a notebook's progress."""
        self.live.update(self._rows[name], completed=done)

    def ended(self, outcome: Outcome) -> None:
        """Removes the row, and prints a line above the table."""
        self._remove(outcome.notebook)
        shown = Text(line_of(outcome))
        shown.stylize(_STYLES.get(outcome.verdict, "red"), 0, len(outcome.verdict))
        self.live.console.print(shown, soft_wrap=True)

    def noted(self, text: str) -> None:
        """Prints a line above the table."""
        self.live.console.print(Text(f"{'note':<13} {plain(text)}", "yellow"), soft_wrap=True)

    def _remove(self, name: str) -> None:
        if (row := self._rows.pop(name, None)) is not None:
            self.live.remove_task(row)
