"""`python -m tests.benchmarks --native VENV`: wasm-kernel against ipykernel, in alternation.

The environment that `--native` names has ipykernel and pandas; `make bench` makes it.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.measures import MEASURES, Sides
from tests.benchmarks.sides import Side
from tests.benchmarks.table import Line, rendered
from wasm_kernel.frontends.jupyter import launcher

KERNELS_LOG = Path("build/bench-kernels.log").absolute()
OUR_API = """
import sys
from pathlib import Path
from wasm_kernel import create_sandbox
sandbox = create_sandbox(workspace=Path(sys.argv[1]))
result = sandbox.execute("import pandas as pd; pd.DataFrame({'a': [1, 2]})")
print(result.outputs[-1].data["text/html"], flush=True)
sandbox.close()
"""
THEIR_API = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
result = shell.run_cell("import pandas as pd; pd.DataFrame({'a': [1, 2]})").result
print(shell.display_formatter.format(result)[0]["text/html"], flush=True)
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--native", type=Path, required=True, help="environment with ipykernel")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each side")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--against-itself", action="store_true", help="ipykernel on both sides")
    return parser.parse_args()


def our_side(folder: Path) -> Side:
    return Side(
        name="wasm-kernel",
        python=Path(sys.executable),
        kernels=Path(sys.prefix) / "share/jupyter/kernels",
        kernel_name="wasm-python",
        folder=folder,
        api=OUR_API,
        log=KERNELS_LOG,
        arguments=(f"--WasmKernel.workspace_root={folder / 'workspace'}",),
    )


def their_side(folder: Path, environment: Path) -> Side:
    return Side(
        name="ipykernel",
        python=environment.absolute() / "bin/python",
        kernels=environment.absolute() / "share/jupyter/kernels",
        kernel_name="python3",
        folder=folder,
        api=THEIR_API,
        log=KERNELS_LOG,
    )


def end_forkers() -> None:
    """Ends the processes that forked kernels."""
    for process in launcher.running():
        os.kill(process, signal.SIGTERM)


def main() -> None:
    given = arguments()
    KERNELS_LOG.parent.mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="wasm-kernel-bench-")))
        for inner in ("ours", "theirs", "jupyter"):
            (folder / inner).mkdir()
        os.environ["IPYTHONDIR"] = os.environ["JUPYTER_RUNTIME_DIR"] = str(folder / "jupyter")
        os.environ["XDG_RUNTIME_DIR"] = str(folder)  # the folder also holds a forker's socket
        os.environ["XDG_STATE_HOME"] = str(folder / "state")  # a user's notes would slow starts
        stack.callback(end_forkers)
        theirs = their_side(folder / "theirs", given.native)
        ours = their_side(folder / "ours", given.native)
        sides: Sides = (ours if given.against_itself else our_side(folder / "ours"), theirs)
        rows: list[Line] = []
        for measure in given.only:
            print(f"measuring {measure} ...", file=sys.stderr, flush=True)
            rows += MEASURES[measure](sides, given.rounds)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    print(f"medians of {given.rounds} interleaved rounds; ratios: lower is better\n")
    print(rendered(rows))


if __name__ == "__main__":
    main()
