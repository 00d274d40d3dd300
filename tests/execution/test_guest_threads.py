"""Threads of a guest, which run while something waits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.attacks.conftest import Victim
from tests.faces import PATIENCE, error_of, says
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
    "calls many functions deep": """
import threading, time
exec("".join(f"def f{n}(x): return f{n + 1}(x) + 1\\n" for n in range(300)))
def f300(x): return x
def g300(x): time.sleep(0.001); return x
exec("".join(f"def g{n}(x): return g{n + 1}(x) + 1\\n" for n in range(300)))
threads = [threading.Thread(target=lambda f=f: print(f(1))) for f in (f0, g0)]
for each in threads: each.start(); each.join()
""",
    "daemons without an end, in batches, and waits with a time": """
import queue, threading, time
q, stop = queue.Queue(), threading.Event()
def serve(name, *rest, step=1, **more):
    count = 0
    while True:
        item = q.get(
            timeout=None
        )
        count += step
        print(item * 2, name, rest, step, more, count)
        q.task_done()
def poll():
    while True: time.sleep(0.01)
def tick():
    while not stop.wait(0.01): pass
    print("stopped")
given = {"args": ("worker", 1), "kwargs": {"step": 2, "a": 3}}
threading.Thread(target=serve, daemon=True, **given).start()
poll, tick = (threading.Thread(target=f, daemon=True) for f in (poll, tick))
for each in (poll, tick): each.start()
for batch in (range(3), range(3, 6)):
    for item in batch: q.put(item)
    q.join()
poll.join(timeout=0.05)
print(poll.is_alive(), threading.Event().wait(0.05))
stop.set()
tick.join()
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
def run(loop):
    asyncio.set_event_loop(loop)
    loop.run_forever()
    print("loop ends")
