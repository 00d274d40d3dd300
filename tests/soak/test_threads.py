"""Random programs with threads print the same in a guest as in CPython, or are refused.

Workers run random statements at once, with waits of all kinds in them. A worker's notes depend on
its own statements alone, so that CPython prints the same each time.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from tests.faces import BEGINNING, error_of
from tests.sampled import lasting
from wasm_kernel import ExecutionPolicy, create_sandbox

pytestmark = pytest.mark.soak

DEEPEST = 3
REFUSALS = ("this would wait for ever", "waits where it can't be left")

BEGIN = """
import collections, concurrent.futures, contextlib, functools, queue, threading, time
notes, feeds = collections.defaultdict(list), collections.defaultdict(lambda: queue.Queue(1))
shared, gate, stop = threading.RLock(), threading.Condition(), threading.Event()
pool, total, ticks = concurrent.futures.ThreadPoolExecutor(3), 0, 0
def me(): return threading.current_thread().name
def note(value):
    notes[me()].append(value)
    return value
def size(value): return len(str(value))
def take(times=1): return sum([feeds[me()].get() for _ in range(times)])
def nap(value=0):
    time.sleep(0.001)
    return value
def late(value):
    time.sleep(0.001)
    return value + 1
def join(value):
    got = []
    thread = threading.Thread(target=lambda: got.append(late(value)))
    thread.start(); thread.join()
    return got[0]
def ring(value):
    rung = threading.Event()
    threading.Timer(0.001, rung.set).start()
    rung.wait()
    return value
def blink(value):
    event = threading.Event()
    watching = pool.submit(lambda: event.wait() and value)
    while not event._cond._waiters: time.sleep(0.001)
    event.set(); event.clear()
    return watching.result()
def tick(value):
    with gate:
        before = ticks
        gate.wait_for(lambda: ticks > before)
    return value
def meet(value):
    barrier = threading.Barrier(2)
    met = pool.submit(lambda: (barrier.wait(), value)[1])
    barrier.wait()
    return met.result()
def spin(value):
    done = []
    threading.Thread(target=lambda: done.append(late(value))).start()
    while not done: pass
    return done
def count(value):
    global total
    with shared:
        before = total
        total = nap(before) + 1
    return value
class Owner:
    def __init__(self, value): self.value = take()
    def get(self, more=0): return nap(self.value + more)
    @property
    def now(self): return take()
    def __call__(self, *values, **named): return ring((values, named))
def feed(name):
    number = 0
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            feeds[name].put(number, timeout=0.05)
            number += 1
def beat():
    global ticks
    while not stop.wait(0.002):
        with gate:
            ticks += 1
            gate.notify_all()
