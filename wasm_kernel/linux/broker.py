"""The broker: a process outside the second wall that does a few things for the one inside.

A kernel's front end forks it before that wall is closed, so it costs a millisecond and no second
interpreter. A worker's requests reach it through the front end; a service handles those of its own
workers itself. An attacker in the inner process can make every request: each
handler must check what it gets, as if a stranger had sent it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from wasm_kernel.errors import FrameError, WasmKernelError
from wasm_kernel.linux.channel import Channel, parts_of, read, with_raw
from wasm_kernel.linux.task import QUIET, Cancelled, Task

INTERNAL_ERROR = "internal error; the kernel's log says more"

Reply = TypeVar("Reply", bound=Struct)
Handlers = Mapping[type[Struct], Callable[[Any, Task], Struct]]
"""The function that handles each type of request.

A handler's reply, and the text of a `WasmKernelError` that it raises, reach the caller.
"""

Number = Annotated[int, Meta(ge=0, lt=2**62)]

_TEXT_MOST = 16 * 1024
_WAITING_MOST = 2
_POLL_SECONDS = 0.05
_LEAVE_SECONDS = 0.5  # a grace period for the running handler to clean up
_GONE = "the kernel's helper process has ended. Restart the kernel."


class BrokerError(WasmKernelError):
    """The error of a request that the broker could not serve."""


class NoBroker(BrokerError):
    """The process that a language is loaded in has no broker."""


class EmptyReply(Struct, frozen=True):
    """The reply to a request that returns nothing."""


class Broker(Protocol):
    """Does work that its process may do and its caller's may not. Any thread may call it."""

    def call(self, request: Struct, reply: type[Reply], task: Task = QUIET) -> Reply:
        """Sends a request to the handler of its type, and waits for the reply.

        The task gets progress, and can cancel (`Cancelled`). Raises a handler's `WasmKernelError`,
        or `BrokerError` if there is no handler, it failed unexpectedly, or the broker has ended.
        """


class MissingBroker:
    """The `Broker` of a process that has none."""

    def call(self, request: Struct, reply: type[Reply], task: Task = QUIET) -> Reply:
        """Raises `NoBroker`."""
        raise NoBroker


class BrokerRequest(Struct, frozen=True, tag_field="kind", tag="request"):
    """A request for work that its sender may not do; `name` is the request's type.

    `raw` holds the bytes that the request has beside its JSON, as in `BrokerAnswer`.
    """

    number: Number
    name: Annotated[str, Meta(max_length=200)]
    request: msgspec.Raw
    raw: bytes = b""


class BrokerCancel(Struct, frozen=True, tag_field="kind", tag="cancel"):
    """Cancels a `BrokerRequest`."""

    number: Number


class BrokerAnswer(Struct, frozen=True, tag_field="kind", tag="answer"):
    """The reply to a `BrokerRequest`, or the reason why there is none, or a report of progress."""

    number: int
    reply: msgspec.Raw = msgspec.Raw(b"null")
    why: str = ""
    cancelled: bool = False
    progress: str = ""
    raw: bytes = b""


_requests: msgspec.json.Decoder[Any] = msgspec.json.Decoder(BrokerRequest | BrokerCancel)
_answers = msgspec.json.Decoder(BrokerAnswer)


