"""`FunctionCalls`: the calls of a program's functions by the cells of one session, within limits.

A worker that was taken over may ask for any call at any time. So each call is checked here: whether
a cell runs, the function's name, the arguments, and every limit.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from functools import partial
from typing import Any

from wasm_kernel import events
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.guests.protocol import (
    CallFunction,
    DropCall,
    FinishedCalls,
    FunctionReply,
    NextItem,
)
from wasm_kernel.linux.broker import Handlers
from wasm_kernel.linux.channel import parts_of
from wasm_kernel.linux.task import Cancelled, Task
from wasm_kernel.service.host_function import BoundFunction
from wasm_kernel.service.running_call import Answer, CallThread, RunningCall, RunningStream
from wasm_kernel.service.session_calls import SessionCalls, SessionNetwork

_POLL_SECONDS = 0.05
_MINUTE = 60.0
_OPEN_MOST = 100  # streams, and calls that a cell awaits, at a time
_LOOKS_A_SECOND = 30  # a worker makes 20 at most, beside one for each call
_NUMBER_BITS = 48  # random: variables may hold the numbers of an earlier program's streams
_TOGETHER_BYTES = 1024 * 1024  # bytes of further results that are sent with the first one

_LARGE = "the arguments take {size:,} bytes, and {most:,} are allowed"
_FAST = "a session may call it {most:,} times a minute; wait, and call it again"
_OPEN = f"{_OPEN_MOST} calls and streams are open already; await some of them, or read them"
_UNHEARD = "too many earlier calls still run, although their cells gave them up; wait"


class CallRefused(WasmKernelError):
    """A call was not made; `str()` says why to the cell's author."""


