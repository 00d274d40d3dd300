"""The timeline of a session whose worker lies."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from tests.faces import PATIENCE
from wasm_kernel.frontends.jupyter.timeline import TARGET, KernelTimeline
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import Checkpoint, CommMessage, Ran
from wasm_kernel.service.messages import States


def state(one: int, parent: int) -> Checkpoint:
    return Checkpoint("", one, f"cell {one}", 0.0, 1, one == 1, one, parent)


def test_a_circle_of_states_holds_up_no_kernel() -> None:
    told: asyncio.Queue[CommMessage] = asyncio.Queue()

    def call(request: object) -> Future[Any]:
        future: Future[Any] = Future()
        states = [state(1, 2), state(2, 1), state(3, 99)]
        future.set_result(States(states, 77, {1: Ran(sent=True), 5: Ran()}, saved=True))
        return future

    async def tree() -> Any:
        sandbox: Any = SimpleNamespace(call=call, policy=ExecutionPolicy())
        timeline = KernelTimeline(sandbox, lambda parent, message: told.put_nowait(message))
        timeline.answer({}, CommMessage("open", "view", target_name=TARGET))
        return (await asyncio.wait_for(told.get(), PATIENCE)).data

    trees: list[Any] = []
    thread = threading.Thread(target=lambda: trees.append(asyncio.run(tree())), daemon=True)
    thread.start()  # a loop without an end fails this test alone
    thread.join(PATIENCE)
    [found] = trees
    assert [each["id"] for each in found["states"]] == [1, 2, 3]
    assert (found["here"], found["redo"]) == (1, 0)
    assert [each["sent"] for each in found["states"]] == [True, False, False]
