"""Interrupts at random moments of one sandbox, many times: none is lost, none comes late."""

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


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[BaseSandbox]:
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


def test_an_interrupt_around_the_death_of_a_guest_hurts_no_later_cell(sandbox: BaseSandbox) -> None:
    dice = random.Random(4)
    for number in lasting():
        timer = threading.Timer(dice.uniform(0, 0.05), sandbox.interrupt)
        timer.start()
        sandbox.execute("import os; os._exit(1)")
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
    """Each interrupt comes within 16 ms of the cell's begin; cells take about as long."""
    ends = interrupt_many(sandbox, lasting(4), seed=47)
    assert ends["ended"] < 0.8 * sum(ends.values()), ends
