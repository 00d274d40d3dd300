"""The process that Jupyter starts: it gets its kernel forked from a process with everything loaded.

That process is the forker (`forker.py`). The launcher passes it the connection file, arguments,
folder, environment and standard streams, and stays while the kernel runs: Jupyter watches, signals
and kills the launcher as if it were the kernel. If there is no forker, this process starts one,
and becomes the kernel itself.

A forked kernel must not differ from a started one. So a forker only serves launchers with the same
user, limits, namespaces, control groups, interpreter, search path (and places on it that contain
the kernel's folder), and variables that are read while modules are imported. The forker's name
depends on all of these.

Imports here must take less than a millisecond; even `socket` and `signal` take more.
"""

# ruff: noqa: PTH109, PTH111, PTH115, PTH116, PTH120, PTH123, PTH208
# (`pathlib` would take longer than this whole module)

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed knows `signal` alone
import _socket
import os
import select
import sys
from _blake2 import blake2b
from contextlib import suppress

from wasm_kernel.frontends.jupyter.ports import Ports

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from typing import NoReturn

    from wasm_kernel.service.fork_process import ForkProcess

FORKER = "wasm_kernel.frontends.jupyter.forker"
"""The program of the process that kernels are forked from."""

SETTING = "WASM_KERNEL_FORKER"
"""The environment variable that, set to `0`, forbids forking kernels from a loaded process."""

VARIABLES = (
    *("GLIBC_TUNABLES=", "HOME=", "LANG=", "LANGUAGE=", "LC_", "LD_AUDIT=", "LD_BIND_"),
    *("LD_LIBRARY_PATH=", "LD_PRELOAD=", "MALLOC_", "OMP_", "OPENBLAS_", "PYTHON"),
    *("JUPYTER_ALLOW_INSECURE_WRITES=", "JUPYTER_PLATFORM_DIRS=", "JUPYTER_USE_PROGRAMDATA="),
    *("PYZMQ_", "TMPDIR=", "TORNADO_", "TRAITLETS_", "TZ=", "TZDIR=", "USER=", "MSGPACK_"),
    *("WASM_KERNEL_BASELINE=", "WASM_KERNEL_CACHE=", "XDG_CACHE_HOME=", "XDG_CONFIG_DIRS="),
    *("XDG_DATA_DIRS=", "XDG_RUNTIME_DIR=", "XDG_STATE_HOME="),
)
"""The beginnings of the variables that act before a kernel is forked; a whole name ends with `=`.

A forker gets no other variables. They may hold keys, and a worker inherits all variables of the
forker, and may be taken over.
"""

GO = b"g"
"""A launcher's answer once it has the kernel: from then on, it never becomes the kernel itself."""

DESCRIPTORS = 5
"""The number of descriptors in a request before those of ports.

They are a file of arguments and variables, the folder, and the standard streams.
"""

_SECONDS = 3.0  # for the forker to answer, or to report a kernel's end, or for a kernel to end
_KEPT = (
    *(b"Umask:", b"Uid:", b"Gid:", b"Groups:", b"Cap", b"NoNewPrivs:", b"Seccomp"),
    *(b"Cpus_allowed:", b"Mems_allowed:"),
)
_NICE, _POLICY = 16, 38  # in /proc/PID/stat, behind the name
_STOPPED = b"T"  # the first field there; a process under a debugger has another state
_INTEGER = 4  # bytes of a descriptor in a message, and of an exit status
_PARENT = "JPY_PARENT_PID"


# -- the forkers' sockets


def place() -> str:
    """The folder of the forkers' sockets; empty if this user has none."""
    runtime, state = (os.environ.get(f"XDG_{name}", "") for name in ("RUNTIME_DIR", "STATE_HOME"))
    if not (runtime.startswith("/") or state.startswith("/")):
        home = os.path.expanduser("~")
        state = f"{home}/.local/state" if home.startswith("/") else ""
    base = runtime if runtime.startswith("/") else state
    return f"{base}/wasm-kernel/forkers" if base else ""


