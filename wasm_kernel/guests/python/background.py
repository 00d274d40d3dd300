"""Compiling the guest in a process of its own, while kernels run the baseline compiler's code.

It takes minutes of processor time at the lowest priority, and outlives the kernel that began it: a
batch of short runs would never get there otherwise. There is one at a time for each cache. SIGTERM
ends it, as does a time limit; what it was making is only a cache.

    python -m wasm_kernel.guests.python.background CACHE
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.compiler import Compiler, GuestBinary
from wasm_kernel.engine.flavours import BASELINE, EPOCH
from wasm_kernel.guests.python.files import guest_files
from wasm_kernel.linux.locks import FileLock

_LOCK, _PROCESS = "background.lock", "background.process"
_MOST_SECONDS = 2 * 3600  # a busy machine gives it little
_NICE = 19
_LOOK_SECONDS = 1.0  # longer than others take to look whether it is locked


def begin(cache: Cache) -> None:
    """Starts the process, unless there is one for this cache."""
    if running(cache):
        return
    command = [sys.executable, "-P", "-m", __name__, str(cache.folder)]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(  # noqa: S603 - this very program
        command,
        cwd=cache.folder,
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    )
    threading.Thread(target=process.wait, name="background", daemon=True).start()


def running(cache: Cache) -> int:
    """Returns the number of the process that compiles for a cache; 0 if there is none."""
    lock = FileLock(cache.path(_LOCK))
    if lock.acquire():
        lock.release()
        return 0
    try:
        return int(cache.path(_PROCESS).read_text())
    except (FileNotFoundError, ValueError):
        return 0  # it begins just now


def compile_alone(compiler: Compiler, binary: GuestBinary) -> None:
    """Compiles a guest, unless another process does, and removes the baseline compiler's code."""
    cache = compiler.cache
    lock = FileLock(cache.path(_LOCK))
    if lock.acquire(_LOOK_SECONDS):
        cache.path(_PROCESS).write_text(str(os.getpid()))
        compiler.module(binary, EPOCH, lambda text: None)
        cache.remove(compiler.name(binary, BASELINE))


def main(folder: str) -> None:
    """Compiles the guest into a cache."""
    os.nice(_NICE)
    Path("/proc/self/oom_score_adj").write_text("1000")  # it takes 2 GiB: let no kernel end for it
    signal.alarm(_MOST_SECONDS)
    cache = Cache(Path(folder))
    cache.prepare()
    compile_alone(Compiler(cache), guest_files(cache).wasm)


if __name__ == "__main__":
    main(sys.argv[1])
