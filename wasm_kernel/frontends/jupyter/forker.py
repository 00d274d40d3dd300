"""The forker: `-m wasm_kernel.frontends.jupyter.forker NAME LOCK`, from which kernels are forked.

It has all imports, the compiled module and the base image, and serves the launchers of one user
(`launcher.py`). No guest runs in it, and it has one thread: a process with a second one must not
fork. It does not read a launcher's request: the forked process does.

It tells each launcher how its kernel ended, and kills a kernel whose launcher is gone. When no
kernel is left, it ends after some minutes without a request. Once a file of its installation has
changed, it takes no more requests.
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
from typing import TYPE_CHECKING

from msgspec import Struct

from wasm_kernel.engine.flavours import EPOCH
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.jupyter import confine, launcher, messages, startup
from wasm_kernel.frontends.jupyter.ports import CHANNELS, Ports
from wasm_kernel.frontends.jupyter.settings import KernelSettings
from wasm_kernel.guests.base import GuestLanguage, load
from wasm_kernel.linux.broker import LateBroker, check_alone
from wasm_kernel.linux.confinement import import_places
from wasm_kernel.policy import RuntimeType

if TYPE_CHECKING:
    import asyncio


IDLE_SECONDS = 300.0
"""Seconds after the last request when a forker without kernels ends."""

_NEEDED = (
    *("wasm_kernel.frontends.jupyter.app", "wasm_kernel.frontends.jupyter.connection"),
    *("wasm_kernel.frontends.jupyter.kernel", "wasm_kernel.execution.create"),
    *("wasm_kernel.engine.instance", "wasm_kernel.state.folding", "wasm_kernel.state.tables"),
    *("wasm_kernel.outputs.html", "wasm_kernel.outputs.charts", "wasm_kernel.outputs.documents"),
    *("wasm_kernel.outputs.widgets", "ipykernel.parentpoller", "wasm_kernel.execution.sandbox"),
    *("wasm_kernel.guests.python.broker_handlers",),
    *("socket", "subprocess", "encodings.idna", "zmq.eventloop.zmqstream", "pwd", "resource"),
    *("tornado.gen", "tornado.platform.asyncio"),
)
"""The modules that kernels need at their start or later; forked kernels share one copy."""

_WAITING = 64  # launchers with a pending request
_HANDSHAKE_SECONDS = 10.0
_MOST = 16 * 1024 * 1024  # bytes of a request: Linux allows no more for arguments and variables


class ForkedLaunch:
    """A `KernelLaunch`: this process was forked for a launcher, to be its kernel.

    Its languages are loaded, and share `broker`.
    """

    def __init__(
        self,
        link: socket.socket,
        languages: Mapping[RuntimeType, GuestLanguage],
        broker: LateBroker,
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

    def begin(self) -> None:
        """Does nothing: there is a forker already."""

    def end(self) -> None:
        """Does nothing."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends this process with its launcher, even if the forker, which does so, is gone."""
        loop.add_reader(self._link.fileno(), lambda: os._exit(1))


class _Kernel(Struct, frozen=True):
    """The forker's record of a forked kernel."""

    link: socket.socket
    process: int
    descriptor: int


class Forker:
    """The forker's loop; its socket is `name` in `folder`. Its process has no other thread."""

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
        """Begins to listen; False if another forker of that name already does."""
        fcntl.flock(self._folder, fcntl.LOCK_EX)
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
        self._poll.register(self._listening, select.POLLIN)
        return True

    def run(self) -> socket.socket | None:
        """Forks kernels until it was idle for `IDLE_SECONDS`.

        Returns the connection to its launcher in a forked process, None at the end of the forker.
        """
        until = time.monotonic() + IDLE_SECONDS
        while self._kernels or (self._listening and time.monotonic() < until):
            # one event at a time: handling it may close a descriptor whose number is then reused
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

    def _fork(self, link: socket.socket) -> bool:
        """Forks a kernel; returns whether this process is the forked one."""
        check_alone()
        try:
            process = os.fork()
        except OSError:  # too many processes: the launcher becomes the kernel itself
            self._refuse(link)
            return False
        if not process:
            self._close_all(link)
            return True
        try:
            kernel = _Kernel(link, process, os.pidfd_open(process))
        except OSError:  # the kernel could not be watched
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            self._refuse(link)
            return False
        self._kernels |= {link.fileno(): kernel, kernel.descriptor: kernel}
        self._poll.modify(link, 0)  # errors and hang-ups are reported in any case
        self._poll.register(kernel.descriptor, select.POLLIN)
        return False

    def _refuse(self, link: socket.socket) -> None:
        """Refuses a launcher, which then becomes the kernel itself."""
        self._poll.unregister(link)
        link.close()

    def _close_all(self, link: socket.socket) -> None:
        """Closes the forker's descriptors in a kernel, above all those of other kernels."""
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
        elif "." not in entry.name and entry.name != "__pycache__":
            yield from _files(entry.path)


def _load() -> tuple[dict[RuntimeType, GuestLanguage], LateBroker]:
    """Loads the languages and modules that kernels need, without starting a thread.

    The base image is not mapped for them: its page tables would make each fork, of the kernel and
    of its broker, take 3 ms longer, and the kernel would gain less. Raises `WasmKernelError` if no
    guest is in the cache.
    """
    with startup.without("ssl"):
        importlib.import_module("asyncio")
    for package in ("ipykernel", "jupyter_client", "IPython"):
        startup.lazily(package)
    with startup.without("curses"):
        for name in _NEEDED:
            importlib.import_module(name)
    broker = LateBroker()
    languages = {}
    for runtime in RuntimeType:
        with contextlib.suppress(WasmKernelError):
            language = load(runtime, broker)
            language.prepare(EPOCH, lambda text: None)
            language.define_early(EPOCH)
            languages[runtime] = language
    if not languages:
        raise WasmKernelError("no guest is in the cache")
    import_places(confine.IMPORTED_WHEN_CONFINED)  # the result is cached
    _practise(languages)
    gc.collect()
    gc.freeze()
    return languages, broker


def _practise(languages: Iterable[RuntimeType]) -> None:
    """Does the first steps of each kernel, so that their results are cached.

    It reads a command line and makes the description of each language. It reads no files of the
    user.
    """
    from wasm_kernel.frontends.jupyter.app import WasmKernelApp

    app = WasmKernelApp()
    app.parse_command_line(["-f", "kernel.json"])
    KernelSettings(parent=app)
    for language in languages:
        messages.kernel_info(language)


def _opened_place() -> int:
    """Opens the folder of the forkers' sockets; makes it if necessary."""
    path = Path(launcher.place())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    return launcher.open_place()


def main(name: str, lock: int) -> None:
    """Runs the forker, and in forked processes the kernels.

    It ends if its name is not the one that launchers expect. `lock` is a descriptor; its lock keeps
    others from starting another forker while this one loads.
    """
    if launcher.forker_name() != name or os.fork():
        os._exit(0)  # so that its starter need not wait
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
    kernel = ForkedLaunch(link, *loaded)
    if not kernel.take_over():
        os._exit(0)
    from wasm_kernel.frontends.jupyter.app import main as run

    run(launch=kernel)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
