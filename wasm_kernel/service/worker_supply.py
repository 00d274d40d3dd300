"""Workers for a confined process: its broker gets them forked, and hands them over.

The confined process may not make processes or sockets. So it asks on a line that it has had since
before it was confined, and gets open descriptors of a worker: the line to it, its process, and the
system's files about it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from wasm_kernel.engine.flavours import FLAVOURS, Flavour, FlavourName
from wasm_kernel.errors import HostFailed, WasmKernelError, describe
from wasm_kernel.linux.broker import BrokerError, log_failure
from wasm_kernel.linux.channel import Channel
from wasm_kernel.service.fork_server import FILES, ForkServer, Process, Worker
from wasm_kernel.service.messages import PACKET

_LEAVE_SECONDS = 0.3  # for the worker to close its session; then the broker ends, too
_GONE = "the kernel's helper process has ended; restart the kernel"
_DESCRIPTORS = 2 + len(FILES)


class WorkerRequest(Struct, frozen=True, tag=True):
    """Asks for a worker of a language; the first of the flavours that is compiled is taken."""

    language: str
    flavours: tuple[FlavourName, ...]


class WorkerEnd(Struct, frozen=True, tag=True):
    """Asks for the end of a worker, if it is the last one."""

    process: int


class WorkerReply(Struct, frozen=True):
    """The worker's process, whose descriptors come with it; or progress; or why there is none."""

    process: int = 0
    progress: str = ""
    why: str = ""


class WorkerSource(Protocol):
    """Makes workers. Any thread may call it."""

    def spawn(
        self, language: str, flavours: Sequence[Flavour], progress: Callable[[str], None]
    ) -> Worker:
        """Returns a new worker, as `ForkServer.spawn`."""


class WorkerSupply:
    """The confined process's end of the line: a `WorkerSource`."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._guard = threading.Lock()

    def spawn(
        self, language: str, flavours: Sequence[Flavour], progress: Callable[[str], None]
    ) -> Worker:
        """Returns a new worker. The one before it is killed, if it still runs."""
        names = tuple(flavour.name for flavour in flavours)
        with self._guard:
            try:
                self._line.send(msgspec.json.encode(WorkerRequest(language, names)))
                while True:
                    reply, descriptors = self._receive()
                    if not reply.progress:
                        break
                    progress(reply.progress)
            except OSError as problem:
                raise HostFailed(_GONE) from problem
        if reply.why:
            raise BrokerError(reply.why)
        line, process, *files = descriptors
        channel = Channel(socket.socket(fileno=line))
        return _SuppliedWorker(channel, reply.process, process, files, self.end)

    def end(self, process: int) -> None:
        """Has a worker killed."""
        with contextlib.suppress(OSError):  # the broker is gone, and its workers with it
            self._line.send(msgspec.json.encode(WorkerEnd(process)))

    def _receive(self) -> tuple[WorkerReply, list[int]]:
        flags = socket.MSG_CMSG_CLOEXEC
        packet, descriptors, _, _ = socket.recv_fds(self._line, PACKET, _DESCRIPTORS, flags)
        if not packet:
            raise ConnectionError
        return msgspec.json.decode(packet, type=WorkerReply), descriptors

    def close(self) -> None:
        """Closes the line. Safe to call twice."""
        self._line.close()


class _SuppliedWorker(Worker):
    """A worker that this process may not signal; `end` has it killed."""

    def __init__(
        self,
        channel: Channel,
        process: int,
        descriptor: int,
        files: Sequence[int],
        end: Callable[[int], None],
    ) -> None:
        super().__init__(channel, process, descriptor, files)
        self._end = end

    def kill(self) -> None:
        """Kills it. Safe to call at any time."""
        if not self.has_ended:
            self._end(self.process)


class WorkerDesk:
    """The broker's end of the line: gets one worker after the other forked for a kernel.

    A process that was taken over may ask for any number of workers. So only one of them lives.
    """

    def __init__(self, line: socket.socket, server: ForkServer) -> None:
        self._line = line
        self._server = server
        self._last: Process | None = None

    def run(self) -> None:
        """Serves requests until the other process is gone; then ends the workers."""
        try:
            while packet := self._line.recv(PACKET):
                request = msgspec.json.decode(packet, type=WorkerRequest | WorkerEnd)
                if isinstance(request, WorkerRequest):
                    self._end_last()
                    self._serve(request)
                elif self._last is not None and self._last.process == request.process:
                    self._end_last()
        except Exception as problem:
            log_failure("the supply of workers", problem)
        self._line.close()
        if not self._server.is_alive:  # otherwise that process ends the worker, after longer
            time.sleep(_LEAVE_SECONDS)
            self._end_last()

    def _end_last(self) -> None:
        if self._last is not None:
            self._last.close()
            self._last = None

    def _serve(self, request: WorkerRequest) -> None:
        flavours = [FLAVOURS[name] for name in request.flavours]
        try:
            worker = self._server.spawn(request.language, flavours, self._report)
        except (WasmKernelError, OSError) as problem:
            why = describe(problem) if isinstance(problem, OSError) else str(problem)
            self._say(WorkerReply(why=why))
            return
        self._last, descriptors = worker.handed_over()
        try:
            socket.send_fds(
                self._line, [msgspec.json.encode(WorkerReply(worker.process))], descriptors
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _report(self, text: str) -> None:
        self._say(WorkerReply(progress=text or " "))

    def _say(self, reply: WorkerReply) -> None:
        self._line.send(msgspec.json.encode(reply))
