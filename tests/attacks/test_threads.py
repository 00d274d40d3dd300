"""Threads that a cell leaves behind, and whose waits fail whenever anything looks at them."""

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


def test_a_long_function_holds_up_no_sleep(victim: Victim) -> None:
    lines = "".join(f"        try: int({n})\n        except OSError: pass\n" for n in range(50))
    loop = f"def loop():\n    while True:\n{lines}        threading.Event().wait(1)"
    begun = "threading.Thread(target=loop, daemon=True).start()"
    took = "began = time.process_time(); time.sleep(0.001); print(time.process_time() - began)"
    assert float(victim.says(f"import threading, time\n{loop}\n{begun}\n{took}")) < 2
