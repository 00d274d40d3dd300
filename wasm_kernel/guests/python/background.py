"""Compiling the guest in a process of its own, while kernels run the baseline compiler's code.

The process also builds the whole base image, which the first sessions begin without.

It takes minutes of processor time at the lowest priority, and outlives the kernel that began it, as
a batch of short runs would never finish it otherwise. There is one process for each cache and
flavour, and one works at a time. SIGTERM or a time limit ends it; its unfinished files are only a
cache.

    python -m wasm_kernel.guests.python.background CACHE FLAVOUR
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from wasm_kernel.engine.cache import ENVIRONMENT, Cache
from wasm_kernel.engine.compiler import Compiler, GuestBinary
from wasm_kernel.engine.flavours import BASELINES, FLAVOURS, Flavour
from wasm_kernel.guests.base import load, prepare_on_own_thread
from wasm_kernel.guests.python.files import guest_files
from wasm_kernel.linux.locks import FileLock
from wasm_kernel.policy import RuntimeType

_TURN = "background.lock"
_MOST_SECONDS = 2 * 3600  # a busy machine gives it little processor time
_NICE = 19
_LOOK_SECONDS = 1.0  # longer than `running` holds the lock in other processes
_WAIT_SECONDS = 1.0

_guard = threading.Lock()
_begun: dict[Path, subprocess.Popen[bytes]] = {}  # by this process, by their locks


def _lock(flavour: Flavour) -> str:
    return f"background-{flavour.name}.lock"


def _process(flavour: Flavour) -> str:
    return f"background-{flavour.name}.process"


def begin(cache: Cache, flavour: Flavour) -> None:
    """Starts the process for a flavour, unless there is one for this cache.

    A confined process that was taken over can ask for it endlessly, so there is one at a time. The
    baseline compiler's code is used in place of the flavour until the flavour is compiled.
    """
    own = cache.path(_lock(flavour))
    with _guard:
        begun = _begun.get(own)
        is_there = (begun is not None and begun.poll() is None) or running(cache, flavour)
        if is_there or flavour.name not in BASELINES:
            return
        command = [sys.executable, "-P", "-m", __name__, str(cache.folder), flavour.name]
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


def running(cache: Cache, flavour: Flavour) -> int:
    """Returns the id of the process that compiles a flavour; 0 if there is none."""
    try:
        process = int(cache.path(_process(flavour)).read_text())
    except (FileNotFoundError, ValueError):
        return 0  # there was no process yet, or one is just starting
    lock = FileLock(cache.path(_lock(flavour)))
    if lock.acquire():
        lock.release()
        return 0
    return process


def compile_alone(
    compiler: Compiler, binary: GuestBinary, flavour: Flavour, build_image: Callable[[], object]
) -> None:
    """Compiles a guest and builds its image, unless another process does.

    It waits for its turn while another flavour is compiled. Kernels use the baseline compiler's
    code and so don't wait for this process; that code is removed at the end.
    """
    cache = compiler.cache
    own, turn = FileLock(cache.path(_lock(flavour))), FileLock(cache.path(_TURN))
    if own.acquire(_LOOK_SECONDS):
        cache.path(_process(flavour)).write_text(str(os.getpid()))
        while not turn.acquire():
            time.sleep(_WAIT_SECONDS)
        compiler.module(binary, flavour, lambda text: None)
        build_image()
        cache.remove(compiler.name(binary, BASELINES[flavour.name]))


def main(folder: str, name: str) -> None:
    """Compiles a flavour of the guest into a cache, and builds the whole base image with it."""
    os.nice(_NICE)
    Path("/proc/self/oom_score_adj").write_text("1000")  # takes 2 GiB: ends before any kernel
    signal.alarm(_MOST_SECONDS)
    cache = Cache(Path(folder))
    cache.prepare()
    os.environ[ENVIRONMENT] = folder  # where the language looks
    language, flavour = load(RuntimeType.PYTHON), FLAVOURS[name]
    compile_alone(
        Compiler(cache),
        guest_files(cache).wasm,
        flavour,
        lambda: prepare_on_own_thread(language, flavour, lambda text: None),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
