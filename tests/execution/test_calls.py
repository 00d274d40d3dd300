"""Cells from Python: awaited, cancelled, and limited for one call."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.execution.conftest import Opening
from tests.faces import PATIENCE, error_of, happens, says, wait_for
from tests.listening import Page
from wasm_kernel import BaseSandbox

ENDLESS = "begun = True\nprint('begun', flush=True)\nwhile True: pass"


async def test_wait_for_interrupts_its_cell_without_a_traceback(
    sandbox: BaseSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox.execute("kept = 5")
    with pytest.raises(TimeoutError):
        page = Page()
        cell = asyncio.wrap_future(sandbox.submit(ENDLESS, listener=page))
        assert await asyncio.to_thread(happens, lambda: page.heard)
        await asyncio.wait_for(cell, 0.05)
    assert says(sandbox, "print(kept, begun)") == "5 True"
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_a_cancelled_cell_that_waits_leaves_the_running_one_alone(sandbox: BaseSandbox) -> None:
    page = Page()
    code = (
        "import os, time\nprint('begun', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\nran = ['first']"
    )
    running = sandbox.submit(code, listener=page)
    waiting, last = sandbox.submit("ran.append('second')"), sandbox.submit("ran.append('third')")
    wait_for(lambda: page.heard)
    assert waiting.cancel()
    assert waiting.cancelled()
    (sandbox.workspace / "go").touch()
    assert running.result(PATIENCE).success
    assert last.result(PATIENCE).success
    assert says(sandbox, "print(ran)") == "['first', 'third']"


async def test_a_cancelled_aexecute_comes_back_when_the_cell_has_ended(
    sandbox: BaseSandbox,
) -> None:
    tidy = (
        "import time\ntry:\n  print('begun', flush=True)\n  while True: pass\n"
        "finally:\n  time.sleep(0.3); tidied = True"
    )
    page = Page()
    cell = asyncio.create_task(sandbox.aexecute(tidy, listener=page))
    assert await asyncio.to_thread(happens, lambda: page.heard)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cell, 0.05)
    assert not sandbox.busy
    assert (await sandbox.aexecute("print(tidied)")).stdout == "True\n"


async def test_aexecute_returns_results_and_raises_as_execute_does(sandbox: BaseSandbox) -> None:
    first, second = await asyncio.gather(
        sandbox.aexecute("a = 1"), sandbox.aexecute("print(a)", timeout_seconds=20)
    )
    assert (first.success, second.stdout) == (True, "1\n")
    with pytest.raises(ValueError, match="timeout"):
        await sandbox.aexecute("1", timeout_seconds=0)


def test_a_timeout_lowers_the_limit_of_one_call(sandbox: BaseSandbox) -> None:
    result = sandbox.execute("while True: pass", timeout_seconds=0.2)
    assert (error_of(result).partition(":")[0], result.success) == ("CellTimeout", False)
    assert [output.kind for output in result.outputs] == ["error"], "none of the interrupt too"
    assert "its limit of 0.2 seconds" in error_of(result)
    assert error_of(result).endswith("Raise timeout_seconds to allow more.")
    assert sandbox.execute("import time\ntime.sleep(0.3)").success


def test_a_timeout_never_raises_the_limit(opened: Opening) -> None:
    error = error_of(opened(cell_timeout=0.3).execute("while True: pass", timeout_seconds=60))
    assert "its limit of 0.3 seconds." in error
    assert error.endswith("Raise cell_timeout to allow more.")


@pytest.mark.parametrize("code", [None, 5, b"1"])
def test_code_that_is_not_text_is_misuse(sandbox: BaseSandbox, code: Any) -> None:
    with pytest.raises(TypeError, match="str"):
        sandbox.execute(code)
