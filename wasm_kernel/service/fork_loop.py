"""The forks of workers, and the process that a program has for them: `fork_process.py` starts it,
and it runs `main`. The forker of kernels forks workers, too (`frontends/jupyter/forker.py`).

Such a process loads what each worker needs: imports, the compiled module, the base image. No guest
runs in it and it compiles nothing, because wasmtime keeps threads for both, and a process with a
second thread must not fork: the child would hang at locks that are never released. If it finds such
a thread, it says so and ends instead of forking.

Workers end with the owner of the line on which they were asked for; a program's workers also end
with the process.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import msgspec
from msgspec import Struct

from wasm_kernel.engine.flavours import FLAVOURS, UNCHECKED
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.guests.base import GuestLanguage, load
from wasm_kernel.linux import memory, shared_heap
from wasm_kernel.linux.broker import MissingBroker, NoBroker, check_alone, end_with, log_failure
from wasm_kernel.linux.channel import Channel
from wasm_kernel.linux.confinement import import_places
from wasm_kernel.linux.memory import Range
from wasm_kernel.policy import RuntimeType
from wasm_kernel.service import worker
from wasm_kernel.service.messages import PACKET, CleanerRequest, ForkReply, ForkRequest

_LEAVE_SECONDS = 150.0  # for workers to close their sessions when the owner is gone
_QUIET_SECONDS = 0.1  # without a request, after which nothing waits for this process
_OF_WORKER = 4  # descriptors that a new worker takes here, some only for a moment
_NEEDED = ("wasm_kernel.engine.instance", "resource")
"""The modules that every guest needs; forked, all workers share one copy."""


class _Line(Struct, eq=False):
    """A line on which its owner asks for workers, and a descriptor of that process."""

    socket: socket.socket
    owner: int


class _ForkedWorker(Struct, eq=False):
    """A worker, its descriptor (-1 once it has ended), and the line on which it was asked for.

    `number` counts the forks before it. A process that cleans outputs is one, too.
    """

    request: ForkRequest | CleanerRequest
    number: int
    process: int
    descriptor: int
    line: _Line


class WorkerForks:
    """The lines on which owners ask for workers, and these workers, in a loop of `poll`.

    A forked worker also calls `close_others`, which closes all other descriptors of the loop. If
    the process `is_shared`, workers outlive it: their owners end them. The process has no other
    thread, and does not ignore SIGCHLD.
    """

    def __init__(
        self, close_others: Callable[[], None] = lambda: None, *, is_shared: bool = False
    ) -> None:
        self.poll = select.poll()
        self._is_shared = is_shared
        self._forks = 0
        self._rehearsed: int | None = None  # the number of forks at the rehearsal
        self._copied: list[Range] | None = None  # memory that each worker writes to
        self._close_others = close_others
        self._loaded: dict[ForkRequest, GuestLanguage] = {}
        self._lines: dict[int, _Line] = {}  # by their own descriptors, and by their owners'
        self._workers: dict[int, _ForkedWorker] = {}  # by their descriptors
        self._leaving: deque[tuple[float, _ForkedWorker]] = deque()  # each with its last moment

    def add(self, line: socket.socket, owner: int) -> None:
        """Serves a line from now on; raises `OSError` if its owner, a process, has ended."""
        added = _Line(line, os.pidfd_open(owner))
        for descriptor in (line.fileno(), added.owner):
            self._lines[descriptor] = added
            self.poll.register(descriptor, select.POLLIN)

    @property
    def is_needed(self) -> bool:
        """True while a line or a worker is left."""
        return bool(self._lines or self._workers)

    # -- events

    def serve(self, quiet_seconds: float, first_seconds: float = 0.0) -> None:
        """Serves the lines until there was no event for some seconds, or no line is left.

        Before the first worker is forked, `first_seconds` count instead if they are more.
        """
        while self._lines:
            seconds = quiet_seconds if self._forks else max(quiet_seconds, first_seconds)
            if (event := self.next_event(seconds)) is None:
                return
            self.attend(event[0])

    def run(self) -> None:
        """Serves the lines until they and their workers are gone."""
        while self.is_needed:
            if (event := self.next_event()) is not None:
                self.attend(event[0])

    def next_event(self, seconds: float | None = None) -> tuple[int, int] | None:
        """Waits for the next event of `poll`; None after `seconds`, or if a worker must be ended.

        It returns one at a time: handling it may close a descriptor whose number is then reused.
        """
        if (left := self._end_overdue()) is not None:
            seconds = left if seconds is None else min(seconds, left)
        if self._can_practise and not self.poll.poll(_QUIET_SECONDS * 1000):
            self._practise()
        events = self.poll.poll(None if seconds is None else seconds * 1000)
        return events[0] if events else None

    @property
    def _can_practise(self) -> bool:
        if self._rehearsed is None:
            return self._forks > 1  # not after the first fork: many programs need no second one
        return self._copied is None and len(self._used) > 0

    @property
    def _used(self) -> list[int]:
        """The second and third last workers that were forked since the rehearsal.

        The last one is left out, as it may be a spare one that has done no work.
        """
        since, guests = self._rehearsed or 0, list[int]()
        for each in self._workers.values():
            if isinstance(each.request, ForkRequest) and each.number >= since:
                guests.append(each.process)
        return guests[-3:-1]

    def _practise(self) -> None:
        """Does work that makes all later workers quicker, while nothing waits for this process."""
        if self._rehearsed is None:
            worker.rehearse()
            shared_heap.freeze()
            self._rehearsed = self._forks
        else:
            self._copied = shared_heap.copied(self._used)

    def attend(self, descriptor: int) -> bool:
        """Handles an event, if it is of a line or a worker; returns whether it is."""
        if (line := self._lines.get(descriptor)) is not None:
            if descriptor == line.owner or not self._serve(line):
                self._hang_up(line)
        elif (ended := self._workers.pop(descriptor, None)) is not None:
            self.poll.unregister(descriptor)
            os.waitid(os.P_PIDFD, descriptor, os.WEXITED)
            os.close(descriptor)
            ended.descriptor = -1
        else:
            return False
        return True

    def _hang_up(self, line: _Line) -> None:
        """Closes a line, and lets its workers close their sessions."""
        for descriptor in (line.socket.fileno(), line.owner):
            self.poll.unregister(descriptor)
            del self._lines[descriptor]
        line.socket.close()
        os.close(line.owner)
        end = time.monotonic() + _LEAVE_SECONDS
        self._leaving += ((end, each) for each in self._workers.values() if each.line is line)

    def _end_overdue(self) -> float | None:
        """Kills workers whose owner is gone for too long; returns the seconds left to the next."""
        while self._leaving:
            end, overdue = self._leaving[0]
            left = end - time.monotonic()
            if overdue.descriptor >= 0:
                if left > 0:
                    return left
                signal.pidfd_send_signal(overdue.descriptor, signal.SIGKILL)
            self._leaving.popleft()
        return None

    def close(self) -> None:
        """Closes the descriptors of all lines and workers, in a forked process."""
        for line in {*self._lines.values()}:
            line.socket.close()
            os.close(line.owner)
        for descriptor in self._workers:
            os.close(descriptor)

    # -- workers

    def prepare(self) -> None:
        """Loads the modules and the language that the first worker most likely needs."""
        memory.use_one_arena()
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for cells, which get one core
        for name in _NEEDED:
            importlib.import_module(name)
        import_places(worker.PACKAGES)
        with contextlib.suppress(WasmKernelError):  # the next request for a worker gets the error
            self.load(ForkRequest(RuntimeType.PYTHON.value, UNCHECKED.name))
        check_alone()

    def load(self, request: ForkRequest) -> GuestLanguage:
        """Returns the language of a request, ready for its guests.

        Raises `WasmKernelError` if the cache lacks a file that the language needs. If the file was
        removed after an earlier request, the next request loads the language anew.
        """
        flavour = FLAVOURS[request.flavour]
        loaded = self._loaded.pop(request, None)
        # this process and its workers prepare nothing; each broker has its own language
        language = loaded or load(RuntimeType.checked(request.language), MissingBroker())
        image = language.prepare(flavour, lambda text: None)
        if loaded is None:
            image.keep_open()
            language.define_early(flavour)
            check_alone()
            memory.trim()
            gc.freeze()
        self._loaded[request] = language
        return language

    def _serve(self, line: _Line) -> bool:
        """Answers a request; returns False if the owner has hung up or sends no request."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(line.socket, PACKET, 1)
        except OSError:
            return False
        try:
            request = msgspec.json.decode(packet, type=ForkRequest | CleanerRequest)
            reply, process = self._answer(request, descriptors, line)
            # does not wait: an owner that reads nothing must not keep the others waiting
            told = msgspec.json.encode(reply)
            socket.send_fds(line.socket, [told], process, socket.MSG_DONTWAIT)
        except (OSError, msgspec.DecodeError):  # the owner is gone; the packet is empty
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        importlib.import_module("wasm_kernel.state.tables")  # no first result needs it
        return True

    def _answer(
        self, request: ForkRequest | CleanerRequest, descriptors: list[int], line: _Line
    ) -> tuple[ForkReply, list[int]]:
        """Returns the reply to a request, and the descriptor of the worker's process, if any."""
        try:
            if not descriptors:  # the system can't open one more
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            make_room(None, _OF_WORKER)
            forked = self._fork(request, descriptors[0], line)
        except NoBroker:
            return ForkReply(is_unprepared=True), []
        except (WasmKernelError, OSError) as problem:
            return ForkReply(why=str(problem)), []
        return ForkReply(forked.process), [forked.descriptor]

    def _fork(
        self, request: ForkRequest | CleanerRequest, channel: int, line: _Line
    ) -> _ForkedWorker:
        serve = self._load_main(request)
        check_alone()
        own = os.getpid()
        process = os.fork()
        if not process:
            try:
                if not self._is_shared:
                    end_with(own)
                gc.enable()
                self.close()
                self._close_others()
                os.dup2(1, 2)  # standard error is not needed: logs go through the line
                serve(Channel(socket.socket(fileno=channel)))
            except Exception as problem:
                log_failure("a worker", problem)
            finally:
                os._exit(0)
        self._forks += 1
        try:
            watched = os.pidfd_open(process)
            made = _ForkedWorker(request, self._forks - 1, process, watched, line)
        except OSError:  # it can't be watched
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise
        self._workers[made.descriptor] = made
        self.poll.register(made.descriptor, select.POLLIN)
        return made

    def _load_main(self, request: ForkRequest | CleanerRequest) -> Callable[[Channel], None]:
        """Loads the modules of the requested process; returns its main function."""
        if isinstance(request, CleanerRequest):
            from wasm_kernel.service import cleaning  # only a batch asks for it

            cleaning.prepare()
            return lambda channel: cleaning.serve(channel, request)
        language = self.load(request)

        def serve(channel: Channel) -> None:
            for start, end in self._copied or ():
                memory.copy_ahead(start, end - start)
            worker.serve(channel, language)

        return serve


def main(line: int, owner: int) -> NoReturn:
    """Serves the owner, a process, through the descriptor of the line to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forks = WorkerForks()
    try:
        forks.add(socket.socket(fileno=line), owner)
    except ProcessLookupError:  # the owner has ended
        os._exit(0)
    forks.prepare()
    forks.run()
    os._exit(0)
