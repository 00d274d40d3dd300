"""asyncio without sockets or threads: an event loop that waits by sleeping.

The guest has one thread and no descriptors to poll. Timers and ready callbacks are all that can
ever happen, so waiting is `time.sleep`, in slices that an interrupt ends.

An interrupt that comes upon asyncio's own code is put off until the loop waits, a moment later
(`puts_off`). Anywhere else in there it would leave a loop that believes to run, or lose a callback.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from asyncio import base_events
from collections.abc import Callable, Coroutine
from pathlib import PurePosixPath
from types import CodeType, FrameType
from typing import Any, ClassVar, Protocol

from wasm_kernel_agent.outbox import note

_SLICE = 0.05
_PASSES = 100  # of the loop after a cell: a task that never waits must not hold up the reply
_AFTER_SECONDS = 0.5  # the same, of many tasks
_WAITING = (
    "a task is still waiting. Nothing runs between cells here: it goes on while a cell awaits "
    "something, such as the task itself, and when a widget calls back. (This is said once.)"
)
_EXITED = "a task or callback that a cell left has ended with SystemExit"


class NothingToWaitFor(RuntimeError):
    """The event loop would wait for ever."""

    def __init__(self) -> None:
        super().__init__(
            "this await can never end: no timer is running, and the sandbox has no threads, "
            "processes or sockets that could wake it"
        )


class Ear(Protocol):
    """Hears the front end while a cell awaits something."""

    @property
    def open(self) -> bool:
        """Whether the front end could say anything."""

    def hear(self) -> bool:
        """Serve what it has said, one message; False where there was none."""


class _Deaf:
    """Hears nothing: there is nobody to say anything."""

    open = False

    def hear(self) -> bool:
        """Nothing was said."""
        return False


class _Sleeper:
    """Stands where the loop expects a selector: it knows no descriptors, only time."""

    ear: ClassVar[Ear] = _Deaf()

    def __init__(self, loop: GuestLoop) -> None:
        self._loop = loop
        self.listened = 0.0

    def select(self, timeout: float | None) -> list[Any]:
        """Wait `timeout` seconds, or until something is ready; meanwhile the front end is heard."""
        __tracebackhide__ = True
        if take_put_off():
            raise KeyboardInterrupt
        if timeout is None and not self.ear.open:
            raise NothingToWaitFor
        if timeout == 0 and time.monotonic() - self.listened < _SLICE:
            return []
        end = None if timeout is None else time.monotonic() + timeout
        self._listen()
        while not self._loop.something_ready:
            left = _SLICE if end is None else end - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, _SLICE))
            self._listen()
        return []

    def _listen(self) -> None:
        """Hear what came; whoever waited for a message goes on before the next one is served."""
        __tracebackhide__ = True
        self.listened = time.monotonic()
        while self.ear.open and self.ear.hear() and not self._loop.something_ready:
            pass

    def close(self) -> None:
        """Nothing is open."""


class GuestLoop(base_events.BaseEventLoop):
    """The event loop of the guest: timers, callbacks and tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Sleeper(self)

    def run_forever(self) -> None:
        """Run; what the front end said before is not heard earlier than the first callback runs."""
        __tracebackhide__ = True
        _end_runs_without_frames(sys._getframe().f_back, self)
        self._selector.listened = time.monotonic()
        super().run_forever()

    def run_until_complete(self, future: Any) -> Any:
        """The value of a future or coroutine, run to its end."""
        __tracebackhide__ = True
        _end_runs_without_frames(sys._getframe().f_back, self)
        return super().run_until_complete(future)

    def end_run(self) -> None:
        """Forget a run that ended without saying so."""
        self._thread_id = None
        self._stopping = False
        if asyncio._get_running_loop() is self:
            asyncio._set_running_loop(None)

    @property
    def something_ready(self) -> bool:
        """Whether a callback waits to be run."""
        return bool(self._ready)  # type: ignore[attr-defined]

    def run_ready(self, passes: int) -> None:
        """Let tasks and callbacks go on as long as they need no waiting, `passes` times at most."""
        until = time.monotonic() + _AFTER_SECONDS
        while self.something_due and passes > 0 and time.monotonic() < until:
            self.stop()  # after one pass; a callback would wait for a later run if this one failed
            self.run_forever()
            passes -= 1

    @property
    def something_due(self) -> bool:
        """Whether a callback or a timer can run without waiting."""
        timers = self._scheduled  # type: ignore[attr-defined]
        return self.something_ready or bool(timers and timers[0]._when <= self.time())

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none: `_Sleeper.select` returns an empty list."""

    def _write_to_self(self) -> None:
        """Nobody else could be asleep: there is one thread."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """The value of `func(*args)`, computed at once: there is no other thread to compute it."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:
            future.set_exception(problem)
        return future


