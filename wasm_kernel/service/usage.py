"""`Usage`: the resources that a session has used."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.execution.interfaces import NUMBERS_MOST
from wasm_kernel.service.messages import Figures


class Usage(Struct):
    """The resources that a session has used since the service knows it.

    `fuel` is the fuel of its cells, if counted. `ended_seconds` is the processor time of workers
    that have ended, `cpu_seconds` that of all, as of the last call that ended. `figures` are the
    worker's last ones. `first_count` is the number of the session's first cell here, 0 before a
    worker has opened it.
    """

    cells: int = 0
    fuel: int = 0
    ended_seconds: float = 0.0
    cpu_seconds: float = 0.0
    figures: Figures = Figures()
    first_count: int = 0

    def add(self, figures: Figures, budget: int | None, *, is_cell: bool) -> None:
        """Adds a call with its worker's figures, which count at most the fuel budget."""
        self.figures = figures
        self.cells += is_cell
        self.fuel += min(figures.fuel, budget or 0)

    def opened(self, count: int) -> None:
        """Notes that a worker has opened the session, whose next cell has this number."""
        self.first_count = self.first_count or count
        self.count_on(count)

    def count_on(self, count: int) -> None:
        """Notes the number of the next cell."""
        self.figures = replace(self.figures, next_count=min(count, NUMBERS_MOST))