"""
WORKER = """
n, items, owner = 0, {}, Owner(0)
def made(n): yield take()
def inner(n): return take() + n
"""
END = """
names = [each.__name__ for each in workers]
threads = [threading.Thread(target=f, name=name) for f, name in zip(workers, names)]
helpers = [threading.Thread(target=feed, args=(name,)) for name in names]
helpers += [threading.Thread(target=beat)]
for each in helpers + threads: each.start()
for each in threads: each.join()
stop.set()
for each in helpers: each.join()
pool.shutdown()
for name in sorted(notes): print(name, notes[name])
print(total)
"""
VALUES = (
    *(
        "take()",
        "take(2)",
        "feeds[me()].get(timeout=30)",
        "nap(n)",
        "late(n)",
        "join(n)",
        "ring(n)",
    ),
    *(
        "tick(n)",
        "meet(n)",
        "pool.submit(spin, n).result()",
        "count(n)",
        "Owner(n).get()",
        "owner(n, more=note(n))",
        "n",
    ),
    *("owner.now", "blink(n)", "functools.partial(late, n)()", "[*made(n)]", "inner(n)"),
    *("owner.get(more=size({0}))", "pool.submit(late, size({0})).result()", "note({0})"),
    *("[{0} for _ in range(2)]", "({0}, {1})", "max([{0}, {1}], key=str)", "str({0}) + str({1})"),
    *("{{n: {0}, 'b': {1}}}", "(lambda a, b={0}: (a, b, {1}))(n)", "n == {0} or {1}"),
    *("({0} if {1} else n)", "sorted([2, 1], key=lambda k: (late(k), size({0})))"),
    *("list(map(note, [{0}, {1}]))",),
)
STATEMENTS = (
    *("n = size({v})", "note({v})", "n, _ = size({v}), {w}", "items[note(len(items))] = {v}"),
    "n += size({v})",
    "for k{i} in range(2):\n{b}",
    "for k{i} in range(3):\n    note(k{i})\n    if k{i} == 1: {jump}\n{b}\nelse: note('else')",
    "m{i} = 0\nwhile m{i} < 2:\n    m{i} += 1\n{b}",
    "with shared:\n{b}",
    "with contextlib.suppress(KeyError):\n{b}\n    raise KeyError({v})",
    "with contextlib.ExitStack() as stack:\n    stack.callback(note, 'end')\n{b}",
    "try:\n{b}\n    items[size({v}), 0]\nexcept KeyError as problem:\n{c}\nfinally: note({v})",
    "try: items[size({v}), 0]\nexcept (KeyError, TypeError) as problem: note((problem.args, {v}))",
    "try:\n{b}\nexcept KeyError: note('never')\nelse:\n{c}",
    "if note({v}):\n{b}\nelse:\n{c}",
    "def inner{i}(n, *more, m=0):\n{b}\n    return n\nnote(inner{i}(n, {v}))",
    "def made{i}(n):\n    yield {v}\n{b}\n    yield n\nfor k{i} in made{i}(n):\n{c}",
    "match {v}:\n    case [_, *rest]: note(rest)\n    case _: note({w})",
)


def value(dice: random.Random, depth: int) -> str:
    """Returns an expression."""
    inner = [value(dice, depth + 1) for _ in range(2)] if depth < DEEPEST else ["n", "2"]
    return dice.choice(VALUES).format(*inner)


def block(dice: random.Random, depth: int) -> str:
    """Returns some statements."""
    lines = []
    for _ in range(dice.randint(1, 2 if depth else 3)):
        chosen = dice.choice(STATEMENTS if depth < DEEPEST else STATEMENTS[:5])
        inner = {each: block(dice, depth + 1) if f"{{{each}}}" in chosen else "" for each in "bc"}
        parts = {each: indent(text, "    ") for each, text in inner.items()}
        parts |= {each: value(dice, depth + 1) for each in "vw"}
        jump = dice.choice(["break", "continue"])
        lines.append(chosen.format(**parts, i=dice.randrange(10**6), jump=jump))
    return "\n".join(lines)


def program(seed: int) -> str:
    """Returns a program of some workers."""
    dice = random.Random(seed)
    names = [f"worker{number}" for number in range(dice.randint(1, 3))]
    workers = [f"def {name}():" + indent(WORKER + block(dice, 0), "    ") for name in names]
    return "\n".join([BEGIN, *workers, f"workers = [{', '.join(names)}]", END])


def test_programs_with_threads_print_as_elsewhere_or_are_refused(tmp_path: Path) -> None:
    refused = 0
    policy = ExecutionPolicy(cell_timeout=60.0)
    with create_sandbox(workspace=tmp_path / "app", policy=policy) as sandbox:
        sandbox.checkpoint(BEGINNING)
        for seed in lasting(4):
            run = [sys.executable, "-c", program(seed)]
            elsewhere = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
            result = sandbox.execute(program(seed))
            said = result.stderr + error_of(result)
            is_refused = any(each in said for each in REFUSALS)
            assert is_refused or result.stdout == elsewhere.stdout, (seed, said, program(seed))
            refused += is_refused
            sandbox.restore(BEGINNING)
    print(f"{seed + 1} programs, {refused} refused")
