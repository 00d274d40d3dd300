"""Tasks and executors in a guest that has one thread and does not run between cells."""

from __future__ import annotations

import re

from tests.faces import PATIENCE, error_of
from wasm_kernel import BaseSandbox

STEPS = """
import asyncio
pause = 1.0  # seconds: a cell that begins a task ends before
async def work(n):
    for i in range(n):
        print("step", i)
        await asyncio.sleep(pause)
    return n
"""
WAITING = "a task is still waiting"


def test_a_cell_without_await_can_begin_a_task(sandbox: BaseSandbox) -> None:
    begun = sandbox.execute(STEPS + "task = asyncio.create_task(work(3))")
    assert begun.success
    assert begun.stdout == "step 0\n"
    assert WAITING in begun.stderr
    ended = sandbox.execute("pause = 0; await task")
    assert ended.stdout == "step 1\nstep 2\n"
    assert ended.outputs[0].data["text/plain"] == "3"


def test_a_task_that_needs_no_waiting_is_done_within_the_cell(sandbox: BaseSandbox) -> None:
    sandbox.execute(STEPS + "async def quick(): print('done')")
    result = sandbox.execute("task = asyncio.create_task(quick())")
    assert (result.stdout, result.stderr) == ("done\n", "")


def test_a_timer_that_is_due_fires_with_the_next_cell(sandbox: BaseSandbox) -> None:
    sandbox.execute(STEPS + "task = asyncio.create_task(work(2))")
    assert "step 1" in sandbox.execute("import time; time.sleep(1.1)").stdout


def test_the_notice_about_tasks_is_given_once(sandbox: BaseSandbox) -> None:
    sandbox.execute(STEPS + "task = asyncio.create_task(work(50))")
    assert WAITING not in sandbox.execute("other = asyncio.create_task(work(50))").stderr


def test_a_task_that_never_waits_does_not_hold_up_its_cell(sandbox: BaseSandbox) -> None:
    code = "async def spin():\n    while True: await asyncio.sleep(0)\n"
    code += "task = asyncio.create_task(spin())"
    assert sandbox.execute(STEPS + code, timeout_seconds=PATIENCE).success


def test_asyncio_run_still_works_in_a_cell_and_asks_a_policy(sandbox: BaseSandbox) -> None:
    assert sandbox.execute(STEPS + "asyncio.run(work(1))").outputs[0].data["text/plain"] == "1"
    assert sandbox.execute("await work(1)").success
    sandbox.execute("async def two():\n    await asyncio.sleep(0)\n    yield 2")
    assert sandbox.execute("[n async for n in two()]").outputs[0].data["text/plain"] == "[2]"
    assert sandbox.execute(POLICY).stdout == "asked\n"
    assert sandbox.execute("await asyncio.sleep(0)\nprint('on')").stdout == "on\n"


POLICY = """
import asyncio, warnings
warnings.simplefilter("ignore")
class Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self):
        print("asked")
        return super().new_event_loop()
asyncio.set_event_loop_policy(Policy())
asyncio.run(asyncio.sleep(0))
"""


POOL = """
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
ready = []
with ThreadPoolExecutor(4, initializer=ready.append, initargs=(1,)) as pool:
    squares = list(pool.map(lambda n: n * n, range(4)))
    futures = [pool.submit(divmod, 1, n) for n in (0, 1)]
    outcomes = [type(f.exception()).__name__ for f in as_completed(futures)]
squares, sorted(outcomes), ready
"""


def test_an_executor_says_once_how_threads_run(sandbox: BaseSandbox) -> None:
    result = sandbox.execute(POOL)
    told = "([0, 1, 4, 9], ['NoneType', 'ZeroDivisionError'], [1, 1, 1, 1])"
    assert result.outputs[0].data["text/plain"] == told
    assert result.stderr.count("no threads") == 1
    assert sandbox.execute(POOL).stderr == ""


PROCESSES = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.pool import ThreadPool
def least(some): some.sort(); return some[0]
def root(n): return (n ** 0.5).hex() if n >= 0 else 1 / 0
some = [3, 1]
with ProcessPoolExecutor(2) as pool:
    print(*pool.map(divmod, [7, 8], [2, 3], chunksize=2), pool.submit(least, some).result(), some)
    print(type(pool.submit(root, -1).exception()).__name__, pool.submit(lambda: 1).exception())
with multiprocessing.Pool(3) as pool:
    print(pool.map(least, [[2, 1], [5]]), pool.starmap(pow, [(2, 3)]), *pool.imap(abs, [-1]))
    print(pool.apply(least, [some]), some, pool.map_async(abs, [-4], callback=print).get(timeout=1))
    try: pool.map(root, [1, -1])
    except ZeroDivisionError as problem: print(problem)
print(ThreadPool(2).apply(least, [some]), some)
"""
MADE_AT_ONCE = """\
(3, 1) (2, 2) 1 [3, 1]
ZeroDivisionError Can't pickle
[1, 5] [8] 1
[4]
1 [3, 1] [4]
division by zero
1 [1, 3]
"""


def test_pools_of_processes_make_their_calls_with_copies(sandbox: BaseSandbox) -> None:
    result = sandbox.execute(PROCESSES)
    assert re.sub("(pickle) .*", r"\1", result.stdout) == MADE_AT_ONCE, result.error
    for once in ("no processes", "side by side: ThreadPool"):
        assert result.stderr.count(once) == 1
    assert sandbox.execute(PROCESSES).stderr == ""


def test_objects_that_only_processes_share_are_refused(module_sandbox: BaseSandbox) -> None:
    for code in ("multiprocessing.Process(target=print).start()", "multiprocessing.Queue()"):
        assert "no processes" in error_of(module_sandbox.execute("import multiprocessing\n" + code))
