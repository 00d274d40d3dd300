"""`wasm-kernel warm`: prepares the guest, so that the first kernel does not wait for it; carries it
to other machines and takes it from there.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from wasm_kernel.guests.base import load
from wasm_kernel.policy import ExecutionPolicy, RuntimeType

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

    begun = time.monotonic()
    said: dict[str, float] = {}  # each topic, and when it was spoken of last

    def tell(sentence: str) -> None:
        topic, now = sentence.partition(":")[0], time.monotonic()
        if now - said.get(topic, -_THROTTLE) >= _THROTTLE:
            said[topic] = now
            say(sentence)

    policy = _METERED if metered else ExecutionPolicy()
    folders = SandboxFolders.of_workspace(Path(tempfile.mkdtemp()))
    try:
        with create_sandbox(folders=folders, policy=policy) as sandbox:
            sandbox.start(tell).result()
    finally:
        folders.discard()
    ready = f"done in {time.monotonic() - begun:.0f} s" if said else "ready"
    flavour = "with fuel metering" if metered else "without fuel metering"
    say(f"{ready}: kernels {flavour} {'now ' if said else ''}start at once")


def export_archive(say: Callable[[str], None], target: Path, *, metered: bool) -> None:
    """Writes the prepared guest into an archive, and `say`s how another machine takes it.

    Raises:
        OSError: it can't be written there.
    """
    digest = load(RuntimeType.PYTHON).export_prepared(metered, target)
    say(f"exported to {target} ({target.stat().st_size / 1e6:.0f} MB); to take it elsewhere:")
    say(f"wasm-kernel warm --import {target.name} --sha256 {digest}")


def import_archive(say: Callable[[str], None], source: Path, sha256: str) -> None:
    """Takes a prepared guest from an archive of this digest.

    Raises:
        WasmKernelError: nothing can be taken from it; the text says why.
        OSError: it can't be read.
    """
    taken = load(RuntimeType.PYTHON).import_prepared(source, sha256)
    say(f"imported {len(taken)} files" if taken else "nothing to import: it is all there")
