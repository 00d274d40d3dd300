"""The owner's side of the process that forks workers (`WorkerForks`), and of each worker."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, Self

import msgspec

from wasm_kernel.engine.flavours import (
    BASELINE,
    BASELINE_SETTING,
    FUEL,
    UNCHECKED,
    Flavour,
    may_run_baseline,
)
from wasm_kernel.errors import HostFailed, SandboxClosed, WasmKernelError
from wasm_kernel.linux.broker import tied_command
from wasm_kernel.linux.channel import Channel
from wasm_kernel.linux.confinement import OFF, possible
from wasm_kernel.policy import RuntimeType
from wasm_kernel.service import fork_process
from wasm_kernel.service.fork_process import ForkProcess
from wasm_kernel.service.messages import PACKET, CleanerRequest, ForkReply, ForkRequest
from wasm_kernel.service.open_message import Open, encoding

_SECONDS = 60.0  # for an answer of the process, while it neither computes nor reads
_BUSY = 0.1  # the share of the time that counts while it computes or reads
_LOOK_SECONDS = 0.1  # between two checks of the awaited process
_END_SECONDS = 120  # for the system to end a process, which may wait for the disk
_TRIES = 3
_PREPARE = """
from wasm_kernel.engine.flavours import FLAVOURS
from wasm_kernel.errors import WasmKernelError, describe
from wasm_kernel.guests.base import load, prepare_on_own_thread
from wasm_kernel.policy import RuntimeType
language = load(RuntimeType({language!r}))
try:
    flavour = language.code_for(FLAVOURS[{flavour!r}])
    prepare_on_own_thread(language, flavour, lambda text: print(text, flush=True))
except (WasmKernelError, OSError, MemoryError) as problem:
    raise SystemExit(describe(problem))
"""
CLOSED = "the service is closed; make another one"
_NO_ANSWER = "the process that starts sessions does not answer"
_COPY = "this process was forked from the one whose service it is; make another one"
_STOPPED = "the process that sessions are forked from was stopped; it was told to go on"
_LOST = "the process that sessions are forked from has ended, or hangs; another one is started"
_LOG = logging.getLogger("wasm_kernel.service")
_TICKS = os.sysconf("SC_CLK_TCK")
_TEXT_BYTES = 16 * 1024
FILES = ("stat", "status", "smaps_rollup")
"""The names of the system's files about a process, which tell of its time and memory."""
_TAKEN = ("RssAnon:", "RssShmem:", "VmSwap:")  # in a process's status


class ChildProcess:
    """A process that this one has made, and may kill. Any thread may use it.

    The descriptor identifies it, since its number may be reused once it is gone.
    """

    def __init__(self, process: int, descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._guard = threading.Lock()

    def kill(self) -> None:
        """Kills the process. Safe to call at any time."""
        self._send(signal.SIGKILL)

    def go_on(self) -> None:
        """Continues the process (SIGCONT), if it was stopped."""
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        with self._guard, contextlib.suppress(ProcessLookupError):
            if self._descriptor >= 0:
                signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        """Kills the process, if it still runs, and waits for its end."""
        self.kill()
        self._ends(_END_SECONDS)
        with contextlib.suppress(ChildProcessError):  # not a child of this process
            os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG)
        with self._guard:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def has_ended(self) -> bool:
        """True if the process is gone."""
        return self._ends(0)

    def _ends(self, seconds: float) -> bool:
        if self._descriptor < 0:
            return True
        ended = select.poll()
        ended.register(self._descriptor, select.POLLIN)
        return bool(ended.poll(seconds * 1000))

    @property
    def state(self) -> str:
        """The system's letter for its state: S asleep, T stopped (SIGSTOP); empty if it is gone."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.process}/stat").read_text().rpartition(") ")[2][:1]
        return ""


class SharedProcess(ChildProcess):
    """A process that serves others, too: this one may continue it, and must not end it."""

    def kill(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Lets the process run."""
        with self._guard:
            os.close(self._descriptor)
            self._descriptor = -1


