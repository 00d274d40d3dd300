"""Where a guest was lost: what that says of the state it began at, and what is said of it. Pure."""

from __future__ import annotations

from wasm_kernel.errors import (
    GuestClosed,
    GuestCrashed,
    GuestExited,
    GuestStopped,
    Interrupted,
    NeverBegan,
    OutOfFuel,
    StackExhausted,
)
from wasm_kernel.execution.turn import Turn
from wasm_kernel.state import told

_BY_THE_GUEST = (GuestCrashed, GuestExited, StackExhausted, Interrupted, NeverBegan)
_BEGIN_FUEL = 10**8  # a whole cell that does nothing burns a thirtieth of that


def spoilt(turn: Turn, stopped: GuestStopped) -> bool:
    """Whether the state that the turn began at is of no use: its guest can't ask for a request.

    A budget of fuel that is too low for any turn says nothing of the kind.
    """
    if isinstance(stopped, OutOfFuel):
        return not turn.handed and stopped.budget >= _BEGIN_FUEL
    return not turn.handed and isinstance(stopped, _BY_THE_GUEST)


def kept_of_spoilt(*, at: bool) -> str:
    """What the session still has without a state of no use; `at` if there is one before it."""
    return told.SPOILT if at else told.SPOILT_FROM_THE_START


def kept(turn: Turn, stopped: GuestStopped, *, changed_files: bool) -> str:
    """What the session still has, in words; `changed_files` if some can be brought back."""
    if isinstance(stopped, GuestClosed):
        return told.FILES_KEPT
    if turn.talks:
        return told.KEPT_OF_CALLBACK
    return told.KEPT + told.TAKE_BACK if changed_files else told.KEPT
