"""Interrupts many kinds of cells at random moments, and checks the session after each (F8)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable

from wasm_kernel import Sandbox
from wasm_kernel.execution.interfaces import InputInterrupted, NoListener

KINDS = {
    "sleep": "await asyncio.sleep(0.002)",
    "passes": "for i in range(300): await asyncio.sleep(0)",
    "task": (
        "async def f(n):\n  for i in range(n): await asyncio.sleep(0)\n  return n\n"
        "t = asyncio.create_task(f(30))\nassert await t == 30\n"
        "async with asyncio.timeout(3600): await asyncio.create_task(f(30))"
    ),
    "async for": (
        "async def g():\n  for i in range(50):\n    yield i\n    await asyncio.sleep(0)\n"
        "class C:\n  async def __aenter__(self): await asyncio.sleep(0)\n"
        "  async def __aexit__(self, *a): await asyncio.sleep(0)\n"
        "async with C(), asyncio.TaskGroup() as group:\n"
        "  group.create_task(asyncio.sleep(0.001))\n  async for i in g(): pass"
    ),
    "run": "asyncio.run(asyncio.sleep(0.002))\nasyncio.run(asyncio.sleep(0))",
    "numpy": "import numpy as np\na = np.ones((60, 60))\nfor i in range(50): a @ a",
    "pool": "with Pool(2) as pool: list(pool.map(time.sleep, [0.001] * 8))",
    "threads": "for _ in range(4): await asyncio.to_thread(time.sleep, 0.001)",
    "input": "input('?')",
    "print": "for i in range(400): print(i, 'x' * 20)",
    "import": "import sys\nsys.modules.pop('cProfile', None); import cProfile, profile\n%time 1",
}
BEGINNING = (
    "import asyncio, time; from concurrent.futures import ThreadPoolExecutor as Pool; kept = 7"
)
ENDS = {"KeyboardInterrupt", "CancelledError"}
LATEST = 0.016  # seconds after which an interrupt comes


class Asked(NoListener):
    """A user who never answers; an interrupt ends the waiting."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def ask(self, prompt: str, password: bool) -> str:
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            if self._sandbox.interrupted:
                raise InputInterrupted
            time.sleep(0.0005)
        return "an answer"


def interrupt_many(sandbox: Sandbox, rounds: Iterable[int], seed: int) -> dict[str, int]:
    """Interrupts a cell in each round; the next must run. Returns how often each end came."""
    dice, ends = random.Random(seed), dict.fromkeys(["ended", *ENDS], 0)
    assert sandbox.execute(BEGINNING).success
    listener = Asked(sandbox)
    for number in rounds:
        kind = dice.choice(list(KINDS))
        timer = threading.Timer(dice.uniform(0, LATEST), sandbox.interrupt)
        timer.start()
        result = sandbox.execute(KINDS[kind], allow_stdin=True, listener=listener)
        timer.join()
        if result.error is None:
            ends["ended"] += 1
        else:
            assert result.error.ename in ENDS, (number, kind, result.error)
            ends[result.error.ename] += 1
        check = f"await asyncio.sleep(0); print(kept, {number}, asyncio.all_tasks() is None)"
        after = sandbox.execute(check if number % 2 else f"print(kept, {number}, False)")
        assert after.success, (number, kind, after.error)
        assert after.stdout == f"7 {number} False\n", (number, kind, after.stdout)
    return ends
