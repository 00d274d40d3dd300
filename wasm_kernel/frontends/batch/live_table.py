"""`LiveTable`: the progress of a run on a terminal, with rich."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wasm_kernel.frontends.batch.outcome import Outcome, plain
from wasm_kernel.frontends.batch.reporting import Progress, line_of

_STYLES = {"ok": "green", "cancelled": "yellow"}


class LiveTable(Progress):
    """A table of the notebooks that run now, and a line for each that ended.

    It is shown in the `with` block of `live`.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._running: dict[str, tuple[int, int, float]] = {}
        self.live = Live(
            console=console, get_renderable=self._shown, refresh_per_second=4, transient=True
        )

    def began(self, name: str, cells: int) -> None:
        """Adds a row."""
        self._running[name] = (0, cells, time.monotonic())

    def cell_ended(self, name: str, done: int, cells: int) -> None:
        """Updates a notebook's progress."""
        self._running[name] = (done, cells, self._running[name][2])

    def ended(self, outcome: Outcome) -> None:
        """Removes the row, and prints a line above the table."""
        self._running.pop(outcome.notebook, None)
        shown = Text(line_of(outcome))
        shown.stylize(_STYLES.get(outcome.verdict, "red"), 0, len(outcome.verdict))
        self.live.console.print(shown, soft_wrap=True)

    def noted(self, text: str) -> None:
        """Prints a line above the table."""
        self.live.console.print(Text(f"{'note':<13} {plain(text)}", "yellow"), soft_wrap=True)

    def _shown(self) -> Table:
        table = Table(box=None, padding=(0, 2), show_header=False)
        now = time.monotonic()
        for name, (done, cells, since) in [*self._running.items()]:
            table.add_row(Text(plain(name)), f"{done}/{cells} cells", f"{now - since:.0f} s")
        return table
