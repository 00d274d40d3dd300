"""Interrupts and deadlines at random moments of cells lose no variable and no next cell."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest

from tests.attacks.interrupting import ENDS, KINDS
from tests.end_to_end.conftest import Starting
from tests.end_to_end.real_kernel import RealKernel
from tests.sampled import lasting

pytestmark = pytest.mark.soak

LONG = {
    "endless": "while True: pass",
    "sleeping": "import time; time.sleep(3600)",
    "printing": "while True: print('x' * 50)",
    "showing": "while True: display(1)",
    "awaiting": "import asyncio; await asyncio.sleep(3600)",
    "in C": "sum(range(10**12))",
    "products": "import numpy as np\na = np.ones((300, 300))\nwhile True: a @ a",
    "tables": "import pandas as pd\nwhile True: pd.DataFrame({'a': range(99)}).groupby('a').sum()",
    "files": "open('f', 'w').write('x')\nwhile True: open('f').read()",
    "destructors": "class A:\n  def __del__(self): sum(range(999))\nwhile True: A()",
}
CELLS = LONG | {name: code for name, code in KINDS.items() if name != "input"}
LATEST = 0.05  # seconds from the begin of a cell to its interrupt, or its time


def interrupted(kernel: RealKernel, code: str, seconds: float) -> str:
    """Runs a cell, and does what "Interrupt kernel" does after a while.

    Returns the name of the cell's error once the kernel has answered both; empty if it had none.
    """
    sent = kernel.send(code)
    if code in LONG.values():  # an interrupt that overtakes its cell is for no cell
        while kernel.hear("status")["execution_state"] != "busy":
            pass
    time.sleep(seconds)
    assert kernel.control("interrupt_request", {})["status"] == "ok"
    reply = kernel.reply(sent)
    kernel.heard(sent)
    return str(reply.get("ename", ""))


def test_no_interrupt_or_deadline_loses_a_variable_or_hurts_the_next_cell(start: Starting) -> None:
    kernel: Any = start(grace_seconds="0.5")
    dice, ends = random.Random(), Counter[str]()
    assert kernel.run("import asyncio; kept = []").error == ""
    for number in lasting(4):
        kind, seconds = dice.choice([*CELLS]), dice.uniform(0, LATEST)
        if dice.random() < 0.3:
            error = kernel.run(f"%limit seconds={seconds}\n{CELLS[kind]}").error
            allowed = {"CellTimeout"}
        else:
            error, allowed = interrupted(kernel, CELLS[kind], seconds), {*ENDS, "Interrupted"}
        assert error in allowed or (not error and kind in KINDS), (number, kind, seconds, error)
        ends[error or "ended"] += 1
        after = kernel.run(f"kept.append({number}); print(len(kept), sum(kept))")
        told = f"{number + 1} {sum(range(number + 1))}\n"
        assert (after.stdout, after.error) == (told, ""), (number, kind, seconds, after)
    print(f"{sum(ends.values())} cells of a kernel: {dict(ends)}")
