"""Threads in turns: a started thread runs while the cell, or another thread, waits.

The guest has one thread. A started thread runs as a generator (`thread_code.py`): until it waits,
by `sleep`, `join`, a taken lock, an event, a queue or a future, or has had its turn in a `while`
loop. There it yields, and others go on. Where it can't be left, the others run on top of it, and it
goes on once they have ended or wait. A thread that needs another order gets an error.
"""

from __future__ import annotations

import _thread
import _threading_local
import asyncio
import contextvars
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from time import monotonic  # a cell may replace the module's, to test its own code
from types import TracebackType
from typing import Any

from wasm_kernel_agent import thread_code
from wasm_kernel_agent.host import note

NO_OTHER_THREAD = (
    "this would wait for ever: only another thread could end the wait, and the sandbox has none "
    "that can go on. Wait with a timeout, or use asyncio, whose tasks can wait for each other."
)
_TOO_LATE = (
    "this thread waits where it can't be left: in a generator, or in a function that compiled code "
    "calls. The sandbox has no threads side by side, and others could have gone on for 30 seconds."
)
_SAID = (
    "the sandbox has no threads side by side: a started thread runs while the cell waits, as in "
    "join() or sleep(), or at the cell's end. (This is said once.)"
)
_LEFT = (
    "{names} did not run to the end: the sandbox has no threads side by side, and none between "
    "cells. They go on while a later cell waits, as in sleep() or join()."
)
_NAMED_MOST = 5
_LOOP_SECONDS = 5.0  # the wait after a cell for a thread in a loop that may have no end
_SHORT: tuple[Any, ...] = (  # functions that never wait long, so that no thread leaves them
    *(threading.Condition.__exit__, threading.Condition.notify, threading.Condition.notify_all),
    *(threading.Semaphore.release, threading.Event.set, queue.Queue.task_done),
    *(Future.set_running_or_notify_cancel, Future.set_result, Future.set_exception),
)
_LATE_SECONDS = 30.0  # for which a thread that can't be left may hold up code that could go on
_LEAST_PAUSE = 1e-4  # lets others run even in sleep(0), as an operating system does
_TURN_SECONDS = 0.01  # the length of a turn of a thread in a `while` loop
_waiting: list[_Handle] = []
_running: list[_Handle] = []
_waits: list[_Wait] = []  # the waits of code below the running threads on the stack
_pause = time.sleep
_make_lock = _thread.allocate_lock
_active: dict[int, Any] = vars(threading)["_active"]
_ident_of_guest = threading.get_ident
_idents = itertools.count(1)
_said: set[str] = set()


class _Ended(BaseException):
    """Ends a daemon thread that waits for something which can't come any more."""


class _Wait:
    """A wait of a cell or a thread for an event."""

    def __init__(self, has_happened: Callable[[], Any], timeout: float | None = None) -> None:
        self.has_happened = has_happened
        self.end = None
        if timeout is not None:
            seconds = float(max(timeout, 0))
            _make_lock().acquire(True, seconds)  # it raises the errors of CPython's own waits
            self.end = monotonic() + seconds
        self.over_since = 0.0

    def is_over(self) -> bool:
        """Returns whether the event has happened, or the wait's time is over."""
        is_late = self.end is not None and monotonic() >= self.end
        return bool(self.has_happened()) or is_late


