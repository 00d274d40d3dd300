"""A kernel whose guest is long in coming: `python -m tests.end_to_end.slow_kernel -f FILE`.

`SLOW_START` is the path of a file that ends the start when it appears. Its kernel is not confined,
so it sees that file. It also waits long for a client to subscribe.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wasm_kernel.frontends.jupyter import kernel
from wasm_kernel.frontends.jupyter.app import main
from wasm_kernel.frontends.jupyter.kernel_sandbox import KernelHome
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.session_worker import SessionWorker

spawn = KernelHome.spawn


def late(home: KernelHome, session: SessionWorker, progress: Callable[[str], None]) -> Worker:
    """Spawns a worker when the file is there."""
    progress("compiling the guest")
    while not Path(os.environ.get("SLOW_START", "/")).exists():
        time.sleep(0.02)
    return spawn(home, session, progress)


if __name__ == "__main__":
    patched: Any = KernelHome
    patched.spawn = late
    kernel.UNHEARD_SECONDS = 60.0
    main()
