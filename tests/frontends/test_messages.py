"""Turns the sandbox's outputs into Jupyter's messages, whatever a hostile guest puts in."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.faces import PATIENCE
from wasm_kernel.errors import CompileError
from wasm_kernel.frontends.jupyter.app import WasmKernelApp
from wasm_kernel.frontends.jupyter.page import Page, header_of
from wasm_kernel.frontends.jupyter.timeline import TARGET, KernelTimeline
from wasm_kernel.kernels import messages
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.cleaner import Cleaner
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import CellError, Checkpoint, CommMessage, Ran, SandboxResult
from wasm_kernel.service.messages import States

SAFELY = Cleaner(Mode.SAFE)


def result(error: CellError | None = None, **reply: Any) -> SandboxResult:
    return SandboxResult(
        error is None, "", "", 0, error, None, 0, 0.0, (), (), (), Path(), (), reply
    )  # fmt: skip


def test_a_reply_keeps_its_shape_whatever_the_guest_answered() -> None:
    reply = messages.execute_reply(result(user_expressions=[1], payload={"a": 1}), 4, SAFELY)
    assert reply == {"status": "ok", "execution_count": 4, "user_expressions": {}, "payload": []}


@pytest.mark.parametrize(
    ("problem", "name", "words"),
    [
        (CompileError("It does not compile."), "CompileError", "It does not compile."),
        (
            PermissionError(13, "Permission denied", "/a/path/of/the/host"),
            "PermissionError",
            "The sandbox could not be started: Permission denied.",
        ),
        (LookupError("/a/path"), "LookupError", "The kernel failed in a way that it never should"),
    ],
)
def test_why_a_start_failed_is_told_in_words(problem: Exception, name: str, words: str) -> None:
    error = messages.of_problem(problem)
    assert error.ename == name
    assert error.evalue.startswith(words)
    assert "/a/path" not in error.evalue


@pytest.mark.parametrize("value", ["x", [1], {"ename": 1}, None, {"status": "ok", "data": 3}])
def test_a_malformed_user_expression_does_no_harm(value: Any) -> None:
    reply = messages.execute_reply(result(user_expressions={"it": value}), 1, SAFELY)
    assert reply["user_expressions"]["it"]["status"] in ("ok", "error")


@pytest.mark.parametrize(
    "item", [1, {}, {"source": "edit_magic", "filename": "x"}, {"source": ["page"]}]
)
def test_an_unknown_payload_is_dropped(item: Any) -> None:
    assert messages.payloads([item], SAFELY, lambda: False) == []


def test_payloads_are_capped_in_number_and_size() -> None:
    text = "x" * (messages.PAYLOAD_CHARACTERS + 1)
    many = [{"source": "set_next_input", "text": text}] * 100
    found = messages.payloads(many, SAFELY, lambda: False)
    assert len(found) == messages.PAYLOADS
    assert found[0]["text"].endswith("[cut: it is longer than a cell may send]")


@pytest.mark.parametrize("count", [True, -1, "3", 2**60, None, 1.5])
def test_an_invalid_count_is_not_believed(count: Any) -> None:
    assert messages.count_of({"execution_count": count}) is None


def test_only_known_kinds_of_completions_pass() -> None:
    types = [{"text": "a\x07", "type": "function", "start": 0, "label": "<img src=x>"}, 7]
    hostile = {"matches": ["a"], "metadata": {"_jupyter_types_experimental": types, "x": "<b>"}}
    metadata = messages.complete_reply(hostile, 1)["metadata"]
    assert metadata["_jupyter_types_experimental"][0] == {
        "text": "a", "type": "function", "signature": "", "start": 0
    }  # fmt: skip
    assert set(metadata) == {"_jupyter_types_experimental"}


def test_the_guest_is_told_a_messages_name_and_not_who_sent_it() -> None:
    header = {"msg_id": "m", "msg_type": "comm_msg", "username": "ada", "session": "s", "date": 1}
    assert header_of({"header": header}) == {"msg_id": "m", "msg_type": "comm_msg"}
    assert header_of({}) == {}


def state(one: int, parent: int) -> Checkpoint:
    return Checkpoint("", one, f"cell {one}", 0.0, 1, one == 1, one, parent)


def tree_of(states: States) -> Any:
    """The tree that a view gets when a worker has these states."""
    told: asyncio.Queue[CommMessage] = asyncio.Queue()

    def call(request: object) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(states)
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
    return trees[0]


def test_a_circle_of_states_holds_up_no_kernel() -> None:
    states = [state(1, 2), state(2, 1), state(3, 99)]
    found = tree_of(States(states, 77, {1: Ran(sent=True), 5: Ran()}, saved=True))
    assert [each["id"] for each in found["states"]] == [1, 2, 3]
    assert (found["here"], found["redo"]) == (1, 0)
    assert [each["sent"] for each in found["states"]] == [True, False, False]


def test_a_kernel_remembers_a_thousand_cells_at_most() -> None:
    """Before, a worker that was taken over could fill the memory of its front end with cells."""
    states = [state(one, 0) for one in range(1, 1501)]
    ran = {each.id: Ran(cell_id=f"cell {each.id}") for each in states}
    assert len(tree_of(States(states, ran=ran, saved=True))["gone"]) <= 1000


def test_a_note_of_a_worker_is_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, a worker that was taken over could write lines into it that seemed others'."""
    app = WasmKernelApp()
    monkeypatch.setattr(app, "log", logging.getLogger("heard"))
    app._show_note("[wasm-kernel] said\r\x1b[2J\n[I ServerApp] forged\n")
    assert caplog.messages == [r"said\r\n[I ServerApp] forged"]


def test_a_cell_of_blank_lines_holds_up_no_kernel() -> None:
    """Before, the search for `%timeline` took time that grew with their square."""
    page, began = cast(Page, SimpleNamespace(cleaner=SAFELY)), time.process_time()
    asyncio.run(Page.show_timeline(page, "x = 1\n" + "\n" * 100_000 + "y", {}))
    assert time.process_time() - began < 2.0
