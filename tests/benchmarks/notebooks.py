"""Runs notebooks by nbclient: `... -m tests.benchmarks.notebooks KERNELS NAME PYTHON FOLDER COUNT`.

Each has its own kernel. They are typical small notebooks: an import, a table, a few numbers.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.benchmarks.sides import Side
from tests.benchmarks.table import Row, by_turns

COUNT, PROCESSES = 20, 2
CELLS = (
    "import pandas as pd\nimport numpy as np",
    "frame = pd.DataFrame({'a': np.arange(1000) % 7, 'b': np.arange(1000.0)})\nframe.head()",
    "means = frame.groupby('a').b.mean()\nmeans",
    "assert len(means) == 7\nprint(means.max())",
)


def in_two_processes(sides: tuple[Side, Side], rounds: int) -> Iterator[Row]:
    """Runs 20 notebooks by nbclient, in two processes at once."""
    what = f"{COUNT} notebooks by nbclient, in {PROCESSES} processes"
    yield Row(what, *by_turns(sides, max(1, rounds // 3), _all), "s", 0.5)


def _all(side: Side) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.notebooks", str(side.kernels)]
    command += [side.kernel_name, str(side.python), str(side.folder), str(COUNT // PROCESSES)]
    begun = time.perf_counter()
    with side.log.open("ab") as log:
        running = [
            subprocess.Popen(command, env=side.environment(), stderr=log) for _ in range(PROCESSES)
        ]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise RuntimeError(f"{side.name} did not run its notebooks: see {side.log}")
    return time.perf_counter() - begun


def main(kernels: str, name: str, python: str, folder: str, count: str) -> None:
    """Runs notebooks one after another."""
    specs = KernelSpecManager(kernel_dirs=[kernels], ensure_native_kernel=False)
    for _ in range(int(count)):
        manager = AsyncKernelManager(kernel_name=name, kernel_spec_manager=specs)
        assert manager.kernel_spec is not None
        manager.kernel_spec.argv[0] = python
        book = new_notebook(cells=[new_code_cell(source) for source in CELLS])  # type: ignore[no-untyped-call]
        NotebookClient(book, km=manager, resources={"metadata": {"path": Path(folder)}}).execute()


if __name__ == "__main__":
    main(*sys.argv[1:])
