"""Signals, as far as a guest without processes has them, and input from the front end.

The host interrupts by making SIGINT pending. While a cell or a query runs, the handler raises
`KeyboardInterrupt`, as Python's own does. While the agent itself runs, an interrupt is only noted,
so that no reply is lost.

Some code must not be left halfway: that of asyncio, threads, locks, queues and pools. An interrupt
that meets it is made pending once more, until it meets other code, or a wait.

If the exception meets a destructor or the callback of a weak reference, Python can't pass it on: it
prints "Exception ignored" and the cell goes on for ever. Some C code drops it silently, such as the
code that warns of files that were not closed. Such an interrupt is made pending once more, for the
code that was interrupted. The exception may live until a later turn, where it has no effect.

If an import of one of the guest's own packages is interrupted, the package stays unusable: its
compiled modules can't be imported a second time. So an interrupt waits until such an import has
ended, which takes some seconds.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import builtins
import dis
import errno
import getpass as getpass_module
import importlib
import operator
import os
import queue
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import PurePosixPath
from types import FrameType
from typing import Any, ClassVar

from IPython.core.error import StdinNotImplementedError

from wasm_kernel_agent import event_loop, locks, pools, thread_code, threads
from wasm_kernel_agent.host import FrameChannel, flush

_IMPORTING: Any = vars(importlib)["_bootstrap"]._load_unlocked.__code__
_FOLDERS = (PurePosixPath(os.__file__).parent, PurePosixPath(__file__).parents[1])
_OWN = (*(f"{folder}/" for folder in _FOLDERS), "built-in")  # beginnings of modules' origins
_OF_THREADS = {
    function.__code__.co_filename
    for function in (
        *(threads.install, thread_code.install, locks.install, pools.install),
        *(threading.Thread.run, queue.Queue.get, Future.result, ThreadPoolExecutor.submit),
        dis.get_instructions,  # reads the code that `thread_code` changes
    )
}
_INTERRUPTIBLE = {"run_until", "sleep", "_call"}  # they wait, or call a function of a cell
_WAITS_FOR_IMPORT = "an interrupt that waits"
_ENDING = {"SIGTERM", "SIGKILL", "SIGHUP", "SIGQUIT", "SIGABRT"}
_set, _get = _signal.signal, _signal.getsignal  # five uses a cell: `signal`'s look up enumerations
_SIGINT = int(signal.SIGINT)
_REFUSED_INPUT = "raw_input was called, but this frontend does not support input requests."
_REFUSED_GETPASS = "getpass was called, but this frontend does not support input requests."
_END_OF_FILE = "\x04"


class _Marker:
    """An object that goes when code ends."""


class _Reminder(weakref.ref[_Marker]):
    """A reference that makes SIGINT pending when its object is freed.

    C code alone does that, so that the interrupt is raised only afterwards.
    """

    __slots__ = ()
    pend = staticmethod(_thread.interrupt_main)


_pend = operator.methodcaller("pend")
_reminder: _Reminder | None = None


def interrupt_when_freed() -> _Marker:
    """Returns an object; SIGINT is pending when it is freed."""
    global _reminder  # noqa: PLW0603
    marker = _Marker()
    _reminder = _Reminder(marker, _pend)
    return marker


def _raise(_: int, frame: FrameType | None) -> None:
    """The handler while a cell or a query runs."""
    __tracebackhide__ = True
    if _is_of_threads(frame) or event_loop.is_own_code(frame):
        marker = interrupt_when_freed()  # noqa: F841 - it goes with this frame
    elif (importing := _import_under_way(frame)) is not None:
        importing.f_locals[_WAITS_FOR_IMPORT] = interrupt_when_freed()
    else:
        raise _Interrupt


def _is_of_threads(frame: FrameType | None) -> bool:
    """Returns whether a frame runs code of threads, locks, queues or pools that does not wait."""
    if frame is None:
        return False
    code = frame.f_code
    return code.co_filename in _OF_THREADS and code.co_qualname not in _INTERRUPTIBLE


def _import_under_way(frame: FrameType | None) -> FrameType | None:
    """Returns the outermost frame of the import system that loads a module of the guest's own."""
    found = None
    while frame is not None:
        if frame.f_code is _IMPORTING:
            origin = getattr(frame.f_locals["spec"], "origin", None)
            if isinstance(origin, str) and origin.startswith(_OWN):
                found = frame
        frame = frame.f_back
    while found is not None and found.f_back is not None:
        if found.f_back.f_code.co_filename != _IMPORTING.co_filename:
            break
        found = found.f_back
    return found


