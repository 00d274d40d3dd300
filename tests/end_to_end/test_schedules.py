"""Random schedules of messages, each answered once and in its place, and random interrupts."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from tests.attacks.interrupting import ENDS, KINDS
from tests.end_to_end.conftest import Starting
from tests.end_to_end.real_kernel import RealKernel
from tests.end_to_end.watcher import SECONDS, Watcher
from tests.sampled import lasting

SCHEDULES, SOAK_SCHEDULES = 6, 1000
A_KERNEL_EACH = 14  # schedules per kernel, in a soak

Step = Callable[[Watcher, random.Random], object]

CELLS = (
    "1 + 1",
    "x = 1",
    "print('said')\n'shown'",
    "1 / 0",
    "syntax error",
    "raise KeyboardInterrupt",
    "import time; time.sleep(0.3)",
    "for i in range(3): print(i); display(i)",
    "import sys; print('e', file=sys.stderr); sys.exit()",
    "from IPython.display import clear_output; print(1); clear_output()",
    "while True: pass",
    "import time; time.sleep(60)",
    "import os; os.abort()",
    "zip?",
    "%undo",
    "%%time\nsum(range(1000))",
    "get_ipython().set_next_input('y')",
    "h = display(1, display_id=True); h.update(2)",
)
ENDLESS = {"while True: pass", "import time; time.sleep(60)"}
QUESTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("kernel_info_request", {}),
    ("complete_request", {"code": "zi", "cursor_pos": 2}),
    ("inspect_request", {"code": "zip", "cursor_pos": 3, "detail_level": 0}),
    ("is_complete_request", {"code": "def f(x):"}),
    ("comm_info_request", {}),
    ("history_request", {"hist_access_type": "tail", "output": False, "raw": True, "n": 3}),
)


def cell(watcher: Watcher, dice: random.Random) -> None:
    code = dice.choice(CELLS)
    watcher.run(code, silent=dice.random() < 0.1, stop_on_error=dice.random() < 0.8)
    if code in ENDLESS:
        time.sleep(dice.random() * 0.3)
        interrupt(watcher, dice)


def question(watcher: Watcher, dice: random.Random) -> None:
    watcher.send(*dice.choice(QUESTIONS))


def asking(watcher: Watcher, dice: random.Random) -> None:
    watcher.run("print(input('? '))", answer="an answer")


def interrupt(watcher: Watcher, dice: random.Random) -> None:
    watcher.send("interrupt_request", {})


def pause(watcher: Watcher, dice: random.Random) -> None:
    time.sleep(dice.random() * 0.2)


STEPS: tuple[Step, ...] = (cell, cell, cell, cell, question, question, asking, interrupt, pause)


@pytest.fixture
def manager() -> Iterator[KernelManager]:
    """A started kernel."""
    made = KernelManager(kernel_name="wasm-python")
    made.start_kernel()
    yield made
    made.shutdown_kernel(now=True)


def play(watcher: Watcher, seed: int) -> None:
    """Play one schedule, then wait until everything is answered; endless cells are interrupted."""
    dice = random.Random(seed)
    watcher.sent.clear()
    for _ in range(dice.randint(3, 12)):
        dice.choice(STEPS)(watcher, dice)
    end = time.monotonic() + SECONDS
    while any(code_of(one) in ENDLESS and not one.over for one in watcher.sent.values()):
        # an endless cell that was still in the queue missed its interrupt
        watcher.settle(0.5)
        interrupt(watcher, dice)
        assert time.monotonic() < end, "an endless cell could not be interrupted"
    watcher.collect()


def code_of(one: object) -> object:
    return getattr(one, "content", {}).get("code")


def played(manager: KernelManager, seeds: range) -> None:
    watcher = Watcher(manager)
    try:
        for seed in seeds:
            try:
                play(watcher, seed)
            except AssertionError as problem:
                raise AssertionError(f"schedule {seed}: {problem}") from problem
    finally:
        watcher.close()


def test_every_request_is_answered_once_and_in_order_after_restarts(manager: KernelManager) -> None:
    played(manager, range(SCHEDULES))
    restarted(manager, seed=0, now=True)
    restarted(manager, seed=1, now=False)


def restarted(manager: KernelManager, seed: int, *, now: bool) -> None:
    """Restart the kernel in the middle of a schedule, and check that it answers."""
    dice = random.Random(seed)
    watcher = Watcher(manager)
    for _ in range(4):
        cell(watcher, dice)
    watcher.close()
    manager.restart_kernel(now=now)
    played(manager, range(100 + seed, 101 + seed))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SCHEDULES, SOAK_SCHEDULES, A_KERNEL_EACH))
def test_a_thousand_schedules(manager: KernelManager, first: int) -> None:
    played(manager, range(first, first + A_KERNEL_EACH))
    restarted(manager, seed=first, now=first % 2 == 0)


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
INTERRUPTED = LONG | {name: code for name, code in KINDS.items() if name != "input"}
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


@pytest.mark.soak
def test_no_interrupt_or_deadline_loses_a_variable_or_hurts_the_next_cell(start: Starting) -> None:
    kernel: Any = start(grace_seconds="0.5")
    dice, ends = random.Random(), Counter[str]()
    assert kernel.run("import asyncio; kept = []").error == ""
    for number in lasting(4):
        kind, seconds = dice.choice([*INTERRUPTED]), dice.uniform(0, LATEST)
        if dice.random() < 0.3:
            error = kernel.run(f"%limit seconds={seconds}\n{INTERRUPTED[kind]}").error
            allowed = {"CellTimeout"}
        else:
            error, allowed = interrupted(kernel, INTERRUPTED[kind], seconds), {*ENDS, "Interrupted"}
        assert error in allowed or (not error and kind in KINDS), (number, kind, seconds, error)
        ends[error or "ended"] += 1
        after = kernel.run(f"kept.append({number}); print(len(kept), sum(kept))")
        told = f"{number + 1} {sum(range(number + 1))}\n"
        assert (after.stdout, after.error) == (told, ""), (number, kind, seconds, after)
    print(f"{sum(ends.values())} cells of a kernel: {dict(ends)}")
