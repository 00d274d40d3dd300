"""The forker: `-m wasm_kernel.frontends.jupyter.forker NAME LOCK`, from which kernels are forked.

It has all imports, the compiled module and the base image, and serves the launchers of one user
(`launcher.py`). No guest ever runs in it, and it has one thread: a process with a second one must
not fork. It reads nothing of what a launcher sends: the forked process does.

It tells each launcher how its kernel ended, and kills a kernel whose launcher is gone. It ends when
nobody asked for a kernel for some minutes and none is left, and serves nobody any more once a file
of its installation has changed.
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from wasm_kernel.engine.flavours import EPOCH
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.jupyter import confine, launcher, messages, startup
from wasm_kernel.frontends.jupyter.origin import create
from wasm_kernel.frontends.jupyter.ports import CHANNELS, Ports
from wasm_kernel.frontends.jupyter.settings import KernelSettings
from wasm_kernel.guests.base import GuestLanguage, load
from wasm_kernel.linux.broker import Broker, ProcessBroker, check_alone
from wasm_kernel.linux.confinement import import_places
from wasm_kernel.linux.task import QUIET, Task
from wasm_kernel.policy import RuntimeType

if TYPE_CHECKING:
    import asyncio

    from wasm_kernel.execution.sandbox import LocalSandbox
    from wasm_kernel.folders.locks import Resume
    from wasm_kernel.policy import ExecutionPolicy
    from wasm_kernel.sessions.session import Session

IDLE_SECONDS = 300.0
"""A forker without kernels ends so long after the last request."""

_NEEDED = (
    *("wasm_kernel.frontends.jupyter.app", "wasm_kernel.frontends.jupyter.connection"),
    *("wasm_kernel.frontends.jupyter.kernel", "wasm_kernel.execution.create"),
    *("wasm_kernel.engine.instance", "wasm_kernel.state.folding", "wasm_kernel.state.tables"),
    *("wasm_kernel.outputs.html", "wasm_kernel.outputs.charts", "wasm_kernel.outputs.documents"),
    *("wasm_kernel.outputs.widgets", "wasm_kernel.publishing.write_back", "ipykernel.parentpoller"),
    *("wasm_kernel.execution.sandbox", "wasm_kernel.guests.python.broker_handlers"),
    *("socket", "subprocess", "encodings.idna", "zmq.eventloop.zmqstream", "pwd", "resource"),
    *("tornado.gen", "tornado.platform.asyncio"),
)
"""The modules that kernels need at their start, or later; forked, all share one copy."""

_WAITING = 64  # launchers that ask at the same time
_HANDSHAKE_SECONDS = 10.0
_MOST = 16 * 1024 * 1024  # bytes of a request: Linux allows no more for arguments and variables
Reply = TypeVar("Reply", bound=Struct)


class _LaterBroker:
    """The broker of the loaded language: each kernel puts its own into it."""

    broker: Broker | None = None

    def call(self, request: Struct, reply: type[Reply], task: Task = QUIET) -> Reply:
        if self.broker is None:
            raise WasmKernelError("the guest is not in the cache")
        return self.broker.call(request, reply, task)

    def close(self) -> None:
        """Does nothing: whoever made the broker closes it."""


class Forked:
    """An `Origin`: this process was forked for a launcher, to be its kernel.

    Its languages are loaded, with a broker of theirs.
    """

    def __init__(
        self,
        link: socket.socket,
        languages: Mapping[RuntimeType, GuestLanguage],
        broker: _LaterBroker,
    ) -> None:
        self._link = link
        self._languages = languages
        self._broker = broker
        self.ports = Ports()

    def take_over(self) -> bool:
        """Takes the launcher's arguments, folder, variables and streams; False if it gave up."""
        self._link.settimeout(_HANDSHAKE_SECONDS)
        most = launcher.DESCRIPTORS + len(CHANNELS)
        try:
            head, found, _, _ = socket.recv_fds(self._link, 8, most, socket.MSG_CMSG_CLOEXEC)
            count, *words = self._received(int.from_bytes(head, "big")).split(b"\0")
        except OSError:
            return False
        descriptors = found[: launcher.DESCRIPTORS]
        if len(descriptors) != launcher.DESCRIPTORS:
            return False
        self.ports = Ports(found[launcher.DESCRIPTORS :])
        os.fchdir(descriptors[0])
        for number, descriptor in enumerate(descriptors[1:]):
            os.dup2(descriptor, number)
        for descriptor in descriptors:
            os.close(descriptor)
        os.environ.clear()
        for name, _, value in (word.partition(b"=") for word in words[int(count) :]):
            os.environb[name] = value
        sys.argv[1:] = map(os.fsdecode, words[: int(count)])
        sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
        return self._is_wanted()

    def _received(self, size: int) -> bytes:
        data = b""
        while len(data) < min(size, _MOST):
            part = self._link.recv(size - len(data))
            if not part:
                raise ConnectionError
            data += part
        return data

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

    def create(
        self,
        runtime: RuntimeType,
        session: Session,
        policy: ExecutionPolicy,
        resume: Resume,
        broker: Broker,
    ) -> LocalSandbox:
        """Makes the sandbox of this kernel."""
        if not isinstance(broker, ProcessBroker):  # not confined: its language is one without
            return create(runtime, session, policy, resume, broker)
        self._broker.broker = broker
        language = self._languages.get(runtime)
        return create(runtime, session, policy, resume, broker, language=language)

    def begin(self) -> None:
        """Does nothing: there is a forker."""

    def end(self) -> None:
        """Does nothing."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends with the launcher, also if there is no forker any more that would see to it."""
        loop.add_reader(self._link.fileno(), lambda: os._exit(1))


