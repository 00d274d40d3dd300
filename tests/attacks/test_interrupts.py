"""ATTACKS 1-4, 7, 8: an interrupt ends its cell, and no other cell."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.attacks.conftest import SMALL, Making, Victim
from tests.attacks.interrupting import interrupt_many
from tests.faces import PATIENCE, error_of
from tests.sampled import sampled
from wasm_kernel import BaseSandbox, NoListener, SandboxResult, create_sandbox
from wasm_kernel.guests.protocol import Output
from wasm_kernel.service.sandbox import Sandbox

BEGUN = "print('begun')\n"


def interrupt(victim: Victim, code: str) -> SandboxResult:
    """The result of a cell that is interrupted once, when its code runs."""
    return victim.run(BEGUN + code, interrupt="begun")


def ends_interrupted(victim: Victim, code: str, *names: str) -> None:
    """Check that an interrupt, and not the time limit, ends the cell, with one of these errors."""
    result = interrupt(victim, code)
    assert result.error is not None, code
    assert result.error.ename in (names or ("KeyboardInterrupt",)), (code, result.error)


def test_case_01_an_endless_loop_ends_as_an_error_that_the_cell_may_catch(victim: Victim) -> None:
    ends_interrupted(victim, "mine = []\nfor i in range(5): mine.append(i)\nwhile True: pass")
    assert victim.says("print(mine)") == "[0, 1, 2, 3, 4]"
    code = (
        "cleaned = False\ntry:\n  print('begun')\n  while True: pass\n"
        "except KeyboardInterrupt: print('caught')\nfinally: cleaned = True"
    )
    assert victim.run(code, interrupt="begun").stdout == "begun\ncaught\n"
    assert victim.says("print(cleaned)") == "True"


DESTROYED = {
    "destructor": "class A:\n  def __del__(self):\n    for i in range(1000): pass\nwhile True: A()",
    "callback": (
        "class A: pass\nimport weakref\ndef gone(r):\n  for i in range(1000): pass\n"
        "while True: a = A(); r = weakref.ref(a, gone); del a"
    ),
}


@pytest.mark.parametrize("code", sampled(DESTROYED, 2))
def test_case_01_an_interrupt_upon_a_destructor_is_not_lost(victim: Victim, code: str) -> None:
    for _ in range(3):
        result = interrupt(victim, code)
        assert error_of(result).startswith("KeyboardInterrupt:")
        assert "ignored" not in result.stderr


@pytest.mark.parametrize(
    "code",
    [
        "7**10**8",
        "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')",
        *(
            pytest.param(code, marks=pytest.mark.soak)
            for code in (
                "import numpy as np; a = np.ones((1500, 1500)); a @ a @ a @ a",
                "sorted(range(3 * 10**6, 0, -1), key=lambda x: -x)",
            )
        ),
    ],
)
def test_case_02_a_long_call_into_c_ends_within_its_grace(victim_of: Making, code: str) -> None:
    hurried = victim_of(grace_seconds=0.3)
    hurried.says("mine = 2")
    result = interrupt(hurried, code)
    if result.error is not None and result.error.ename != "KeyboardInterrupt":
        assert result.error.ename == "Interrupted"
        assert "variables are as they were" in result.error.evalue
    assert hurried.says("print(mine)") == "2"


def test_case_03_a_sleep_ends_at_once_and_at_the_cells_deadline(victim: Victim) -> None:
    victim.says("mine = 3")
    ends_interrupted(victim, "import time; time.sleep(3600)")
    assert victim.says("print(mine)") == "3"
    assert victim.fails("import time; time.sleep(3600)", timeout_seconds=0.3) == "CellTimeout"


def test_case_03_a_sleep_burns_no_fuel(warm_metered: None, victim_of: Making) -> None:
    metered = victim_of(fuel_budget=10**10)
    short = metered.run("import time; time.sleep(0.01)").fuel_consumed
    long = metered.run("import time; time.sleep(0.5)").fuel_consumed
    assert short is not None
    assert long is not None
    assert long < 1.2 * short


def test_case_04_loops_that_swallow_everything_end_at_the_second(victim_of: Making) -> None:
    hurried = victim_of(grace_seconds=0.3)
    hurried.says("mine = 4")
    code = (
        "while True:\n  try:\n    print('on')\n    while True: pass\n  except BaseException: pass"
    )
    result = hurried.run(code, interrupt="on")
    assert error_of(result).startswith("Interrupted:")
    assert "grace_seconds" in error_of(result)
    assert hurried.says("print(mine)") == "4"


def test_case_07_interrupt_while_idle_or_with_a_handler_of_an_earlier_cell(victim: Victim) -> None:
    victim.says("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    ends_interrupted(victim, "while True: pass")
    assert victim.sandbox.interrupt() is False
    assert victim.says("print('on')") == "on"


class Twice(NoListener):
    """Interrupts a cell twice when it prints; the guest waits until both interrupts are there."""

    def __init__(self, sandbox: BaseSandbox) -> None:
        self._sandbox = sandbox

    def emit(self, output: Output) -> None:
        self._sandbox.interrupt()
        self._sandbox.interrupt()


def test_case_07_two_interrupts_at_once_are_one(victim: Victim) -> None:
    result = victim.run(BEGUN + "while True: pass", listener=Twice(victim.sandbox))
    assert error_of(result).startswith("KeyboardInterrupt:")


def at_some_moment(victim: Victim, code: str, seconds: float) -> SandboxResult:
    """The result of a cell interrupted after this delay: before, during or after its run."""
    timer = threading.Timer(seconds, victim.sandbox.interrupt)
    timer.start()
    result = victim.run(code)
    timer.join()  # a late interrupt must not reach the next cell
    return result


def test_case_07_an_interrupt_at_any_moment_of_a_short_cell_hurts_no_other(victim: Victim) -> None:
    for i in range(12):
        result = at_some_moment(victim, f"{i}", i * 0.0025)
        assert result.error is None or result.error.ename == "KeyboardInterrupt"
        assert victim.says(f"print({i})") == str(i)


def test_case_07_a_queued_cell_is_interrupted_before_it_runs(victim: Victim) -> None:
    victim.says("ran = []")
    codes = ("import time; time.sleep(3600); ran.append(1)", "ran.append(2)")
    futures = [victim.sandbox.submit(code) for code in codes]
    victim.sandbox.interrupt()
    ends = [future.result(PATIENCE) for future in futures]
    assert [end.success for end in ends] == [False, True]
    assert victim.says("print(ran)") == "[2]"


@pytest.mark.parametrize("has_worker", [False, True])
def test_case_07_interrupts_while_guests_start_end_cells(tmp_path: Path, has_worker: bool) -> None:
    """Formerly, a worker that was not open yet lost its answer to an interrupted cell."""
    with create_sandbox(workspace=tmp_path, policy=SMALL) as starting:
        assert isinstance(starting, Sandbox)
        future = starting.submit("while True: pass")
        while has_worker and starting.worker.worker is None:
            time.sleep(0.001)
        assert starting.interrupt()
        assert error_of(future.result(PATIENCE)).startswith("KeyboardInterrupt:")
        Victim(starting).lives()


def test_case_07_interrupts_while_a_guest_comes_back_hurt_no_later_cell(victim: Victim) -> None:
    for delay in (0.001, 0.01, 0.03):
        at_some_moment(victim, "import os; os._exit(1)", delay)
        victim.lives()


def test_case_08_the_loop_works_after_an_interrupt(victim: Victim) -> None:
    interrupt(victim, "import asyncio; await asyncio.sleep(3600)")
    assert victim.says("import asyncio; await asyncio.sleep(0.01); print('on')") == "on"
    assert victim.says("asyncio.run(asyncio.sleep(0.01)); print('on')") == "on"


def test_f8_case_47_an_interrupt_at_any_moment_lets_the_next_cell_run(victim: Victim) -> None:
    """Formerly, a loop that no frame ran any more was "already running" for good."""
    interrupted, seed = 0, 8
    while interrupted < 8:  # the machine decides how many of them come in time
        interrupted += interrupt_many(victim.sandbox, range(20), seed)["KeyboardInterrupt"]
        seed += 1


SAYS_IT_RUNS = (
    "import asyncio\nmine, cells = asyncio.new_event_loop(), asyncio.get_event_loop()\n"
    "for loop in (mine, cells): loop._thread_id = 1; asyncio._set_running_loop(loop)"
)


def test_f8_loop_that_says_it_runs_while_no_frame_of_it_does_is_used_again(victim: Victim) -> None:
    victim.says(SAYS_IT_RUNS)
    assert victim.says("await asyncio.sleep(0)\nprint('awaited')") == "awaited"
    assert victim.says("print(mine.run_until_complete(asyncio.sleep(0, 'mine')))") == "mine"
    assert victim.says("print(asyncio.run(asyncio.sleep(0, 'run')))") == "run"
    victim.says(SAYS_IT_RUNS)
    assert victim.says("print(mine.run_until_complete(asyncio.sleep(0, 'at once')))") == "at once"


def test_f8_code_that_runs_beneath_a_loop_is_interrupted_at_once(victim: Victim) -> None:
    for code in (
        "import asyncio; asyncio.run(asyncio.sleep(3600))",
        "import asyncio\nasync def f():\n  while True: pass\nawait f()",
        "import asyncio\nasync def f():\n  while True: pass\nasyncio.run(f())",
        "import asyncio\nasync def f():\n  while True: await asyncio.sleep(0)\nawait f()",
        "import asyncio, time\nawait asyncio.to_thread(time.sleep, 3600)",
        (
            "from concurrent.futures import ThreadPoolExecutor as Pool\nimport time\n"
            "with Pool(2) as pool: list(pool.map(time.sleep, [3600] * 2))"
        ),
        "import asyncio, json\nasync def f():\n  while True: json.loads('[1]')\nawait f()",
        "import asyncio\nawait asyncio.gather(*[asyncio.sleep(3600) for i in range(99)])",
        "import asyncio\nasync with asyncio.TaskGroup() as g: g.create_task(asyncio.sleep(3600))",
    ):
        ends_interrupted(victim, code)


IN_LOCKS = """
import signal, threading
steps = []
source = "def take():\\n  signal.raise_signal(signal.SIGINT)\\n  steps.append('taken')"
exec(compile(source, threading.Condition.wait.__code__.co_filename, 'exec'))
try:
    take()
    for number in range(9): pass
    steps.append('went on')
