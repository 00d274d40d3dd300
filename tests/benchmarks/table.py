"""The measurements as a table: medians, their ratio, and DESIGN.md's aim beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

HEAD = ("what", "wasm-kernel", "native", "ratio", "aim", "")


@dataclass(frozen=True)
class Row:
    """One comparison: the samples of both sides in `unit`, and the ratio that DESIGN.md allows."""

    what: str
    ours: Sequence[float]
    theirs: Sequence[float]
    unit: str
    aim: float | None = None

    @property
    def ratio(self) -> float:
        """Our median by theirs."""
        return median(self.ours) / median(self.theirs)

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        verdict = "" if self.aim is None else "met" if self.ratio <= self.aim else "MISSED"
        return (
            self.what,
            f"{median(self.ours):.3g} {self.unit}",
            f"{median(self.theirs):.3g} {self.unit}",
            f"{self.ratio:.2f}",
            "" if self.aim is None else f"{self.aim:.1f}",
            verdict,
        )


def rendered(rows: Sequence[Row]) -> str:
    """The rows under their heads, in columns."""
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at in (0, len(HEAD) - 1) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