_LIBRARY = str(PurePosixPath(asyncio.run.__code__.co_filename).parents[1])
_OWN = str(PurePosixPath(asyncio.run.__code__.co_filename).parent)
_put_off: list[bool] = []


def take_put_off() -> bool:
    """Returns whether an interrupt was put off since the last call; the caller raises it now."""
    found = bool(_put_off)
    _put_off.clear()
    return found


def puts_off(frame: FrameType | None) -> bool:
    """Returns whether an interrupt in `frame` has to wait until the loop waits.

    It has to if the code that runs there is asyncio's or this module's, for a loop that runs.
    The code of others does not have to, whoever called it.
    """
    at = frame
    while at is not None and _is_library(at.f_code) and not _is_loops(at.f_code):
        at = at.f_back
    if at is None or not _is_loops(at.f_code) or at.f_code in _OPEN:
        return False
    while at is not None and at.f_code not in _RUNNING:
        at = at.f_back
    if at is not None:
        _put_off.append(True)
    return at is not None


def _is_library(code: CodeType) -> bool:
    name = code.co_filename
    return name.startswith((_LIBRARY, "<frozen")) and "site-packages" not in name


def _is_loops(code: CodeType) -> bool:
    return code.co_filename.startswith(_OWN) or code.co_filename == __file__


def _end_runs_without_frames(frame: FrameType | None, new: GuestLoop) -> None:
    """End what `new`, and the loop that is said to run, believe to run while no frame does.

    An interrupt of the hard kind, or memory that was brought back, may leave such a loop.
    """
    running = asyncio._get_running_loop()
    believing = {loop for loop in (new, running) if isinstance(loop, GuestLoop)}
    while frame is not None and believing:
        if frame.f_code is GuestLoop.run_forever.__code__:
            believing.discard(frame.f_locals.get("self"))
        frame = frame.f_back
    for loop in believing:
        if loop is running or loop.is_running():
            loop.end_run()


def install() -> None:
    """Make `GuestLoop` what asyncio creates, and give this thread one."""
    asyncio.new_event_loop = asyncio.events.new_event_loop = GuestLoop
    for name in ("SelectorEventLoop", "EventLoop"):
        setattr(asyncio, name, GuestLoop)
    asyncio.set_event_loop(GuestLoop())


def hear_with(ear: Ear) -> None:
    """Serve what the front end says while a cell awaits something."""
    _Sleeper.ear = ear


def allow_tasks(awaiter: Awaiter) -> None:
    """Let `asyncio.create_task` work in a cell without `await`, as under ipykernel.

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

    places: tuple[Any, ...] = (asyncio, asyncio.tasks)
    for place in places:
        place.create_task = create_task


class Awaiter:
    """Runs cells with a top-level `await`, all on one loop.

    `cause` is set while a cell is being told, at the place where it waits, why its wait is over.
    """

    def __init__(self) -> None:
        self._loop: GuestLoop | None = None
        self._told = False
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
        """Give the coming cell a loop for `asyncio.get_event_loop()`, and none that runs."""
        asyncio._set_running_loop(None)
        asyncio.set_event_loop(self.loop)

    def go_on(self) -> None:
        """Let the tasks that cells left behind run as far as they can without waiting.

        Between cells nothing runs; where a task needs that, it is said once.
        """
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
        if waiting and not self._told:
            self._told = True
            note(_WAITING)

    def __call__(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The value of `coroutine`, run to its end."""
        asyncio.set_event_loop(self.loop)
        loop = self.loop
        task = loop.create_task(coroutine)
        while True:
            try:
                return loop.run_until_complete(task)
            except (KeyboardInterrupt, NothingToWaitFor) as cause:
                if task.done():
                    raise
                return self._end(loop, task, cause)
            except SystemExit:
                if task.done():
                    raise
                note(_EXITED)  # which ended the loop's run, but not the cell

    def _end(
        self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], cause: BaseException
    ) -> Any:
        """What the task came to after its wait was ended because of `cause`."""
        self.cause = cause
        try:
            task.cancel()
            return loop.run_until_complete(task)
        except asyncio.CancelledError as cancelled:
            raise cause.with_traceback(cancelled.__traceback__) from None
        finally:
            self.cause = None


_OPEN = {_Sleeper.select.__code__, GuestLoop.run_in_executor.__code__}  # to an interrupt, at once
_RUNNING = {
    GuestLoop.run_forever.__code__,
    GuestLoop.run_until_complete.__code__,
    Awaiter.__call__.__code__,
}
