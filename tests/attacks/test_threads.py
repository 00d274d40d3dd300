"""Threads whose waits fail whenever anything looks at them, and calls that threads make."""

from __future__ import annotations

import pytest

from tests.attacks.conftest import Victim

QUEUE = """
import queue, threading, time
class Spoilt(queue.Queue):
    problem = None
    def _qsize(self):
        if self.problem: raise self.problem
        return 0
spoilt = Spoilt()
def wait(): spoilt.get()
left = threading.Thread(target=wait, daemon=DAEMON)
left.start()
time.sleep(0.01)
spoilt.problem = PROBLEM
"""
TIMER = """
import threading, time
left = threading.Timer(60, print)
left.start()
"""
WAIT = """
import threading, time
class Spoilt(float):
    def __radd__(self, _): return self
    def __lt__(self, _): raise ValueError
    def __ge__(self, _): raise ValueError
left = threading.Thread(target=threading.Event().wait, args=(SECONDS,))
left.start()
"""
LEFT = {
    "queue": QUEUE.replace("DAEMON", "False").replace("PROBLEM", "ValueError('spoilt')"),
    "daemon": QUEUE.replace("DAEMON", "True").replace("PROBLEM", "ValueError('spoilt')"),
    "exit": QUEUE.replace("DAEMON", "False").replace("PROBLEM", "SystemExit('spoilt')"),
    "timer": f"{TIMER}del left.finished",
    "event": f"{TIMER}del left.finished._flag",
    "method": f"{TIMER}left.finished.is_set = lambda: 1 / 0",
    "seconds": WAIT.replace("SECONDS", "Spoilt(1)"),
    "nan": WAIT.replace("SECONDS", "float('nan')"),
}


@pytest.mark.parametrize("code", LEFT.values(), ids=LEFT)
def test_a_spoilt_wait_fails_no_later_cell(victim: Victim, code: str) -> None:
    victim.run(code)
    for later in ("print('next')", "time.sleep(0.01); print('next')"):
        assert victim.says(later) == "next"


def test_threads_call_as_cells_do_and_nothing_lengthens_their_waits(victim: Victim) -> None:
    lines = "".join(f"        try: int({n})\n        except OSError: pass\n" for n in range(50))
    loop = f"def loop():\n    while True:\n{lines}        threading.Event().wait(1)"
    begun = "threading.Thread(target=loop, daemon=True).start()"
    took = "began = time.process_time(); time.sleep(0.001); print(time.process_time() - began)"
    assert float(victim.says(f"import threading, time\n{loop}\n{begun}\n{took}")) < 2
    begun = "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()"
    frozen = "with mock.patch('time.monotonic', return_value=5.0): time.sleep(0.02); print('cell')"
    code = f"import threading, time\nfrom unittest import mock\n{begun}\n{frozen}"
    assert victim.says(code).split() == ["cell", "thread"]
    victim.run("time.monotonic = lambda: 1 / 0")
    assert victim.says("time.sleep(0.01); print('next')") == "next"
    assert victim.says(CALLS) == "[] 0"


