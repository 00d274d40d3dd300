"""Kernels that begin at the same time and find no forker: `-m tests.end_to_end.begun_together`.

If one of them starts a forker, that is this program with a forker's arguments. It first writes a
byte to `forkers-begun`, beside the forkers' sockets, and then runs as a forker.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from wasm_kernel.frontends.jupyter import forker, kernel_launch, launcher

KERNELS = 4

if __name__ == "__main__":
    if sys.argv[1:]:
        with Path(launcher.place()).with_name("forkers-begun").open("a") as file:
            file.write(".")
        forker.main(sys.argv[1], int(sys.argv[2]))
    patched: Any = kernel_launch
    patched.FORKER = "tests.end_to_end.begun_together"
    for _ in range(KERNELS):
        kernel_launch.StandaloneLaunch(launcher.forker_name()).begin()
    for thread in {*threading.enumerate()} - {threading.main_thread()}:
        thread.join()
