"""Tasks for tests: they record reports, and are cancelled when the test says so."""

from __future__ import annotations

from collections.abc import Callable


class CountedTask:
    """A task that records the texts reported to it."""

    def __init__(self, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        self._is_cancelled = is_cancelled
        self.reported: list[str] = []

    @property
    def cancelled(self) -> bool:
        return self._is_cancelled()

    def report(self, text: str) -> None:
        self.reported.append(text)


def cancelled_after(times: int) -> CountedTask:
    """A task that is cancelled after this number of checks."""
    answers = iter([*[False] * times, True])
    return CountedTask(lambda: next(answers))
