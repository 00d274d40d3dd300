"""The broker: a process outside the second wall that does a few things for the one inside.

It is forked before that wall is closed, so it costs a millisecond and no second interpreter. The
two processes talk in JSON over a pair of sockets. An attacker in the inner process can make every
request: each handler must check what it gets, as if a stranger had sent it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.task import QUIET, Cancelled, Task

if TYPE_CHECKING:
    import socket  # only a process with a broker imports it

INTERNAL_ERROR = "internal error; the kernel's log says more"

Reply = TypeVar("Reply", bound=Struct)
Handlers = Mapping[type[Struct], Callable[[Any, Task], Struct]]
"""The function that handles each type of request.

A handler's reply, and the text of a `WasmKernelError` that it raises, reach the caller.
"""

_PACKET = 128 * 1024  # a sequenced packet arrives whole or not at all
_MESSAGE_MOST = 16 * 1024 * 1024
_MORE, _LAST = b"+", b"."
_TEXT_MOST = 16 * 1024
_WAITING_MOST = 2  # calls: an honest caller sends the next one after the last one's answer
_POLL_SECONDS = 0.05
_LEAVE_SECONDS = 0.5  # a grace period for the running handler to clean up
_ALL = 1 << 62  # higher than the number of any call
_GONE = "the kernel's helper process has ended. Restart the kernel."


class BrokerError(WasmKernelError):
    """The broker could not do what it was asked."""


class Done(Struct, frozen=True):
    """The reply to a request that returns nothing."""


class Broker(Protocol):
    """Does what its process may do and its caller's may not. Any thread may call it."""

    def call(self, request: Struct, reply: type[Reply], task: Task = QUIET) -> Reply:
        """Has a request handled, and waits for the reply.

        The request's type selects the handler. The task gets reports of progress, and can be
        cancelled; `Cancelled` is raised if the handler heeds that. Raises `WasmKernelError` with
        the handler's own words; `BrokerError` if the handler failed unexpectedly (the log has the
        reason), if there is no such handler, or if the broker has ended.
        """

    def close(self) -> None:
        """Lets the broker end. Safe to call twice."""


class LocalBroker:
    """A `Broker` in this process, which is not confined."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def call(self, request: Struct, reply: type[Reply], task: Task = QUIET) -> Reply:
        """Handles a request."""
        try:
            answer = self._handlers[type(request)](request, task)
        except (WasmKernelError, Cancelled):
            raise
        except Exception as problem:
            log_failure(type(request).__name__, problem)
            raise BrokerError(INTERNAL_ERROR) from problem
        assert isinstance(answer, reply)
        return answer

    def close(self) -> None:
        """Does nothing."""


class ProcessBroker:
    """A `Broker` in another process: the confined process's side of it.
    Any thread may call; one request is handled at a time.
    """

    def __init__(self, link: socket.socket, process: int) -> None:
        self._channel = _Channel(link)
        self._process = process
        self._guard = threading.Lock()
        self._number = 0

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

        inner, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = os.fork()
        if process:
            outer.close()
            inner.settimeout(_POLL_SECONDS)
            return cls(inner, process)
        try:
            inner.close()
            # The group's signals are for the kernel: this process ends with it, but cleans up
            # first, also when the whole group is killed.
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            begin()
            _Service(outer, handlers).run()
            at_end()
        except Exception as problem:
            log_failure("the broker", problem)
        finally:
            os._exit(0)

    def call(self, request: Struct, reply: type[Reply], task: Task = QUIET) -> Reply:
        """Sends a request, and waits for the answer."""
        with self._guard:
            self._number += 1
            try:
                raw = msgspec.Raw(msgspec.json.encode(request))
                self._channel.send(_Call(self._number, type(request).__name__, raw))
                said = self._wait(task)
            except (OSError, msgspec.DecodeError) as problem:
                raise BrokerError(_GONE) from problem
        if said.cancelled:
            raise Cancelled
        if said.why:
            raise BrokerError(said.why)
        return msgspec.json.decode(said.reply, type=reply)

    def _wait(self, task: Task) -> _Answer:
        is_cancelled = False
        while True:
            if not is_cancelled and task.cancelled:
                is_cancelled = True
                self._channel.send(_Cancel(self._number))
            try:
                said = self._channel.receive()
            except TimeoutError:
                continue
            if said is None:
                raise ConnectionError(_GONE)
            if isinstance(said, _Progress):
                task.report(said.text)
            elif isinstance(said, _Answer) and said.number == self._number:
                return said

    def close(self) -> None:
        """Lets the process end."""
        self._channel.close()
        if self._process:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._process, os.WNOHANG)
            self._process = 0


class _Call(Struct, frozen=True, tag=True):
    number: int
    name: str
    request: msgspec.Raw


class _Cancel(Struct, frozen=True, tag=True):
    """Cancels all calls up to this number."""

    number: int


class _Progress(Struct, frozen=True, tag=True):
    text: str


class _Answer(Struct, frozen=True, tag=True):
    """The reply to a call; or why there is none: in words, or `cancelled`."""

    number: int
    reply: msgspec.Raw = msgspec.Raw(b"null")
    why: str = ""
    cancelled: bool = False


_Message = _Call | _Cancel | _Progress | _Answer
_DECODER: msgspec.json.Decoder[_Message] = msgspec.json.Decoder(_Message)


class _Channel:
    """One end of the line: messages in packets. One thread sends at a time, and one receives."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._parts = bytearray()

    def send(self, message: _Message) -> None:
        """Sends a message; `BrokerError` if it is too long and was not sent."""
        data = msgspec.json.encode(message)
        if len(data) > _MESSAGE_MOST:
            raise BrokerError("the request is too long")
        for at in range(0, len(data), _PACKET):
            mark = _MORE if at + _PACKET < len(data) else _LAST
            self._send_packet(mark + data[at : at + _PACKET])

    def _send_packet(self, packet: bytes) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                self._link.send(packet)
                return

    def receive(self) -> _Message | None:
        """Returns the next message; None if the other side is gone.

        After a `TimeoutError`, the next call goes on with the message's parts that came. After
        another error the channel is unusable.
        """
        while packet := self._link.recv(_PACKET + 1):
            self._parts += packet[1:]
            if len(self._parts) > _MESSAGE_MOST:
                raise OSError("a message is too long")
            if packet[:1] == _LAST:
                data, self._parts = self._parts, bytearray()
                return _DECODER.decode(data)
        return None

    def close(self) -> None:
        self._link.close()


