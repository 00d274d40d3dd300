"""`RunningCall`: a program's function that runs for a cell, on a thread or on the loop.

Plain functions of a session run on one thread, so that they may keep things that belong to a
thread, such as a database connection. A call that its cell has given up can't be stopped: it keeps
the thread, and the next call gets another. `async` functions run on one loop of the process, and
are cancelled.
"""

from __future__ import annotations

import asyncio
import builtins
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from wasm_kernel.engine.thread import JobThread
from wasm_kernel.guests.protocol import without_surrogates
from wasm_kernel.linux.broker import log_failure
from wasm_kernel.service.arrow_tables import NotPlainError
from wasm_kernel.service.host_function import BoundFunction
from wasm_kernel.service.plain_data import GuestData, SentTable, encoded

END = object()
"""The value of a stream's step that found no further item."""

UNHEARD_MOST = 8
"""The most calls of a session that may go on after their cells gave them up."""

THREADS_MOST = 1_000
"""The most threads of plain functions of all sessions, also of those that have ended."""

_THREAD = "host functions"
_TEXT_MOST = 10_000  # characters of an error for the guest
_SLOW = "{name} took longer than {seconds:g} seconds"
_NOT_PLAIN = "its result can't be passed to a cell: {why}"
_LARGE = "its result takes {size:,} bytes, and {most:,} are allowed"

Answer = dict[str, Any]


class RecordedCall(Struct, frozen=True):
    """The answer to a call, with its bytes."""

    answer: dict[str, Any]
    raw: bytes = b""

    def value(self) -> Any:
        """Returns the value. Raises `TypeError` or `ValueError` if it is not plain data."""
        data = GuestData(self.raw)
        return data.decoded(self.answer["value"], lambda place, take: SentTable(take(*place)))

    def into(self, raw: bytearray) -> Answer:
        """Returns the answer for a guest; adds its bytes to `raw`."""
        return {"value": encoded(self.value(), raw)} if "value" in self.answer else self.answer


class CallThread:
    """The thread of a session's plain functions. The broker's threads use it, one at a time."""

    def __init__(self) -> None:
        self._thread: JobThread | None = None
        self._serving: list[JobThread] = []

    @property
    def is_overrun(self) -> bool:
        """True if too many calls, or ends of streams, go on unheard, here or in all sessions."""
        self._serving = [each for each in self._serving if not each.join(0)]
        if len(self._serving) > UNHEARD_MOST:
            return True
        if self._thread is not None:
            return False
        return sum(each.name == _THREAD for each in threading.enumerate()) >= THREADS_MOST

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Runs a function after those before it."""
        if self._thread is None:
            self._thread = JobThread(_THREAD, stack=0)
            self._serving.append(self._thread)
        return self._thread.submit(work)

    def give_up(self, future: Future[Any]) -> None:
        """Stops waiting for a call; its thread goes on."""
        future.cancel()
        self.close()

    def close(self) -> None:
        """Lets the thread end after its last call. A later call gets another thread."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None


@cache
def shared_loop() -> asyncio.AbstractEventLoop:
    """Returns the loop of all `async` functions of this process, on a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="async host functions", daemon=True).start()
    return loop


os.register_at_fork(after_in_child=shared_loop.cache_clear)  # no thread is forked


async def _awaited(run: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await run()
    except (SystemExit, KeyboardInterrupt) as end:  # either would end the loop of all functions
        raise _ended_by(end) from None


def _ended_by(end: BaseException) -> RuntimeError:
    return RuntimeError(f"it ended with {type(end).__name__}")


class RunningStream(Struct, eq=False):
    """An open generator of a function, whose steps are awaited if the function is `async`.

    `parts` are the arguments of its call, and `steps` counts. A replayed stream has no items.
    """

    bound: BoundFunction
    items: Iterator[Any] | AsyncIterator[Any] | None
    parts: Sequence[bytes]
    steps: int = 0

    def step(self) -> Any:
        """Returns the next item, or `END`."""
        assert self.items is not None, "a record gives the items"
        if isinstance(self.items, AsyncIterator):
            return anext(self.items, END)
        return next(self.items, END)

    def close(self, thread: CallThread) -> None:
        """Runs the generator's own end, without waiting for it."""
        items: Any = self.items
        if items is not None and self.bound.is_async:
            asyncio.run_coroutine_threadsafe(_awaited(items.aclose), shared_loop())
        elif items is not None:
            thread.submit(items.close)