def open_place() -> int:
    """Opens the folder of the forkers' sockets; `OSError` if other users may change it."""
    folder = os.open(place(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(folder)
        raise PermissionError
    return folder


def connect(name: str) -> _socket.socket:
    """Connects to a forker."""
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        link.settimeout(_SECONDS)
        folder = open_place()
        try:
            link.connect(f"/proc/self/fd/{folder}/{name}")  # a socket's path may have 107 bytes
        finally:
            os.close(folder)
        if peer_of(link)[1] != os.geteuid():
            raise PermissionError
    except BaseException:
        link.close()
        raise
    return link


def peer_of(link: _socket.socket) -> tuple[int, int]:
    """The process at the other end of a connection, and its user, from the system."""
    told = link.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 3 * _INTEGER)
    return _integer(told[:_INTEGER]), _integer(told[_INTEGER : 2 * _INTEGER])


def running() -> list[int]:
    """The processes of this user's reachable forkers."""
    found = []
    with suppress(OSError):
        for name in os.listdir(place()):
            with suppress(OSError):
                link = connect(name)
                found.append(peer_of(link)[0])
                link.close()
    return found


def circumstances(process: int | str = "self") -> bytes:
    """The properties that a process inherits, and passes on to its children, as bytes."""
    folder = f"/proc/{process}"
    stat = _read(f"{folder}/stat").rpartition(b")")[2].split()
    kept = [stat[_NICE], stat[_POLICY]]
    kept += [line for line in _read(f"{folder}/status").splitlines() if line.startswith(_KEPT)]
    kept += [_read(f"{folder}/{name}") for name in ("limits", "cgroup", "oom_score_adj")]
    spaces = f"{folder}/ns"
    kept += [os.readlink(f"{spaces}/{name}").encode() for name in sorted(os.listdir(spaces))]
    with suppress(OSError):  # no SELinux, AppArmor or Smack
        kept.append(_read(f"{folder}/attr/current"))
    return b"\n".join(kept)


def options() -> list[str] | None:
    """The interpreter's options on the command line; None if neither `-m` nor `-c` follows them.

    `-P` is left out: the search path shows its effect.
    """
    found: list[str] = []
    for word in sys.orig_argv[1:]:
        if word in ("-m", "-c"):
            return found
        if word != "-P":
            found.append(word)
    return None


def forker_name() -> str:
    """The name of the forker for this process; empty if there can't be one."""
    given, package = options(), os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    if given is None or not place() or not sys.executable:
        return ""
    marks = [os.stat(path) for path in (sys.executable, package)]
    told = [
        *(f"{mark.st_dev} {mark.st_ino} {mark.st_mtime_ns}" for mark in marks),
        *(*os.uname(), sys.version, sys.executable, package, *given, "", *sys.path, ""),
        *_places_around(),
        "",
        *sorted(f"{name}={value}" for name, value in variables().items()),
    ]
    text = "\0".join(told).encode(errors="surrogateescape")
    return blake2b(text + circumstances(), digest_size=16).hexdigest()


def _places_around() -> list[str]:
    """The places of modules that contain this process's folder.

    A confined kernel reads none of them as a whole, and a forker finds the readable places once,
    for all of its kernels (`import_places`).
    """
    above = [os.stat("./" + "../" * up) for up in range(os.getcwd().count("/") + 1)]
    places = []
    for place in (*sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix):
        with suppress(OSError):  # it does not exist
            mark = os.stat(place)
            places += [place for each in above if os.path.samestat(each, mark)]
    return places


def variables() -> dict[str, str]:
    """The variables for starting a forker: those that take effect before it forks."""
    given = os.environ.items()
    found = {name: value for name, value in given if f"{name}=".startswith(VARIABLES)}
    if found.get("XDG_RUNTIME_DIR", "").startswith("/"):
        found.pop("XDG_STATE_HOME", None)  # it is only used for the sockets' folder
    return found


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _integer(raw: bytes) -> int:
    return int.from_bytes(raw, sys.byteorder, signed=True)


# -- a kernel


class KernelLaunch:
    """The way in which a kernel's process was started: here, by Jupyter or a person.

    Attributes:
        nursery: The process that this kernel's workers are forked from, such as the forker; None if
            there was no room for one.
        ports: The ports on which it already listens.
    """

    def __init__(self, nursery: ForkProcess | None = None, ports: Ports | None = None) -> None:
        self.nursery = nursery
        self.ports = ports or Ports()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends this process when the one that owns it is gone. Call it on the main thread."""
        parent = int(os.environ.get(_PARENT) or 0)  # set if Jupyter asks for that
        if parent > 1:  # process 1 never ends, and orphans become its children
            from ipykernel.parentpoller import ParentPollerUnix

            ParentPollerUnix(parent_pid=parent).start()  # type: ignore[no-untyped-call]


def launch(ports: Ports) -> ForkProcess | None:
    """Gets the kernel forked, and ends as the kernel does.

    Returns only if this process must become the kernel. The result is the process that it has
    started to fork this kernel's workers; None if there is no room for one.
    """
    name = ""
    if os.environ.get(SETTING) != "0":
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # as a kernel does until it is up
        with suppress(OSError):  # no /proc, say
            name = forker_name()
    if name and (forked := _forked(name, ports)) is not None:
        ports.close()
        _stay(*forked)
    is_kernel = any(word == "-f" or word.startswith("--f=") for word in sys.argv[1:])
    return start(name) if is_kernel else None  # and not just a question for help


def start(name: str) -> ForkProcess | None:
    """Starts a forker, or, without a name, a process for this kernel's workers alone.

    None if there is no room for one.
    """
    from wasm_kernel.service import fork_process

    try:
        if not name:
            return fork_process.start()
        return fork_process.start_shared(FORKER, name, options() or (), variables())
    except OSError:
        return None


def _forked(name: str, ports: Ports) -> tuple[_socket.socket, int] | None:
    """Returns the connection to a forker, and a descriptor of the kernel that it forked.

    None if there is no forker, if it is just ending, or does not answer.
    """
    try:
        link = connect(name)
    except OSError:
        return None
    try:
        _wake(peer_of(link)[0])
        kernel = _hand_over(link, ports)
        link.sendall(GO)
    except OSError:
        link.close()  # a kernel without a launcher ends by itself
        return None
    return link, kernel


def _wake(forker: int) -> None:
    """Continues (SIGCONT) a stopped forker, which could not answer otherwise."""
    state = _read(f"/proc/{forker}/stat").rpartition(b")")[2].split()[0]
    if state == _STOPPED:
        os.kill(forker, _signal.SIGCONT)
        os.write(2, b"wasm-kernel: the process that kernels are forked from was stopped. ")
        os.write(2, b"It was told to go on.\n")


def _hand_over(link: _socket.socket, ports: Ports) -> int:
    """Asks for a kernel; returns a descriptor of its process, or raises `OSError`."""
    arguments = [os.fsencode(word) for word in sys.argv[1:]]
    variables = [b"=".join(pair) for pair in os.environb.items()]
    body = b"\0".join([b"%d" % len(arguments), *arguments, *variables])
    words = os.memfd_create("words")
    folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.write(words, body)
        handed = (words, folder, 0, 1, 2, *ports.descriptors)
        data = b"".join(fd.to_bytes(_INTEGER, sys.byteorder) for fd in handed)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, data)]
        link.sendmsg([b"w"], rights)
    finally:
        os.close(words)
        os.close(folder)
    _, told, _, _ = link.recvmsg(1, _socket.CMSG_SPACE(_INTEGER), _socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in told:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            return _integer(data[:_INTEGER])
    raise ConnectionError


def _stay(link: _socket.socket, kernel: int) -> NoReturn:
    """Passes signals on to the kernel; ends as it does, or with the parent if it asked for that."""

    def forward(number: int, _: object) -> None:
        with suppress(OSError):  # the kernel has ended
            _signal.pidfd_send_signal(kernel, number)

    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, forward)
    poll = select.poll()
    for descriptor in (link.fileno(), kernel, *_parent()):
        poll.register(descriptor, select.POLLIN)
    status = b""
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if link.fileno() in ready:
            status = _exit_report(link)
            if status:
                break
            poll.unregister(link.fileno())  # the forker is gone, and can't report the kernel's end
        elif kernel in ready:
            status = _exit_report(link)
            break
        elif ready:
            select.select([kernel], [], [], _SECONDS)  # an ending client has often shut it down
            os._exit(1)  # and the kernel ends with this process
    _end_as(int.from_bytes(status, "big", signed=True) if status else 1)


def _exit_report(link: _socket.socket) -> bytes:
    """The forker's report of the kernel's exit status; empty if the forker is gone."""
    try:
        return link.recv(_INTEGER)
    except OSError:
        return b""


def _parent() -> list[int]:
    """A descriptor of this process's parent, if a variable asks the kernel to end with it.

    The variable may name another process: a script may lie between the two. Process 1 never ends.
    """
    try:
        return [os.pidfd_open(os.getppid())] if int(os.environ.get(_PARENT) or 0) > 1 else []
    except (OSError, ValueError):
        return []


def _end_as(status: int) -> NoReturn:
    """Ends with an exit status; a negative one is a signal's number."""
    if status < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 1)
