"""`OutsideWork`: a worker's requests for work beyond its walls, such as a fork.

A worker that was taken over may ask for anything, at any time. So each handler checks its request
as untrusted input, few requests run at once, and each call has a limited number of them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import msgspec

from wasm_kernel.errors import FrameError, WasmKernelError
from wasm_kernel.linux.broker import INTERNAL_ERROR, Handlers, log_failure
from wasm_kernel.linux.task import Cancelled
from wasm_kernel.service import messages
from wasm_kernel.service.fork_server import Worker

_MOST = 32  # from one answered call to the next; each `%pip` or `%fork` of a cell is one
_AT_ONCE = 4
_PROGRESS_CHARACTERS = 16 * 1024


class _RemoteTask:
    """A task whose caller waits in a worker, until it is `cancelled`."""

    def __init__(self, worker: Worker, number: int) -> None:
        self.cancelled = False
        self._worker = worker
        self._number = number

    def tell(self, answer: messages.Answer) -> None:
        """Sends an answer, unless the worker is gone."""
        with contextlib.suppress(OSError):
            self._worker.channel.send(answer)

    def report(self, text: str) -> None:
        self.tell(messages.Answer(self._number, progress=text[:_PROGRESS_CHARACTERS]))


class OutsideWork:
    """The requests of one session's worker, which `handlers` serve. Any thread may use it."""

    def __init__(self, handlers: Callable[[], Handlers]) -> None:
        self._handlers = handlers
        self._guard = threading.Lock()
        self._tasks: dict[int, _RemoteTask] = {}
        self._asked = 0

    def renew(self) -> None:
        """Notes that a call has ended: the next one has the same number of requests."""
        with self._guard:
            self._asked = 0

    def begin(self, wanted: messages.Wanted, worker: Worker, more: int) -> None:
        """Begins to serve a worker's request, on a thread of its own.

        Raises `FrameError` if the worker makes too many: more than a cell does, and `more`.
        """
        task = _RemoteTask(worker, wanted.number)
        with self._guard:
            self._asked += 1
            is_busy = len(self._tasks) >= _AT_ONCE or wanted.number in self._tasks
            if is_busy or self._asked > _MOST + more:
                raise FrameError("it asks for too much")
            self._tasks[wanted.number] = task
        threading.Thread(target=lambda: self._handle(wanted, task), daemon=True).start()

    def cancel(self, number: int) -> None:
        """Cancels a request."""
        with self._guard:
            if (task := self._tasks.get(number)) is not None:
                task.cancelled = True

    def cancel_all(self) -> None:
        """Cancels all requests, when the worker is gone."""
        with self._guard:
            for task in self._tasks.values():
                task.cancelled = True
            self._tasks, self._asked = {}, 0

    def _handle(self, wanted: messages.Wanted, task: _RemoteTask) -> None:
        try:
            answer = self._answered(wanted, task)
        except Cancelled:
            answer = messages.Answer(wanted.number, cancelled=True)
        except WasmKernelError as problem:
            answer = messages.Answer(wanted.number, why=str(problem) or INTERNAL_ERROR)
        except Exception as problem:
            log_failure(wanted.name, problem)
            answer = messages.Answer(wanted.number, why=INTERNAL_ERROR)
        with self._guard:
            if self._tasks.get(wanted.number) is task:
                del self._tasks[wanted.number]
        task.tell(answer)

    def _answered(self, wanted: messages.Wanted, task: _RemoteTask) -> messages.Answer:
        for kind, handler in self._handlers().items():
            if kind.__name__ == wanted.name:
                reply = handler(messages.read_value(wanted.request, kind), task)
                return messages.Answer(wanted.number, msgspec.Raw(msgspec.json.encode(reply)))
        raise FrameError("there is no handler for this request")
