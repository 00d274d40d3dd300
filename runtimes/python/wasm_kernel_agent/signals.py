"""Signals, as far as a guest without processes has them.

The host interrupts by making SIGINT pending. While a cell or a query runs, Python's own handler
raises `KeyboardInterrupt`. While the agent itself runs, an interrupt is only noted, so that no
reply is lost.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

from wasm_kernel_agent.door import Door

_ENDING = {"SIGTERM", "SIGKILL", "SIGHUP", "SIGQUIT", "SIGABRT"}
_set = signal.signal
_SIGINT = signal.SIGINT
_raise = signal.default_int_handler


class Signals:
    """Who hears SIGINT, and what `os.kill` does. Owned by the agent."""

    def __init__(self, door: Door) -> None:
        self._door = door
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
        if self.noted:
            self.noted = False
            raise KeyboardInterrupt
        try:
            _set(_SIGINT, _raise)
            try:
                return work()
            finally:
                self.hold()
        except KeyboardInterrupt:
            self.hold()
            raise

    def install(self) -> None:
        """Give `os` the functions about processes that WASI leaves out."""
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
