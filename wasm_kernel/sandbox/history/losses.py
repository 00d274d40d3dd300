"""Where a guest was lost: what that says of the state it began at, and what is said of it. Pure."""

from __future__ import annotations

from wasm_kernel.engine.memory.commit import Commit
from wasm_kernel.errors import (
    GuestClosed,
    GuestCrashed,
    GuestExited,
    GuestStopped,
    Interrupted,
    StackExhausted,
)
from wasm_kernel.sandbox.history import told
from wasm_kernel.sandbox.turn import Turn

_BY_THE_GUEST = (GuestCrashed, GuestExited, StackExhausted, Interrupted)


def spoilt(turn: Turn, stopped: GuestStopped, head: Commit | None, *, closed: bool) -> bool:
    """Whether the state that the turn began at is of no use: its guest can't ask for a request.

    A limit that is too low for any turn says nothing of the kind, nor does a sandbox that is being
    closed.
    """
    if turn.handed or not isinstance(stopped, _BY_THE_GUEST) or closed:
        return False
    return head is not None and head.parent != 0


def kept(turn: Turn, stopped: GuestStopped, *, spoilt: bool, changed_files: bool) -> str:
    """What the session still has, in words; `changed_files` where some can be brought back."""
    if spoilt:
        return told.SPOILT
    if isinstance(stopped, GuestClosed):
        return told.FILES_KEPT
    if turn.talks:
        return told.KEPT_OF_CALLBACK
    return told.KEPT + told.TAKE_BACK if changed_files else told.KEPT
