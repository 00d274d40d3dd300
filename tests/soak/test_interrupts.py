"""Interrupts at random moments against one sandbox, many times: none is lost, none comes too
late.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.interrupting import interrupt_many
from tests.sampled import lasting
from wasm_kernel import BaseSandbox, ExecutionPolicy, create_sandbox

pytestmark = pytest.mark.soak

GRACE = 1.0
LONG = [
    "while True: pass",
    "import time; time.sleep(60)",
    "while True: print('x' * 50)",
    "import asyncio; await asyncio.sleep(60)",
    "sum(range(10**12))",
    "import numpy as np\na = np.ones((300, 300))\nwhile True: a @ a",
    "import pandas as pd\nwhile True: pd.DataFrame({'a': range(100)}).groupby('a').sum()",
    "def f(n): return f(n - 1) + f(n - 2) if n > 1 else n\nf(60)",
    "class A:\n  def __del__(self): sum(range(999))\nwhile True: A()",
]
ENDS = {"KeyboardInterrupt", "Interrupted", "CancelledError"}


@pytest.fixture
def sandbox(warm: None, tmp_path: Path) -> Iterator[BaseSandbox]:
    """A sandbox that soon reports when it is stuck."""
    policy = ExecutionPolicy(grace_seconds=GRACE, cell_timeout=20.0, display_count=500)
    made = create_sandbox(workspace=tmp_path / "app", policy=policy)
    made.start().result(600)
    yield made
    print(f"{made.next_count:,} cells")
    made.close()


def lives(sandbox: BaseSandbox, number: int) -> None:
    """Check that the next cell runs to its end, undisturbed."""
    result = sandbox.execute(f"print({number})")
    assert result.success, (number, result.error)
    assert result.stdout == f"{number}\n"


def interrupt_at(sandbox: BaseSandbox, *delays: float) -> list[threading.Timer]:
    timers = [threading.Timer(delay, sandbox.interrupt) for delay in delays]
    for timer in timers:
        timer.start()
    return timers


def test_a_long_cell_always_ends_by_its_interrupt(sandbox: BaseSandbox) -> None:
    dice = random.Random(1)
    for number in lasting(2):
        code, delay = dice.choice(LONG), dice.uniform(0.0005, 0.15)
        begun = time.monotonic()
        timers = interrupt_at(sandbox, delay)
        result = sandbox.execute(code)
        for timer in timers:
            timer.join()
        assert result.error is not None, (number, code, delay)
        assert result.error.ename in ENDS, (number, code, delay, result.error)
        assert time.monotonic() - begun < delay + GRACE + 5.0, (number, code)
        lives(sandbox, number)


def test_a_double_interrupt_is_for_one_cell(sandbox: BaseSandbox) -> None:
    dice = random.Random(2)
    for number in lasting():
        first = dice.uniform(0.0005, 0.1)
        timers = interrupt_at(sandbox, first, first + dice.choice([0.0, 0.0001, 0.005, 0.02]))
        futures = [sandbox.submit(dice.choice(LONG[:4]))]
        result = futures[0].result(30)
        for timer in timers:
            timer.join()
        assert result.error is not None
        lives(sandbox, number)


def test_an_interrupt_around_the_death_of_a_guest_hurts_no_later_cell(
    sandbox: BaseSandbox,
) -> None:
    dice = random.Random(4)
    for number in lasting():
        timers = interrupt_at(sandbox, dice.uniform(0, 0.05))
        sandbox.execute("import os; os._exit(1)")
        for timer in timers:
            timer.join()
        lives(sandbox, number)


def test_at_most_one_of_queued_cells_is_interrupted(sandbox: BaseSandbox) -> None:
    dice = random.Random(5)
    for number in lasting():
        futures = [sandbox.submit("import time; time.sleep(0.02)") for _ in range(4)]
        time.sleep(dice.uniform(0, 0.05))
        asked = sandbox.interrupt()
        ends = [future.result(30).success for future in futures]
        assert ends.count(False) <= int(asked), (number, ends)
        lives(sandbox, number)


def test_f8_case_47_thousands_of_interrupts_over_ten_kinds_of_cells(sandbox: BaseSandbox) -> None:
    """Each comes within 16 ms of the cell's begin, and the cells take about as long."""
    ends = interrupt_many(sandbox, lasting(4), seed=47)
    assert ends["ended"] < 0.8 * sum(ends.values()), ends
