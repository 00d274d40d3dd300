"""A process that servers of tests are forked from: it has imported their modules, which takes more
than a second.

`forked` makes commands for it. Such a command is a small program, `begin.py`, that hands its
streams to a new server, and ends with it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from functools import cache
from pathlib import Path

from wasm_kernel.frontends.cli.main import main

MODULES = ("e2b.app", "http.metrics", "http.serving", "mcp.http", "mcp.server", "mcp.sessions")
REQUEST_BYTES = 2**18
_BEGIN = Path(__file__).with_name("begin.py")
_LINE, _LIFE = (
    3,
    4,
)  # descriptors: the socket, and a pipe that is readable after the end of the tests


def forked(*words: str) -> list[str]:
    """A command that runs `wasm-kernel` with these words in a forked process."""
    return [sys.executable, "-I", "-S", str(_BEGIN), _address(), *words]


@cache
def _address() -> str:
    """The name of the process's abstract socket. The process ends with this one."""
    name = f"wasm-kernel-servers-{os.getpid()}"
    reading, _ = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.bind(f"\0{name}")
        line.listen(64)
        given = [(os.POSIX_SPAWN_DUP2, line.fileno(), _LINE), (os.POSIX_SPAWN_DUP2, reading, _LIFE)]
        command = [sys.executable, "-P", "-m", __name__]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        os.posix_spawn(command[0], command, environment, file_actions=given)
    os.close(reading)
    return name


def _serve(line: socket.socket) -> None:
    for name in MODULES:
        importlib.import_module(f"wasm_kernel.frontends.{name}")
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while _LIFE not in select.select([_LINE, _LIFE], [], [])[0]:
        asked, _ = line.accept()
        data, streams, _, _ = socket.recv_fds(asked, REQUEST_BYTES, 3)
        if not (pid := os.fork()):
            line.close()
            _run(data, streams)
        asked.send(str(pid).encode())
        asked.close()
        for each in streams:
            os.close(each)


def _run(data: bytes, streams: list[int]) -> None:
    """Runs a command with its streams. Its caller hears from its line that it has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    words, environment = json.loads(data)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["wasm-kernel", *words]
    sys.exit(main(words))


if __name__ == "__main__":
    _serve(socket.socket(fileno=_LINE))