loop = asyncio.new_event_loop()
thread = threading.Thread(target=run, args=(loop,), daemon=True)
thread.start()
for n in (1, 2): print(asyncio.run_coroutine_threadsafe(double(n), loop).result(timeout=60))
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
    "flags, looked at between sleeps": """
import queue, random, threading, time
done, stop, ticks, q = False, threading.Event(), 0, queue.Queue()
def work():
    global done
    time.sleep(0.05)
    done = True
def tick():
    global ticks
    while not stop.is_set():
        ticks += 1
        time.sleep(random.uniform(0.01, 0.02))
    print("stopped")
def spin(turns=0):
    while not stop.is_set():
        if not q.empty():
            print(q.get())
        turns += 1
spinning = threading.Thread(target=spin)
spinning.start()
time.sleep(0.05)
stop.set()
spinning.join()
stop.clear()
thread = threading.Thread(target=tick)
thread.start()
threading.Thread(target=work).start()
while not done: time.sleep(0.01)
while ticks < 3: time.sleep(0)
stop.set()
thread.join()
""",
    "ends in the queue, after it was empty": """
import queue, threading
q, found = queue.Queue(), []
class Worker(threading.Thread):
    def run(self):
        while self.step(): pass
    def step(self):
        item = q.get()
        if item is not None: found.append(item)
        q.task_done()
        return item is not None
workers = [Worker() for _ in range(3)]
for each in workers: each.start()
for item in range(5): q.put(item)
q.join()
for each in workers: q.put(None)
for each in workers: each.join()
print(sorted(found), any(each.is_alive() for each in workers))
""",
    "waits with a time, again and again": """
import queue, threading
q, stop = queue.Queue(), threading.Event()
def serve():
    while not stop.is_set():
        try: item = q.get(timeout=0.01)
        except queue.Empty: continue
        print(item)
        q.task_done()
thread = threading.Thread(target=serve)
thread.start()
for item in range(3): q.put(item)
q.join()
stop.set()
thread.join()
""",
    "daemons that catch everything": """
import queue, threading
q, other = queue.Queue(), queue.Queue()
def serve():
    while True:
        try:
            item = q.get()
            print(1 / item)
        except:
            print("caught") if q.unfinished_tasks else None
        finally:
            if q.unfinished_tasks: q.task_done()
def guard():
    while True:
        try: print(other.get())
        finally: other.task_done()
threading.Thread(target=serve, daemon=True).start()
for item in (1, 0, 2): q.put(item)
q.join()
threading.Thread(target=guard, daemon=True).start()
other.put(3)
other.join()
""",
    "a bounded queue, and turns": """
import queue, threading
q, ping, pong = queue.Queue(maxsize=1), threading.Semaphore(1), threading.Semaphore(0)
def produce():
    for item in range(4): q.put(item)
    q.put(None)
def consume():
    while (item := q.get()) is not None: print("got", item)
def turn(word, mine, other):
    n = 0
    while n < 3:
        mine.acquire()
        print(word, n)
        n += 1
        other.release()
threads = [threading.Thread(target=each) for each in (consume, produce)]
threads += [threading.Thread(target=turn, args=("ping", ping, pong))]
threads += [threading.Thread(target=turn, args=("pong", pong, ping))]
for pair in threads[:2], threads[2:]:
    for each in pair: each.start()
    for each in pair: each.join()
""",
    "timers": """
import threading, time
class Beat(threading.Timer):
    def run(self):
        while not self.finished.wait(self.interval): self.function()
beats = []
beat, rang = Beat(0.01, lambda: beats.append(1)), threading.Event()
beat.start()
threading.Timer(0.02, print, args=("in a sleep",)).start()
time.sleep(0.5)
beat.cancel()
print(len(beats) > 2)
threading.Timer(0.02, rang.set).start()
print(rang.wait(60))
never = threading.Timer(60, print, args=("never",))
never.start()
never.cancel()
never.join()
""",
    "pools": """
import concurrent.futures as futures, threading, time
local, made = threading.local(), []
def begin(word): local.word = word
def work(seconds):
    time.sleep(seconds)
    made.append(threading.current_thread().name)
    return seconds, local.word, threading.current_thread() is threading.main_thread()
with futures.ThreadPoolExecutor(3, "pool", initializer=begin, initargs=("w",)) as pool:
    begun = [pool.submit(work, seconds) for seconds in (0.9, 0.6, 0.3)]
    print([each.result() for each in futures.as_completed(begun)])
    print(sorted(made))
pool = futures.ThreadPoolExecutor(1, initializer=begin, initargs=("v",))
first, second = pool.submit(work, 0.3), pool.submit(work, 0)
try: first.result(timeout=0.05)
except TimeoutError as problem: print("late", first.running(), second.cancel())
print(first.result(), futures.wait([first, second]).not_done)
print(list(pool.map(divmod, [7, 8], [2, 3])), type(pool.submit(divmod, 1, 0).exception()))
pool.shutdown()
try: pool.submit(work, 0)
except RuntimeError as problem: print(problem)
""",
    "tasks that wait for threads": """
import asyncio, threading, time
def work(seconds, name):
    time.sleep(seconds)
    return name, threading.current_thread() is threading.main_thread()
async def main():
    slow, soon = asyncio.to_thread(work, 0.6, "slow"), asyncio.to_thread(work, 0.1, "soon")
    for each in asyncio.as_completed([slow, soon]): print(await each)
    try: await asyncio.wait_for(asyncio.to_thread(work, 0.5, "late"), timeout=0.1)
    except TimeoutError: print("timed out")
    print(await asyncio.get_running_loop().run_in_executor(None, work, 0, "executor"))
    done = []
    threading.Thread(target=lambda: done.append(1)).start()
    while not done: await asyncio.sleep(0)
asyncio.run(main())
""",
    "a loop in a thread, which waits with a time": """
import asyncio, queue, threading
q = queue.Queue()
async def get(): return await asyncio.wait_for(asyncio.to_thread(q.get), 60)
def run(): print(asyncio.run(get()))
threads = [threading.Thread(target=f) for f in (run, lambda: q.put(3))]
for each in threads: each.start()
for each in threads: each.join()
""",
    "values that were read before a wait": """
import queue, threading, time
total, sent, q = 1, 1, queue.Queue(maxsize=1)
q.put("full")
def late():
    time.sleep(0.3)
    return 1
def add():
    global total
    total = total + late()
def put(): q.put(sent)
def change():
    global total, sent
    time.sleep(0.1)
    total = sent = 100
    print(q.get(), q.get())
threads = [threading.Thread(target=each) for each in (put, add, change)]
for each in threads: each.start()
for each in threads: each.join()
print(total)
""",
    "loops, blocks and generators that wait side by side": """
import contextlib, threading, time
seen, lock, stop = [], threading.RLock(), threading.Event()
def count(name, seconds):
    for n in range(3):
        time.sleep(seconds)
        seen.append((name, n))
def slow():
    with lock, lock: stop.wait(0.2)
    try: 1 / 0
    except ZeroDivisionError as problem:
        time.sleep(0.1)
        print(problem, [stop.wait(n / 1000) for n in range(3)])
    finally: stop.wait(0.1)
def fast():
    for _ in range(1):
        with lock: print("inside")
def made():
    for n in range(2):
        stop.wait(0.01)
        yield n
class Meter(threading.Thread):
    def run(self):
        for n in range(3): self.update(n)
    def update(self, n):
        time.sleep(0.4)
        seen.append((self.name, n))
def drain(): print([*made()], sorted(made(), key=lambda n: stop.wait(0.01) or -n))
threads = [Meter(name="a"), threading.Thread(target=drain)]
for each in threads: each.start()
time.sleep(0.2)
threads += [threading.Thread(target=count, args=("b", 0.4))]
threads += [threading.Thread(target=f) for f in (slow, fast)]
for each in threads[2:]: each.start()
for each in threads: each.join()
print(seen)
""",
    "an event for a moment, a round of barriers, and a notice": """
import threading, time
ring, barrier, gate, seen = threading.Event(), threading.Barrier(3), threading.Condition(), []
def listen(): print("rung", ring.wait(60))
def meet(n):
    for turn in range(3):
        barrier.wait()
        seen.append(turn)
def enter():
    with gate: print(gate.wait_for(lambda: len(seen) == 10, 60))
threads = [threading.Thread(target=listen), threading.Thread(target=enter)]
threads += [threading.Thread(target=meet, args=(n,)) for n in range(3)]
for each in threads: each.start()
time.sleep(0.5)
ring.set(); ring.clear()
for each in (threads[0], *threads[2:]): each.join()
with gate: seen.append(3); gate.notify_all()
threads[1].join()
print(seen)
""",
    "loops without a wait": """
import threading, time
turns, done = 0, []
def spin():
    global turns
    while not done: turns += 1
def end(): done.append(1)
threads = [threading.Thread(target=spin) for _ in range(2)]
for each in threads: each.start()
time.sleep(0.05)
threads.append(threading.Thread(target=end))
threads[-1].start()
for each in threads: each.join()
print(turns > 0)
""",
    "names that are replaced during a wait": """
import queue, threading, time
q, found = queue.Queue(), []
def work(): found.append(q.get())
def call(): work()
threads = [threading.Thread(target=f) for f in (work, call)]
for each in threads: each.start()
time.sleep(0.2)
old, found = found, []
def work(): print("another")
q.put(1); q.put(2)
for each in threads: each.join()
print(old, found)
""",
    "code of the library, which may be left": """
import _pydecimal, argparse, ast, asyncio, io, logging, textwrap, threading, unittest
SOURCE = "with a as b: f(*c, **d)\\nfound = [each for each in f if f'{each!r:>5}']"
def fill(): return textwrap.fill(SOURCE, 20)
def unparse(): return ast.unparse(ast.parse(SOURCE))
def compute(): return str((_pydecimal.Decimal(2) / 7).exp())
def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int)
    return parser.parse_args(["-n", "3"])
def test():
    case = type("Case", (unittest.TestCase,), {"test_it": lambda self: 1 / 0})
    ran = unittest.defaultTestLoader.loadTestsFromTestCase(case).run(unittest.TestResult())
    return ran.errors[0][1].splitlines()[-1]
def gather():
    async def double(n):
        await asyncio.sleep(0.01 * n)
        return 2 * n
    async def main(): return await asyncio.wait_for(asyncio.gather(*map(double, (2, 0, 1))), 60)
    return asyncio.run(main())
def log():
    said = io.StringIO()
    logger = logging.Logger("one")
    logger.addHandler(logging.StreamHandler(said))
    logger.handlers[0].setFormatter(logging.Formatter("%(funcName)s %(message)s"))
    try: raise KeyError(1)
    except KeyError: logger.exception("two")
    return said.getvalue().splitlines()[0::100], said.getvalue().splitlines()[-1]
for each in (fill, unparse, compute, parse, test, gather, log):
    found = []
    thread = threading.Thread(target=lambda: found.append(each()))
    thread.start()
    thread.join()
    print(each.__name__, found == [each()])
print(found)
""",
    "lines that did something before they wait": """
import functools, queue, sys, threading
q, seen, errors = queue.Queue(), [], (KeyError, BaseException)
class Owner:
    errors = BaseException
    def catch(self):
        try: q.get()
        except self.errors: seen.append("caught")
    def made(self):
        seen.append("made")
        return self
    @property
    def queue(self):
        seen.append("queue")
        return q
    def __radd__(self, other):
        seen.append("added")
        return 60
    def get(self): return q.get()
owner, lists = Owner(), [[1], [2]]
def call_before(): owner.made().get()
def pop_before(): lists.pop().append(q.get())
def read_property(): owner.queue.get()
def add_before(): q.get(True, 0 + owner)
def catch_all():
    try: q.get()
    except errors: seen.append("caught")
def ask_unbound():
    q.get()
    try: print(later)
    except NameError: seen.append("unbound")
    later = 1
def ask_deleted():
    later = 1
    del later
    q.get()
    try: del later
    except NameError: seen.append("deleted")
def ask_names():
    q.get()
    seen.append(sorted(locals()))
    later = 1
def keep_frame():
    frame, n = sys._getframe(), 1
    q.get()
    n = 2
    seen.append(frame.f_locals["n"])
def trace():
    events = []
    sys.settrace(lambda frame, event, _: events.append(event))
    q.get()
    abs_of = (lambda n: n)(1)
    sys.settrace(None)
    seen.append(events[-1])
def item(n):
    q.get()
    seen.append(n)
for work in (call_before, pop_before, read_property, add_before, catch_all, owner.catch,
             ask_unbound, ask_deleted, ask_names, keep_frame, trace,
             functools.partial(list, map(item, "ab"))):
    threads = [threading.Thread(target=f) for f in (work, lambda: q.put(q.put(1)))]
    for each in threads: each.start()
    for each in threads: each.join()
    q.queue.clear()
print(seen, lists)
""",
    "functions that trace and profile": """
import sys, threading
seen = []
def note(frame, event, _):
    if frame.f_code.co_name in ("work", "main"): seen.append((event, frame.f_code.co_name))
    return note
def work(): return 1
def main():
    thread = threading.Thread(target=work); thread.start(); thread.join()
for change in threading.settrace, threading.setprofile, sys.settrace, sys.setprofile:
    change(note); main(); change(None)
    print(seen)
    seen.clear()
""",
    "waits in functions that compiled code calls": """
import contextvars, threading, time
variable, seen = contextvars.ContextVar("variable"), []
def key(n):
    seen.append(n)
    time.sleep(0.01)
    return -n
class Slow:
    def __init__(self): self.id, _ = id(self), time.sleep(0.01)
    @property
    def same(self):
        seen.append("same")
        time.sleep(0.01)
        return self.id == id(self)
def fall(n):
    if n: time.sleep(0.01)
    return n + fall(n - 1) if n else 0
def keep(n):
    inner = lambda: n
    n += 1
    time.sleep(0.01)
    n += 1
    seen.append(inner())
def work():
    print(sorted([1, 3, 2], key=key), max([1, 2], key=key))
    keep(1)
    slow = Slow()
    print(slow.same, fall(4))
    seen.append("a"); time.sleep(0.01); seen.append("b")
    seen.append(time.sleep(0.01) or "c")
    try:
        time.sleep(0.01)
        1 / 0
    except ZeroDivisionError as problem:
        time.sleep(0.01)
        print(problem.__context__, type(problem).__name__)
    finally:
        time.sleep(0.01)
        seen.append("finally")
    variable.set("mine")
    time.sleep(0.01)
    seen.append(variable.get())
threads = [threading.Thread(target=work), threading.Thread(target=time.sleep, args=(0.05,))]
for each in threads: each.start()
for each in threads: each.join()
print(seen, variable.get("none"))
""",
}


