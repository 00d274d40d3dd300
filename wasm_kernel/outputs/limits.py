"""The time for checking an output: checking ends when the cell does (`check_stopped`).

`documents.py` bounds the time that the host parses a document and a browser draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from wasm_kernel.outputs.removals import NotShowable

STRIDE = 256  # small pieces between two calls of `check_stopped`

T = TypeVar("T")
_should_stop: ContextVar[Callable[[], bool] | None] = ContextVar("should_stop", default=None)


@contextmanager
def stopping_if(should_stop: Callable[[], bool] | None) -> Iterator[None]:
    """Ends the checks in this block as soon as `should_stop`, if it is given, returns True."""
    token = _should_stop.set(should_stop or _should_stop.get())
    try:
        yield
    finally:
        _should_stop.reset(token)


def check_stopped() -> None:
    """Raises `NotShowable` if the cell is out of time or was interrupted.

    The guest stands still during a check, with its time limit, so every loop calls this.
    """
    should_stop = _should_stop.get()
    if should_stop is not None and should_stop():
        raise NotShowable("a part that was still being checked when the cell ended")


def stoppable(pieces: Iterable[T]) -> Iterator[T]:
    """Yields the same pieces; calls `check_stopped` at every `STRIDE` of them."""
    for number, piece in enumerate(pieces):
        if number % STRIDE == 0:
            check_stopped()
        yield piece