class RemoteBroker:
    """A `Broker` in the process at the other end of a channel. Any thread may call it.

    One request is handled at a time. `gone` is the error text once the process has ended. Another
    thread puts the `answers` into a queue, and None once the process is gone; without a queue, the
    channel brings nothing else.
    """

    def __init__(
        self,
        channel: Channel,
        gone: str,
        answers: queue.SimpleQueue[BrokerAnswer | None] | None = None,
    ) -> None:
        self._channel = channel
        self._answers = answers
        self._gone = gone
        self._guard = threading.Lock()
        self._number = 0

    def call(self, request: Struct, reply: type[Reply], task: Task = QUIET) -> Reply:
        """Sends a request, and waits for the answer."""
        text, raw = parts_of(request)
        with self._guard:
            self._number += 1
            try:
                name = type(request).__name__
                self._channel.send(BrokerRequest(self._number, name, msgspec.Raw(text), raw))
                answer = self._wait(task)
            except (OSError, EOFError, msgspec.DecodeError) as problem:
                raise BrokerError(self._gone) from problem
            except FrameError as problem:
                raise BrokerError(f"the request can't be sent: {problem.why}") from problem
        if answer.cancelled:
            raise Cancelled
        if answer.why:
            raise BrokerError(answer.why)
        return with_raw(msgspec.json.decode(answer.reply, type=reply), answer.raw)

    def _wait(self, task: Task) -> BrokerAnswer:
        is_cancelled = False
        while True:
            if task.cancelled and not is_cancelled:
                is_cancelled = True
                self._channel.send(BrokerCancel(self._number))
            with contextlib.suppress(queue.Empty):
                answer = self._next()
                if answer.number != self._number:
                    continue  # an answer to an earlier call, whose caller has failed
                if not answer.progress:
                    return answer
                task.report(answer.progress)

    def _next(self) -> BrokerAnswer:
        """Returns the next answer; raises `queue.Empty` if there is none after a moment."""
        if self._answers is None:
            if self._channel.is_quiet(_POLL_SECONDS):
                raise queue.Empty
            return read(self._channel.receive(), _answers.decode)
        if (answer := self._answers.get(timeout=_POLL_SECONDS)) is None:
            raise EOFError
        return answer


class ProcessBroker(RemoteBroker):
    """A `Broker` in a process that this one has forked for it.

    Its `descriptor` is readable once that process has ended.
    """

    def __init__(self, channel: Channel, process: int) -> None:
        super().__init__(channel, _GONE)
        self._process = process
        self.descriptor = os.pidfd_open(process)

    @classmethod
    def spawn(
        cls,
        handlers: Handlers,
        begin: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
    ) -> ProcessBroker:
        """Forks the broker. The process must have one thread, and not be confined yet.

        Call it before the process opens any file that the broker should not have. The broker ends
        within a second of this process, even in the middle of a request. It calls `begin` first. It
        has half a second for `at_end` when this process has ended or closed the broker.
        """
        import socket

        inner, outer = socket.socketpair()
        process = os.fork()
        if process:
            outer.close()
            return cls(Channel(inner), process)
        try:
            inner.close()
            # The group's signals are for the kernel: this process ends with it, but cleans up
            # first, also when the whole group is killed.
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            begin()
            BrokerServer(Channel(outer), lambda: handlers).run()
            at_end()
        except Exception as problem:
            log_failure("the broker", problem)
        finally:
            os._exit(0)

    def close(self) -> None:
        """Lets the process end. Safe to call twice."""
        self._channel.close()
        if self._process:
            os.close(self.descriptor)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._process, os.WNOHANG)
            self._process = 0


