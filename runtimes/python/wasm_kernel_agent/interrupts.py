"""Interrupts that wait, because they would stop the guest's own code halfway.

Such an interrupt is raised when that code ends, or when it waits itself.
"""

from __future__ import annotations

import _thread
import operator
import weakref
from types import FrameType

_NAME = "an interrupt that waits"


class Marker:
    """An object that is freed when code ends."""


class Reminder(weakref.ref[Marker]):
    """Makes SIGINT pending when its object is freed. All in C, so that it is raised only after
    that.
    """

    __slots__ = ()
    pend = staticmethod(_thread.interrupt_main)


pend = operator.methodcaller("pend")
_held: Reminder | None = None


def hold(frame: FrameType) -> None:
    """Makes the interrupt pending once more when `frame` ends."""
    global _held  # noqa: PLW0603
    marker = Marker()
    _held = Reminder(marker, pend)
    frame.f_locals[_NAME] = marker  # the marker goes with the frame


def take() -> bool:
    """Returns whether an interrupt is held; the caller raises it now."""
    global _held
    held, _held = _held, None
    return held is not None and held() is not None


def forget() -> None:
    """Forgets an interrupt that is held."""
    take()
