"""Tasks and cells for tests: they record reports, and are cancelled when the test says so."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from wasm_kernel.guests.base import AfterCellAction
from wasm_kernel.linux.broker import Broker, Handlers, Reply
from wasm_kernel.linux.task import QUIET, Task


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


class LocalBroker:
    """A broker in the test's own process."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def call(self, request: Struct, reply: type[Reply], task: Task = QUIET) -> Reply:
        answer = self._handlers[type(request)](request, task)
        assert isinstance(answer, reply)
        return answer


class WaitingCell:
    """A cell that waits for a command; the command may neither report nor leave an action."""

    cancelled = False

    def __init__(self, handlers: Handlers) -> None:
        self.broker: Broker = LocalBroker(handlers)
        self.heard: list[str] = []

    def report(self, text: str) -> None:
        raise AssertionError(text)

    def say(self, text: str, stream: str = "stdout") -> None:
        self.heard.append(text)

    def after_cell(self, action: AfterCellAction) -> None:
        raise AssertionError(action)