class _Interrupt(KeyboardInterrupt):
    """An interrupt that comes again if C code drops it before it reached any Python code.

    Attributes:
        turn: Tells the running turn from all others.
        came: The turn in which this interrupt came.
    """

    turn: ClassVar[object] = None

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.came = _Interrupt.turn

    @property
    def is_for_nobody(self) -> bool:
        """True if the turn in which it came is over."""
        return self.came is not _Interrupt.turn

    def __del__(self) -> None:
        reached = self.__traceback__
        dropped = reached is None or reached.tb_next is None  # only the handler's code was reached
        if dropped and _get(_SIGINT) is _raise and not self.is_for_nobody:
            _thread.interrupt_main()


class _KeptInterrupt(KeyboardInterrupt):
    """An `_Interrupt` that was replaced by another pending one: dropping it does nothing."""


# The class has the name of the type that cells know.
for _type in (_Interrupt, _KeptInterrupt):
    _type.__name__ = _type.__qualname__ = KeyboardInterrupt.__name__
    _type.__module__ = KeyboardInterrupt.__module__


class SignalHandlers:
    """The handlers of SIGINT, and `os.kill`. Owned by the agent.

    `noted` tells if an interrupt came while the agent itself ran.
    """

    def __init__(self, channel: FrameChannel) -> None:
        self._channel = channel
        self._ignored = sys.unraisablehook
        self.noted = False

    def begin_turn(self) -> None:
        """Forgets the interrupts of earlier turns, and notes those that come."""
        _Interrupt.turn = object()
        self.noted = False
        self.note_interrupts()

    def note_interrupts(self) -> None:
        """Notes interrupts from now on, instead of raising them."""
        _set(_SIGINT, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self.noted = True

    def interruptible(self, work: Callable[[], Any]) -> Any:
        """Returns the value of `work()`; interrupts are raised inside it as `KeyboardInterrupt`.

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
                value = work()
            finally:
                self.note_interrupts()
        except KeyboardInterrupt:
            self.note_interrupts()
            raise
        return value

    def _keep_interrupt(self, problem: Any) -> _Marker | None:
        """Makes an interrupt pending again: Python's hook for exceptions in destructors."""
        if not issubclass(problem.exc_type, KeyboardInterrupt):
            self._ignored(problem)
            return None
        if isinstance(problem.exc_value, _Interrupt):
            if problem.exc_value.is_for_nobody:
                return None
            problem.exc_value.__class__ = _KeptInterrupt  # type: ignore[assignment]
        return interrupt_when_freed()  # at once; a SIGINT now would be ignored like the first

    def install(self) -> None:
        """Gives `os` the calls that WASI leaves out, and makes sure that no interrupt is lost."""
        sys.unraisablehook = self._keep_interrupt
        os.kill = self.kill
        if not hasattr(os, "getpid"):
            os.getpid = lambda: 42

    def kill(self, pid: int, sig: int, /) -> None:
        """Sends a signal to this process; the sandbox has no other.

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
            self._channel.send({"op": "terminate"})
            raise SystemExit(128 + number)


class Stdin:
    """`input()` and `getpass()`, answered by the front end if the cell's request allows it."""

    def __init__(self, channel: FrameChannel) -> None:
        self._channel = channel
        self.allowed = False

    def install(self, allowed: bool) -> None:
        """Becomes the interpreter's `input` and `getpass.getpass` for the coming cell."""
        self.allowed = allowed
        builtins.input = self.input
        getpass_module.getpass = self.getpass

    def input(self, prompt: object = "", /) -> str:
        """Reads a line from the user, without its newline.

        Raises:
            EOFError: The user ended the input.
            KeyboardInterrupt: The user interrupted the cell.
            StdinNotImplementedError: The front end takes no input.
        """
        __tracebackhide__ = True
        if not self.allowed:
            raise StdinNotImplementedError(_REFUSED_INPUT)
        return self._ask(str(prompt), password=False)

    def getpass(
        self, prompt: str = "Password: ", stream: Any = None, *, echo_char: str | None = None
    ) -> str:
        """Reads a line from the user without showing it. Raises as `input` does."""
        __tracebackhide__ = True
        if not self.allowed:
            raise StdinNotImplementedError(_REFUSED_GETPASS)
        for name, value in (("stream", stream), ("echo_char", echo_char)):
            if value is not None:
                warnings.warn(
                    f"The `{name}` parameter of `getpass.getpass` has no effect in a notebook",
                    UserWarning,
                    stacklevel=2,
                )
        return self._ask(str(prompt), password=True)

    def _ask(self, prompt: str, *, password: bool) -> str:
        __tracebackhide__ = True
        flush()
        answer = self._channel.send({"op": "input", "prompt": prompt, "password": password})
        if answer.get("interrupted"):
            raise KeyboardInterrupt("Interrupted by user")
        refused = answer.get("refused")
        if refused:
            raise StdinNotImplementedError(str(refused))
        value = str(answer.get("value", ""))
        if value == _END_OF_FILE:
            raise EOFError
        return value