def test_the_first_thread_says_how_threads_run(sandbox: BaseSandbox) -> None:
    begun = "import threading; threading.Thread(target=lambda: print(1)).start()"
    first, second = (sandbox.execute(begun) for _ in range(2))
    assert (first.stdout, second.stdout) == ("1\n", "1\n")
    assert "no threads" in first.stderr
    assert second.stderr == ""


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_with_threads_print_as_elsewhere(module_sandbox: BaseSandbox, code: str) -> None:
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    result = module_sandbox.execute(code, timeout_seconds=2 * PATIENCE)
    assert (result.error, result.stdout.strip()) == (None, elsewhere.stdout.decode().strip())


def test_a_daemon_is_told_and_may_be_joined_later(module_sandbox: BaseSandbox) -> None:
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
def test_spoilt_thread_fails_in_its_own_cell_alone(module_sandbox: BaseSandbox, begun: str) -> None:
    module_sandbox.execute(f"{SPOILT}{begun}.start()")
    assert says(module_sandbox, "print('next')") == "next"


SHUT = """
import queue, threading, time
def wait_for(call):
    try: call()
    except queue.ShutDown: print("shut down")
empty, full = queue.Queue(), queue.Queue(1)
full.put(0)
threads = [threading.Thread(target=wait_for, args=(f,)) for f in (empty.get, lambda: full.put(1))]
for each in threads: each.start()
time.sleep(0.05)
empty.shutdown()
full.shutdown()
for each in threads: each.join(60)
"""


