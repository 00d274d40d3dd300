"""The forker: a process with everything loaded, from which kernels and their workers are forked.

A kernel that Jupyter started itself starts it (`launcher.start`), and gets its first worker from
it. Then the forker loads what kernels need, and serves the launchers of one user (`launcher.py`).
It also forks the workers of the kernels that it forked: each has a line to it, see `WorkerForks`.
No guest runs in it, and it has one thread: a process with a second one must not fork. It does not
read a launcher's request: the forked process does.

It tells each launcher how its kernel ended, and kills a kernel whose launcher is gone. It ends some
minutes after the last kernel. Once a file of its installation has changed, it takes no more
launchers. If there is another forker of its name, it serves the kernel that started it, and ends
with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from wasm_kernel.frontends.jupyter import launcher
from wasm_kernel.frontends.jupyter.ports import CHANNELS, Ports
from wasm_kernel.linux import shared_heap
from wasm_kernel.linux.broker import check_alone
from wasm_kernel.linux.confinement import import_places
from wasm_kernel.policy import RuntimeType
from wasm_kernel.service.fork_loop import WorkerForks
from wasm_kernel.service.fork_process import ForkProcess

if TYPE_CHECKING:
    import asyncio

IDLE_SECONDS = 300.0
"""Seconds after which a forker without kernels ends."""

_NEEDED = (
    *("wasm_kernel.frontends.jupyter.app", "wasm_kernel.frontends.jupyter.connection"),
    "wasm_kernel.frontends.jupyter.kernel",
    *("wasm_kernel.engine.instance", "wasm_kernel.state.folding", "wasm_kernel.state.tables"),
    *("wasm_kernel.outputs.html", "wasm_kernel.outputs.charts", "wasm_kernel.outputs.documents"),
    *("wasm_kernel.outputs.widgets", "ipykernel.parentpoller"),
    *("wasm_kernel.execution.session_guest", "wasm_kernel.guests.python.broker_handlers"),
    *("wasm_kernel.service.kernel_commands", "wasm_kernel.sessions.upkeep", "tinycss2"),
    *("socket", "subprocess", "encodings.idna", "zmq.eventloop.zmqstream", "pwd", "resource"),
    *("tornado.gen", "tornado.platform.asyncio"),
)
"""The modules that kernels need at their start or later; forked kernels share one copy."""

_FIRST_SECONDS = 5.0  # for the first request for a worker, before what kernels need is loaded
_QUIET_SECONDS = 0.3  # after it, for the first guest's start: that has the processors' time
_WAITING = 64  # launchers with a pending request
_HANDSHAKE_SECONDS = 10.0
_MOST = 16 * 1024 * 1024  # bytes of a request: Linux allows no more for arguments and variables


class ForkedLaunch(launcher.KernelLaunch):
    """The launch of a process that was forked for a launcher, to be its kernel.

    `line` is a line to the `forker`, a process, for this kernel's workers.
    """

    def __init__(self, link: socket.socket, line: socket.socket, forker: int) -> None:
        super().__init__(ForkProcess(forker, line, os.getpid(), is_shared=True))
        self._link = link

    def take_over(self) -> bool:
        """Takes the launcher's arguments, folder, variables and streams; False if it gave up."""
        self._link.settimeout(_HANDSHAKE_SECONDS)
        most = launcher.DESCRIPTORS + len(CHANNELS)
        try:
            _, found, _, _ = socket.recv_fds(self._link, 1, most, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        descriptors = found[: launcher.DESCRIPTORS]
        if len(descriptors) != launcher.DESCRIPTORS:
            return False
        self.ports = Ports(found[launcher.DESCRIPTORS :])
        file, folder, *streams = descriptors
        count, *words = os.pread(file, _MOST, 0).split(b"\0")
        os.fchdir(folder)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for descriptor in descriptors:
            os.close(descriptor)
        os.environ.clear()
        for name, _, value in (word.partition(b"=") for word in words[int(count) :]):
            os.environb[name] = value
        sys.argv[1:] = map(os.fsdecode, words[: int(count)])
        sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
        return self._is_wanted()

    def _is_wanted(self) -> bool:
        """Hands over a descriptor of this process; returns whether the launcher has got it."""
        own = os.pidfd_open(os.getpid())
        try:
            socket.send_fds(self._link, [b"k"], [own])
            return self._link.recv(1) == launcher.GO
        except OSError:
            return False
        finally:
            os.close(own)
            self._link.settimeout(None)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends this process with its launcher, even if the forker, which does that, is gone."""
        loop.add_reader(self._link.fileno(), lambda: os._exit(1))


class _Kernel(Struct, frozen=True):
    """The forker's record of a forked kernel."""

    link: socket.socket
    process: int
    descriptor: int


class Forker:
    """The forker's loop; its socket is called `name`. Its process has no other thread."""

    def __init__(self, name: str) -> None:
        self.forks = WorkerForks(self._close, is_shared=True)
        self._name = name
        self._files = frozenset(_files())
        self._circumstances = launcher.circumstances()
        self._poll = self.forks.poll
        self._asking: dict[int, socket.socket] = {}
        self._kernels: dict[int, _Kernel] = {}  # by their links, and by their descriptors
        self._listening: socket.socket | None = None
        self._folder = -1

    def listen(self) -> bool:
        """Begins to listen; False if another forker of that name does, or this user can't have one.

        Launchers wait until it runs.
        """
        try:
            self._folder = _open_place()
            fcntl.flock(self._folder, fcntl.LOCK_EX)
        except OSError:
            return False
        self._path = f"/proc/self/fd/{self._folder}/{self._name}"
        try:
            _remove_dead_sockets(self._folder)
            if Path(self._path).exists():
                return False
            self._listening = socket.socket(socket.AF_UNIX)
            self._listening.bind(self._path)
            self._listening.listen(_WAITING)
            self._mark = Path(self._path).stat()
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)
        return True

    def run(self) -> ForkedLaunch | None:
        """Forks kernels and workers until there was neither, nor a line, for `IDLE_SECONDS`.

        Returns the launch in a forked kernel, None at the end of the forker.
        """
        assert self._listening is not None
        self._poll.register(self._listening, select.POLLIN)
        until = time.monotonic() + IDLE_SECONDS
        while True:
            if self._kernels or self.forks.is_needed:
                until = time.monotonic() + IDLE_SECONDS
            elif self._listening is None or time.monotonic() >= until:
                break
            event = self.forks.next_event(IDLE_SECONDS)
            if event is None or self.forks.attend(event[0]):
                continue
            if (forked := self._attend(*event)) is not None:
                return forked
        self._leave()
        return None

    def _attend(self, descriptor: int, event: int) -> ForkedLaunch | None:
        """Handles an event of a launcher or a kernel; returns the launch in a forked kernel."""
        if descriptor in self._kernels:
            self._end(self._kernels[descriptor], descriptor)
        elif descriptor not in self._asking:
            self._accept()
        else:
            link = self._asking.pop(descriptor)
            if not event & select.POLLHUP and self._serves(link):
                return self._fork(link)
            self._refuse(link)
        return None

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            link, _ = self._listening.accept()
        except OSError:  # too many kernels: another forker must serve the next ones
            self._leave()
            return
        self._asking[link.fileno()] = link
        self._poll.register(link, select.POLLIN)

    def _serves(self, link: socket.socket) -> bool:
        """Returns whether the launcher matches, and the installation is unchanged."""
        try:
            is_as_loaded = frozenset(_files()) == self._files
        except OSError:  # a file is being changed, or no more can be opened
            is_as_loaded = False
        if not is_as_loaded:
            self._leave()
            return False
        process, user = launcher.peer_of(link)
        try:
            circumstances = launcher.circumstances(process)
        except OSError:
            return False
        return user == os.geteuid() and circumstances == self._circumstances

    def _fork(self, link: socket.socket) -> ForkedLaunch | None:
        """Forks a kernel; returns its launch in the forked process."""
        check_alone()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:  # too many kernels
            self._refuse(link)
            return None
        own = os.getpid()
        try:
            process = os.fork()
        except OSError:  # too many processes: the launcher becomes the kernel itself
            ours.close()
            theirs.close()
            self._refuse(link)
            return None
        if not process:
            ours.close()
            self.forks.close()
            self._close()
            return ForkedLaunch(link, theirs, own)
        theirs.close()
        self._forked(process, link, ours)
        return None

    def _forked(self, process: int, link: socket.socket, line: socket.socket) -> None:
        """Notes a kernel; ends it if it can't be watched."""
        try:
            descriptor = os.pidfd_open(process)
            self.forks.add(line, process)
        except OSError:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            line.close()
            self._refuse(link)
            return
        kernel = _Kernel(link, process, descriptor)
        self._kernels |= {link.fileno(): kernel, descriptor: kernel}
        self._poll.modify(link, 0)  # errors and hang-ups are reported in any case
        self._poll.register(descriptor, select.POLLIN)

    def _refuse(self, link: socket.socket) -> None:
        """Refuses a launcher, which then becomes the kernel itself."""
        self._poll.unregister(link)
        link.close()

    def _close(self) -> None:
        """Closes the descriptors of other launchers and kernels in a forked process."""
        for kernel in {*self._kernels.values()}:
            kernel.link.close()
            os.close(kernel.descriptor)
        for other in self._asking.values():
            other.close()
        if self._listening is not None:
            self._listening.close()
        if self._folder >= 0:
            os.close(self._folder)

    def _end(self, kernel: _Kernel, descriptor: int) -> None:
        """Kills a kernel whose launcher is gone, or tells the launcher how its kernel ended."""
        self._poll.unregister(descriptor)
        del self._kernels[descriptor]
        if descriptor == kernel.link.fileno():
            signal.pidfd_send_signal(kernel.descriptor, signal.SIGKILL)
            return
        _, status = os.waitpid(kernel.process, 0)
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            kernel.link.send(code.to_bytes(4, "big", signed=True), socket.MSG_DONTWAIT)
        if self._kernels.pop(kernel.link.fileno(), None) is not None:
            self._poll.unregister(kernel.link)
        kernel.link.close()
        os.close(kernel.descriptor)

    def _leave(self) -> None:
        """Stops taking requests; another forker may take the name."""
        if self._listening is None:
            return
        fcntl.flock(self._folder, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            if os.path.samestat(self._mark, Path(self._path).stat()):
                Path(self._path).unlink()
        fcntl.flock(self._folder, fcntl.LOCK_UN)
        self._poll.unregister(self._listening)
        self._listening.close()
        self._listening = None


def _remove_dead_sockets(folder: int) -> None:
    """Removes the sockets of forkers that were killed."""
    for name in os.listdir(folder):
        path = f"/proc/self/fd/{folder}/{name}"
        with socket.socket(socket.AF_UNIX) as trial:
            trial.setblocking(False)  # do not wait for a full queue
            try:
                trial.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)  # noqa: PTH108
            except OSError:
                continue


