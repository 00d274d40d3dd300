"""Starting the process that workers are forked from, before anything else is imported.

It takes longer to load than the program that needs it, which imports the rest meanwhile.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import NamedTuple

PROGRAM = "wasm_kernel.service.fork_loop"
VARIABLES = (  # of the environment that workers get, by their beginnings
    *("HOME", "LANG", "LC_", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHON", "TMPDIR", "TZ"),
    *("OMP_", "OPENBLAS_", "USER", "VIRTUAL_ENV", "WASM_KERNEL_", "XDG_"),
)


class ForkProcess(NamedTuple):
    """A process that workers are forked from, the line to it, and the process that started it."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    owner: int


def start() -> ForkProcess:
    """Starts the process; does not wait until it is ready."""
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    owner = os.getpid()
    # what it loads stays: there is nothing to collect, and looking for that takes long
    code = f"import gc; gc.disable(); from {PROGRAM} import main; main({theirs.fileno()}, {owner})"
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - the command is fixed
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            process_group=0,  # a Ctrl-C is for the owner
            env={**_environment(), "MALLOC_ARENA_MAX": "1"},
        )
    return ForkProcess(process, own, owner)


def _environment() -> dict[str, str]:
    """The variables that workers need: others hold keys, and a worker may be taken over."""
    return {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}


_guard = threading.Lock()
_started: list[ForkProcess] = []  # for the first sandbox of this process, until it is taken


def start_early() -> None:
    """Starts the process for the first sandbox of this program, unless there was one."""
    with _guard:
        if "wasm_kernel.service.own_sandbox" not in sys.modules and not _started:
            _started.append(start())


def take_early() -> ForkProcess | None:
    """Returns the process that was started early, once; None if there is none of this program."""
    found = _started.pop() if _started else None
    return found if found is not None and found.owner == os.getpid() else None
