"""Workers for a kernel, which may be confined: its broker gets them forked, and hands them over.

A confined process may not make processes or sockets. So it asks on a line that it has had since
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

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from wasm_kernel.engine.flavours import Flavour
from wasm_kernel.errors import WasmKernelError, describe
from wasm_kernel.linux.broker import BrokerError, log_failure
from wasm_kernel.linux.channel import Channel
from wasm_kernel.linux.folders import closing_fd
from wasm_kernel.service.fork_server import FILES, ChildProcess, ForkServer, Worker
from wasm_kernel.service.messages import PACKET
from wasm_kernel.service.open_message import Open, OpenChanges, encoding

_LEAVE_SECONDS = 0.3  # for the worker to close its session; then the broker ends, too
_GONE = "The kernel's helper process has ended, so no cell can run. Restart the kernel."
_DESCRIPTORS = 2 + len(FILES)


class WorkerRequest(Struct, frozen=True, tag=True):
    """Asks for a further worker of the session that the broker was told, with these changes."""

    changes: OpenChanges


class WorkerEnd(Struct, frozen=True, tag=True):
    """Asks for the end of a worker, if it is the last one."""

    process: int


class WorkerReply(Struct, frozen=True):
    """The worker's process, whose descriptors come with it; or progress; or why there is none."""

    process: int = 0
    progress: str = ""
    why: str = ""


class WorkerSupply:
    """The kernel's end of the line: makes the workers of its session. Any thread may call it.

    The broker opens the session in each worker, as it was told before this process was confined.
    Otherwise code that has taken over this process could get a worker with other folders.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._guard = threading.Lock()
        self._is_coming = False

    def begin(self, opened: Open) -> None:
        """Names the session to the broker, once, unconfined as yet; the first worker opens it.

        Raises `BrokerError` if the broker has ended.
        """
        with closing_fd(os.memfd_create("session")) as file:
            with encoding():
                os.write(file, msgspec.json.encode(opened))
            try:
                socket.send_fds(self._line, [b"{}"], [file])
            except OSError as problem:
                raise BrokerError(_GONE) from problem
            self._is_coming = True

    def spawn(self, opened: Open, progress: Callable[[str], None]) -> Worker:
        """Returns a new worker. The one before it is killed, if it still runs.

        `opened` is the session's message with other `changes` at most.
        """
        with self._guard:
            try:
                if not self._is_coming:
                    self._line.send(_request(opened.changes))
                self._is_coming = False
                while True:
                    reply, descriptors = self._receive()
                    if not reply.progress:
                        break
                    progress(reply.progress)
            except OSError as problem:
                raise BrokerError(_GONE) from problem
        if reply.why:
            raise BrokerError(reply.why)
        line, process, *files = descriptors
        channel = Channel(socket.socket(fileno=line))
        return _SuppliedWorker(self, channel, reply.process, process, files)

    def end(self, process: int) -> None:
        """Makes the broker kill a worker."""
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


def _request(changes: OpenChanges) -> bytes:
    """Returns the packet of a `WorkerRequest`, with as many of the latest stamps as fit into it.

    The contents without a stamp are read once more when they are needed.
    """
    stamps = [*changes.verified.items()]
    while True:
        request = WorkerRequest(replace(changes, verified=dict(stamps)))
        packet = msgspec.json.encode(request)
        if len(packet) <= PACKET or not stamps:
            return packet
        stamps = stamps[len(stamps) // 2 + 1 :]


class _SuppliedWorker(Worker):
    """A worker that this process may not signal; `supply` has it killed."""

    def __init__(
        self, supply: WorkerSupply, channel: Channel, process: int, pidfd: int, files: list[int]
    ) -> None:
        super().__init__(channel, process, pidfd, files)
        self._supply = supply

    def open(self, opened: Open) -> None:
        """Does nothing: the broker has opened the session in it."""

    def kill(self) -> None:
        """Kills the worker. Safe to call at any time."""
        if not self.has_ended:
            self._supply.end(self.process)


class WorkerDesk:
    """The broker's end of the line: gets one worker after the other forked for a kernel.

    A process that was taken over may ask for any number of workers. So only one of them lives. The
    first one is forked before the session is known. Workers have a guest of a `language`, with the
    first compiled one of the `flavours`.
    """

    def __init__(
        self, line: socket.socket, server: ForkServer, language: str, flavours: Sequence[Flavour]
    ) -> None:
        self._line = line
        self._server = server
        self._language, self._flavours = language, flavours
        self._last: ChildProcess | None = None

    def run(self) -> None:
        """Serves requests until the other process is gone; then ends the workers."""
        try:
            first = self._forked()
            if (opened := self._receive_session()) is not None:
                self._hand_over(first, opened)
            while opened is not None and (packet := self._line.recv(PACKET)):
                request = msgspec.json.decode(packet, type=WorkerRequest | WorkerEnd)
                if isinstance(request, WorkerRequest):
                    self._end_last()
                    changed = replace(opened, **asdict(request.changes))
                    self._hand_over(self._forked(), changed)
                elif self._last is not None and self._last.process == request.process:
                    self._end_last()
        except ConnectionError:
            pass  # the other process has ended, and took no worker
        except Exception as problem:
            log_failure("the supply of workers", problem)
        self._line.close()
        if not self._server.is_alive:  # otherwise that process ends the worker, after longer
            time.sleep(_LEAVE_SECONDS)
            self._end_last()

    def _receive_session(self) -> Open | None:
        """Receives the session, from a process that is not confined yet; None if it has ended."""
        _, files, _, _ = socket.recv_fds(self._line, PACKET, 1)
        if not files:
            return None
        with open(files[0], "rb") as words:  # noqa: PTH123 - a descriptor
            words.seek(0)
            return msgspec.json.decode(words.read(), type=Open)

    def _end_last(self) -> None:
        if self._last is not None:
            self._last.close()
            self._last = None

    def _forked(self) -> Worker | WorkerReply:
        """Returns a new worker, or the reason why there is none."""
        try:
            return self._server.spawn(self._language, self._flavours, self._report)
        except (WasmKernelError, OSError) as problem:
            return WorkerReply(why=describe(problem))

    def _hand_over(self, worker: Worker | WorkerReply, opened: Open) -> None:
        """Opens the session in a worker, and gives it to the other process."""
        if isinstance(worker, WorkerReply):
            self._say(worker)
            return
        with contextlib.suppress(OSError):  # it has ended; its user will notice
            worker.open(opened)
        self._last, descriptors = worker.handed_over()
        reply = msgspec.json.encode(WorkerReply(worker.process))
        try:
            socket.send_fds(self._line, [reply], descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _report(self, text: str) -> None:
        self._say(WorkerReply(progress=text or " "))

    def _say(self, reply: WorkerReply) -> None:
        self._line.send(msgspec.json.encode(reply))
