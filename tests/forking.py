"""Processes that tests' programs are forked from: they have imported a program's modules, which
takes about a second.

`forked` makes commands for them. Such a command is a small program, `begin.py`, that hands its
streams to a new process, and ends with it.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

SERVERS = ("e2b.app", "http.metrics", "http.serving", "mcp.http", "mcp.server", "mcp.sessions")
COMMANDS = ("commands.download", "commands.install", "resolution.resolvelib.resolver")
PROGRAMS = {
    "wasm_kernel.frontends.cli": [f"wasm_kernel.frontends.{name}" for name in SERVERS],
    "pip._internal.cli": [f"pip._internal.{name}" for name in COMMANDS],
}
"""The packages whose `main.main` is a program, and the modules that it imports late."""
Program = Callable[[list[str]], int]
REQUEST_BYTES = 2**18
_BEGIN = Path(__file__).with_name("begin.py")
_LINE = 3
"""The descriptor of a process's socket."""


def forked(*words: str, program: str = "wasm_kernel.frontends.cli") -> list[str]:
    """A command that runs a program, by default `wasm-kernel`, in a forked process."""
    return [sys.executable, "-I", "-S", str(_BEGIN), _address(program), *words]


@cache
def _address(program: str) -> str:
    """The name of the abstract socket of a run's process, which ends with the run.

    All workers of pytest-xdist have the same process: their parent begins and ends the run.
    """
    run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    name = f"{program}-{run}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        try:
            line.bind(f"\0{name}")
        except OSError:  # another worker was first
            return name
        line.listen(64)
        command = [sys.executable, "-P", "-m", __name__, program, str(run)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        given = [(os.POSIX_SPAWN_DUP2, line.fileno(), _LINE)]
        os.posix_spawn(command[0], command, environment, file_actions=given)
    return name


def _serve(line: socket.socket, program: str, run: int) -> None:
    life = os.pidfd_open(run)
    main = importlib.import_module(f"{program}.main").main
    for name in PROGRAMS[program]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while life not in select.select([_LINE, life], [], [])[0]:
        asked, _ = line.accept()
        data, streams, _, _ = socket.recv_fds(asked, REQUEST_BYTES, 3)
        if not os.fork():
            line.close()
            asked.send(str(os.getpid()).encode())
            _run(main, data, streams, asked)
        asked.close()
        for each in streams:
            os.close(each)


def _run(main: Program, data: bytes, streams: list[int], asked: socket.socket) -> None:
    """Runs a program with its streams. Its caller hears from its line how and when it ends.

    The caller's end ends it: SIGIO, which a closed line sends, does that by default.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fcntl.fcntl(asked, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(asked, fcntl.F_SETFL, os.O_ASYNC)
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    words, folder, environment = json.loads(data)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["forked", *words]
    code = main(words)
    with suppress(OSError):  # the caller was killed
        asked.send(bytes([code]))
    sys.exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=_LINE), sys.argv[1], int(sys.argv[2]))
