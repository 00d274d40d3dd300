"""Threads in turns: a started thread runs while the cell, or another thread, waits.

The guest has one thread. A started thread runs until it waits for something: by `sleep`, `join`, a
taken lock, an event, a queue or a future. There it leaves its functions, if it can enter them again
(`parked_frames.py`), and others go on. If it can't, the others run on top of it, and it goes on
once they have ended or wait. An operating system could run the threads in the same order. A thread
that needs another order gets an error.
"""

from __future__ import annotations

import _thread
import _threading_local
import asyncio
import contextvars
import functools
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from wasm_kernel_agent import parked_frames, waits
from wasm_kernel_agent.host import note

NO_OTHER_THREAD = (
    "this would wait for ever: only another thread could end the wait, and the sandbox has none "
    "that can go on. Wait with a timeout, or use asyncio, whose tasks can wait for each other."
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
_LEAST_PAUSE = 1e-4  # lets others run even in sleep(0), as an operating system does
_waiting: list[_Handle] = []
_running: list[_Handle] = []
_waits: list[_Wait] = []  # of code below the running threads on the stack
_sleeps: list[tuple[int, int]] = []  # the last places where the cell has slept
_pause = time.sleep
_make_lock = _thread.allocate_lock
_is_set = threading.Event.is_set
_active: dict[int, Any] = vars(threading)["_active"]
_ident_of_guest = threading.get_ident
_idents = itertools.count(1)
_said: set[str] = set()


class _Ended(BaseException):
    """Ends a daemon thread that waits for something which can't come any more."""


class _Parked(BaseException):
    """Leaves the functions of a thread that waits, and enters them again later."""


class _Wait:
    """A wait of a cell or a thread for an event. An event that has happened counts from then on."""

    def __init__(self, is_over: Callable[[], bool], timeout: float | None = None) -> None:
        self._look, self._is_over = is_over, False
        self.end = None
        if timeout is not None:
            seconds = float(max(timeout, 0))
            _make_lock().acquire(True, seconds)  # it raises the errors of CPython's own waits
            self.end = time.monotonic() + seconds

    def has_happened(self) -> bool:
        """Returns whether the event has happened."""
        self._is_over = self._is_over or bool(self._look())
        return self._is_over

    def is_over(self) -> bool:
        """Returns whether the event has happened, or the wait's time is over."""
        return self.has_happened() or (self.end is not None and time.monotonic() >= self.end)


class _Handle:
    """The handle of a started thread, in place of CPython's."""

    def __init__(self, thread: Any) -> None:
        self.thread = thread
        self.ident = threading.main_thread().ident + next(_idents)  # type: ignore[operator]
        # a class of the cell may have properties that fail
        self.is_daemon, self.name = bool(thread._daemonic), str(thread._name)
        self.call = _call_of(thread)
        self.places: list[parked_frames.Place] = []
        self.wait: _Wait | None = None  # of a thread that has left its functions
        self.is_late = False  # its wait's time is over, which the function must still find out
        self.has_begun = self.has_met_end = self.is_told = self.was_asked = self._is_done = False
        self.is_timer = _is_timer(thread)
        if self.is_timer:
            self.has_finished = functools.partial(waits.look, _is_set, thread.finished)
            self.wait = _Wait(self.has_finished, thread.interval)
        self.called = (thread.function if self.is_timer else thread._target) or thread.run
        module = getattr(parked_frames.plain_function(self.called), "__module__", None)
        self.is_of_cell = module in ("__main__", "wasm_kernel_agent.pools")

    def is_ready(self) -> bool:
        """Returns whether the thread can go on."""
        return self.wait is None or self.wait.is_over()

    def is_looping(self) -> bool:
        """Returns whether the thread sleeps in a loop that may have no end."""
        if self.wait is None or self.wait.end is None or self.wait.has_happened():
            return False
        return any(each.is_in_loop for each in self.places)

    def is_done(self) -> bool:
        """Returns whether the thread has ended."""
        return self._is_done and self not in _running

    def may_begin_in_sleep(self) -> bool:
        """Returns whether all of the thread's loops let others run."""
        function = parked_frames.plain_function(self.called)
        owner = getattr(self.called, "__self__", None)
        is_python = hasattr(function, "__code__")
        return self.has_begun or not is_python or parked_frames.lets_others_run(function, owner)

    def keeps_cell(self, seconds: float) -> bool:
        """Returns whether the cell still waits for the thread, some `seconds` after its end."""
        if self.is_daemon or (self.is_timer and not self.has_finished()):
            return False
        is_left = seconds > _LOOP_SECONDS and self.is_looping()
        return self.is_ready() or not (self.is_told or is_left)

    def join(self, timeout: float | None = None) -> None:
        """Waits for the thread's end."""
        __tracebackhide__ = True
        if not self.is_done():
            wait(self.is_done, timeout)

    def run(self) -> None:
        """Runs the thread to its end, or to a wait where it can leave its functions."""
        if self.is_of_cell and _SAID not in _said:
            _said.add(_SAID)
            note(_SAID)
        _waiting.remove(self)
        self.is_late = self.wait is not None and not self.wait.has_happened()
        if self.places and self.places[-1].is_after_wait:
            self.is_late = False
        self.wait, self.has_begun, self._is_done = None, True, True
        loop = asyncio._get_running_loop()
        task = _swap_task(loop, None)
        try:
            _running.append(self)
            asyncio._set_running_loop(None)
            self.thread._context.run(parked_frames.enter, self.call, self.places)
        except KeyboardInterrupt:
            raise
        except _Parked:
            self._is_done = False
            _waiting.append(self)
        except BaseException as problem:
            if not _is_end(problem):
                problem.__traceback__ = _without_ours(problem.__traceback__)
                self.thread._invoke_excepthook(self.thread)
        finally:
            asyncio._set_running_loop(loop)
            _swap_task(loop, task)
            _running.remove(self)
            if self._is_done:
                _active.pop(self.ident, None)

    def park(self, is_over: Callable[[], bool] | None, timeout: float | None) -> None:
        """Leaves the thread's functions until a wait is over, if it can enter them again.

        Without `is_over` the thread waits for a notice.
        """
        found = waits.find()
        if found is None:
            return
        function, has_happened = found
        look = is_over or has_happened
        places = parked_frames.find_places(function, is_sleep=is_over is _never)
        if look is not None and places is not None:
            self.places, self.wait = places, _Wait(look, timeout)
            raise _Parked

    def take_late(self) -> bool:
        """Returns whether the wait that the thread has entered again has timed out."""
        is_late, self.is_late = self.is_late, False
        found = waits.find() if is_late else None
        if found is not None and "endtime" in found[0].f_locals:
            found[0].f_locals["endtime"] = 0.0
        return is_late


def _call_of(thread: Any) -> Callable[[], Any]:
    """Returns a call of the thread's function that can be made a second time."""
    run: Callable[[], Any] = thread.run
    if getattr(run, "__func__", None) is threading.Thread.run and thread._target is not None:
        return functools.partial(thread._target, *thread._args, **thread._kwargs)
    return run


def _is_timer(thread: Any) -> bool:
    return (
        isinstance(thread, threading.Timer)
        and type(thread).run is threading.Timer.run
        and type(thread.finished) is threading.Event
        and isinstance(thread.interval, int | float)
        and thread.interval <= threading.TIMEOUT_MAX
    )


def _is_end(problem: BaseException | None) -> bool:
    """Returns whether an exception is the end of a daemon, or was raised while code handled one."""
    while problem is not None and not isinstance(problem, _Ended):
        problem = problem.__context__
    return problem is not None


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    ours = _Handle.run.__code__.co_filename, parked_frames.enter.__code__.co_filename
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def _swap_task(loop: asyncio.AbstractEventLoop | None, task: Any) -> Any:
    """Makes a task the current one of a running loop; returns the one before."""
    swap: Any = getattr(asyncio.tasks, "_swap_current_task", None)  # not in the host's Python 3.11
    return swap(loop, task) if loop is not None else None


def is_in_thread() -> bool:
    """Returns whether the calling code belongs to a started thread."""
    return bool(_running)


def run_until(
    is_over: Callable[[], bool],
    timeout: float | None = None,
    *,
    among: Callable[[_Handle], bool] = lambda _: True,
) -> bool:
    """Runs started threads until a wait is over; returns whether its event has happened.

    Daemons, which may never wait, begin after others.
    """
    below, wait = _waits.copy() if _running else [], _Wait(is_over, timeout)
    number = len(below)
    _waits.append(wait)
    try:
        while not wait.is_over():
            below = [each for each in below if not each.is_over()]
            is_late = len(below) < number  # code below on the stack waits for this to end
            if is_late and _running[-1].is_daemon:
                _end_daemon()
            chosen = [each for each in _waiting if among(each)]
            if is_late and timeout is None:
                chosen = [each for each in chosen if not (each.is_daemon and each.is_looping())]
            if ready := [each for each in chosen if each.is_ready()]:
                _run(ready, wait)
                continue
            timed = (each for each in (*below, wait, *(each.wait for each in chosen)) if each)
            if not (ends := [each.end for each in timed if each.end is not None]):
                break
            _pause(max(min(ends) - time.monotonic(), 0))
    finally:
        _waits.remove(wait)
    return wait.has_happened()


def _run(ready: list[_Handle], wait: _Wait) -> None:
    """Runs threads until a wait is over, in the order in which they became ready."""

    def order(each: _Handle) -> tuple[bool, float]:
        return each.is_daemon and not each.has_begun, (each.wait and each.wait.end) or 0.0

    for each in sorted(ready, key=order):
        if each in _waiting and each.is_ready():
            each.run()
        if wait.is_over():
            break


def wait(
    is_over: Callable[[], bool], timeout: float | None, *, is_for_notice: bool = False
) -> bool:
    """Waits until `is_over`, or for `timeout` seconds; returns whether it is over."""
    __tracebackhide__ = True
    if let_others_run(None if is_for_notice else is_over, timeout):
        return False
    if run_until(is_over, timeout):
        return True
    if timeout is None:
        refuse_to_wait()
    return False


def let_others_run(is_over: Callable[[], bool] | None, timeout: float | None) -> bool:
    """Leaves the functions of a thread that waits, if possible.

    Returns:
        Whether the thread has entered this wait again, and it has timed out.
    """
    if not _running:
        return False
    if timeout is not None and _running[-1].take_late():
        return True
    _running[-1].park(is_over, timeout)
    return False


def sleep(seconds: float, /) -> None:
    """Waits, while other threads run."""
    __tracebackhide__ = True
    if not (seconds >= 0 and (_running or _waiting)):
        _pause(seconds)
    elif not _running:
        caller = sys._getframe(1)
        _sleeps.append((id(caller), caller.f_lineno))
        del _sleeps[:-3]
        is_loop = _sleeps.count(_sleeps[-1]) == 3
        run_until(
            _never,
            max(seconds, _LEAST_PAUSE),
            among=lambda each: is_loop or each.may_begin_in_sleep(),
        )
    elif not let_others_run(_never, seconds):
        if _running[-1].is_daemon:
            run_until(_never, seconds)
        else:
            _pause(seconds)


def _never() -> bool:
    return False


def refuse_to_wait() -> NoReturn:
    """Ends a wait without an end: a daemon thread ends, other code gets `RuntimeError`."""
    __tracebackhide__ = True
    if _running and _running[-1].is_daemon:
        _end_daemon()
    raise RuntimeError(NO_OTHER_THREAD)


def _end_daemon() -> NoReturn:
    """Ends the running thread, also if its code catches all exceptions."""
    if _running[-1].has_met_end:
        parked_frames.raise_outside_of_handlers(sys._getframe(1), _Ended)
    _running[-1].has_met_end = True
    raise _Ended


def get_ident() -> int:
    """Returns the identifier of the thread that runs."""
    return _running[-1].ident if _running else _ident_of_guest()


def begin_cell() -> None:
    """Forgets threads that ran when memory was restored, and whose frames are gone."""
    _running.clear()
    _waits.clear()


def end_cell(*, runs: bool) -> None:
    """Runs the threads that no cell waited for, except daemons and timers; names the rest.

    Without `runs`, all threads are left to later cells.
    """
    began = time.monotonic()

    def keeps(each: _Handle) -> bool:
        return each.keeps_cell(time.monotonic() - began)

    untold = [each for each in _waiting if not each.is_told]
    try:
        if runs:
            run_until(lambda: not any(map(keeps, _waiting)), among=keeps)
    finally:  # an interrupt may end the run
        for each in _waiting:
            each.is_told = True
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
    waits.install()
    waits.add(sleep, None, wait, let_others_run, *(_Handle.join, _Handle.park, _Handle.take_late))


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