except KeyboardInterrupt: print(steps)
"""


def test_f8_an_interrupt_leaves_no_lock_half_taken_and_is_not_dropped_by_c(victim: Victim) -> None:
    """Code of `threading` runs to its end first. Formerly, a lock could stay taken for ever."""
    assert victim.says(IN_LOCKS) == "['taken']"
    result = victim.run(DROPPED)
    assert error_of(result).startswith("KeyboardInterrupt:")
    assert result.stdout == ""
    victim.lives()


IN_A_LOOP = """
import asyncio, signal, threading
source = "def take(): signal.raise_signal(signal.SIGINT)"
exec(compile(source, asyncio.BaseEventLoop.run_forever.__code__.co_filename, 'exec'))
async def main():
    take()
    await asyncio.sleep(3600)
thread = threading.Thread(target=lambda: asyncio.run(main()))
thread.start()
thread.join()
"""


def test_f8_an_interrupt_in_asyncios_own_code_in_a_thread_is_not_lost(victim: Victim) -> None:
    """Formerly, the handler failed in the thread, and the cell went on."""
    result = victim.run(IN_A_LOOP)
    assert error_of(result).startswith("KeyboardInterrupt:")
    assert result.stderr.count("Traceback") == 0


def test_f8_a_pool_replaces_a_thread_that_an_interrupt_ends(victim: Victim) -> None:
    victim.says("import signal\nfrom concurrent.futures import ThreadPoolExecutor")
    result = victim.run(
        "pool = ThreadPoolExecutor(1)\npool.submit(signal.raise_signal, signal.SIGINT).result()"
    )
    assert error_of(result).startswith("KeyboardInterrupt:")
    assert victim.says("print(pool.submit(abs, -2).result())") == "2"


DROPPED = """
import _thread, collections, operator
files = [open('f', 'w')]
steps = [_thread.interrupt_main, files.clear]  # its warning drops the interrupt
collections.deque(map(operator.call, steps), maxlen=0)
for number in range(10**6): pass
print('went on')
"""


OUTLIVES = """
try:
    print('begun')
    while True: pass
except KeyboardInterrupt as interrupt:
    kept = interrupt.with_traceback(None)
class Late:
    def __del__(self): raise kept
"""


@pytest.mark.parametrize("code", ["del kept, Late", "late = Late(); del late"])
def test_an_interrupt_that_outlives_its_cell_ends_no_later_one(victim: Victim, code: str) -> None:
    """asyncio keeps some interrupts for later. Formerly, one in 10,000 ended the next cell."""
    victim.run(OUTLIVES, interrupt="begun")
    assert victim.says(f"{code}\nfor number in range(10**5): pass\nprint('went on')") == "went on"