class BrokerServer:
    """Handles the requests of the process at the other end of a channel, one after another.

    A process that was taken over may ask for anything, at any time. So each handler checks its
    request as untrusted input, and a second request is taken only to wait for the first one's end.
    """

    def __init__(self, channel: Channel, handlers: Callable[[], Handlers]) -> None:
        self._channel = channel
        self._handlers = handlers
        self._guard, self._handling = threading.Lock(), threading.Lock()
        self._tasks: dict[int, _RemoteTask] = {}

    def run(self) -> None:
        """Takes requests until the other process is gone; ends this one if a handler goes on."""
        with contextlib.suppress(Exception):  # no message may keep this process from ending
            while True:
                self.handle(read(self._channel.receive(), _requests.decode))
        self.cancel_all()
        # a handler that goes on, such as a compiler, only fills the cache
        end = threading.Timer(_LEAVE_SECONDS, os._exit, (0,))
        end.daemon = True
        end.start()
        with self._handling:
            pass

    def handle(self, message: BrokerRequest | BrokerCancel) -> None:
        """Begins to handle a request, on a thread of its own, or cancels one.

        Raises `FrameError` if too many requests wait.
        """
        number = message.number
        with self._guard:
            if isinstance(message, BrokerCancel):
                if (found := self._tasks.get(number)) is not None:
                    found.cancelled = True
                return
            # an honest process sends the next request when it has the answer
            if len(self._tasks) >= _WAITING_MOST or number in self._tasks:
                raise FrameError("it asks for too much")
            task = self._tasks[number] = _RemoteTask(self._channel, number)
        threading.Thread(target=lambda: self._handle(message, task), daemon=True).start()

    def cancel_all(self) -> None:
        """Cancels all requests, when the other process is gone."""
        with self._guard:
            for task in self._tasks.values():
                task.cancelled = True

    def _handle(self, asked: BrokerRequest, task: _RemoteTask) -> None:
        with self._handling:
            try:
                task.tell(self._answer(asked, task))
            except FrameError:
                task.tell(BrokerAnswer(asked.number, why="its answer is too long"))
            with self._guard:
                del self._tasks[asked.number]

    def _answer(self, asked: BrokerRequest, task: _RemoteTask) -> BrokerAnswer:
        number = asked.number
        try:
            if task.cancelled:
                raise Cancelled
            request, handler = self._read(asked)
            text, raw = parts_of(handler(request, task))
            return BrokerAnswer(number, msgspec.Raw(text), raw=raw)
        except Cancelled:
            return BrokerAnswer(number, cancelled=True)
        except WasmKernelError as problem:
            return BrokerAnswer(number, why=str(problem) or INTERNAL_ERROR)
        except Exception as problem:
            log_failure(asked.name, problem)
            return BrokerAnswer(number, why=INTERNAL_ERROR)

    def _read(self, asked: BrokerRequest) -> tuple[Struct, Callable[[Any, Task], Struct]]:
        for kind, handler in self._handlers().items():
            if kind.__name__ == asked.name:
                try:
                    request = msgspec.json.decode(asked.request, type=kind)
                    return with_raw(request, asked.raw), handler
                except (ValueError, RecursionError):  # a DecodeError is a ValueError
                    raise BrokerError("this request can't be read") from None
        raise BrokerError("there is no handler for this request")


class _RemoteTask:
    """A task whose caller waits in another process, until it is `cancelled`."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.cancelled = False
        self._channel = channel
        self._number = number

    def tell(self, answer: BrokerAnswer) -> None:
        """Sends an answer, unless the other process is gone."""
        with contextlib.suppress(OSError):
            self._channel.send(answer)

    def report(self, text: str) -> None:
        self.tell(BrokerAnswer(self._number, progress=text[:_TEXT_MOST]))


def log_failure(name: str, problem: BaseException) -> None:
    """Logs an unforeseen error, with its traceback, to the logger `wasm_kernel`."""
    import logging

    log = logging.getLogger("wasm_kernel")
    log.error("%s failed unexpectedly", name, exc_info=problem)


_PDEATHSIG = 1  # an option of prctl
_TIE = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != {parent}:
    os._exit(1)
"""


def end_with(parent: int) -> None:
    """Makes the system kill this process when the thread of `parent` that forked it ends.

    If the parent has already ended, this process ends at once.
    """
    import ctypes

    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def check_alone() -> None:
    """Ends the process if it has a second thread: a fork could hang at a lock of that thread."""
    if threads := os.listdir("/proc/self/task")[1:]:  # noqa: PTH208 - quicker than `Path`
        sys.exit(f"wasm-kernel: {len(threads)} threads too many; nothing is forked")


def tied_command(code: str) -> list[str]:
    """Returns a command for a Python that runs `code`; the system kills it after this thread's end.

    It imports nothing from the folder that it is started in.
    """
    return [sys.executable, "-P", "-c", _TIE.format(parent=os.getpid()) + code]
