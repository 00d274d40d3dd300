"""Threads of a guest, which run one after another, where something waits for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faces import says
from wasm_kernel import BaseSandbox

PROGRAMS = {
    "joined": """
import threading, time
found, lock = [], threading.Lock()
def work(n):
    me = threading.current_thread()
    with lock: found.append((n, me.name, threading.get_ident() == me.ident))
t = [threading.Thread(target=work, args=(n,), name=f"t{n}") for n in range(3)]
for each in t: each.start()
while any(each.is_alive() for each in t): time.sleep(0.01)
for each in t: each.join(timeout=1)
try: t[0].start()
except RuntimeError as problem: print(problem)
print(found, threading.current_thread() is threading.main_thread())
""",
    "a consumer before its producer": """
import queue, threading
q = queue.Queue(maxsize=2)
def consume():
    while (item := q.get()) is not None: print("got", item)
def produce():
    for item in (1, None): q.put(item)
threads = [threading.Thread(target=f) for f in (consume, produce)]
for each in threads: each.start()
for each in threads: each.join()
""",
    "daemons without an end": """
import queue, threading, time
q = queue.Queue()
def serve():
    while True:
        print(q.get() * 2)
        q.task_done()
def poll():
    while True: time.sleep(0.01)
def tick(never=threading.Event()):
    while not never.wait(0.01): pass
for f in (poll, tick, serve): threading.Thread(target=f, daemon=True).start()
for item in range(3): q.put(item)
q.join()
""",
    "a loop until it is stopped": """
import threading
stop = threading.Event()
def turn():
    while not stop.wait(0.01): pass
    print("stopped")
thread = threading.Thread(target=turn)
thread.start()
stop.set()
thread.join()
""",
    "waits with a time, beside a daemon": """
import threading, time
def beat():
    while True: time.sleep(0.01)
beats = threading.Thread(target=beat, daemon=True)
beats.start()
print(beats.is_alive())
beats.join(timeout=0.05)
print(threading.Event().wait(0.05))
""",
    "a barrier, a local, and an error": """
import threading
barrier, local, met = threading.Barrier(2), threading.local(), {}
local.n = "main"
def meet(n):
    was_there = hasattr(local, "n")
    local.n = n
    barrier.wait()
    met[n] = was_there, local.n
    if n: 1 / 0
threading.excepthook = lambda told: print(told.exc_type.__name__, told.thread.name)
threads = [threading.Thread(target=meet, args=(n,), name=str(n)) for n in (0, 1)]
for each in threads: each.start()
for each in threads: each.join()
threading.excepthook = threading.__excepthook__
print(sorted(met.items()), local.n)
""",
    "a loop in a thread": """
import asyncio, threading
async def double(n):
    await asyncio.sleep(0.01)
    return 2 * n
loop = asyncio.new_event_loop()
thread = threading.Thread(target=loop.run_forever, daemon=True)
thread.start()
for n in (1, 2): print(asyncio.run_coroutine_threadsafe(double(n), loop).result(5))
loop.call_soon_threadsafe(loop.stop)
thread.join()
inner = threading.Thread(target=lambda: print(asyncio.run(double(3))))
async def outer():
    inner.start()
    inner.join()
    await asyncio.sleep(0)
    print(asyncio.current_task() is not None, thread.is_alive())
asyncio.run(outer())
""",
    "not waited for": """
import threading
class Inner(threading.Thread):
    def run(self): print("inner")
class Outer(threading.Thread):
    def run(self):
        print("outer")
        Inner().start()
Outer().start()
timer = threading.Timer(1000, print)
timer.start()
timer.cancel()
""",
}


def test_the_first_thread_says_how_threads_run(sandbox: BaseSandbox) -> None:
    begun = "import threading; threading.Thread(target=lambda: print(1)).start()"
    first, second = (sandbox.execute(begun) for _ in range(2))
    assert (first.stdout, second.stdout) == ("1\n", "1\n")
    assert "no threads" in first.stderr
    assert second.stderr == ""


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_with_threads_print_what_they_print_elsewhere(
    module_sandbox: BaseSandbox, code: str
) -> None:
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert says(module_sandbox, code) == elsewhere.stdout.decode().strip()


def test_a_daemon_that_nothing_waited_for_is_told_and_may_be_joined_later(
    module_sandbox: BaseSandbox,
) -> None:
    begun = "import threading\ndef f(): print('ran')\nt = threading.Thread(target=f, daemon=True)"
    left = module_sandbox.execute(f"{begun}; t.start(); print(t.name)")
    assert f"{left.stdout.strip()} did not run" in left.stderr
    assert says(module_sandbox, "t.join()") == "ran"


SPOILT = """
import threading
class Spoilt(threading.Timer):
    name = property(lambda self: 1 / 0)
    def __init__(self, *given):
        super().__init__(1, lambda: None)
        if given: self.finished = None
"""


@pytest.mark.parametrize("begun", ["Spoilt()", "Spoilt(1)"])
def test_a_spoilt_thread_fails_in_its_own_cell_alone(
    module_sandbox: BaseSandbox, begun: str
) -> None:
    module_sandbox.execute(f"{SPOILT}{begun}.start()")
    assert says(module_sandbox, "print('next')") == "next"


KEPT_OUT = """
import threading
lock, stop, inside = threading.RLock(), threading.Event(), []
def slow():
    with lock, lock: stop.wait(0.1)
def fast():
    with lock: inside.append(1)
threads = [threading.Thread(target=f) for f in (slow, fast)]
for each in threads: each.start()
for each in threads: each.join()
print(inside)
"""


def test_a_thread_never_shares_a_lock_with_one_that_waits(module_sandbox: BaseSandbox) -> None:
    result = module_sandbox.execute(KEPT_OUT)
    assert result.stdout.strip() == "[]"
    assert "this would wait for ever" in result.stderr