class _Kernel(Struct, frozen=True):
    """A forked kernel, as the forker sees it."""

    link: socket.socket
    process: int
    descriptor: int


class Forker:
    """The forker's loop, for a name in the sockets' folder. Its process has no other thread."""

    def __init__(self, folder: int, name: str) -> None:
        self._path = f"/proc/self/fd/{folder}/{name}"
        self._folder = folder
        self._files = frozenset(_files())
        self._circumstances = launcher.circumstances()
        self._poll = select.poll()
        self._asking: dict[int, socket.socket] = {}
        self._kernels: dict[int, _Kernel] = {}  # by their links, and by their descriptors
        self._listening: socket.socket | None = None

    def listen(self) -> bool:
        """Begins to listen; False if another forker of the name does."""
        fcntl.flock(self._folder, fcntl.LOCK_EX)
        try:
            _sweep(self._folder)
            if Path(self._path).exists():
                return False
            self._listening = socket.socket(socket.AF_UNIX)
            self._listening.bind(self._path)
            self._listening.listen(_WAITING)
            self._mark = Path(self._path).stat()
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)
        self._poll.register(self._listening, select.POLLIN)
        return True

    def run(self) -> socket.socket | None:
        """Forks kernels until it is idle for long.

        Returns the connection to its launcher in a forked process, None at the end of the forker.
        """
        until = time.monotonic() + IDLE_SECONDS
        while self._kernels or (self._listening and time.monotonic() < until):
            # one event at a time: what it closes may lend its number to something new
            for descriptor, event in self._poll.poll(IDLE_SECONDS * 1000)[:1]:
                if descriptor in self._kernels:
                    self._attend(self._kernels[descriptor], descriptor)
                elif descriptor not in self._asking:
                    self._accept()
                else:
                    until = time.monotonic() + IDLE_SECONDS
                    link = self._asking.pop(descriptor)
                    if event & select.POLLHUP or not self._serves(link):
                        self._refuse(link)
                    elif self._fork(link):
                        return link
        self._leave()
        return None

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            link, _ = self._listening.accept()
        except OSError:  # it has too many kernels: another forker is for the next ones
            self._leave()
            return
        self._asking[link.fileno()] = link
        self._poll.register(link, select.POLLIN)

    def _serves(self, link: socket.socket) -> bool:
        """Returns whether a kernel may be forked for who asks, from what is still installed."""
        try:
            is_as_loaded = frozenset(_files()) == self._files
        except OSError:  # it is being changed, or nothing more can be opened
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

    def _fork(self, link: socket.socket) -> bool:
        """Forks a kernel; returns whether this process is the forked one."""
        check_alone()
        try:
            process = os.fork()
        except OSError:  # there are too many processes; the launcher goes on as the kernel
            self._refuse(link)
            return False
        if not process:
            self._close_all(link)
            return True
        try:
            kernel = _Kernel(link, process, os.pidfd_open(process))
        except OSError:  # nobody could watch it
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            self._refuse(link)
            return False
        self._kernels |= {link.fileno(): kernel, kernel.descriptor: kernel}
        self._poll.modify(link, 0)  # its end is told in any case
        self._poll.register(kernel.descriptor, select.POLLIN)
        return False

    def _refuse(self, link: socket.socket) -> None:
        """Lets a launcher go, which is its own kernel then."""
        self._poll.unregister(link)
        link.close()

    def _close_all(self, link: socket.socket) -> None:
        """Closes what a kernel must not have, above all its way to other kernels."""
        for kernel in {*self._kernels.values()}:
            kernel.link.close()
            os.close(kernel.descriptor)
        for other in self._asking.values():
            other.close()
        if self._listening is not None:
            self._listening.close()
        os.close(self._folder)

    def _attend(self, kernel: _Kernel, descriptor: int) -> None:
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
        """Takes no more requests; another forker may have the name."""
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


