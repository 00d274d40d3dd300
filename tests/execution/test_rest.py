"""A sandbox whose guest rests: its memory is freed, and its cells don't notice."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

from tests.faces import PATIENCE, full_disk, open_files, says, wait_for
from tests.local import Inside, LocalSandbox
from wasm_kernel.linux import memory
from wasm_kernel.state.pages import Content

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
def sandbox(inside: Inside) -> LocalSandbox:
    return inside()


def rest(sandbox: LocalSandbox) -> None:
    """Lets the guest rest as soon as its last cell is on disk."""
    wait_for(sandbox.rest)
    assert sandbox.facts.all()["memory_bytes"] == 0


def test_a_guest_goes_on_after_a_rest_as_it_was(sandbox: LocalSandbox) -> None:
    says(sandbox, BEFORE)
    rest(sandbox)
    log = sandbox.workspace / "log"
    log.rename(log.with_name("moved"))
    threading.Event().wait(0.3)
    assert says(sandbox, AFTER) == "1 b still /app/below True True"
    rest(sandbox)
    assert sandbox.query({"op": "is_complete", "code": "if x:"}).result()["status"] == "incomplete"
    says(sandbox, "_ = f.write('c'); f.close(); gone.close()")
    assert log.with_name("moved").read_text() == "abc"


def test_a_resting_session_is_undone_as_any(sandbox: LocalSandbox) -> None:
    says(sandbox, "x = 1")
    says(sandbox, "x = 2")
    rest(sandbox)
    sandbox.undo()
    assert says(sandbox, "print(x)") == "1"


def test_a_request_to_rest_does_not_wait_for_a_commit(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's main thread asks. While it waited, it did not report that the worker is well."""
    says(sandbox, "x = 1")
    wait_for(sandbox.rest)
    copy, is_taken, goes_on, ended = memory.read_ranges, *(threading.Event() for _ in range(3))

    def copy_slowly(*args: Any) -> Content:
        is_taken.set()
        goes_on.wait(PATIENCE)
        ended.set()
        return copy(*args)

    monkeypatch.setattr(memory, "read_ranges", copy_slowly)
    sandbox.execute("x = 2")
    is_taken.wait()
    assert not sandbox.rest()
    assert not ended.is_set()
    goes_on.set()
    wait_for(sandbox.rest)
    assert says(sandbox, "print(x)") == "2"


def test_a_guest_does_not_rest_while_a_cell_runs_or_its_state_is_not_on_disk(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = sandbox.submit("import time; time.sleep(60)")
    assert not sandbox.rest()
    wait_for(sandbox.interrupt)
    wait([cell])
    with monkeypatch.context() as patch:
        patch.setattr("wasm_kernel.state.commits.write_content", full_disk)
        sandbox.execute("x = 5")
        wait_for(lambda: not sandbox.facts.all()["history_is_saved"])
        assert not sandbox.rest()
    assert says(sandbox, "print(x)") == "5"
    rest(sandbox)
    assert says(sandbox, "print(x)") == "5"


OPENS_WHEN_COMPLETED = """
class Opens:
    def __dir__(self):
        globals()['h'] = open('asked', 'w')
        return []
opens = Opens()
"""


def test_a_file_that_a_question_opened_keeps_a_guest_from_resting(sandbox: LocalSandbox) -> None:
    says(sandbox, OPENS_WHEN_COMPLETED)
    rest(sandbox)
    sandbox.query({"op": "complete", "code": "opens.", "cursor_pos": 6}).result()
    assert not sandbox.rest()
    says(sandbox, "_ = h.write('a')")
    rest(sandbox)
    says(sandbox, "h.close()")


def test_a_state_that_was_lost_during_the_rest_is_told(sandbox: LocalSandbox) -> None:
    says(sandbox, "x = 1")
    says(sandbox, "x = bytearray(range(256)) * 400")
    rest(sandbox)
    contents = Path(sandbox.folders.private_path, "state", "contents")
    max(contents.iterdir(), key=lambda one: one.stat().st_mtime_ns).unlink()
    result = sandbox.execute("print(x)")
    assert result.stdout == "1\n", result
    assert "can't be read any more" in result.stderr


def test_a_resting_guest_leaves_nothing_open_when_it_is_closed(inside: Inside) -> None:
    sandbox = inside("put-away")
    says(sandbox, "f = open('kept', 'w')")
    rest(sandbox)
    sandbox.close()
    assert not [path for path in open_files() if "put-away" in path]


def test_a_guest_with_a_file_without_a_name_does_not_go_on_in_another_process(
    sandbox: LocalSandbox,
) -> None:
    def may_sleep(code: str) -> bool:
        says(sandbox, code)
        sandbox.query({"op": "is_complete", "code": ""}).result()  # the cell is being kept by then
        sandbox.wait_written(PATIENCE)
        return sandbox.may_sleep()

    assert may_sleep("f = open('named', 'w')")
    assert not may_sleep("import os; os.remove('named')")
    assert may_sleep("f.close()")
