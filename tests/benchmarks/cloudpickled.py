"""Keeping 100 MB of variables with cloudpickle; `measured` runs it in the compared environment.

As a script it runs cells in IPython, pickles the variables after each, and restores them at the
end. It knows nothing of this project, and prints its measurements as JSON.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

STEPS = 6
MADE = (
    "import numpy as np\narrays = [np.random.default_rng(i).random(1_250_000) for i in range(10)]"
)
STEP = "arrays[{step} % 10][{step}] += 1"


def measured(python: Path) -> dict[str, list[float]]:
    """The milliseconds for pickling after each cell (`kept`), and for restoring (`back`)."""
    done = subprocess.run([str(python), __file__], capture_output=True, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    cloudpickle: Any = import_module("cloudpickle")
    shell: Any = InteractiveShell.instance()
    kept: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "session")
        shell.run_cell(MADE)
        for step in range(STEPS):
            shell.run_cell(STEP.format(step=step))
            begun = time.perf_counter()
            with path.open("wb") as file:
                cloudpickle.dump(_own_variables(shell), file)
            kept.append((time.perf_counter() - begun) * 1000)
        begun = time.perf_counter()
        with path.open("rb") as file:
            shell.user_ns.update(cloudpickle.load(file))
        back = (time.perf_counter() - begun) * 1000
    print("\n" + json.dumps({"kept": kept, "back": [back]}), flush=True)


def _own_variables(shell: Any) -> dict[str, Any]:
    hidden = {*shell.user_ns_hidden, "In", "Out"}
    return {
        name: value
        for name, value in shell.user_ns.items()
        if not (name.startswith("_") or name in hidden or isinstance(value, ModuleType))
    }


if __name__ == "__main__":
    main()