def _sweep(folder: int) -> None:
    """Removes the sockets of forkers that were killed."""
    for name in os.listdir(folder):
        path = f"/proc/self/fd/{folder}/{name}"
        with socket.socket(socket.AF_UNIX) as trial:
            trial.setblocking(False)  # a full queue is no reason to wait
            try:
                trial.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)  # noqa: PTH108
            except OSError:
                continue


def _files(folder: str | None = None) -> Iterator[tuple[str, int]]:
    """The files of the installation, and when each was changed; folders of packages as a whole."""
    if folder is None:
        yield from _files(str(Path(__file__).parents[2]))
        for path in sys.path:
            with contextlib.suppress(OSError):
                yield path, os.stat(path).st_mtime_ns  # noqa: PTH116 - a `Path` each costs more
        return
    for entry in os.scandir(folder):
        if entry.name.endswith(".py"):
            yield entry.path, entry.stat().st_mtime_ns
        elif "." not in entry.name and entry.name != "__pycache__":
            yield from _files(entry.path)


def _load() -> tuple[dict[RuntimeType, GuestLanguage], _LaterBroker]:
    """Loads what kernels need; no thread is started.

    The base image is not mapped for them: a fork with its page tables takes 3 ms longer, and so
    does that of the kernel's broker, while the kernel wins less by it. Raises `WasmKernelError` if
    no guest is in the cache.
    """
    with startup.without("ssl"):
        importlib.import_module("asyncio")
    for package in ("ipykernel", "jupyter_client", "IPython"):
        startup.lazily(package)
    with startup.without("curses"):
        for name in _NEEDED:
            importlib.import_module(name)
    broker = _LaterBroker()
    languages = {}
    for runtime in RuntimeType:
        with contextlib.suppress(WasmKernelError):
            language = load(runtime, broker)
            language.prepare(EPOCH, lambda text: None)
            language.define_early(EPOCH)
            languages[runtime] = language
    if not languages:
        raise WasmKernelError("no guest is in the cache")
    import_places(confine.LATER)  # is remembered
    _practise(languages)
    gc.collect()
    gc.freeze()
    return languages, broker


def _practise(languages: Iterable[RuntimeType]) -> None:
    """Does what each kernel does first; what is worked out for that is there afterwards.

    It reads a command line and looks up what a kernel says of its language. No file of the user's
    is read.
    """
    from wasm_kernel.frontends.jupyter.app import WasmKernelApp

    app = WasmKernelApp()
    app.parse_command_line(["-f", "kernel.json"])
    KernelSettings(parent=app)
    for language in languages:
        messages.kernel_info(language)


def _opened_place() -> int:
    """Opens the folder of the forkers' sockets, which is made if it is not there."""
    path = Path(launcher.place())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    return launcher.open_place()


def main(name: str, lock: int) -> None:
    """Runs the forker, and in forked processes the kernels.

    It ends if it would have another name than launchers expect. Who waits for the lock of the
    descriptor starts no other forker while this one loads.
    """
    if launcher.forker_name() != name or os.fork():
        os._exit(0)  # whoever started it need not wait for its end
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forker = Forker(_opened_place(), name)
    try:
        loaded = _load()
    except WasmKernelError:
        os._exit(0)
    os.chdir("/")
    check_alone()
    is_first = forker.listen()
    os.close(lock)
    if not is_first or (link := forker.run()) is None:
        os._exit(0)
    kernel = Forked(link, *loaded)
    if not kernel.take_over():
        os._exit(0)
    from wasm_kernel.frontends.jupyter.app import main as run

    run(factory=kernel.create, origin=kernel)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