class RunningCall:
    """One call, or one step of a stream, that runs. It ends by itself or is given up.

    `recorded` records its answer, and returns what the guest gets.

    Attributes:
        size: The bytes of its arguments.
        result_bytes: The bytes of its result.
        began: When it began, on the monotonic clock.
        outcome: How it ended, in a word.
        future: Its value.
        kept: Takes the value of a call that makes a stream, and returns the stream's number.
    """

    def __init__(
        self,
        bound: BoundFunction,
        run: Callable[[], Any],
        thread: CallThread,
        *,
        is_async: bool,
        recorded: Callable[[RecordedCall], RecordedCall] | None = None,
    ) -> None:
        self.bound = bound
        self.size, self.result_bytes = 0, 0
        self.began = time.monotonic()
        self.outcome = "returned"
        self._thread = thread
        self._is_async = is_async
        self.kept: Callable[[Any], int] | None = None
        self._recorded = recorded
        self.future: Future[Any]
        if is_async:
            self.future = asyncio.run_coroutine_threadsafe(_awaited(run), shared_loop())
        else:
            self.future = thread.submit(run)

    @property
    def left_seconds(self) -> float:
        """How long the call may still take; infinite if it has ended."""
        if self.future.done():
            return math.inf
        return self.began + self.bound.limits.seconds - time.monotonic()

    @property
    def is_over(self) -> bool:
        """True if the call has ended, or has no time left."""
        return self.future.done() or self.left_seconds <= 0

    def give_up(self, outcome: str) -> None:
        """Ends the wait for the call."""
        self.outcome = outcome
        if self._is_async:
            self.future.cancel()
        elif not self.future.done():
            self._thread.give_up(self.future)

    def answer(self, raw: bytearray) -> Answer:
        """Returns the answer for the guest, once the call is over; adds its bytes to `raw`."""
        if self._recorded is None:
            return self._answer(raw)
        own = bytearray()
        answer = self._answer(own)
        return self._recorded(RecordedCall(answer, bytes(own))).into(raw)

    def _answer(self, raw: bytearray) -> Answer:
        limits = self.bound.limits
        if not self.future.done():
            self.give_up("TimeoutError")
            return _raised(TimeoutError(_SLOW.format(name=limits.name, seconds=limits.seconds)))
        try:
            value = self.future.result()
        except BaseException as problem:
            problem.__traceback__ = None  # its frames hold the arguments, and the error holds them
            self.outcome = type(problem).__name__
            if isinstance(problem, CancelledError) or not isinstance(problem, Exception):
                problem = _ended_by(problem)
            return _raised(problem)
        if isinstance(value, RecordedCall):
            return self._replayed(value, raw)
        if value is END:
            return {}
        if self.kept is not None:
            return {"stream": self.kept(value)}
        return self._plain(value, raw)

    def _replayed(self, call: RecordedCall, raw: bytearray) -> Answer:
        self.outcome = "refused" if "refused" in call.answer else "replayed"
        if "stream" in call.answer and self.kept is not None:
            return {"stream": self.kept(None)}
        try:
            if "value" in call.answer:
                return self._plain(call.value(), raw)
        except (TypeError, ValueError, RecursionError) as problem:
            return {"refused": _NOT_PLAIN.format(why=problem)}
        size, most = len(msgspec.json.encode(call.answer)), self.bound.limits.most_bytes
        self.result_bytes = size
        return call.answer if size <= most else {"refused": _LARGE.format(size=size, most=most)}

    def _plain(self, value: Any, raw: bytearray) -> Answer:
        before = len(raw)
        try:
            answer = {"value": encoded(value, raw)}
            self.result_bytes = len(msgspec.json.encode(answer)) + len(raw) - before
        except (NotPlainError, UnicodeEncodeError) as problem:
            log_failure(f"the function {self.bound.limits.name}", problem)
            why = _NOT_PLAIN.format(why=problem)
        else:
            size, most = self.result_bytes, self.bound.limits.most_bytes
            if size <= most:
                return answer
            why = _LARGE.format(size=size, most=most)
        del raw[before:]
        self.outcome = "refused"
        return {"refused": why}


def _raised(problem: Exception) -> Answer:
    """Returns an error for the guest: the class's name, the nearest builtin one's, and the text.

    The text of a failed system call names no file: paths of the host are not for cells.
    """
    kinds = (each for each in type(problem).__mro__ if getattr(builtins, each.__name__, 0) is each)
    said: object = problem
    if isinstance(problem, KeyError) and problem.args:
        said = problem.args[0]  # its text would be in quotes
    elif isinstance(problem, OSError) and problem.strerror:
        said = problem.strerror
    try:
        text = without_surrogates(str(said)[:_TEXT_MOST])
    except Exception:  # the class is the program's own
        text = "<exception str() failed>"  # as a traceback says it
    return {"raised": {"type": type(problem).__name__, "base": next(kinds).__name__, "text": text}}
