"""A long piece of work, from inside: it can report progress, and may be cancelled.

It has its own file because every room imports it, and most rooms import nothing else of the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Task(Protocol):
    """A piece of work that a caller waits for. The thread that does the work uses it."""

    @property
    def cancelled(self) -> bool:
        """True once the caller gave up. The work checks it every 0.1 s or so, then cleans up."""

    def report(self, text: str) -> None:
        """Reports the work's progress as a plain sentence."""


class Cancelled(Exception):
    """The work was cancelled; partial results may remain."""


class Reporting:
    """A task that reports progress and is never cancelled."""

    cancelled = False

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report


class OfCell:
    """A task that reports nothing, and is cancelled once the cell that wants it must stop."""

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop

    @property
    def cancelled(self) -> bool:
        """True once the cell must stop."""
        return self._should_stop()

    def report(self, text: str) -> None:
        """Does nothing."""


QUIET: Task = Reporting(lambda text: None)
"""A task that reports nothing and is never cancelled."""
