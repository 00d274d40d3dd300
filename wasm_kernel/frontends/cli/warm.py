"""`wasm-kernel warm`: prepares the guest, so that the first kernel does not wait for it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from wasm_kernel.policy import ExecutionPolicy

_THROTTLE = 5.0  # seconds between two lines about the same thing
_METERED = ExecutionPolicy(fuel_budget=2**62)


def warm(say: Callable[[str], None], *, metered: bool) -> None:
    """Compiles the guest and builds its base image if they are missing; `say`s the progress.

    Args:
        say: Called with one line at a time.
        metered: Prepares the guest that counts fuel, which is compiled separately.

    Raises:
        WasmKernelError: it can't be prepared; the text says what to do.
    """
    from wasm_kernel.execution.create import create_sandbox
    from wasm_kernel.folders.folders import SandboxFolders

    lines = _Lines(say)
    begun = time.monotonic()
    policy = _METERED if metered else ExecutionPolicy()
    folders = SandboxFolders.of_workspace(Path(tempfile.mkdtemp()))
    try:
        with create_sandbox(folders=folders, policy=policy) as sandbox:
            sandbox.start(lines.tell).result()
    finally:
        folders.discard()
    seconds = time.monotonic() - begun
    flavour = "with fuel metering" if metered else "without fuel metering"
    if lines.any:
        say(f"done in {seconds:.0f} s: kernels {flavour} now start at once")
    else:
        say(f"ready: kernels {flavour} start at once")


class _Lines:
    """Passes progress on, less often while it stays with one topic. Any thread may `tell`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._topic = ""
        self._at = 0.0
        self.any = False

    def tell(self, sentence: str) -> None:
        topic, now = sentence.partition(":")[0], time.monotonic()
        if topic == self._topic and now - self._at < _THROTTLE:
            return
        self._topic, self._at, self.any = topic, now, True
        self._say(sentence)
