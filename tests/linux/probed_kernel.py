"""A real front end with hostile code in it: `python -m tests.linux.probed_kernel -f FILE`.

When a cell makes the file `probe` in the session's folder, native code of this process tries the
attacks of a program that has taken it over, on a thread that ran from the start, and writes down
the results, into a file that was opened before the process was confined.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wasm_kernel.frontends.jupyter import app, launcher
from wasm_kernel.frontends.jupyter.kernel_sandbox import KernelHome
from wasm_kernel.service.sandbox import Sandbox

SECRET = Path(os.environ["PROBE_SECRET"])
PRIVATE = Path(os.environ["XDG_STATE_HOME"], "wasm-kernel", "private")
NOTEBOOKS = PRIVATE.with_name("notebooks")
RESULTS = Path(os.environ["PROBE_RESULTS"]).open("w", buffering=1)  # noqa: SIM115 - not closed


def _write_and_remove(path: Path) -> None:
    path.write_bytes(b"x")
    path.unlink()


def _fork() -> None:
    if not os.fork():
        os._exit(0)


TRIES: dict[str, Callable[[], object]] = {
    "own files": lambda: list(Path("/proc/self/fd").iterdir()),
    "home": lambda: list(Path.home().iterdir()),
    "working folder": lambda: list(Path.cwd().iterdir()),
    "write there": lambda: Path("probe-wrote").write_text("x"),
    "secret": SECRET.read_text,
    "write secret": lambda: SECRET.write_text("changed"),
    "mode of a secret": lambda: SECRET.chmod(0o640),
    "times of a secret": lambda: os.utime(SECRET, (1, 1)),
    "attributes of a secret": lambda: os.setxattr(SECRET, "user.probe", b"x"),
    "owner of a secret": lambda: os.chown(SECRET, os.getuid(), os.getgid()),
    "other folders": lambda: list(SECRET.parent.iterdir()),
    "private folders": lambda: list(PRIVATE.iterdir()),
    "a new private folder": (PRIVATE / "probe").mkdir,
    "notebooks": lambda: list(NOTEBOOKS.iterdir()),
    "a notebook's session": lambda: (NOTEBOOKS / "notebooks.json").write_text("[]"),
    "passwords": Path("/etc/passwd").read_text,
    "tmp": lambda: _write_and_remove(Path("/tmp", f"wasm-kernel-probe-{os.getpid()}")),
    "cache": lambda: _write_and_remove(Path(os.environ["PROBE_CACHE"], "probe.cwasm")),
    "tcp": lambda: socket.create_connection(("127.0.0.1", int(os.environ["PROBE_PORT"]))),
    "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "unix": lambda: socket.socket(socket.AF_UNIX),
    "datagrams": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "program": lambda: subprocess.run([sys.executable, "--version"], check=True),
    "process": _fork,
    "parent": lambda: os.kill(os.getppid(), 0),
}


OF_FORKED: dict[str, Callable[[], object]] = {
    "forker": lambda: launcher.connect(os.environ["PROBE_FORKER"])
}
"""The further attacks in a kernel that was forked."""


def tried(what: Callable[[], object]) -> str:
    try:
        what()
    except OSError as problem:
        return type(problem).__name__
    return "done"


def watch(workspace: Path) -> None:
    """Waits for the file `probe`, tries everything, and writes down the results."""
    while not (workspace / "probe").exists():
        time.sleep(0.02)
    tries = TRIES | (OF_FORKED if "PROBE_FORKER" in os.environ else {})
    tries |= {"own session": lambda: list(workspace.iterdir())}
    found = {name: tried(what) for name, what in tries.items()}
    RESULTS.write(json.dumps(found) + "\n")


def probe_kernels(watch: Callable[[Path], None] = watch) -> None:
    """Makes each kernel of this process begin to `watch` when it has its sandbox."""
    made = KernelHome.sandbox

    def probed(home: KernelHome, *arguments: Any, **others: Any) -> Sandbox:
        workspace = home.hooks.folders.path
        threading.Thread(target=watch, args=(workspace,), daemon=True).start()
        return made(home, *arguments, **others)

    patched: Any = KernelHome
    patched.sandbox = probed


if __name__ == "__main__":
    probe_kernels()
    app.main()
