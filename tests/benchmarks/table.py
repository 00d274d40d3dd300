"""The measurements as a table: medians, their ratio, and the goal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import ClassVar, Protocol, TypeVar

Sampled = TypeVar("Sampled")


class Line(Protocol):
    """A row of a table; each kind of row has a table with its own head."""

    HEAD: ClassVar[tuple[str, ...]]

    def line(self) -> tuple[str, ...]:
        """The row as text."""


@dataclass(frozen=True)
class Row:
    """One comparison: the samples of both sides in `unit`, and the goal for their ratio."""

    HEAD: ClassVar[tuple[str, ...]] = ("what", "wasm-kernel", "native", "ratio", "aim", "")

    what: str
    ours: Sequence[float]
    theirs: Sequence[float]
    unit: str
    aim: float | None = None

    @property
    def ratio(self) -> float:
        """Our median divided by theirs."""
        return median(self.ours) / median(self.theirs)

    def line(self) -> tuple[str, ...]:
        """The row as text."""
        verdict = "" if self.aim is None else "met" if self.ratio <= self.aim else "MISSED"
        return (
            self.what,
            f"{median(self.ours):.3g} {self.unit}",
            f"{median(self.theirs):.3g} {self.unit}",
            f"{self.ratio:.2f}",
            "" if self.aim is None else f"{self.aim:g}",
            verdict,
        )


@dataclass(frozen=True)
class Figure:
    """A figure without a comparison."""

    HEAD: ClassVar[tuple[str, ...]] = ("alone", "", "at most", "")

    what: str
    value: float
    unit: str
    most: float | None = None

    def line(self) -> tuple[str, ...]:
        """The row as text."""
        aim = "" if self.most is None else f"{self.most:g} {self.unit}"
        verdict = "" if self.most is None else "met" if self.value <= self.most else "MISSED"
        return (self.what, f"{self.value:.3g} {self.unit}", aim, verdict)


def by_turns(
    pair: tuple[Sampled, Sampled], rounds: int, sample: Callable[[Sampled], float]
) -> tuple[list[float], list[float]]:
    """Takes `rounds` samples of each of a pair, whose order changes every round.

    An extra run fills file caches, and is not counted.
    """
    samples: tuple[list[float], list[float]] = ([], [])
    for turn in range(-1, rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            taken = sample(pair[which])
            if turn >= 0:
                samples[which].append(taken)
    return samples


def rendered(rows: Sequence[Line]) -> str:
    """The rows in columns under their heads; each head begins a new table."""
    kinds = groupby(rows, key=lambda row: row.HEAD)
    return "\n\n".join(_table([head, *(row.line() for row in group)]) for head, group in kinds)


def _table(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    last = len(widths) - 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at in (0, last) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
