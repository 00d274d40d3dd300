"""Kernels that begin at the same time and find no forker: `-m tests.end_to_end.begun_together`.

Each starts a forker, which runs `main` here; this program prints their processes and ends. A forker
that loads what kernels need first writes a byte to `forkers-loaded`, beside the forkers' sockets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wasm_kernel.frontends.jupyter import forker, launcher
from wasm_kernel.service.fork_loop import WorkerForks

KERNELS = 4


def main(name: str, line: int, owner: int) -> None:
    """Runs a forker."""
    patched: Any = forker
    load = forker._load

    def noted(forks: WorkerForks) -> None:
        with Path(launcher.place()).with_name("forkers-loaded").open("a") as file:
            file.write(".")
        load(forks)

    patched._load = noted
    forker.main(name, line, owner)


if __name__ == "__main__":
    patched: Any = launcher
    patched.FORKER = "tests.end_to_end.begun_together"
    started = [launcher.start(launcher.forker_name()) for _ in range(KERNELS)]
    print(*(each.number for each in started if each is not None))