def test_waits_of_a_closed_queue_and_hopeless_ones_end(module_sandbox: BaseSandbox) -> None:
    assert says(module_sandbox, SHUT) == "shut down\nshut down"
    result = module_sandbox.execute(KEPT)
    assert result.stdout == ""
    assert "this would wait for ever" in result.stderr


KEPT = """
import queue, threading
q = queue.Queue()
def made():
    yield q.get()
def work(): print([*made()])
thread = threading.Thread(target=work)
thread.start()
thread.join(0.01)
q.put(1)
thread.join()
"""


WORKER = """
import queue, threading, time
q, found = queue.Queue(), []
def serve():
    count = 0
    while True:
        item = q.get()
        count += 1
        found.append((item, count))
        q.task_done()
threading.Thread(target=serve, daemon=True).start()
"""


def test_threads_that_wait_go_on_in_later_cells_and_back_with_them(sandbox: BaseSandbox) -> None:
    sandbox.execute(f"{WORKER}q.put(1)\nq.join()")
    sandbox.checkpoint("one")
    assert says(sandbox, "q.put(2); q.join(); print(found)") == "[(1, 1), (2, 2)]"
    sandbox.restore("one")
    assert says(sandbox, "q.put(3); q.join(); print(found)") == "[(1, 1), (3, 2)]"


