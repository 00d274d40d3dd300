"""The process that workers are forked from: `fork_process.py` starts it, and it runs `main`.

It loads what each worker needs: imports, the compiled module, the base image. No guest runs in it
and it compiles nothing, because wasmtime keeps threads for both, and a process with a second thread
must not fork: the child would hang at locks that are never released. If it finds such a thread, it
says so and ends instead of forking.

It ends with its owner, and its workers end with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import time
from typing import NoReturn

import msgspec

from wasm_kernel.engine.flavours import EPOCH, UNCHECKED, named
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.guests.base import GuestLanguage, load
from wasm_kernel.linux import memory
from wasm_kernel.linux.broker import LateBroker, NoBroker, check_alone, end_with, log_failure
from wasm_kernel.linux.channel import Channel
from wasm_kernel.linux.confinement import import_places
from wasm_kernel.policy import RuntimeType
from wasm_kernel.service import worker
from wasm_kernel.service.messages import PACKET, ForkReply, ForkRequest
from wasm_kernel.state.image import BaseImage

_LEAVE_SECONDS = 2.0  # for workers to close their sessions when the owner is gone
_NEEDED = ("wasm_kernel.engine.instance", "resource")
"""The modules that every guest needs; forked, all workers share one copy."""
_LATER = "wasm_kernel.state.tables"
"""The module that no first result needs; it is loaded once the first worker was forked."""


class ForkLoop:
    """The loop of the process that forks workers. It has no other thread."""

    def __init__(self, line: socket.socket, owner: int) -> None:
        self._line = line
        self._owner = os.pidfd_open(owner)
        self._no_broker = LateBroker()  # neither this process nor a worker prepares anything
        self._loaded: dict[ForkRequest, tuple[GuestLanguage, BaseImage]] = {}
        self._served: set[ForkRequest] = set()

    def run(self) -> None:
        """Forks workers until the owner is gone."""
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        poll.register(self._owner, select.POLLIN)
        with contextlib.suppress(OSError):
            while self._owner not in dict(poll.poll()):
                packet, descriptors, _, _ = socket.recv_fds(self._line, PACKET, 1)
                if not packet:
                    break
                self._handle(msgspec.json.decode(packet, type=ForkRequest), descriptors)
                importlib.import_module(_LATER)
        end = time.monotonic() + _LEAVE_SECONDS
        with contextlib.suppress(ChildProcessError):  # none is left
            while time.monotonic() < end:
                os.waitpid(-1, os.WNOHANG)
                time.sleep(0.01)

    def _handle(self, request: ForkRequest, descriptors: list[int]) -> None:
        try:
            reply, process = self._fork(request, *descriptors), None
            if reply.process:
                process = os.pidfd_open(reply.process)
        except NoBroker:
            reply, process = ForkReply(is_unprepared=True), None
        except (WasmKernelError, OSError) as problem:
            reply, process = ForkReply(why=str(problem)), None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        sent = [] if process is None else [process]
        socket.send_fds(self._line, [msgspec.json.encode(reply)], sent)
        for descriptor in sent:
            os.close(descriptor)

    def load(self, request: ForkRequest) -> tuple[GuestLanguage, BaseImage]:
        """Returns the language of a request, ready for its guests, and its base image.

        Raises `WasmKernelError` if the cache lacks something that the language needs.
        """
        if request not in self._loaded:
            language = load(RuntimeType.checked(request.language), self._no_broker)
            base = language.prepare(named(request.flavour), lambda text: None)
            language.define_early(named(request.flavour))
            check_alone()
            memory.trim()
            gc.freeze()
            self._loaded[request] = language, base
        return self._loaded[request]

    def _fork(self, request: ForkRequest, line: int) -> ForkReply:
        language, base = self.load(request)
        is_first = request not in self._served  # its caller waits, and it gains less
        if not is_first:
            base.map_for_forks()
        self._served.add(request)
        check_alone()
        own = os.getpid()
        process = os.fork()
        if process:
            return ForkReply(process)
        try:
            end_with(own)
            gc.enable()
            self._line.close()
            os.close(self._owner)
            os.dup2(1, 2)  # standard error is not needed: logs go through the line
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if not is_first:
                worker.get_ready()
            worker.serve(Channel(socket.socket(fileno=line)), language, named(request.flavour))
        except Exception as problem:
            log_failure("a worker", problem)
        finally:
            os._exit(0)


def main(line: int, owner: int) -> NoReturn:
    """Serves the owner, a process, through the descriptor of the line to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps ended workers
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # it computes for cells, which get one core
    for name in _NEEDED:
        importlib.import_module(name)
    import_places(worker.PACKAGES)
    try:
        loop = ForkLoop(socket.socket(fileno=line), owner)
    except ProcessLookupError:  # the owner has ended
        os._exit(0)
    for flavour in (UNCHECKED, EPOCH):
        with contextlib.suppress(WasmKernelError):  # the next request for a worker is told of it
            loop.load(ForkRequest(RuntimeType.PYTHON.value, flavour.name))
            break
    check_alone()
    loop.run()
    os._exit(0)
