"""Filling the cache for guests that start later, maybe in a process that may not write it."""

from __future__ import annotations

from wasm_kernel.engine.compiler import Progress
from wasm_kernel.engine.thread import GuestThread
from wasm_kernel.guests.python.python import shared_driver


def prepare(metered: bool, progress: Progress) -> None:
    """Compile the Python guest and build its base image, where either is missing.

    Args:
        metered: Prepare the flavour that counts fuel.
        progress: Hears plain sentences about what takes long.

    Raises:
        WasmKernelError: it can't be done; the text says what to do.
    """
    thread = GuestThread("preparing")
    try:
        thread.submit(lambda: shared_driver().prepare(metered, progress)).result()
    finally:
        thread.close(lambda: None)
