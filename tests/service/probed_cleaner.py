"""The fork server with hostile code in each process that cleans outputs: see `test_cleaning.py`."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.linux.probed_kernel import TRIES, tried
from wasm_kernel.outputs.bundle import CleanOutput
from wasm_kernel.outputs.cleaner import Cleaner
from wasm_kernel.service import cleaning, fork_loop

AGES = 600


def deep() -> Any:
    nested: Any = []
    for _ in range(900):
        nested = [nested]
    return nested


def deaf() -> Any:
    """Answers; then no thread reads, as a call through `PyDLL` keeps the interpreter's lock."""
    threading.Timer(0.05, lambda: ctypes.PyDLL(None).sleep(AGES)).start()
    return {}


def half() -> Any:
    """Sends the beginning of an answer."""
    for descriptor in range(3, 100):
        try:
            with socket.socket(fileno=os.dup(descriptor)) as found:
                found.send((1000).to_bytes(4) + b"{")
        except OSError:
            continue
    time.sleep(AGES)


ORDERS: Mapping[str, Callable[[], Any]] = {
    "probe": lambda: {name: tried(what) for name, what in TRIES.items()},
    "end": lambda: os._exit(1),
    "hang": lambda: time.sleep(AGES),
    "deaf": deaf,
    "half": half,
    "another type": lambda: 1,
    "too deep": lambda: {"text/plain": deep()},
    "too large": lambda: {"text/plain": "x" * (65 << 20)},
    "well": lambda: {"text/plain": "well"},
}


class Traitor(Cleaner):
    """A cleaner that obeys the output."""

    def bundle(self, data: Mapping[str, Any], *_: Any) -> CleanOutput:
        return CleanOutput(ORDERS[data["text/plain"]]())


def main(line: int, owner: int) -> None:
    vars(cleaning)["Cleaner"] = Traitor
    fork_loop.main(line, owner)