class _Service:
    """The outer side: the main thread handles requests, another one reads."""

    def __init__(self, link: socket.socket, handlers: Handlers) -> None:
        self._channel = _Channel(link)
        self._handlers = {request.__name__: (request, each) for request, each in handlers.items()}
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.cancelled_up_to = 0

    def run(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        while (call := self._calls.get()) is not None and self.cancelled_up_to < _ALL:
            with contextlib.suppress(OSError):
                self._channel.send(self._answer(call))

    def _read(self) -> None:
        with contextlib.suppress(Exception):  # no message may keep this process from ending
            while message := self._channel.receive():
                if isinstance(message, _Cancel):
                    self.cancelled_up_to = message.number
                elif self._calls.qsize() >= _WAITING_MOST:
                    break
                elif isinstance(message, _Call):
                    self._calls.put(message)
        self.cancelled_up_to = _ALL
        self._calls.put(None)
        time.sleep(_LEAVE_SECONDS)
        os._exit(0)  # a handler that does not heed this, such as a compiler, only fills the cache

    def _answer(self, call: _Call) -> _Answer:
        try:
            reply = self._reply(call)
        except Cancelled:
            return _Answer(call.number, cancelled=True)
        except WasmKernelError as problem:
            return _Answer(call.number, why=str(problem) or INTERNAL_ERROR)
        except Exception as problem:
            log_failure(call.name, problem)
            return _Answer(call.number, why=INTERNAL_ERROR)
        return _Answer(call.number, msgspec.Raw(reply))

    def _reply(self, call: _Call) -> bytes:
        if call.name not in self._handlers:
            raise BrokerError("there is no handler for this request")
        kind, handler = self._handlers[call.name]
        try:
            request = msgspec.json.decode(call.request, type=kind)
        except (ValueError, RecursionError):  # a DecodeError is a ValueError
            raise BrokerError("this request can't be read") from None
        reply = msgspec.json.encode(handler(request, _OuterTask(self, call.number)))
        if len(reply) > _MESSAGE_MOST // 2:
            raise BrokerError("its answer is too long")
        return reply

    def report(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._channel.send(_Progress(text[:_TEXT_MOST]))


class _OuterTask:
    """A task whose owner waits in the confined process."""

    def __init__(self, service: _Service, number: int) -> None:
        self._service = service
        self._number = number
        self.report = service.report

    @property
    def cancelled(self) -> bool:
        return self._service.cancelled_up_to >= self._number


def log_failure(name: str, problem: Exception) -> None:
    """Logs an unforeseen error, with its traceback, to the logger `wasm_kernel`."""
    import logging

    log = logging.getLogger("wasm_kernel")
    log.error("%s failed unexpectedly", name, exc_info=problem)


_PDEATHSIG = 1  # of prctl
_TIE = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != {parent}:
    os._exit(1)
"""


def end_with(parent: int) -> None:
    """Has the system kill this process when the thread of `parent` that forked it has ended.

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
    """Returns a command for a Python that runs `code` and is killed when this thread has ended.

    It imports nothing from the folder that it is started in. The system kills it, so it also ends
    if this process is killed.
    """
    return [sys.executable, "-P", "-c", _TIE.format(parent=os.getpid()) + code]
