"""Threads in turns: a thread that was started runs when something waits for it.

The guest has one thread, and can't leave a function before its end. So a started thread runs as a
whole where a cell, or another thread, can't go on: at `join`, at a lock that is taken, or in a wait
for an event, a queue, a barrier or a future. An operating system could run its threads in the same
order. A thread that needs another order gets an error.
"""

from __future__ import annotations

import _thread
import _threading_local
import asyncio
import contextvars
import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from wasm_kernel_agent.host import note

NO_OTHER_THREAD = (
    "this would wait for ever: only another thread could end the wait, and the sandbox has none "
    "that can go on. Wait with a timeout, or use asyncio, whose tasks can wait for each other."
)
_SAID = (
    "the sandbox has no threads: a started thread runs as a whole, where the cell waits for it, as "
    "in join(), or at the cell's end. (This is said once.)"
)
_LEFT = (
    "{names} did not run: the sandbox has no threads, and daemons and timers run where a cell "
    "waits for them, as in join()."
)
_NAMED_MOST = 5
_waiting: list[_Handle] = []
_idle: list[_Handle] = []  # event loops of threads; they run again at the next wait
_running: list[_Handle] = []
_waits: list[_Wait] = []  # of code that goes on after the running threads
_pause = time.sleep
_active: dict[int, Any] = vars(threading)["_active"]
_ident_of_guest = threading.get_ident
_idents = itertools.count(1)
_said: set[str] = set()


class _Ended(BaseException):
    """Ends a daemon thread that waits for something which can't come any more."""


class _Wait:
    """A wait of a cell or a thread for an event; once the event has happened, it stays so."""

    def __init__(self, is_over: Callable[[], bool], timeout: float | None = None) -> None:
        self._look, self._is_over = is_over, False
        self._end = None if timeout is None else time.monotonic() + timeout

    def has_happened(self) -> bool:
        """Returns whether the event has happened."""
        self._is_over = self._is_over or self._look()
        return self._is_over

    def is_over(self) -> bool:
        """Returns whether the event has happened, or the wait's time is over."""
        return self.has_happened() or (self._end is not None and time.monotonic() >= self._end)


class _Handle:
    """The handle of a started thread, in place of CPython's."""

    def __init__(self, thread: Any) -> None:
        self.thread = thread
        self.ident = threading.main_thread().ident + next(_idents)  # type: ignore[operator]
        # a class of the cell may have properties that fail
        self.is_daemon, self.name = bool(thread._daemonic), str(thread._name)
        self.is_timer = isinstance(thread, threading.Timer)
        called = thread.function if self.is_timer else thread._target
        called = called or type(thread).run
        self.is_of_cell = getattr(called, "__module__", None) == "__main__"
        self.is_told = self.was_asked = False
        self._is_done = False

    def has_end(self) -> bool:
        """Returns whether a program would wait for the thread at its end, and not for its time."""
        if self.is_timer:
            finished = self.thread.finished
            return type(finished) is not threading.Event or bool(finished.is_set())
        return not self.is_daemon

    def is_done(self) -> bool:
        """Returns whether the thread has ended."""
        return self._is_done and self not in _running

    def join(self, timeout: float | None = None) -> None:
        """Runs the thread; refuses to wait for one that waits itself."""
        __tracebackhide__ = True
        wait = _Wait(self.is_done, timeout)
        _waits.append(wait)
        try:
            self.run_if_waiting()
        finally:
            _waits.remove(wait)
        if not wait.is_over():
            _wait(self.is_done, timeout)

    def run_if_waiting(self) -> None:
        """Runs the thread, unless it has begun."""
        _wake_idle()
        if self in _waiting:
            self.run()

    def run(self) -> None:
        """Runs the thread from its beginning to its end."""
        if self.is_of_cell and _SAID not in _said:
            _said.add(_SAID)
            note(_SAID)
        _waiting.remove(self)
        called = self.thread._target, self.thread._args, self.thread._kwargs
        loop, self._is_done = asyncio._get_running_loop(), True
        task = _swap_task(loop, None)
        try:
            _running.append(self)
            asyncio._set_running_loop(None)
            self.thread._context.run(self.thread.run)
        except KeyboardInterrupt:
            raise
        except _Ended:
            if isinstance(getattr(called[0], "__self__", None), asyncio.AbstractEventLoop):
                self.thread._target, self.thread._args, self.thread._kwargs = called
                self._is_done = False
                _idle.append(self)
        except BaseException as problem:
            above = problem.__traceback__
            problem.__traceback__ = above and above.tb_next
            self.thread._invoke_excepthook(self.thread)
        finally:
            asyncio._set_running_loop(loop)
            _swap_task(loop, task)
            _running.remove(self)
            if self._is_done:
                _active.pop(self.ident, None)


def _wake_idle() -> None:
    _waiting.extend(_idle)
    _idle.clear()


def _swap_task(loop: asyncio.AbstractEventLoop | None, task: Any) -> Any:
    """Makes a task the current one of a running loop; returns the one before."""
    swap: Any = getattr(asyncio.tasks, "_swap_current_task", None)  # not in the host's Python 3.11
    return swap(loop, task) if loop is not None else None


def is_in_thread() -> bool:
    """Returns whether the calling code belongs to a started thread."""
    return bool(_running)


