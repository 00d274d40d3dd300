"""A sandbox whose guest rests: its memory is freed, and its cells don't notice."""

from __future__ import annotations

import errno
import threading

import pytest

from tests.execution.conftest import Opening
from tests.faces import happens, says, wait_for
from tests.faults import Faults
from tests.private import private_of
from wasm_kernel import Sandbox

FAULTS = (
    "wasm_kernel.execution.session_guest:SessionGuest.rest",
    "wasm_kernel.linux.memory:read_ranges",
    "wasm_kernel.linux.memory:trim",
    "wasm_kernel.service.worker:_Worker._handle",
    "wasm_kernel.state.commits:write_content",
)
"""A worker that rests has called `trim` after its last message."""
VALUES = {"service__worker___QUIET_SECONDS": 0.02}
pytestmark = pytest.mark.usefixtures("faults")

BEFORE = """
import asyncio, os, time
g = (i for i in range(9)); next(g)
f = open('log', 'w+'); _ = f.write('ab'); f.flush(); f.seek(1)
gone = open('gone', 'w+'); _ = gone.write('still'); gone.flush(); os.remove('gone')
os.makedirs('below', exist_ok=True); os.chdir('below')
async def tick():
    await asyncio.sleep(0)
    ticked.append(1)
ticked = []
task = asyncio.ensure_future(tick())
began = time.monotonic()
"""
AFTER = """
await task
gone.seek(0)
print(next(g), f.read(), gone.read(), os.getcwd(), time.monotonic() - began >= 0.3, task.done())
"""


@pytest.fixture
def sandbox(opened: Opening) -> Sandbox:
    return opened()


def rests(faults: Faults) -> bool:
    """Returns whether the guest rests since the worker took its last message."""
    return faults["trim"].last > faults["_Worker._handle"].last


def rest(faults: Faults) -> None:
    """Waits until the guest rests."""
    wait_for(lambda: rests(faults), "a rest")


def stays_awake(faults: Faults) -> bool:
    return not happens(lambda: rests(faults), 0.2)


def test_a_guest_goes_on_after_a_rest_as_it_was(sandbox: Sandbox, faults: Faults) -> None:
    says(sandbox, BEFORE)
    rest(faults)
    log = sandbox.workspace / "log"
    log.rename(log.with_name("moved"))
    threading.Event().wait(0.3)
    assert says(sandbox, AFTER) == "1 b still /app/below True True"
    rest(faults)
    assert sandbox.query({"op": "is_complete", "code": "if x:"}).result()["status"] == "incomplete"
    says(sandbox, "_ = f.write('c'); f.close(); gone.close()")
    assert log.with_name("moved").read_text() == "abc"


def test_a_resting_session_is_undone_as_any(sandbox: Sandbox, faults: Faults) -> None:
    says(sandbox, "x = 1")
    says(sandbox, "x = 2")
    rest(faults)
    sandbox.undo()
    assert says(sandbox, "print(x)") == "1"


def test_functions_of_the_program_outlast_a_rest(sandbox: Sandbox, faults: Faults) -> None:
    def three() -> int:
        return 3

    says(sandbox, "x = 1")
    sandbox.checkpoint("start")
    sandbox.offer_functions([three])
    assert says(sandbox, "print(three())") == "3"
    sandbox.restore("start")  # memory without the function
    rest(faults)
    assert says(sandbox, "print(three(), x)") == "3 1"


def test_a_worker_that_would_rest_awaits_no_commit(sandbox: Sandbox, faults: Faults) -> None:
    """The worker's main thread asks. If it waited, it could not report that the worker is well."""
    says(sandbox, "x = 1")
    rest(faults)
    taken = faults["_Worker._handle"]
    with faults["read_ranges"].held() as wait_for_commit:
        sandbox.execute("x = 2")
        wait_for_commit()
        asked = faults["SessionGuest.rest"].calls
        wait_for(lambda: faults["SessionGuest.rest"].calls > asked)
        before = taken.calls
        cell = sandbox.submit("print(x)")
        wait_for(lambda: taken.calls > before)
        assert not cell.done()
    assert cell.result().stdout == "2\n"


def test_a_guest_does_not_rest_while_a_cell_runs_or_its_state_is_not_on_disk(
    sandbox: Sandbox, faults: Faults
) -> None:
    cell = sandbox.submit("open('begun', 'w').close(); import time; time.sleep(60)")
    wait_for((sandbox.workspace / "begun").exists)
    assert stays_awake(faults)
    sandbox.interrupt()
    cell.result()
    with faults["write_content"].on(errno.ENOSPC):
        sandbox.execute("x = 5")
        assert stays_awake(faults)
    assert says(sandbox, "print(x)") == "5"
    rest(faults)
    assert says(sandbox, "print(x)") == "5"


OPENS_WHEN_COMPLETED = """
class Opens:
    def __dir__(self):
        globals()['h'] = open('asked', 'w')
        return []
opens = Opens()
"""


def test_a_file_that_a_question_opened_bars_a_rest(sandbox: Sandbox, faults: Faults) -> None:
    says(sandbox, OPENS_WHEN_COMPLETED)
    rest(faults)
    sandbox.query({"op": "complete", "code": "opens.", "cursor_pos": 6}).result()
    assert stays_awake(faults)
    says(sandbox, "_ = h.write('a')")
    rest(faults)
    says(sandbox, "h.close()")


def test_a_state_that_was_lost_during_the_rest_is_told(sandbox: Sandbox, faults: Faults) -> None:
    says(sandbox, "x = 1")
    says(sandbox, "x = bytearray(range(256)) * 400")
    rest(faults)
    contents = private_of(sandbox.workspace) / "state" / "contents"
    max(contents.iterdir(), key=lambda one: one.stat().st_mtime_ns).unlink()
    result = sandbox.execute("print(x)")
    assert result.stdout == "1\n", result
    assert "can't be read any more" in result.stderr
