"""What forks cost: `python -m tests.benchmarks.forks`.

A fork of several states, from the call until its first cell has run, against what it replaces:
pickling the same state and loading it in a process that runs already. And what ten forks take of
the machine's memory together, each after a cell of its own.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tests.benchmarks.memory import pss_bytes
from tests.local import create_sandbox
from wasm_kernel import BaseSandbox

MIB = 2**20
STATES = {
    "nothing": "x = 1",
    "100 MiB in an array": "import numpy as np; x = np.random.rand(100 * 2**17)",
    "200,000 small lists": "x = [[i] for i in range(200_000)]",
    "a frame of 500,000 rows": (
        "import numpy as np, pandas as pd\n"
        "x = pd.DataFrame({c: np.random.rand(500_000) for c in 'abcde'})"
    ),
}
PICKLED = (
    "import pickle, time\nbegun = time.perf_counter()\n"
    "_ = pickle.loads(pickle.dumps(x)); del _\nprint(time.perf_counter() - begun)"
)


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def fork_once(parent: BaseSandbox) -> float:
    """Seconds from the call until the fork's first cell has run."""
    begun = time.perf_counter()
    (fork,) = parent.fork()
    fork.execute("pass")
    taken = time.perf_counter() - begun
    fork.close()
    return taken


def of_states(root: Path, rounds: int) -> None:
    """Forks and pickles of each state, by turns."""
    for name, code in STATES.items():
        place = root / name.replace(" ", "-")
        with (
            create_sandbox(workspace=place) as parent,
            create_sandbox(workspace=f"{place}-twin") as twin,
        ):
            twin.execute(code)  # pickling writes to much memory, which a fork would share
            parent.execute(code)
            at_once = fork_once(parent)
            time.sleep(1.0)
            forks, pickles = [], []
            for _ in range(rounds):
                forks.append(fork_once(parent))
                pickles.append(float(twin.execute(PICKLED).stdout))
            print(
                f"{name}: {median(forks) * 1e3:.0f} ms, right after the cell {at_once * 1e3:.0f} "
                f"ms; pickled in the guest {median(pickles) * 1e3:.0f} ms"
            )


def of_files(root: Path, rounds: int) -> None:
    """Forks of a workspace with many files, and with a large one."""
    with create_sandbox(workspace=root / "files") as parent:
        parent.execute("x = 1")
        for number in range(10_000):
            (parent.workspace / f"{number}").write_bytes(bytes(1000))
        print(f"10,000 files of 1 kB: {median(fork_once(parent) for _ in range(3)) * 1e3:.0f} ms")
    with create_sandbox(workspace=root / "large") as parent:
        parent.execute("x = 1")
        (parent.workspace / "large").write_bytes(os.urandom(200 * MIB))
        taken = median(fork_once(parent) for _ in range(rounds))
        print(f"a file of 200 MiB: {taken * 1e3:.0f} ms")


def of_memory(root: Path) -> None:
    """PSS of this process with ten forks of a state, each after a cell of its own."""
    for name, code in STATES.items():
        with create_sandbox(workspace=root / f"memory-{name.replace(' ', '-')}") as parent:
            parent.execute(code)
            time.sleep(1.0)
            alone = pss_bytes(os.getpid())
            forks = parent.fork(10)
            for fork in forks:
                fork.execute("y = 1")
            each = (pss_bytes(os.getpid()) - alone) / len(forks)
            for fork in forks:
                fork.close()
            print(f"{name}: {each / MIB:.1f} MiB of PSS for each of ten forks")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.forks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="samples of each kind")
    given = parser.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="wasm-kernel-bench-") as folder:
        of_states(Path(folder), given.rounds)
        of_files(Path(folder), given.rounds)
        of_memory(Path(folder))


if __name__ == "__main__":
    main()