class FunctionCalls(SessionCalls):
    """The calls by one session's cells, to functions by their names.

    `running_cell` returns the number of the call that is the running cell, 0 if none runs; `logger`
    returns the session's current logger. The `network` of its cells may have a record of calls, and
    is closed when the session falls asleep.

    The broker's threads use it, one at a time.
    """

    def __init__(
        self,
        functions: Mapping[str, BoundFunction],
        running_cell: Callable[[], int],
        logger: Callable[[], SandboxLogger],
        network: SessionNetwork | None = None,
    ) -> None:
        self._functions = functions
        self._next: deque[tuple[int, Mapping[str, BoundFunction], SessionNetwork | None]] = deque()
        self._running_cell = running_cell
        self._logger, self._network = logger, network
        self._cell, self._cell_began = 0, time.monotonic()
        self._made: Counter[str] = Counter()
        self._times: dict[str, deque[float]] = {}
        self._numbers = itertools.count(random.getrandbits(_NUMBER_BITS))
        self._streams: dict[int, RunningStream] = {}
        self._awaited: dict[int, RunningCall] = {}
        self._thread = CallThread()

    @property
    def handlers(self) -> Handlers:
        """The handlers of the worker's requests."""
        return {
            CallFunction: self._call,
            NextItem: self._item,
            FinishedCalls: self._wait_for_one,
            DropCall: self._drop,
        }

    @property
    def requests_a_cell(self) -> int:
        """How many requests a worker may have made in this cell: three a call, and regular looks.

        The three are the call, a look for its result, and dropping it. `TurnFunctions` keeps honest
        workers within the limit.
        """
        seconds = time.monotonic() - self._cell_began
        calls = sum(each.limits.calls_a_cell for each in self._functions.values())
        return 3 * calls + int(seconds * _LOOKS_A_SECOND)

    def offer(
        self, functions: Mapping[str, BoundFunction], network: SessionNetwork | None, after: int
    ) -> None:
        """Takes other functions and another network, for cells whose number is above `after`.

        The limits of a minute go on.
        """
        self._next.append((after, functions, network))

    def end_cell(self) -> None:
        """Ends the calls and streams that the cell has left open."""
        for number in [*self._streams, *self._awaited]:
            self._end(number)

    def close(self) -> None:
        """Ends the calls and streams that the last cell has left open."""
        self.end_cell()
        self._thread.close()
        if self._network is not None:
            self._network.close()

    # -- the worker's requests

    def _call(self, asked: CallFunction, task: Task) -> FunctionReply:
        bound = self._check_call(asked.function)
        self._check_rate(bound)
        parts = parts_of(asked)
        size = sum(map(len, parts))
        if size > bound.limits.most_bytes:
            raise CallRefused(_LARGE.format(size=size, most=bound.limits.most_bytes))
        stays_open = bound.is_stream or asked.later
        if stays_open and len(self._streams) + len(self._awaited) >= _OPEN_MOST:
            raise CallRefused(_OPEN)

        def run() -> Any:
            args, kwargs = bound.arguments(asked.args, asked.kwargs, asked.raw)
            return bound.function(*args, **kwargs)

        def keep(items: Any) -> int:
            number = next(self._numbers)
            self._streams[number] = RunningStream(bound, items, parts)
            return number

        is_async = bound.is_async and not bound.is_stream  # an async generator is made at once
        call = self._begun(bound, run, parts, is_async=is_async)
        call.size, call.kept = size, keep if bound.is_stream else None
        return self._wait_or_keep(call, task, later=asked.later)

    def _item(self, asked: NextItem, task: Task) -> FunctionReply:
        bound, stream = self._check_call(asked.function), self._streams.get(asked.stream)
        if stream is None or stream.bound is not bound:
            raise CallRefused("this stream has ended; a stream ends with its cell")
        stream.steps += 1
        parts = (*stream.parts, b"%d" % stream.steps)
        call = self._begun(bound, stream.step, parts, is_async=bound.is_async)
        return self._wait_or_keep(call, task, later=asked.later)

    def _wait_for_one(self, asked: FinishedCalls, task: Task) -> FunctionReply:
        """Waits for one of the awaited calls; returns the answers of those that are over."""
        self._begin_cell()
        end, awaited = time.monotonic() + asked.seconds, {**self._awaited}
        while not (over := [n for n, call in awaited.items() if call.is_over]):
            if task.cancelled:  # first, as it may have come in the last wait
                raise Cancelled
            left = end - time.monotonic()
            if not awaited or left <= 0:
                break
            soonest = min(left, *(call.left_seconds for call in awaited.values()))
            waited = [call.future for call in awaited.values()]
            seconds = max(0.0, min(_POLL_SECONDS, soonest))
            futures.wait(waited, seconds, futures.FIRST_COMPLETED)
        found: list[tuple[int, Answer]] = []
        size, raw = 0, bytearray()
        for number in over:
            if size > _TOGETHER_BYTES:
                break
            found.append((number, self._ended(awaited[number], raw)))
            self._awaited.pop(number, None)
            size += awaited[number].result_bytes
        return FunctionReply({"finished": found, "left": len(self._awaited)}, bytes(raw))

    def _drop(self, asked: DropCall, task: Task) -> FunctionReply:
        self._begin_cell()
        self._end(asked.number)
        return FunctionReply({})

    # -- their parts

    def _begin_cell(self) -> None:
        """Ends the calls of an earlier cell; raises `CallRefused` if no cell runs."""
        cell = self._running_cell()
        if not cell:
            raise CallRefused("functions of the host are called by a cell that runs")
        if cell != self._cell:
            self.end_cell()
            self._cell, self._cell_began = cell, time.monotonic()
            self._made.clear()
            while self._next and cell > self._next[0][0]:
                _, self._functions, self._network = self._next.popleft()

    def _check_call(self, name: str) -> BoundFunction:
        """Counts a call, and returns its function; raises `CallRefused`."""
        self._begin_cell()
        if (bound := self._functions.get(name)) is None:
            raise CallRefused("the program that owns this sandbox offers no such function")
        if self._made[name] >= bound.limits.calls_a_cell:
            raise CallRefused(f"a cell may call it {bound.limits.calls_a_cell:,} times")
        self._made[name] += 1
        if self._thread.is_overrun:
            raise CallRefused(_UNHEARD)
        return bound

    def _check_rate(self, bound: BoundFunction) -> None:
        now, name, most = time.monotonic(), bound.limits.name, bound.limits.calls_a_minute
        times = self._times.get(name)
        if times is None or times.maxlen != most:
            times = self._times[name] = deque(times or (), maxlen=most)
        if len(times) == most and now - times[0] < _MINUTE:
            raise CallRefused(_FAST.format(most=most))
        times.append(now)

    def _begun(
        self,
        bound: BoundFunction,
        run: Callable[[], Any],
        parts: Sequence[bytes],
        *,
        is_async: bool,
    ) -> RunningCall:
        """Begins a call, or looks its answer up in the record; `parts` are its arguments."""
        network = self._network if bound.limits.recorded else None
        record = None if network is None else network.record
        if record is None:
            return RunningCall(bound, run, self._thread, is_async=is_async)
        digest = record.digest(bound.limits.name, *parts)
        if record.replays:
            found = partial(record.answer, digest)
            return RunningCall(bound, found, self._thread, is_async=True)
        keep = partial(record.keep, digest)
        return RunningCall(bound, run, self._thread, is_async=is_async, recorded=keep)

    def _wait_or_keep(self, call: RunningCall, task: Task, *, later: bool) -> FunctionReply:
        """Waits for a call, or keeps it for a cell that awaits several."""
        if later and call.bound.is_async:
            number = next(self._numbers)
            self._awaited[number] = call
            return FunctionReply({"call": number})
        while not call.is_over and not task.cancelled:
            futures.wait([call.future], max(0.0, min(_POLL_SECONDS, call.left_seconds)))
        if not call.is_over:
            call.give_up("interrupted")
            self._log(call, 0)
            raise Cancelled
        raw = bytearray()
        return FunctionReply(self._ended(call, raw), bytes(raw))

    def _ended(self, call: RunningCall, raw: bytearray) -> Answer:
        answer = call.answer(raw)
        self._log(call, call.result_bytes)
        return answer

    def _log(self, call: RunningCall, result_bytes: int) -> None:
        if call.bound.logged:
            self._logger().log_event(
                events.FUNCTION_CALLED,
                function=call.bound.limits.name,
                outcome=call.outcome,
                duration=time.monotonic() - call.began,
                argument_bytes=call.size,
                result_bytes=result_bytes,
            )

    def _end(self, number: int) -> None:
        """Closes a stream, or gives up a call that no cell awaits any more."""
        if (call := self._awaited.pop(number, None)) is not None:
            call.give_up("interrupted")
            self._log(call, 0)
        if (stream := self._streams.pop(number, None)) is not None:
            stream.close(self._thread)
