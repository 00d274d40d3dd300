"""The fork server of workers that soon count a guest as unable to begin a cell."""

from __future__ import annotations

from wasm_kernel.engine import clock
from wasm_kernel.service import fork_loop


def main(line: int, owner: int) -> None:
    clock.BEGIN_LEAST, clock.BEGIN_SECONDS = 0.4, 0.7
    fork_loop.main(line, owner)
