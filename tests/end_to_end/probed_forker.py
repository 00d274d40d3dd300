"""A forker for tests: `python -P -m tests.end_to_end.probed_forker IDLE_SECONDS FILE`.

Its kernels contain the probe of `tests.linux.probed_kernel`. It takes `FILE` for its whole
installation. It prints its name, and a second line once it has loaded everything.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.linux.probed_kernel import RESULTS, probe_kernels, watch
from wasm_kernel.frontends.jupyter import forker, launcher
from wasm_kernel.service.fork_loop import WorkerForks

load = forker._load
loaded: set[str] = set()


def loading(forks: WorkerForks) -> None:
    """Loads everything and notes the modules that are loaded."""
    load(forks)
    loaded.update(sys.modules)
    print("loaded", flush=True)


def watched(workspace: Path) -> None:
    """Runs the kernel, and reports the modules that were imported after the fork."""
    watch(workspace)
    RESULTS.write(" ".join({*sys.modules} - loaded) + "\n")


def files() -> Iterator[tuple[str, int]]:
    """The only file of the installation."""
    yield sys.argv[2], Path(sys.argv[2]).stat().st_mtime_ns


if __name__ == "__main__":
    patched: Any = forker
    patched.IDLE_SECONDS, patched._files, patched._load = float(sys.argv[1]), files, loading
    probe_kernels(watched)
    print(name := launcher.forker_name(), flush=True)
    if not os.fork():  # a forker is not a child of the process that starts it
        line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        other.close()  # no kernel owns this forker
        forker.main(name, line.detach(), os.getpid())