class _Handle:
    """The handle of a started thread, in place of CPython's."""

    def __init__(self, thread: Any) -> None:
        self.thread = thread
        self.ident = threading.main_thread().ident + next(_idents)  # type: ignore[operator]
        # a class of the cell may have properties that fail
        self.is_daemon, self.name = bool(thread._daemonic), str(thread._name)
        self.is_timer = isinstance(thread, threading.Timer)
        called = thread.function if self.is_timer else thread._target or type(thread)
        module = getattr(called, "__module__", None)
        self.is_of_cell = module in ("__main__", "wasm_kernel_agent.pools")
        self.has_begun = self.has_looped = self.is_told = self.was_asked = self._is_done = False
        self.turn_ends = 0.0
        self.wait: _Wait | None = None
        self._state = None, (None, None), threading.gettrace(), threading.getprofile()
        self._frames = thread_code.in_context(thread._context, _run, thread)

    def is_ready(self) -> bool:
        """Returns whether the thread can go on."""
        return self.wait is None or self.wait.is_over()

    def is_looping(self) -> bool:
        """Returns whether the thread waits for time after a `while` loop's turn."""
        return self.has_looped and self.wait is not None and self.wait.end is not None

    def is_done(self) -> bool:
        """Returns whether the thread has ended."""
        return self._is_done and self not in _running

    def keeps_cell(self, seconds: float) -> bool:
        """Returns whether the cell still waits for the thread, some `seconds` after its end."""
        if self.is_ready():
            return not self.is_daemon
        if self.is_daemon or self.is_timer:
            return False
        return not (self.is_told or (seconds > _LOOP_SECONDS and self.is_looping()))

    def join(self, timeout: float | None = None) -> None:
        """Waits for the thread's end."""
        __tracebackhide__ = True
        if not self.is_done():
            wait(self.is_done, timeout)

    def run(self) -> None:
        """Runs the thread to its end, or until others may go on."""
        if self.is_of_cell and _SAID not in _said:
            _said.add(_SAID)
            note(_SAID)
        _waiting.remove(self)
        self.has_begun = self._is_done = True
        self.turn_ends = monotonic() + _TURN_SECONDS
        loop = asyncio._get_running_loop()
        task, state = _swap_task(loop, None), _swap_state(self._state)
        try:
            _running.append(self)
            for wait in self._frames:
                self.wait, self._is_done = wait, False
                _waiting.append(self)
                break
        finally:
            self._state = _swap_state(state)
            _swap_task(loop, task)
            _running.remove(self)
            if self._is_done:
                _active.pop(self.ident, None)


def _run(thread: Any) -> None:
    """Runs the functions of a thread."""
    try:
        thread.run()
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        if not _is_end(problem):
            problem.__traceback__ = _without_ours(problem.__traceback__)
            thread._invoke_excepthook(thread)


def _is_turn_over() -> bool:
    """Returns whether a thread, before the next turn of a `while` loop, lets others go on."""
    thread = _running[-1]
    thread.has_looped = True
    if monotonic() < thread.turn_ends:
        return False
    thread.turn_ends = monotonic() + _TURN_SECONDS
    return any(each.is_over() for each in _waits) or any(each.is_ready() for each in _waiting)


def _is_end(problem: BaseException | None) -> bool:
    """Returns whether an exception is the end of a daemon, or was raised while code handled one."""
    while problem is not None and not isinstance(problem, _Ended):
        problem = problem.__context__
    return problem is not None


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    ours = __file__, thread_code.__file__
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def _swap_task(loop: asyncio.AbstractEventLoop | None, task: Any) -> Any:
    """Makes a task the current one of a running loop; returns the one before."""
    swap: Any = getattr(asyncio.tasks, "_swap_current_task", None)  # not in the host's Python 3.11
    return swap(loop, task) if loop is not None else None


