"""Compiling the guest in a process of its own, while kernels run the baseline compiler's code.

The process also builds the whole base image, which the first sessions begin without.

It takes minutes of processor time at the lowest priority, and outlives the kernel that began it, as
a batch of short runs would never finish it otherwise. There is one process for each cache. SIGTERM
or a time limit ends it; its unfinished files are only a cache.

    python -m wasm_kernel.guests.python.background CACHE
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from wasm_kernel.engine.cache import ENVIRONMENT, Cache
from wasm_kernel.engine.compiler import Compiler, GuestBinary
from wasm_kernel.engine.flavours import BASELINE, UNCHECKED
from wasm_kernel.guests.base import load, prepare_on_own_thread
from wasm_kernel.guests.python.files import guest_files
from wasm_kernel.linux.locks import FileLock
from wasm_kernel.policy import RuntimeType

_LOCK, _PROCESS = "background.lock", "background.process"
_MOST_SECONDS = 2 * 3600  # a busy machine gives it little processor time
_NICE = 19
_LOCK_SECONDS = 1.0  # longer than `running` holds the lock in other processes

_guard = threading.Lock()
_begun: dict[Path, subprocess.Popen[bytes]] = {}  # by this process, by their locks


def begin(cache: Cache) -> None:
    """Starts the process, unless there is one for this cache.

    A confined process that was taken over can ask for it endlessly, so there is one at a time.
    """
    own = cache.path(_LOCK)
    with _guard:
        begun = _begun.get(own)
        if (begun is not None and begun.poll() is None) or running(cache):
            return
        command = [sys.executable, "-P", "-m", __name__, str(cache.folder)]
        nothing = subprocess.DEVNULL
        process = _begun[own] = subprocess.Popen(  # noqa: S603 - this very program
            command,
            cwd=cache.folder,
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )
    threading.Thread(target=process.wait, name="background", daemon=True).start()


def running(cache: Cache) -> int:
    """Returns the id of the process that compiles the guest; 0 if there is none."""
    try:
        process = int(cache.path(_PROCESS).read_text())
    except (FileNotFoundError, ValueError):
        return 0  # there was no process yet, or one is just starting
    lock = FileLock(cache.path(_LOCK))
    if lock.acquire():
        lock.release()
        return 0
    return process


def compile_alone(
    compiler: Compiler, binary: GuestBinary, build_image: Callable[[], object]
) -> None:
    """Compiles a guest and builds its image, unless another process does.

    Sessions use the baseline compiler's code and so don't wait for this process; that code is
    removed at the end.
    """
    cache = compiler.cache
    own = FileLock(cache.path(_LOCK))
    if own.acquire(_LOCK_SECONDS):
        cache.path(_PROCESS).write_text(str(os.getpid()))
        compiler.module(binary, UNCHECKED)
        build_image()
        cache.remove(compiler.name(binary, BASELINE))


def main(folder: str) -> None:
    """Compiles the guest into a cache, and builds the whole base image with that code."""
    os.nice(_NICE)
    Path("/proc/self/oom_score_adj").write_text("1000")  # takes 2 GiB: ends before any kernel
    signal.alarm(_MOST_SECONDS)
    cache = Cache(Path(folder))
    cache.prepare()
    os.environ[ENVIRONMENT] = folder  # where the language looks
    language = load(RuntimeType.PYTHON)
    build = partial(prepare_on_own_thread, language, UNCHECKED, lambda text: None)
    compile_alone(Compiler(cache), guest_files(cache).wasm, build)


if __name__ == "__main__":
    main(*sys.argv[1:])
