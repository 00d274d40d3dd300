"""A kernel that sleeps soon: `python -m tests.end_to_end.sleepy_kernel -f FILE`.

Its first endless cell is queued only once it was interrupted.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from wasm_kernel.frontends.jupyter import app
from wasm_kernel.frontends.jupyter.kernel import WasmKernel
from wasm_kernel.service.sandbox import Sandbox

interrupt, queue, interrupted = WasmKernel.interrupt, Sandbox.queue, threading.Event()


def noted(kernel: WasmKernel) -> None:
    """Interrupts the kernel."""
    interrupt(kernel)
    interrupted.set()


def late(sandbox: Sandbox, cell: Any, listener: Any) -> Future[Any]:
    """Queues a cell."""
    if "while True" in cell.code:
        interrupted.wait()
    return queue(sandbox, cell, listener)


if __name__ == "__main__":
    patched: Any = app
    patched.AWAKE_SECONDS = 0.5
    patched = WasmKernel
    patched.interrupt = noted
    patched = Sandbox
    patched.queue = late
    app.main()