def _swap_state(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sets the things that each thread has of its own, and returns the ones before.

    These are the running loop, the hooks of asynchronous generators, and the functions that trace
    and profile.
    """
    hooks = sys.get_asyncgen_hooks()
    before = asyncio._get_running_loop(), hooks, sys.gettrace(), sys.getprofile()
    loop, hooks, trace, profile = state
    asyncio._set_running_loop(loop)
    sys.set_asyncgen_hooks(*hooks)
    sys.settrace(trace)
    sys.setprofile(profile)
    return before


def is_in_thread() -> bool:
    """Returns whether the calling code belongs to a started thread."""
    return bool(_running)


def run_until(
    is_over: Callable[[], bool],
    timeout: float | None = None,
    *,
    among: Callable[[_Handle], bool] = lambda _: True,
) -> bool:
    """Runs started threads until a wait is over; returns whether its event has happened."""
    below, wait = _waits.copy() if _running else [], _Wait(is_over, timeout)
    _waits.append(wait)
    try:
        while not wait.is_over():
            if late := [each for each in below if each.is_over()]:
                _end_late(late)
            chosen = [each for each in _waiting if among(each)]
            if late and timeout is None:
                chosen = [each for each in chosen if not (each.is_daemon and each.is_looping())]
            if ready := [each for each in chosen if each.is_ready()]:
                _run_each(ready, wait)
            timed = {wait, *below, *(each.wait for each in chosen if each.wait)}.difference(late)
            ends = [each.end for each in timed if each.end is not None]
            if not (ready or ends):
                break
            left = 0.0 if ready else min(ends) - monotonic()
            if left > 0:
                _pause(left)
    finally:
        _waits.remove(wait)
    return bool(wait.has_happened())


def _end_late(late: list[_Wait]) -> None:
    """Ends a wait in code that can't be left, if threads that could go on wait for this one."""
    for each in late:
        each.over_since = each.over_since or monotonic()
    if _running[-1].is_daemon:
        raise _Ended
    if monotonic() - min(each.over_since for each in late) > _LATE_SECONDS:
        raise RuntimeError(_TOO_LATE)


def _run_each(ready: list[_Handle], wait: _Wait) -> None:
    """Runs threads until a wait is over, in the order in which they became ready."""
    for each in sorted(ready, key=lambda each: (each.wait and each.wait.end) or 0.0):
        if each in _waiting and each.is_ready():
            each.run()
        if wait.is_over():
            break


def wait(is_over: Callable[[], bool], timeout: float | None) -> bool:
    """Waits until `is_over`, or for `timeout` seconds; returns whether it is over.

    A wait that would have no end ends a daemon thread; other code gets `RuntimeError`.
    """
    __tracebackhide__ = True
    if run_until(is_over, timeout):
        return True
    if timeout is None:
        raise _Ended if _running and _running[-1].is_daemon else RuntimeError(NO_OTHER_THREAD)
    return False


def _wait_aside(is_over: Callable[[], bool], timeout: float | None) -> Generator[_Wait, None, bool]:
    if not is_over():
        yield _Wait(is_over, timeout)
    return is_over()


def sleep(seconds: float, /) -> None:
    """Waits, while other threads run."""
    __tracebackhide__ = True
    if seconds >= 0 and (_running or _waiting):
        wait(_never, max(seconds, _LEAST_PAUSE))
    else:
        _pause(seconds)


def _never() -> bool:
    return False


def get_ident() -> int:
    """Returns the identifier of the thread that runs."""
    return _running[-1].ident if _running else _ident_of_guest()


def begin_cell() -> None:
    """Forgets functions, and threads that ran when memory was restored: their frames are gone."""
    _running.clear()
    _waits.clear()


def end_cell(*, runs: bool) -> None:
    """Runs the threads that no cell waited for, except daemons and timers; names the rest.

    Without `runs`, all threads are left to later cells.
    """
    began = monotonic()

    def keeps(each: _Handle) -> bool:
        return each.keeps_cell(monotonic() - began)

    untold = [each for each in _waiting if not each.is_told]
    try:
        if runs:
            run_until(lambda: not any(map(keeps, _waiting)), among=keeps)
    finally:  # an interrupt may end the run
        for each in _waiting:
            each.is_told = True
        thread_code.forget_functions()
    left = [each for each in untold if each in _waiting and each.is_of_cell]
    left = [each for each in left if not each.has_begun or (each.wait and each.wait.end)]
    if left:
        names = [each.name for each in left[:_NAMED_MOST]]
        more = [f"{len(left) - _NAMED_MOST:,} others"] if left[_NAMED_MOST:] else []
        note(_LEFT.format(names=", ".join([*names, *more])))


def install() -> None:
    """Makes `threading` do without threads."""
    thread: Any = threading.Thread
    thread.start, thread.is_alive = _start, _is_alive
    module: Any = queue
    module.SimpleQueue = module._PySimpleQueue  # Python's own waits by a condition
    module = threading
    module.get_ident = get_ident
    module.local = _threading_local.local  # it asks for the current thread
    sleep.__module__ = "time"
    time.sleep = sleep  # type: ignore[assignment]
    thread_code.install({wait: _wait_aside} | {each: each for each in _SHORT}, _is_turn_over)


def _start(self: Any) -> None:
    """Starts the thread: it runs when something waits for it."""
    __tracebackhide__ = True
    if not self._initialized:
        raise RuntimeError("thread.__init__() not called")
    if self._started.is_set():
        raise RuntimeError("threads can only be started once")
    if self._context is None:
        self._context = contextvars.Context()
    self._os_thread_handle = handle = _Handle(self)
    self._ident = handle.ident
    _active[handle.ident] = self
    _waiting.append(handle)
    self._started.set()


def _is_alive(self: Any) -> bool:
    """Returns whether the thread is alive. A second call runs it: a cell may wait in a loop."""
    if not self._started.is_set():
        return False
    if isinstance(handle := self._os_thread_handle, _Handle):
        if handle.was_asked and handle in _waiting and handle.is_ready():
            handle.run()
        handle.was_asked = True
    return not handle.is_done()
