"""asyncio without sockets or threads: an event loop that waits by sleeping.

The guest has one thread and no descriptors to poll. Timers and ready callbacks are all that can
ever happen, so waiting is `time.sleep`, in slices that an interrupt ends.

An interrupt does not end asyncio's own code (`is_own_code`): it would leave a loop that seems to
run, or lose a callback. Code counts as asyncio's by its file, so this file holds nothing but the
loop and the code that runs it.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from asyncio import base_events, unix_events
from collections.abc import Coroutine
from pathlib import PurePosixPath
from types import CodeType, FrameType
from typing import Any, ClassVar, Protocol

from wasm_kernel_agent import threads
from wasm_kernel_agent.host import note

_SLICE = 0.05  # seconds of sleep between two looks for messages
_PASSES = 100  # passes after a cell: a task that never waits must not hold up the reply
_AFTER_SECONDS = 0.5  # seconds after a cell: many tasks must not hold it up either
_WAITING = (
    "a task is still waiting. Nothing runs between cells here: it goes on while a cell awaits "
    "something, such as the task itself, and when a widget calls back. (This is said once.)"
)
_EXITED = "a task or callback that a cell left has ended with SystemExit"


class NothingToWaitFor(RuntimeError):
    """The event loop would wait for ever."""

    def __init__(self) -> None:
        super().__init__(
            "this await can never end: no timer is running, and no thread, process or socket "
            "can wake it"
        )


class MessageSource(Protocol):
    """Serves messages of the front end while a cell awaits something."""

    @property
    def is_open(self) -> bool:
        """True if the front end could send a message."""

    def serve_next(self) -> bool:
        """Serves one message that has come. Returns False if there is none."""


class AwaitedCalls(Protocol):
    """The calls of the host's functions that tasks await."""

    @property
    def is_open(self) -> bool:
        """True if a task awaits a call."""

    def wait(self, seconds: float) -> None:
        """Waits for a call to finish, up to `seconds`; the tasks of finished calls are ready."""


class _Nobody:
    """Stands in for the front end and the host's functions where there are none."""

    is_open = False

    def serve_next(self) -> bool:
        """Returns False: no message can come."""
        return False

    def wait(self, seconds: float) -> None:
        """Does nothing: no call can finish."""


class _SleepingSelector:
    """A selector without descriptors: it waits for time to pass, and serves messages and calls."""

    messages: ClassVar[MessageSource] = _Nobody()
    calls: ClassVar[AwaitedCalls] = _Nobody()

    def __init__(self, loop: GuestLoop) -> None:
        self._loop = loop
        self.looked_at = 0.0  # the time of the last look for messages

    def select(self, timeout: float | None) -> list[Any]:
        """Waits `timeout` seconds, or until a callback is ready. Serves messages in between."""
        __tracebackhide__ = True
        if timeout == 0 and time.monotonic() - self.looked_at < _SLICE:
            return []
        if timeout != 0 and threads.is_in_thread():
            is_timed = timeout is not None or self.calls.is_open
            threads.wait(self._is_ready, min(timeout or _SLICE, _SLICE) if is_timed else None)
            self._serve_messages()
            return []
        is_alone = not (self.messages.is_open or self.calls.is_open)
        if timeout is None:
            has_ended = threads.run_until(self._is_ready, None if is_alone else 0)
            if is_alone and not has_ended:
                raise NothingToWaitFor
        if timeout == 0:
            time.sleep(0)  # lets threads run, even if a task is always ready
        end = None if timeout is None else time.monotonic() + timeout
        self._serve_messages()
        if timeout == 0 and self.calls.is_open:
            self.calls.wait(0.0)
        while not self._loop.has_ready_callback:
            left = _SLICE if end is None else end - time.monotonic()
            if left <= 0:
                break
            self._pause(min(left, _SLICE))
            self._serve_messages()
        return []

    def _is_ready(self) -> bool:
        if self.calls.is_open:
            self.calls.wait(0.0)
        return self._loop.has_ready_callback

    def _pause(self, seconds: float) -> None:
        """Waits for threads, and for calls of the host that tasks await."""
        if not self.calls.is_open:
            time.sleep(seconds)
            return
        time.sleep(0)  # lets threads run
        if not self._loop.has_ready_callback:
            self.calls.wait(seconds)

    def _serve_messages(self) -> None:
        """Serves the messages that came. A task that waited for one goes on before the next is
        served.
        """
        __tracebackhide__ = True
        self.looked_at = time.monotonic()
        source = self.messages
        while source.is_open and source.serve_next() and not self._loop.has_ready_callback:
            pass

    def close(self) -> None:
        """Does nothing: no descriptor is open."""


