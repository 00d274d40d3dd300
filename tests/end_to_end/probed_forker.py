"""A forker for tests: `python -P -m tests.end_to_end.probed_forker IDLE_SECONDS FILE`.

Its kernels contain the probe of `tests.linux.probed_kernel`. It takes `FILE` for its whole
installation. It prints its name, and a second line once it has loaded everything.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.linux.probed_kernel import RESULTS, watch
from wasm_kernel.frontends.jupyter import app, forker, launcher
from wasm_kernel.frontends.jupyter.kernel_sandbox import KernelHome, Note, create
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.service.fork_loop import WorkerForks
from wasm_kernel.service.open_message import Open
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.sessions.session import Session

load = forker._load
loaded: set[str] = set()


def loading(forks: WorkerForks) -> None:
    """Loads everything and notes the modules that are loaded."""
    load(forks)
    loaded.update(sys.modules)
    print("loaded", flush=True)


def watched(workspace: Path) -> None:
    """Runs the kernel, and reports the modules that were imported after the fork."""
    watch(workspace)
    RESULTS.write(" ".join({*sys.modules} - loaded) + "\n")


def probed(
    opened: Open, session: Session, policy: ExecutionPolicy, home: KernelHome, note: Note
) -> Sandbox:
    """Makes the real sandbox, beside a thread that waits for the order to probe."""
    threading.Thread(target=watched, args=(session.workspace,), daemon=True).start()
    return create(opened, session, policy, home, note)


def files() -> Iterator[tuple[str, int]]:
    """The only file of the installation."""
    yield sys.argv[2], Path(sys.argv[2]).stat().st_mtime_ns


if __name__ == "__main__":
    patched: Any = forker
    patched.IDLE_SECONDS, patched._files, patched._load = float(sys.argv[1]), files, loading
    its_kernels: Any = app
    its_kernels.main = partial(app.main, factory=probed)
    print(name := launcher.forker_name(), flush=True)
    if not os.fork():  # a forker is no child of the process that starts it
        line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        other.close()  # no kernel owns this forker
        forker.main(name, line.detach(), os.getpid())
