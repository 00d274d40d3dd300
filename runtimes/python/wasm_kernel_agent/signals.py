"""Signals, as far as a guest without processes has them.

The host interrupts by making SIGINT pending. While a cell or a query runs, the handler raises
`KeyboardInterrupt`, as Python's own does, but not within asyncio's own code (`loop.py`). While the
agent itself runs, an interrupt is only noted, so that no reply is lost.

Where the exception comes upon a destructor or the callback of a weak reference, Python can't pass
it on: it prints "Exception ignored" and the cell goes on for ever. Such an interrupt is made
pending once more, for the code that the destructor interrupted.
"""

from __future__ import annotations

import _thread
import errno
import operator
import os
import signal
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from wasm_kernel_agent.door import Door
from wasm_kernel_agent.loop import puts_off, take_put_off

_ENDING = {"SIGTERM", "SIGKILL", "SIGHUP", "SIGQUIT", "SIGABRT"}
_set = signal.signal
_SIGINT = signal.SIGINT
_pend = operator.methodcaller("pend")


def _raise(_: int, frame: FrameType | None) -> None:
    """The handler while a cell or a query runs."""
    __tracebackhide__ = True
    if not puts_off(frame):
        raise KeyboardInterrupt


class _Left:
    """What `Signals` leaves to Python, which lets go of it at once."""


class _Reminder(weakref.ref[_Left]):
    """Makes SIGINT pending when its object goes; all in C, so that it strikes only after that."""

    __slots__ = ()
    pend = staticmethod(_thread.interrupt_main)


class Signals:
    """Who hears SIGINT, and what `os.kill` does. Owned by the agent."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._reminder: _Reminder | None = None
        self._ignored = sys.unraisablehook
        self.noted = False

    def hold(self) -> None:
        """Note interrupts from now on."""
        _set(_SIGINT, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self.noted = True

    def interruptible(self, work: Callable[[], Any]) -> Any:
        """What `work()` returns, interrupts raised inside it as `KeyboardInterrupt`.

        Raises:
            KeyboardInterrupt: `work` was interrupted and let it pass, or never began.
        """
        __tracebackhide__ = True
        take_put_off()  # what an earlier turn left is for nobody
        if self.noted:
            self.noted = False
            raise KeyboardInterrupt
        try:
            _set(_SIGINT, _raise)
            try:
                value = work()
            finally:
                self.hold()
        except KeyboardInterrupt:
            self.hold()
            raise
        if take_put_off():
            raise KeyboardInterrupt
        return value

    def _not_passed_on(self, problem: Any) -> _Left | None:
        """Python's hook for an exception that nobody can catch."""
        if not issubclass(problem.exc_type, KeyboardInterrupt):
            self._ignored(problem)
            return None
        left = _Left()
        self._reminder = _Reminder(left, _pend)
        return left  # SIGINT here and now would be ignored like the first one

    def install(self) -> None:
        """Give `os` what WASI leaves out, and let no interrupt be lost."""
        sys.unraisablehook = self._not_passed_on
        os.kill = self.kill
        if not hasattr(os, "getpid"):
            os.getpid = lambda: 42

    def kill(self, pid: int, sig: int, /) -> None:
        """Send a signal to this process; the sandbox has no other.

        Raises:
            ProcessLookupError: `pid` is another process.
        """
        __tracebackhide__ = True
        if pid not in (os.getpid(), 0):
            raise ProcessLookupError(errno.ESRCH, "No such process: the sandbox has this one only")
        if sig == 0:
            return
        number = signal.Signals(sig)
        handler = signal.getsignal(number)
        if number == _SIGINT or callable(handler):
            signal.raise_signal(number)
        elif handler != signal.SIG_IGN and number.name in _ENDING:
            self._door.send({"op": "terminate"})
            raise SystemExit(128 + number)
