"""A longer piece of work, as whoever does it sees whoever waits for it.

A file of its own, because every room imports it, and most of them nothing else of the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Task(Protocol):
    """A piece of work that somebody waits for. The thread that does the work uses it."""

    @property
    def cancelled(self) -> bool:
        """True once nobody waits. Work asks every 0.1 s or so, and then puts things back."""

    def report(self, text: str) -> None:
        """Says, as a plain sentence, how far the work is."""


class Cancelled(Exception):
    """The work is not wanted any more; a part of it may be there."""


class Reporting:
    """A task that nobody cancels."""

    cancelled = False

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report


QUIET: Task = Reporting(lambda text: None)
"""Work that nobody watches and nobody cancels."""