class Worker(ChildProcess):
    """A worker, seen from the process that uses it. Any thread may use it; one thread receives.

    `files` are open files of the system about the process, in the order of `FILES`: a confined
    process can read them, and can't open them.
    """

    def __init__(
        self, channel: Channel, process: int, descriptor: int, files: Sequence[int]
    ) -> None:
        super().__init__(process, descriptor)
        self.channel = channel
        self._stat, self._status, self._memory = files

    @classmethod
    def of(cls, line: socket.socket, process: int, descriptor: int) -> Worker:
        """Returns a worker just forked. If it has ended, closes `line` and raises `OSError`."""
        folder = f"/proc/{process}"
        with contextlib.ExitStack() as opened:
            opened.callback(line.close)
            opened.callback(os.close, descriptor)
            files = []
            for name in FILES:
                files.append(os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC))
                opened.callback(os.close, files[-1])
            opened.pop_all()
        return cls(Channel(line), process, descriptor, files)

    def open(self, opened: Open) -> None:
        """Sends the worker its session; the first message, sent once."""
        with encoding():
            self.channel.send(opened)

    def handed_over(self) -> tuple[ChildProcess, list[int]]:
        """Returns the process, and copies of its descriptors for another user; closes it here."""
        own = [self.channel.fileno, self._descriptor, self._stat, self._status, self._memory]
        descriptors = [os.dup(each) for each in own]
        process = ChildProcess(self.process, self._descriptor)
        self.channel.close()
        for file in (self._stat, self._status, self._memory):
            os.close(file)
        return process, descriptors

    def close(self) -> None:
        """Kills the worker, if it still runs, and waits for its end; closes the line.

        The wait is needed because its locks, which the next worker takes, are freed after its line.
        """
        self.kill()
        self.channel.close()
        super().close()
        for file in (self._stat, self._status, self._memory):
            with contextlib.suppress(OSError):  # another call has closed it
                os.close(file)
        self._stat = self._status = self._memory = -1

    @property
    def cpu_seconds(self) -> float:
        """The processor time that the process has used; 0 if it is gone."""
        words = _text(self._stat).rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS if words else 0.0

    @property
    def resident_bytes(self) -> int:
        """The bytes of the process's memory, shared or not, without files; 0 if gone. Quick."""
        return _kilobytes(self._status, _TAKEN) * 1024

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that the process shares with no other; 0 if it is gone."""
        return _kilobytes(self._memory, ("Private_",)) * 1024

    @property
    def shared_bytes(self) -> int:
        """The bytes of the process's memory, shared parts in proportion; 0 if it is gone."""
        return _kilobytes(self._memory, ("Pss:",)) * 1024


def _text(file: int) -> str:
    """Returns the text of a file about a process; empty if the process is gone."""
    with contextlib.suppress(OSError):
        return os.pread(file, _TEXT_BYTES, 0).decode(errors="replace")
    return ""


def _kilobytes(file: int, names: tuple[str, ...]) -> int:
    """Returns the sum of a file's lines that begin with a name."""
    lines = _text(file).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(names))


