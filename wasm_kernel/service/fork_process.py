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

PROGRAM = "wasm_kernel.service.fork_loop"
VARIABLES = (  # prefixes of the environment variables that workers get
    *("HOME", "LANG", "LC_", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHON", "TMPDIR", "TZ"),
    *("OMP_", "OPENBLAS_", "USER", "VIRTUAL_ENV", "WASM_KERNEL_", "XDG_"),
)
_LINE = 3  # the descriptor of the process's end of its line
# The new process closes inherited descriptors itself, as it has one thread: here, other threads may
# open more at the same time. It collects no garbage: its modules stay, and collecting takes long.
_BEGIN = (
    "import gc, os; gc.disable(); "
    f"os.closerange({_LINE + 1}, max(map(int, os.listdir('/proc/self/fd'))) + 1)"
)


class ForkProcess:
    """A process that workers are forked from, the line to it, and the process that started it."""

    def __init__(self, number: int, line: socket, owner: int) -> None:
        self.number = number
        self.descriptor = os.pidfd_open(number)
        self.line = line
        self.owner = owner


def start() -> ForkProcess:
    """Starts the process; does not wait until it is ready."""
    own, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    owner = os.getpid()
    code = f"{_BEGIN}; from {PROGRAM} import main; main({_LINE}, {owner})"
    try:
        number = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-c", code],
            {**_environment(), "MALLOC_ARENA_MAX": "1"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), _LINE),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ],
            setpgroup=0,  # Ctrl-C must reach the owner only
        )
    finally:
        theirs.close()
    return ForkProcess(number, own, owner)


def _environment() -> dict[str, str]:
    """The variables that workers need. Others may hold keys, and a worker may be taken over."""
    return {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}


_guard = allocate_lock()
_started: list[ForkProcess] = []  # for the first sandbox of this process, until it is taken


def start_early() -> None:
    """Starts the process for this program's first sandbox, unless there was such a sandbox."""
    with _guard:
        if "wasm_kernel.service.own_sandbox" not in sys.modules and not _started:
            _started.append(start())


def take_early() -> ForkProcess | None:
    """Returns the process that was started early, once; None if this program started none."""
    found = _started.pop() if _started else None
    return found if found is not None and found.owner == os.getpid() else None