class GuestLoop(base_events.BaseEventLoop):
    """The event loop of the guest: timers, callbacks and tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _SleepingSelector(self)

    def run_forever(self) -> None:
        """Runs the loop. The first callback runs before the first message is served."""
        __tracebackhide__ = True
        _end_lost_runs(sys._getframe().f_back, self)
        self._selector.looked_at = time.monotonic()
        super().run_forever()

    def run_until_complete(self, future: Any) -> Any:
        """Runs a future or coroutine to its end, and returns its value."""
        __tracebackhide__ = True
        _end_lost_runs(sys._getframe().f_back, self)
        return super().run_until_complete(future)

    def end_run(self) -> None:
        """Forgets a run whose frames are gone and did not end it."""
        self._thread_id = None
        self._stopping = False
        if asyncio._get_running_loop() is self:
            asyncio._set_running_loop(None)

    @property
    def has_ready_callback(self) -> bool:
        """True if a callback waits to be run."""
        return bool(self._ready)  # type: ignore[attr-defined]

    def run_ready(self, passes: int) -> None:
        """Runs tasks and callbacks as long as they need no waiting, `passes` times at most."""
        until = time.monotonic() + _AFTER_SECONDS
        while self.has_due_callback and passes > 0 and time.monotonic() < until:
            self.stop()  # after one pass; a callback would wait for a later run if this one failed
            self.run_forever()
            passes -= 1

    @property
    def has_due_callback(self) -> bool:
        """True if a callback or a timer can run without waiting."""
        timers = self._scheduled  # type: ignore[attr-defined]
        return self.has_ready_callback or bool(timers and timers[0]._when <= self.time())

    def _process_events(self, event_list: list[Any]) -> None:
        """Does nothing: the selector never returns an event."""

    def _write_to_self(self) -> None:
        """Does nothing: the loop has one thread, which is awake."""


_LIBRARY = str(PurePosixPath(asyncio.run.__code__.co_filename).parents[1])
_OWN = str(PurePosixPath(asyncio.run.__code__.co_filename).parent)


def is_own_code(frame: FrameType | None) -> bool:
    """Returns whether a frame runs code of a loop that runs.

    That is asyncio's code, or this module's. Other code can be interrupted at once, whatever called
    it.
    """
    at = frame
    while at is not None and _is_library(at.f_code) and not _is_the_loops(at.f_code):
        at = at.f_back
    if at is None or not _is_the_loops(at.f_code) or _is_one(at.f_code, _INTERRUPTIBLE):
        return False
    while at is not None and not _is_one(at.f_code, _RUNNING):
        at = at.f_back
    return at is not None


def _is_one(code: CodeType, names: set[str]) -> bool:
    """Returns whether code is one of this module's functions, also as a thread's generator."""
    return code.co_qualname in names and code.co_filename == __file__


def _is_library(code: CodeType) -> bool:
    name = code.co_filename
    return name.startswith((_LIBRARY, "<frozen")) and "site-packages" not in name


def _is_the_loops(code: CodeType) -> bool:
    return code.co_filename.startswith(_OWN) or code.co_filename == __file__


def _end_lost_runs(frame: FrameType | None, new: GuestLoop) -> None:
    """Ends runs of `new`, and of the loop that is marked as running, that have no frame any more.

    A second interrupt, or memory that was restored, may leave such a loop.
    """
    running = asyncio._get_running_loop()
    lost = {loop for loop in (new, running) if isinstance(loop, GuestLoop)}
    while frame is not None and lost:
        if _is_one(frame.f_code, {GuestLoop.run_forever.__qualname__}):
            lost.discard(frame.f_locals.get("self"))
        frame = frame.f_back
    for loop in lost:
        if loop is running or loop.is_running():
            loop.end_run()


def install() -> None:
    """Makes asyncio create `GuestLoop`s, and gives this thread one."""
    policy: Any = unix_events._UnixDefaultEventLoopPolicy
    policy._loop_factory = GuestLoop
    for name in ("SelectorEventLoop", "EventLoop"):
        setattr(asyncio, name, GuestLoop)
    asyncio.set_event_loop(GuestLoop())


def serve_while_waiting(messages: MessageSource) -> None:
    """Serves messages of the front end while a cell awaits something."""
    _SleepingSelector.messages = messages


def serve_calls(calls: AwaitedCalls) -> None:
    """Makes the loop look for finished calls while a cell awaits something."""
    _SleepingSelector.calls = calls


def allow_tasks(awaiter: Awaiter) -> None:
    """Lets `asyncio.create_task` work in a cell without `await`, as under ipykernel.

    There, a loop runs beneath every cell. Here, the task waits for the end of the cell.
    """
    create = asyncio.create_task

    @functools.wraps(create)
    def create_task(coro: Any, **options: Any) -> asyncio.Task[Any]:
        __tracebackhide__ = True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = awaiter.loop
        task: asyncio.Task[Any] = loop.create_task(coro, **options)
        return task

    modules: tuple[Any, ...] = (asyncio, asyncio.tasks)
    for module in modules:
        module.create_task = create_task


class Awaiter:
    """Runs cells with a top-level `await`, all on one loop.

    While a wait is being ended, `cause` is the error that the cell gets at the place where it
    waits.
    """

    def __init__(self) -> None:
        self._loop: GuestLoop | None = None
        self._warned = False
        self.cause: BaseException | None = None

    def __str__(self) -> str:
        return "asyncio"

    @property
    def loop(self) -> GuestLoop:
        """The loop of all cells."""
        if self._loop is None or self._loop.is_closed():
            self._loop = GuestLoop()
        return self._loop

    def make_current(self) -> None:
        """Makes the loop that of `asyncio.get_event_loop()` for the coming cell; no loop runs."""
        threads.begin_cell()
        asyncio._set_running_loop(None)
        asyncio.set_event_loop(self.loop)

    def run_tasks(self, *, runs_threads: bool = True) -> None:
        """Runs the tasks that cells left behind, until they would have to wait, and the threads.

        Nothing runs between cells. If a task or a thread is not done by then, a note says so once.
        """
        threads.end_cell(runs=runs_threads)
        if self._loop is None or self._loop.is_closed():
            return
        try:
            self._loop.run_ready(_PASSES)
        except SystemExit:
            note(_EXITED)
        except Exception as problem:
            self._loop = None
            note(f"the event loop was broken and is a new one now; its tasks are lost: {problem!r}")
            return
        waiting = len(asyncio.all_tasks(self._loop))
        if waiting and not self._warned:
            self._warned = True
            note(_WAITING)

    def __call__(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs a cell's coroutine to its end, and returns its value."""
        asyncio.set_event_loop(self.loop)
        loop = self.loop
        task = loop.create_task(coroutine)
        while True:
            try:
                return loop.run_until_complete(task)
            except (KeyboardInterrupt, NothingToWaitFor) as cause:
                if task.done():
                    raise
                return self._end_wait(loop, task, cause)
            except SystemExit as exited:
                if task.done() and not task.cancelled() and task.exception() is exited:
                    raise
                note(_EXITED)  # SystemExit has ended the loop's run, but not the cell

    def _end_wait(self, loop: GuestLoop, task: asyncio.Task[Any], cause: BaseException) -> Any:
        """Ends the wait of a task because of `cause`. Returns the task's value, if it has one.

        A task that waits on is left behind at the next interrupt.
        """
        self.cause = cause
        try:
            task.cancel()
            try:
                return loop.run_until_complete(task)
            except KeyboardInterrupt:  # it may have come before the task had its turn
                loop.run_ready(_PASSES)
                if not task.done():
                    raise
                return task.result()
        except asyncio.CancelledError as cancelled:
            raise cause.with_traceback(cancelled.__traceback__) from None
        finally:
            self.cause = None


_INTERRUPTIBLE = {_SleepingSelector.select.__qualname__}
_RUNNING = {
    GuestLoop.run_forever.__qualname__,
    GuestLoop.run_until_complete.__qualname__,
    Awaiter.__call__.__qualname__,
}
