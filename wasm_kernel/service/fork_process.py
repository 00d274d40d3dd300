"""Starts the process that workers are forked from, before anything else is imported.

That process takes longer to load than the program, which imports the rest at the same time.
"""

from __future__ import annotations

import os
import sys
from _socket import AF_UNIX, SOCK_SEQPACKET, socketpair
from _thread import allocate_lock

TYPE_CHECKING = False  # `typing`, `socket`, `subprocess` take longer to import than all else here
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Mapping, Sequence

PROGRAM = "wasm_kernel.service.fork_loop"
VARIABLES = (
    *("HOME=", "LANG=", "LANGUAGE=", "LC_", "LD_LIBRARY_PATH=", "LOGNAME=", "PATH=", "PYTHON"),
    *("TMPDIR=", "TZ=", "TZDIR=", "OMP_", "OPENBLAS_", "USER=", "VIRTUAL_ENV=", "WASM_KERNEL_"),
    "XDG_",
)
"""The beginnings of the environment variables that workers get; a whole name ends with `=`.

`LANG` alone would also let `LANGSMITH_API_KEY` through.
"""
_LINE = 3  # the descriptor of the process's end of its line
_NUMBER = 8  # bytes
# The new process closes inherited descriptors itself, as it has one thread: here, other threads may
# open more at the same time. It collects no garbage: its modules stay, and collecting takes long.
_BEGIN = (
    "import gc, os; gc.disable(); "
    f"os.closerange({_LINE + 1}, max(map(int, os.listdir('/proc/self/fd'))) + 1)"
)


class ForkProcess:
    """A process that workers are forked from, and a line to it that belongs to `owner`, a process.

    If it `is_shared`, it serves other owners, too, and stays when this one has ended.
    """

    def __init__(self, number: int, line: socket, owner: int, *, is_shared: bool = False) -> None:
        self.number = number
        self.descriptor = os.pidfd_open(number)
        self.line = line
        self.owner = owner
        self.is_shared = is_shared

    def close(self) -> None:
        """Closes the line in a process that asks for no worker."""
        self.line.close()
        os.close(self.descriptor)


def start() -> ForkProcess:
    """Starts the process; does not wait until it is ready."""
    own, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    owner = os.getpid()
    try:
        number = _spawn(_command(PROGRAM, _LINE, owner), _environment(), theirs)
    finally:
        theirs.close()
    return ForkProcess(number, own, owner)


def start_shared(
    program: str, name: str, options: Sequence[str], variables: Mapping[str, str]
) -> ForkProcess:
    """Starts a process that others may use, too, under a name; does not wait until it is ready.

    It is not a child of this process, because some programs end a kernel with all its descendants.
    This process must have one thread.
    """
    own, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    reading, writing = os.pipe()
    owner = os.getpid()
    between = os.fork()
    if not between:
        try:
            command = _command(program, name, _LINE, owner, options=options)
            number = _spawn(command, variables, theirs, is_shared=True)
            os.write(writing, number.to_bytes(_NUMBER, "big"))
        finally:
            os._exit(0)
    os.close(writing)
    theirs.close()
    told = os.read(reading, _NUMBER)
    os.close(reading)
    os.waitpid(between, 0)
    if not told:
        own.close()
        raise OSError
    return ForkProcess(int.from_bytes(told, "big"), own, owner, is_shared=True)


def _command(program: str, *arguments: str | int, options: Sequence[str] = ()) -> list[str]:
    words = ", ".join(map(repr, arguments))
    code = f"{_BEGIN}; from {program} import main; main({words})"
    return [sys.executable, *options, "-P", "-c", code]


def _spawn(
    command: list[str], variables: Mapping[str, str], line: socket, *, is_shared: bool = False
) -> int:
    """Starts a process with a line; returns its number. Ctrl-C reaches the owner only."""
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_DUP2, line.fileno(), _LINE),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    ]
    if not is_shared:
        return os.posix_spawn(command[0], command, variables, file_actions=actions, setpgroup=0)
    actions.append((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0))
    return os.posix_spawn(command[0], command, variables, file_actions=actions, setsid=True)


def _environment() -> dict[str, str]:
    """The variables that workers need. Others may hold keys, and a worker may be taken over."""
    return {name: value for name, value in os.environ.items() if f"{name}=".startswith(VARIABLES)}


_guard = allocate_lock()
_started: list[ForkProcess] = []  # for the first sandbox of this process, until it is taken


def start_early() -> None:
    """Starts the process for this program's first sandbox, unless there was such a sandbox."""
    with _guard:
        if "wasm_kernel.service.program_home" not in sys.modules and not _started:
            _started.append(start())


def take_early() -> ForkProcess | None:
    """Returns the process that was started early, once; None if this program started none."""
    found = _started.pop() if _started else None
    return found if found is not None and found.owner == os.getpid() else None