def _files(folder: str | None = None) -> Iterator[tuple[str, int]]:
    """Yields our modules and the search path's folders, each with its time of change."""
    if folder is None:
        yield from _files(str(Path(__file__).parents[2]))
        for path in sys.path:
            with contextlib.suppress(OSError):
                yield path, os.stat(path).st_mtime_ns  # noqa: PTH116 - a `Path` each costs more
        return
    for entry in os.scandir(folder):
        if entry.name.endswith(".py"):
            yield entry.path, entry.stat().st_mtime_ns
        elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
            yield from _files(entry.path)


def _load(forks: WorkerForks) -> None:
    """Loads the modules that kernels need, without starting a thread; serves lines in between."""
    from wasm_kernel.frontends.jupyter import startup

    with startup.without("ssl"):
        importlib.import_module("asyncio")
    for package in ("ipykernel", "jupyter_client", "IPython"):
        startup.lazily(package)
    with startup.without("curses"):
        for name in _NEEDED:
            importlib.import_module(name)
            forks.serve(0.0)
    _practise()
    check_alone()
    gc.collect()
    shared_heap.freeze()


def _practise() -> None:
    """Does the first steps of each kernel, so that their results are cached.

    It reads a command line and makes the description of each language. It reads no files of the
    user.
    """
    from wasm_kernel.frontends.jupyter import confine
    from wasm_kernel.frontends.jupyter.app import WasmKernelApp
    from wasm_kernel.kernels import messages
    from wasm_kernel.kernels.settings import KernelSettings

    import_places(confine.IMPORTED_WHEN_CONFINED)
    app = WasmKernelApp()
    app.parse_command_line(["-f", "kernel.json"])
    KernelSettings(parent=app)
    for runtime in RuntimeType:
        messages.kernel_info(runtime)


def _open_place() -> int:
    """Opens the folder of the forkers' sockets; makes it if necessary."""
    path = Path(launcher.place())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    return launcher.open_place()


def main(name: str, line: int, owner: int) -> None:
    """Runs the forker, and in forked processes the kernels.

    `line` is the descriptor of the line to its owner, a process. Launchers are only served if its
    name is the one that they expect.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    is_expected = launcher.forker_name() == name  # before its variables change
    forker = Forker(name)
    with contextlib.suppress(ProcessLookupError):  # the owner has ended
        forker.forks.add(socket.socket(fileno=line), owner)
    forker.forks.prepare()
    forker.forks.serve(_QUIET_SECONDS, _FIRST_SECONDS)
    if not (is_expected and forker.listen()):
        forker.forks.run()
        os._exit(0)
    _load(forker.forks)
    os.chdir("/")  # only now: packages that lie in a kernel's own folder are treated differently
    if (kernel := forker.run()) is None or not kernel.take_over():
        os._exit(0)
    from wasm_kernel.frontends.jupyter.app import main as run

    run(launch=kernel)