class ForkServer:
    """The process that workers are forked from; restarted if it is gone. Any thread may use it.

    It begins with `started`, which may be shared; later ones are its own. If it `has_spares`, each
    request for a worker from the second one on is followed by a spare worker of the same kind, so
    that the next session starts sooner.
    """

    def __init__(self, started: ForkProcess | None = None, *, has_spares: bool = True) -> None:
        self._guard = threading.Lock()
        self._spare: tuple[list[ForkRequest], Worker] | None = None
        self._preparing, self._prepared = threading.Lock(), Counter[RuntimeType]()
        self._spawned, self._has_spares = 0, has_spares
        self._line: socket.socket | None = None
        self._process: ChildProcess | None = None
        self._is_closed, self._owner = False, os.getpid()
        if started is not None:
            self._has(started)

    @property
    def process(self) -> int:
        """The number of the process; 0 if it does not run."""
        return 0 if self._process is None else self._process.process

    @property
    def is_alive(self) -> bool:
        """True if the process runs."""
        process = self._process
        return process is not None and not process.has_ended

    @property
    def is_copy(self) -> bool:
        """True in a process that was forked from the one that made this object."""
        return os.getpid() != self._owner

    def check_process(self) -> None:
        """Raises `SandboxClosed` if it `is_copy`."""
        if self.is_copy:
            raise SandboxClosed(_COPY)

    def start(self) -> None:
        """Starts the process, if it does not run; does not wait until it is ready."""
        with self._guard:
            self._ensure()

    def spawn(
        self, language: str, flavours: Sequence[Flavour], progress: Callable[[str], None]
    ) -> Worker:
        """Returns a new worker for a guest of a language.

        The first compiled one of `flavours` is taken. If none is compiled, the guest waits for the
        baseline if it is one of them, otherwise for the first. `progress` gets sentences about it.
        """
        runtime = RuntimeType.checked(language)
        for _ in range(_TRIES):
            prepared = self._prepared[runtime]
            requests = [
                ForkRequest(runtime.value, flavour.name)
                for flavour in flavours
                if prepared or not flavour.is_baseline  # `_prepare` has the better one compiled
            ]
            try:
                made = self._take_spare(requests) or self._first(requests)
            except OSError:  # the process was killed, or hangs: it was dropped
                continue
            if made is not None:
                self._spawned += 1
                # many programs have one sandbox, and need no spare
                if self._has_spares and self._spawned > 1:
                    threading.Thread(target=self._make_spare, args=(requests,), daemon=True).start()
                return made
            with self._preparing:
                if self._prepared[runtime] == prepared:  # no other thread has prepared it
                    _prepare(runtime, flavours, progress)
                    self._prepared[runtime] += 1
        raise HostFailed(_NO_ANSWER)

    def spawn_cleaner(self, request: CleanerRequest) -> Worker:
        """Returns a new process that cleans outputs; raises `HostFailed` if there can be none."""
        for _ in range(_TRIES):
            with contextlib.suppress(OSError):  # the process was killed, or hangs: it was dropped
                if (made := self._first([request])) is not None:
                    return made
        raise HostFailed(_NO_ANSWER)

    def _take_spare(self, requests: list[ForkRequest]) -> Worker | None:
        with self._guard:
            if self._process is not None and self._process.has_ended:
                self._drop()  # the spare ends with the process
            if self._spare is None or self._spare[0] != requests:
                return None
            (_, spare), self._spare = self._spare, None
        if not (spare.has_ended or spare.state == "T"):
            return spare
        spare.close()
        return None

    def _make_spare(self, requests: list[ForkRequest]) -> None:
        """Forks a worker for the next session. An error is left to that session's own request."""
        try:
            made = self._first(requests)
        except (OSError, WasmKernelError):
            return
        if made is None:
            return
        with self._guard:
            unused, self._spare = self._spare, (requests, made)
            if self._is_closed:
                self._drop()
        if unused is not None:
            unused[1].close()

    def _first(self, requests: Sequence[ForkRequest | CleanerRequest]) -> Worker | None:
        """Returns a worker for the first request that is prepared; None if none is.

        Raises `ConnectionError` or `TimeoutError` if the process is gone, or does not answer.
        """
        for request in requests:
            with self._guard:
                try:
                    reply, made = self._ask(self._ensure(), request)
                except OSError:
                    if not self._is_closed:
                        _LOG.warning(_LOST)
                    self._drop()  # before another thread gets a worker of the next process
                    raise
            if made is not None:
                return made
            if not reply.is_unprepared:
                raise HostFailed(reply.why)
        return None

    def _ensure(self) -> socket.socket:
        if self._is_closed:
            raise SandboxClosed("the service is closed, or this program ends; nothing was begun")
        self.check_process()
        if self._line is None:
            self._has(fork_process.start())
        assert self._line is not None
        return self._line

    def _has(self, started: ForkProcess) -> None:
        kind = SharedProcess if started.is_shared else ChildProcess
        self._process = kind(started.number, started.descriptor)
        self._line = socket.socket(fileno=started.line.detach())

    def _ask(
        self, line: socket.socket, request: ForkRequest | CleanerRequest
    ) -> tuple[ForkReply, Worker | None]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours:
            with theirs:
                socket.send_fds(line, [msgspec.json.encode(request)], [theirs.fileno()])
            self._wait(line)
            packet, descriptors, _, _ = socket.recv_fds(line, PACKET, 1)
            if not packet:
                raise ConnectionError
            reply = msgspec.json.decode(packet, type=ForkReply)
            if not descriptors:
                return reply, None
            os.set_inheritable(descriptors[0], False)  # `recv_fds` passes no flags on
            own = socket.socket(fileno=ours.detach())
        return reply, Worker.of(own, reply.process, descriptors[0])

    def _wait(self, line: socket.socket) -> None:
        """Waits for an answer of the process; continues the process if it was stopped."""
        assert self._process is not None
        answer, left = select.poll(), _SECONDS
        answer.register(line, select.POLLIN)
        while not answer.poll(_LOOK_SECONDS * 1000):
            if left <= 0 or self._is_closed:
                raise TimeoutError
            state = self._process.state
            left -= _LOOK_SECONDS * (1.0 if state == "S" else _BUSY)
            if state == "T":
                self._process.go_on()
                _LOG.warning(_STOPPED)

    def _drop(self) -> None:
        """Ends the process and its workers; the next request starts another process.

        A shared process only loses its line: it ends the workers of this object.
        """
        if self._spare is not None:
            self._spare[1].close()
            self._spare = None
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            self._process.close()
            self._process = None

    def close(self) -> None:
        """Ends the process and its remaining workers. Safe to call twice."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()  # a thread that waits for its answer, under the guard, returns
        with self._guard:
            self._drop()


def flavours_of(policy: Mapping[str, Any], confinement: str) -> Sequence[Flavour]:
    """Returns the flavours that a guest may have, the best one first; by fields of `Open`."""
    if policy["fuel_budget"] is not None:
        return (FUEL,)
    walled = confinement != OFF and possible().is_complete
    if may_run_baseline(walled=walled) and not policy["deterministic"]:
        return UNCHECKED, BASELINE
    return (UNCHECKED,)


def _prepare(
    runtime: RuntimeType, flavours: Sequence[Flavour], progress: Callable[[str], None]
) -> None:
    """Compiles the guest and builds its base image in a separate process."""
    import subprocess  # few processes need it

    code = _PREPARE.format(language=runtime.value, flavour=flavours[0].name)
    baseline = "1" if BASELINE in flavours else "0"
    quiet, line = subprocess.DEVNULL, "The process that prepares it was ended."
    with (
        _Waiting(f"preparing {runtime.value.title()} for this machine, once") as waiting,
        subprocess.Popen(  # noqa: S603 - the command is fixed
            tied_command(code),
            stdin=quiet,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, BASELINE_SETTING: baseline},
        ) as process,
    ):
        for line in process.stdout or ():
            progress(line.strip())
            waiting.tell(line.strip())
    if process.returncode:
        raise WasmKernelError(f"No guest can be started. {line.strip()} Nothing was run.")


class _Waiting:
    """A context manager that tells the program's user what the program waits for.

    On a terminal it is one line of standard error, which says how much longer it takes and
    disappears at the end of the block; elsewhere it is one warning in the log, with the first
    progress.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
        self._width = 0

    def __enter__(self) -> Self:
        if self._terminal is not None:
            self.tell(self._what)
        return self

    def __exit__(self, *exc: object) -> None:
        self._write("")
        self._write("\r")

    def tell(self, text: str) -> None:
        """Shows the progress."""
        if self._terminal is None and not self._width:
            _LOG.warning("%s: some seconds, or a minute on a busy machine", self._what)
        self._write(f"[wasm-kernel] {text}"[: get_terminal_size().columns - 1])

    def _write(self, line: str) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or closed
                print(f"\r{line:<{self._width}}", end="", file=self._terminal, flush=True)
        self._width = len(line)