CALLS = """
import contextvars, functools, inspect, re, sys, threading, time, traceback, types, warnings
def tell(given): return given
class Static:
    __call__ = staticmethod(lambda *given: ("static", tell(given)))
class OfClass:
    __call__ = classmethod(lambda cls, *given: ("class", cls.__name__, tell(given)))
class Meta(type):
    def __call__(cls, *given): return "meta", cls.__name__, super().__call__(*given).given
class Made(metaclass=Meta):
    def __init__(self, *given): self.given = given
class Partial:
    def call(self, *given): return type(self).__name__, tell(given)
    part = functools.partialmethod(call, 1)
    __call__ = part
class Deep:
    __call__ = Static()
class Property:
    @property
    def __call__(self): return lambda *given: ("property", tell(given))
class New:
    def __new__(cls, *given): return "new", tell(given)
class Own:
    def __call__(self, *given): return "own", tell(given)
own = Own(); own.__call__ = lambda *given: "instance"
class Get:
    def __get__(self, owner, kind): return lambda *given: ("got", owner is not None, tell(given))
class Got:
    method = Get()
    __call__ = Get()
def plain(*given, key=None): return "plain", tell(given), key
def deep(number): return number if not number else deep(number - 1)
@functools.wraps(plain)
def wrapped(*given): return "wrapped", plain(*given)
@functools.cache
def cached(*given): return "cached", tell(given)
@functools.singledispatch
def single(*given): return "any", tell(given)
single.register(int)(lambda *given: ("int", tell(given)))
class Sub(Static):
    def __call__(self, *given): return "sub", super().__call__(*given)
def caller(): return tell(sys._getframe(1).f_code.co_name), inspect.stack()[1].function
def fails(*given):
    try:
        try: return tell([])[tell(given)[0]]
        finally: tell(given)
    except IndexError as problem:
        raise KeyError(tell(given)) from problem
def warns(*given):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        warnings.warn(str(tell(given)), stacklevel=1)
    return [(each.lineno, str(each.message)) for each in heard]
class Counted:
    total = 0
    def __call__(self, *given):
        self.total = self.total + 0 if given else 0
        while self.total < 5:
            self.total += tell(1)
            if self.total == 3: continue
        else: return "ended", self.total
class Closing:
    def __init__(self, number): self.number = number
    def __enter__(self): return tell(self)
    def __exit__(self, kind, problem, trace): return tell(kind) is ZeroDivisionError
    def both(self, *given, scale=2):
        with self as one, Closing(scale) as two:
            found = [one.number * each + two.number for each in given]
            return found if given else tell(1) / 0
def numbers(most):
    for each in range(most):
        yield tell(each)
def nested(*given):
    seen = []
    def add(each):
        nonlocal given
        given = (*given, tell(each))
        seen.append(each)
        return locals().keys(), __name__
    return [add(each) for each in given], given, seen, {**{str(k): tell(k) for k in seen}}
def finds():
    for each in range(3):
        if tell(each) == 1: break
    else: each = 7
    match tell({"a": [1, 2]}):
        case {"a": [first, *rest]}: return each, first, rest, f"{tell(3.14159):>{tell(9)}.2f}"
calls = [
    Static(), OfClass(), Made, Partial(), Partial().part, Deep(), Property(), New, own, Got(),
    Got().method, plain, wrapped, cached, single, Sub(), functools.partial(plain, 1, key=2),
    functools.partial(Static(), 5), functools.partial(functools.partial(OfClass(), 1), 2),
    types.MethodType(plain, 3), types.MethodType(Static(), 3), lambda *given: deep(5),
    lambda *given: [*map(Static(), given)], lambda *given: sorted(given, key=lambda each: -each),
    lambda *given: contextvars.copy_context().run(Static(), *given), "".join, int, type, len, dict,
    lambda *given: plain(*given, **{"key": 4}), lambda *given: max(given, default=0),
    lambda *given: type("T", (), {"f": plain})().f(*given)[0], lambda *given: [*(x for x in given)],
    lambda *given: caller(), lambda *given: fails(*given), lambda *given: warns(*given), Counted(),
    Closing(1).both, lambda *given: [*numbers(3)], lambda *given: nested(*given), lambda: finds(),
]
def outcome(call, *given):
    try: found = call(*given)
    except Exception as problem:
        lines = [(each.name, each.line) for each in traceback.extract_tb(problem.__traceback__)]
        found = type(problem).__name__, str(problem), type(problem.__context__), lines[1:]
    return re.sub("0x[0-9a-f]+", "", str(found))
def work(found):
    time.sleep(0.001)
    for each in calls: found.append((outcome(each), outcome(each, 3), outcome(each, 3, 4)))
direct, threaded = [], []
work(direct)
thread = threading.Thread(target=work, args=(threaded,)); thread.start(); thread.join()
other = [(str(calls[n]), *two) for n, two in enumerate(zip(direct, threaded)) if two[0] != two[1]]
print(other, len(threaded) - len(direct))
"""
