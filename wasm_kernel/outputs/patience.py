"""Whether anybody still waits for an output that is being checked.

While the host checks an output, the guest that sent it stands still, and so do its time limit and
interrupts. So whatever goes through an output piece by piece calls `look` on its way, which ends
the work when the cell is out of time or was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from wasm_kernel.outputs.removals import Refused

STRIDE = 256  # small pieces between two looks

T = TypeVar("T")
_over: ContextVar[Callable[[], bool] | None] = ContextVar("over", default=None)


@contextmanager
def until(over: Callable[[], bool]) -> Iterator[None]:
    """Have outputs checked in this block only until `over` says that nobody waits any more."""
    token = _over.set(over)
    try:
        yield
    finally:
        _over.reset(token)


def look() -> None:
    """Goes on if somebody waits.

    Raises:
        Refused: nobody does.
    """
    over = _over.get()
    if over is not None and over():
        raise Refused("what was still being checked when the cell ended")


def patiently(pieces: Iterable[T]) -> Iterator[T]:
    """The same pieces, with a look at every `STRIDE` of them; raises as `look` does."""
    for number, piece in enumerate(pieces):
        if number % STRIDE == 0:
            look()
        yield piece