def run_until(
    is_over: Callable[[], bool], timeout: float | None = None, *, timers: bool = True
) -> bool:
    """Runs started threads until a wait is over; returns whether its event has happened.

    Daemons, which may have no end, come late, and timers last: they take their whole time.
    """
    _wake_idle()
    wait = _Wait(is_over, timeout)
    _waits.append(wait)
    try:
        while not wait.is_over():
            ready = [each for each in _waiting if timers or not each.is_timer]
            if not ready:
                break
            min(ready, key=lambda each: (each.is_timer, each.is_daemon)).run()
    finally:
        _waits.remove(wait)
    return wait.has_happened()


def _wait(is_over: Callable[[], bool], timeout: float | None) -> bool:
    """Waits until `is_over`, or for `timeout` seconds; returns whether it is over."""
    __tracebackhide__ = True
    began = time.monotonic()
    if run_until(is_over, timeout, timers=timeout is None):
        return True
    if timeout is None:
        refuse_to_wait()
    _sleep(max(began + timeout - time.monotonic(), 0))
    return False


def _sleep(seconds: float, /) -> None:
    """Waits. A daemon lets others run first, and ends once code that waits for it can go on."""
    __tracebackhide__ = True
    if _waits and _running and _running[-1].is_daemon:
        waits = _waits.copy()
        if run_until(lambda: any(wait.is_over() for wait in waits), timers=False):
            raise _Ended
    _pause(seconds)


def refuse_to_wait() -> NoReturn:
    """Ends a wait without an end: a daemon thread ends, other code gets `RuntimeError`."""
    __tracebackhide__ = True
    if _running and _running[-1].is_daemon:
        raise _Ended
    raise RuntimeError(NO_OTHER_THREAD)


def get_ident() -> int:
    """Returns the identifier of the thread that runs."""
    return _running[-1].ident if _running else _ident_of_guest()


def begin_cell() -> None:
    """Forgets threads that ran when memory was restored, and whose frames are gone."""
    _running.clear()
    _waits.clear()


def end_cell() -> None:
    """Runs the threads that no cell waited for, but for daemons and timers; tells of those."""
    while ending := [each for each in _waiting if each.has_end()]:
        ending[0].run()
    untold = [each for each in _waiting if each.is_of_cell and not each.is_told]
    if untold:
        names = [each.name for each in untold[:_NAMED_MOST]]
        more = [f"{len(untold) - _NAMED_MOST:,} others"] if untold[_NAMED_MOST:] else []
        note(_LEFT.format(names=", ".join([*names, *more])))
    for each in untold:
        each.is_told = True


def install() -> None:
    """Makes `threading` do without threads."""
    thread: Any = threading.Thread
    thread.start, thread.is_alive = _start, _is_alive
    threading.Condition.wait = _wait_for_notice  # type: ignore[method-assign]
    module: Any = queue
    module.SimpleQueue = module._PySimpleQueue  # it waits by a condition
    _Lock.__module__, _Lock.__qualname__, _Lock.__name__ = "_thread", "lock", "lock"
    module = _thread
    module.allocate_lock = module.allocate = module.LockType = module.lock = _Lock
    module = threading
    module.Lock = module._allocate_lock = _Lock
    module.get_ident = get_ident
    module._CRLock = None  # it asks for the guest's one thread
    _sleep.__module__, _sleep.__qualname__, _sleep.__name__ = "time", "sleep", "sleep"
    time.sleep = _sleep  # type: ignore[assignment]
    module.local = _threading_local.local  # it asks for the current thread


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
    """Returns whether the thread runs. Asked again, runs it: a cell may wait in a loop."""
    if not self._started.is_set():
        return False
    if isinstance(handle := self._os_thread_handle, _Handle):
        if not handle.was_asked and handle in _waiting:
            handle.was_asked = True
            return True
        handle.run_if_waiting()
    return not handle.is_done()


def _wait_for_notice(self: threading.Condition, timeout: float | None = None) -> bool:
    """Waits for a notice of another thread, or for `timeout` seconds; False if none came."""
    __tracebackhide__ = True
    condition: Any = self
    if not condition._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    waiter = _make_lock()
    waiter.acquire()
    condition._waiters.append(waiter)
    state, is_noticed = condition._release_save(), False
    try:
        is_noticed = _wait(lambda: waiter.acquire(False), timeout)
    finally:
        condition._acquire_restore(state)
        if not is_noticed and waiter in condition._waiters:
            condition._waiters.remove(waiter)
    return is_noticed


_make_lock = _thread.allocate_lock


class _Lock:
    """A lock that runs other threads while it is taken; CPython's own would end the guest there."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = _make_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes the lock; False if it is still taken when the timeout is over."""
        __tracebackhide__ = True
        if not (blocking and self._lock.locked()) or -1 != timeout < 0:
            return self._lock.acquire(blocking, timeout)
        is_free = _wait(lambda: not self._lock.locked(), None if timeout == -1 else timeout)
        return is_free and self._lock.acquire(False)

    @property
    def __enter__(self) -> Callable[[], bool]:
        # no code of ours may run once it is taken: an interrupt there would leave it so
        return self.acquire if self._lock.locked() else self._lock.acquire

    @property
    def __exit__(self) -> Callable[..., None]:  # noqa: PLE0302 - it returns the method
        return self._lock.__exit__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __repr__(self) -> str:
        state = "locked" if self._lock.locked() else "unlocked"
        return f"<{state} _thread.lock object at {id(self):#x}>"

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError("cannot pickle '_thread.lock' object")
