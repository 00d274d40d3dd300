"""What it costs to keep variables after each cell, and to bring them back, beside other ways.

The others keep them from inside: `keepers.py` runs in the environment that is compared with.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from tests.benchmarks.sides import Side
from tests.local import create_sandbox
from wasm_kernel import BaseSandbox

STEPS = 6
KEEPERS = ("dill", "cloudpickle", "kishu")
_TIMED = "import time; t_ = time.perf_counter(); {}\nprint((time.perf_counter() - t_) * 1000)"


@dataclass(frozen=True)
class State:
    """Cells: `made` makes the variables, each `step` changes them a little and prints its own
    milliseconds, `told` prints what they are, and `spoilt` ruins them.
    """

    name: str
    made: str
    step: str
    told: str
    spoilt: str

    def cells(self) -> dict[str, str]:
        """For `keepers.py`; `{step}` in a step is its number."""
        step = _TIMED.format(self.step)
        return {"made": self.made, "step": step, "told": self.told, "spoilt": self.spoilt}


STATES = (
    State(
        "a: 100 MB of arrays, one element changes",
        "import numpy as np\n"
        "arrays = [np.random.default_rng(i).random(1_250_000) for i in range(10)]",
        "arrays[{step} % 10][{step}] += 1",
        "print(sum(float(a.sum()) for a in arrays))",
        "for a in arrays: a[:] = 0",
    ),
    State(
        "b: 500,000 rows, a column comes",
        "import numpy as np, pandas as pd\n"
        "df = pd.DataFrame({'c': np.arange(500_000.0)})\n"
        "for i in range(10): df[f'd{i}'] = df.c * i",
        "df['e{step}'] = df.c * {step}",
        "print(df.shape, float(df.sum().sum()))",
        "df.drop(columns='c', inplace=True)",
    ),
    State(
        "c: 200,000 objects, one comes",
        "class Item:\n    def __init__(self, n): self.n, self.tags = n, [n]\n"
        "items = [Item(n) for n in range(200_000)]",
        "items.append(Item({step}))",
        "print(len(items), sum(i.n for i in items))",
        "items.clear()",
    ),
    State(
        "d: a generator, a transaction, a lock",
        "import sqlite3, threading; g = (i for i in range(100)); lock = threading.Lock()\n"
        "db = sqlite3.connect(':memory:'); db.execute('create table t(a)')\n"
        "db.execute('insert into t values(1)'); lock.acquire(); n = next(g)",
        "n = next(g)",
        "print(n, db.in_transaction, db.execute('select * from t').fetchall(), lock.locked())",
        "db.close(); lock.release(); g.close()",
    ),
)


@dataclass
class Kept:
    """What one way of keeping came to with one state."""

    state: str
    keeper: str
    cells: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    trouble: str = ""

    HEAD: ClassVar[tuple[str, ...]] = (
        "keeping variables",
        "by",
        "a cell costs",
        "bringing back",
        "",
    )

    def take(self, found: dict[str, Any]) -> None:
        """Another round, as `keepers.py` prints it."""
        if "refused" in found:
            self.trouble = "refused: " + str(found["refused"]).split("\n")[0][:60]
            return
        self.cells += found["cells"]
        self.back.append(found["back"])
        self.trouble = self.trouble or ("" if found["right"] else "WRONG")

    def line(self) -> tuple[str, ...]:
        """The row as text."""
        if not self.cells:
            return self.state, self.keeper, "-", "-", self.trouble
        times = (f"{median(times):.3g} ms" for times in (self.cells, self.back))
        return self.state, self.keeper, *times, self.trouble


def keeping(native: Side, rounds: int) -> Iterator[Kept]:
    """Every state with every keeper, by turns."""
    for state in STATES:
        rows = {name: Kept(state.name, name) for name in ("wasm-kernel", *KEEPERS)}
        for _ in range(max(1, rounds // 3)):
            for name, row in rows.items():
                row.take(_ours(state) if name == "wasm-kernel" else keep_with(native, name, state))
        yield from rows.values()


def keep_with(native: Side, keeper: str, state: State) -> dict[str, Any]:
    """What `keepers.py` measures there."""
    script = Path(__file__).with_name("keepers.py")
    command = [str(native.python), str(script), keeper, json.dumps(state.cells()), str(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or ['{"refused": "it ended"}']
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _ours(state: State) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, create_sandbox(workspace=folder) as sandbox:
        cells = state.cells()
        _run(sandbox, cells["made"])
        time.sleep(1)  # the others wait until all is on disk
        costs = []
        for step in range(STEPS):
            inside, outside = _run(sandbox, cells["step"].format(step=step))
            costs.append(outside - float(inside))
        told = _run(sandbox, cells["told"])[0]
        _run(sandbox, cells["spoilt"])
        begun = time.perf_counter()
        sandbox.undo()
        back = (time.perf_counter() - begun) * 1000
        return {"cells": costs, "back": back, "right": _run(sandbox, cells["told"])[0] == told}


def _run(sandbox: BaseSandbox, code: str) -> tuple[str, float]:
    begun = time.perf_counter()
    result = sandbox.execute(code)
    taken = (time.perf_counter() - begun) * 1000
    assert result.success, result.error
    return result.stdout.strip(), taken