def test_threads_that_wait_outlive_an_interrupt(sandbox: BaseSandbox) -> None:
    sandbox.execute(f"{WORKER}q.put(1)\nq.join()")
    waiting = "def rest(): time.sleep(600)\nthreading.Thread(target=rest).start()\n"
    result = Victim(sandbox).run(f"{waiting}print('begun'); rest()", interrupt="begun")
    assert error_of(result).startswith("KeyboardInterrupt")
    assert "did not run to the end" in result.stderr
    assert says(sandbox, "q.put(2); q.join(); print(found)") == "[(1, 1), (2, 2)]"


POOL = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
def spin():
    print("begun")
    while True: pass
pool.submit(spin).result()
"""


def test_a_pool_goes_on_after_an_interrupt(sandbox: BaseSandbox) -> None:
    result = Victim(sandbox).run(POOL, interrupt="begun")
    assert error_of(result).startswith("KeyboardInterrupt")
    assert says(sandbox, "print(pool.submit(abs, -1).result())") == "1"


LOOP = """
import threading, time
stop = threading.Event()
def beat():
    while not stop.is_set(): time.sleep(0.05)
    print("stopped")
thread = threading.Thread(target=beat, name="beat")
thread.start()
"""


def test_a_loop_may_be_stopped_in_a_later_cell(sandbox: BaseSandbox) -> None:
    assert "beat did not run to the end" in sandbox.execute(LOOP).stderr
    assert sandbox.execute("1").stderr == ""
    assert says(sandbox, "stop.set(); thread.join(); print(thread.is_alive())") == "stopped\nFalse"
