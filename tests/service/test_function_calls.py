"""Calls of a program's functions by cells: their limits, their interrupts, their ends."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.faces import PATIENCE, error_of, says, wait_for
from tests.service.offered import Door, Meeting, Order, Sandboxes, Streams, echo, fails, put_off
from wasm_kernel import (
    ExecutionPolicy,
    HostFunction,
    Sandbox,
    SandboxLogger,
    create_session_sandbox,
    get_session_sandbox,
)
from wasm_kernel.errors import GuestClosed
from wasm_kernel.guests.protocol import CallFunction, FinishedCalls
from wasm_kernel.linux.task import QUIET
from wasm_kernel.network.exchanges import Exchange
from wasm_kernel.result import SandboxResult
from wasm_kernel.service import running_call
from wasm_kernel.service.function_calls import CallRefused, FunctionCalls
from wasm_kernel.service.host_function import bound_by_name


def exit_plainly() -> None:
    """Exits."""
    raise SystemExit(3)


def test_a_function_that_exits_or_cancels_itself_ends_its_call_alone(offering: Sandboxes) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(asyncio.sleep(PATIENCE))
        await asyncio.sleep(0)
        task.cancel()
        await task

    async def leave() -> None:
        raise SystemExit(3)

    async def give_up() -> None:
        raise GeneratorExit

    sandbox = offering(
        cancelled, leave, give_up, HostFunction(exit_plainly, name="leave_plainly"), echo
    )
    for call in ("await leave()", "leave_plainly()", "await leave()"):
        assert fails(sandbox, call) == "RuntimeError: it ended with SystemExit"
    assert fails(sandbox, "await give_up()") == "RuntimeError: it ended with GeneratorExit"
    assert fails(sandbox, "await cancelled()") == "RuntimeError: it ended with CancelledError"
    assert says(sandbox, "print(echo(1))") == "1"


def test_awaited_calls_run_at_once_and_are_cancelled_with_their_task(offering: Sandboxes) -> None:
    meeting = Meeting()
    sandbox = offering(meeting.meet)
    three = "import asyncio\nprint(await asyncio.gather(meet(3), meet(3), meet(3)))"
    assert says(sandbox, three) == "[3, 3, 3]"
    late = "try: await asyncio.wait_for(meet(9), 0.05)\nexcept TimeoutError: print('late')"
    assert says(sandbox, late) == "late"
    assert meeting.cancelled.wait(PATIENCE)


BUSY = """
import asyncio; task = asyncio.create_task(meet(9))
for _ in range(700): await asyncio.sleep(0.001)
task.cancel(); print('done')
"""


GIVEN_UP = """
import asyncio
for _ in range(400):
    task = asyncio.create_task(meet(999))
    for _ in range(2): await asyncio.sleep(0.001)
    task.cancel(); await asyncio.sleep(0)
print('done')
"""


@pytest.mark.parametrize(("code", "calls"), [(BUSY, 1), (GIVEN_UP, 400)], ids=["busy", "given up"])
def test_a_cell_that_does_other_work_or_gives_calls_up_keeps_its_worker(
    offering: Sandboxes, code: str, calls: int
) -> None:
    """Formerly, each short wait was a request, and the worker was ended for too many of them."""
    seldom = HostFunction(Meeting().meet, seconds=1, calls_a_cell=calls)
    assert says(offering(seldom), code) == "done"


def test_a_stream_ends_with_its_cell(offering: Sandboxes) -> None:
    streams = Streams()
    sandbox = offering(streams.numbers, streams.slow_numbers)
    read = "print([*numbers(3)], [n async for n in slow_numbers(3)])"
    assert says(sandbox, read) == "[0, 1, 2] [0, 1, 2]"
    assert sorted(streams.closed) == ["numbers", "slow_numbers"]
    says(sandbox, "kept = numbers(9); next(kept)")
    assert "a stream ends with its cell" in fails(sandbox, "next(kept)")
    wait_for(lambda: len(streams.closed) == 3, "the end of the stream")


def test_every_limit_is_told_in_words_and_the_session_goes_on(offering: Sandboxes) -> None:
    door = Door()
    sandbox = offering(
        HostFunction(echo, most_bytes=1000, calls_a_cell=3),
        HostFunction(echo, name="seldom", calls_a_minute=2),
        HostFunction(lambda: "x" * 2000, name="much", most_bytes=1000),
        HostFunction(door.knock, seconds=0.05),
    )
    says(sandbox, "kept = 'here'")
    assert "a cell may call it 3 times" in fails(sandbox, "for n in range(9): echo(n)")
    assert "a session may call it 2 times a minute" in fails(sandbox, "for n in '123': seldom(n)")
    assert "the arguments take 2," in fails(sandbox, "echo('x' * 2000)")
    assert "its result takes 2," in fails(sandbox, "much()")
    assert fails(sandbox, "knock()") == "TimeoutError: knock took longer than 0.05 seconds"
    assert says(sandbox, "print(kept, echo(1))") == "here 1"
    door.opened.set()


def test_endless_calls_are_bounded(offering: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door()
    sandbox = offering(HostFunction(door.knock, seconds=0.01), echo)
    assert "earlier calls still run" in fails(
        sandbox, "while True:\n    try: knock()\n    except TimeoutError: pass"
    )
    other = offering(echo)
    monkeypatch.setattr(running_call, "THREADS_MOST", running_call.UNHEARD_MOST)
    assert "earlier calls still run" in fails(other, "echo(1)")
    door.opened.set()
    wait_for(lambda: sandbox.execute("echo(1)").success, "the end of the earlier calls")
    assert says(other, "print(echo(1))") == "1"


def test_a_stream_whose_end_hangs_holds_up_no_later_call(offering: Sandboxes) -> None:
    """Formerly, every later call of the session ended with a `TimeoutError`."""
    door = Door()

    def waiting() -> Iterator[int]:
        try:
            yield 1
        finally:
            door.knock()

    sandbox = offering(waiting, HostFunction(echo, seconds=1))
    says(sandbox, "kept = waiting(); next(kept)")
    assert door.knocked.wait(PATIENCE)
    fails(sandbox, "echo(1)")
    assert says(sandbox, "print(echo(2))") == "2"
    door.opened.set()


def test_an_interrupt_ends_the_wait_and_keeps_the_variables(offering: Sandboxes) -> None:
    door = Door()
    sandbox = offering(door.knock, echo)
    says(sandbox, "x = 7")
    future: Future[SandboxResult] = sandbox.submit("knock()")
    assert door.knocked.wait(PATIENCE)
    sandbox.interrupt()
    error = future.result(PATIENCE).error
    assert error is not None and error.ename == "KeyboardInterrupt"
    assert says(sandbox, "print(echo(x))") == "7"  # although the function still waits
    door.opened.set()


def ends_interrupted(sandbox: Sandbox, code: str, begun: threading.Event) -> None:
    """Checks that an interrupt ends a cell once its call has begun."""
    begun.clear()
    future = sandbox.submit(code)
    assert begun.wait(PATIENCE)
    sandbox.interrupt()
    assert error_of(future.result(PATIENCE)).startswith("KeyboardInterrupt")


@pytest.mark.parametrize("runtime", ["python", "javascript"])
def test_interrupts_end_awaited_calls_however_early(offering: Sandboxes, runtime: str) -> None:
    """Formerly, half of the interrupts in JavaScript cost the worker, after two seconds."""
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE)

    sandbox = offering(endless, runtime=runtime)
    for _ in range(8):
        ends_interrupted(sandbox, "await endless()", begun)


@pytest.mark.parametrize("call", ["await nap()", "nap_plainly()"])
def test_javascript_that_catches_errors_ends_at_interrupts(offering: Sandboxes, call: str) -> None:
    """Formerly, the code went on, even in the next cell, which never ended."""
    begun = threading.Event()

    async def nap() -> None:
        begun.set()
        await asyncio.sleep(0.01)

    def nap_plainly() -> None:
        begun.set()
        time.sleep(0.01)

    sandbox = offering(nap, nap_plainly, runtime="javascript")
    for _ in range(3):
        ends_interrupted(sandbox, f"for (;;) {{ try {{ {call} }} catch {{ }} }}", begun)
        assert says(sandbox, "console.log('on')") == "on"


def test_a_sandbox_that_is_closed_during_a_call_keeps_its_variables(offering: Sandboxes) -> None:
    """Formerly, closing took 5 seconds, and the sandbox's worker ended as after a crash."""
    door = Door()
    sandbox = offering(door.knock, session_id="one")
    says(sandbox, "x = 7")
    future: Future[SandboxResult] = sandbox.submit("x = 8; knock()")
    assert door.knocked.wait(PATIENCE)
    sandbox.close()
    with pytest.raises(GuestClosed):
        future.result(PATIENCE)
    again = offering(session_id="one")
    result = again.execute("print(x)")
    assert (result.stdout, "after a break" in result.stderr) == ("7\n", False)
    door.opened.set()


def test_functions_are_there_after_a_lost_guest_an_undo_and_in_a_fork(offering: Sandboxes) -> None:
    sandbox = offering(echo, policy=ExecutionPolicy(cell_timeout=PATIENCE))
    says(sandbox, "x = 3")
    assert not sandbox.execute("import os; os.abort()").success
    assert says(sandbox, "print(echo(x))") == "3"
    [fork] = sandbox.fork()
    with fork:
        assert says(fork, "print(echo(x + 1))") == "4"
    sandbox = offering()
    says(sandbox, "x = 1")
    sandbox.offer_functions([echo])
    says(sandbox, "x = echo(2)")
    sandbox.undo(1)
    assert says(sandbox, "print(echo(x))") == "1"


def test_another_program_offers_others_to_the_same_variables(offering: Sandboxes) -> None:
    first = offering(echo, put_off, session_id="one")
    says(first, "mine = echo; x = 1")
    first.close()
    again = offering(HostFunction(put_off, name="echo"), session_id="one")
    assert "put_off" not in says(again, "print(x, echo is mine, 'put_off' in dir(__builtins__))")
    assert says(again, "print(echo({'number': 1, 'due': '2026-01-01'})['number'])") == "1"


def test_functions_offered_again_change_nothing_in_a_running_cell(offering: Sandboxes) -> None:
    """Formerly, the cell's streams ended, and its limits began anew."""
    door = Door()
    sandbox = offering(door.knock, Streams().numbers, HostFunction(echo, calls_a_minute=2))
    code = "s = numbers(3); a = next(s); echo(1); knock(); print(a, next(s), echo(2))"
    future: Future[SandboxResult] = sandbox.submit(code)
    assert door.knocked.wait(PATIENCE)
    sandbox.offer_functions([HostFunction(echo, calls_a_minute=2)])
    door.opened.set()
    assert future.result(PATIENCE).stdout == "0 1 2\n"
    assert "2 times a minute" in fails(sandbox, "echo(3)")
    sandbox.offer_functions([HostFunction(echo, calls_a_minute=3)])
    assert says(sandbox, "print(echo(3))") == "3"
    assert "3 times a minute" in fails(sandbox, "echo(4)")


def test_a_worker_that_was_taken_over_gets_no_more_than_a_cell() -> None:
    """Such a worker may ask at any time, and for anything."""
    cell, called = [0], list[Any]()
    note = HostFunction(called.append, name="note", calls_a_cell=2)
    calls = FunctionCalls(bound_by_name([note]), lambda: cell[0], SandboxLogger)
    ask = calls.handlers[CallFunction]
    with pytest.raises(CallRefused, match="by a cell that runs"):
        ask(CallFunction("note", ["between cells"]), QUIET)
    with pytest.raises(CallRefused, match="by a cell that runs"):
        calls.handlers[FinishedCalls](FinishedCalls(60), QUIET)
    cell[0] = 1
    for n in range(2):
        ask(CallFunction("note", [n]), QUIET)
    with pytest.raises(CallRefused, match="2 times"):
        ask(CallFunction("note", [2]), QUIET)
    assert called == [0, 1]
    calls.close()


def test_a_question_calls_no_function(offering: Sandboxes) -> None:
    called: list[Any] = []
    sandbox = offering(HostFunction(called.append, name="note"))
    says(sandbox, "class Spy:\n    def __dir__(self): note(1); return ['a']\nspy = Spy()")
    sandbox.query({"op": "complete", "code": "spy.", "cursor_pos": 4}).result(PATIENCE)
    assert called == []


def test_a_call_that_fails_leaves_no_arguments_in_memory(offering: Sandboxes) -> None:
    """A cell can make thousands of such calls, each of 8 MiB."""
    orders: list[weakref.ref[Order]] = []

    def refuse(order: Order) -> None:
        orders.append(weakref.ref(order))
        raise ValueError("no")

    sandbox = offering(refuse, echo)
    gc.disable()
    try:
        assert fails(sandbox, "refuse({'number': 1, 'due': '2020-01-01'})") == "ValueError: no"
        says(sandbox, "echo(1)")  # the thread holds the call before
        assert orders[0]() is None
    finally:
        gc.enable()


CODE = """
import asyncio
print(draw(1), draw(1), draw(2))
print(await asyncio.gather(wait(b"a"), wait(b"b")))
print([*count(2)], [n async for n in tick(2)])
for call in (lambda: draw(-1), lambda: [*count(-1)]):
    try: call()
    except LookupError as problem: print(type(problem).__name__, problem)
"""


class Urn:
    """Functions that give other results at each call, and note the calls."""

    def __init__(self, first: int) -> None:
        self.drawn = first
        self.calls: list[str] = []

    def draw(self, n: int) -> int:
        """Draws."""
        self.calls.append("draw")
        if n < 0:
            raise KeyError(f"no {n}")
        self.drawn += n
        return self.drawn

    async def wait(self, data: bytes) -> dict[str, Any]:
        """Waits."""
        self.calls.append("wait")
        await asyncio.sleep(0)
        self.drawn += 1
        return {"data": data * 2, "n": self.drawn, "odd": float("inf")}

    def count(self, n: int) -> Iterator[int]:
        """Counts."""
        self.calls.append("count")
        if n < 0:
            raise IndexError("below")
        yield from range(self.drawn, self.drawn + n)

    async def tick(self, n: int) -> AsyncIterator[int]:
        """Counts, as an asynchronous function."""
        self.calls.append("tick")
        for each in range(self.drawn, self.drawn + n):
            yield each

    @property
    def functions(self) -> list[Callable[..., Any]]:
        return [self.draw, self.wait, self.count, self.tick]


Recorded = tuple[str, Path, str]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """A session that has recorded the calls of `CODE`: its id, its root, and its output."""
    urn = Urn(10)
    name, sandbox = create_session_sandbox(
        policy=ExecutionPolicy(network_mode="record"),
        workspace_root=tmp_path / "files",
        private_root=tmp_path / "private",
        functions=urn.functions,
    )
    with sandbox:
        return name, tmp_path, says(sandbox, CODE)


def replaying(recorded: Recorded, urn: Urn) -> Any:
    """Opens the session of a record again."""
    name, root, _ = recorded
    policy = ExecutionPolicy(network_mode="replay")
    return get_session_sandbox(
        name,
        policy=policy,
        workspace_root=root / "files",
        private_root=root / "private",
        functions=urn.functions,
    )


def test_recorded_calls_are_answered_again_without_a_call(recorded: Recorded) -> None:
    said, other = recorded[2], Urn(999)
    with replaying(recorded, other) as sandbox:
        assert says(sandbox, CODE) == said
        unknown = sandbox.execute("draw(7)").error
        again = sandbox.execute("draw(2)").error
    assert other.calls == []
    assert unknown is not None
    assert "draw(), with these arguments, is not among the recorded calls" in unknown.evalue
    assert "The setting is network_mode" in unknown.evalue.replace("policy.", "")
    assert again is not None
    assert "the last answer to draw() was given already (of 1 recorded)" in again.evalue
    assert said.splitlines() == [
        "11 12 14",
        "[{'data': b'aa', 'n': 15, 'odd': inf}, {'data': b'bb', 'n': 16, 'odd': inf}]",
        "[16, 17] [16, 17]",
        "KeyError 'no -1'",
        "IndexError below",
    ]


def test_another_network_is_for_later_cells_like_all_other_options(tmp_path: Path) -> None:
    """Formerly, the running cell got the new network at once, and the old one stayed open."""
    urn = Urn(10)

    def change() -> None:
        sandbox.reconfigure(ExecutionPolicy(network_mode="replay"), None)

    policy = ExecutionPolicy(network_mode="record")
    functions = [*urn.functions, change]
    _, sandbox = create_session_sandbox(policy=policy, workspace_root=tmp_path, functions=functions)
    with sandbox:
        assert says(sandbox, "change(); print(draw(1))") == "11"
        assert says(sandbox, "print(draw(1))") == "11"
    assert urn.calls == ["draw"]


def exchanges(root: Path) -> Path:
    (found,) = root.rglob("exchanges")
    return found


BODIES = {
    "draw() is damaged, and must": b"{",
    "must be recorded again": b"[" * 100_000,
    "not in the form that cells send": b'{"answer": {"value": {"$": "bytes", "value": [0, 9]}}}',
    "can't be passed to a cell": b'{"answer": {"value": {"$": "table", "value": [-1, 1]}}}\0abc',
    "and 8,388,608 are allowed": b'{"answer": {"raised": {"text": "%s"}}}' % (b"x" * 9_000_000),
    "larger than any could be": b"\0" * 20_000_000,
}


def forge(folder: Path, data: bytes) -> None:
    """Gives all records another answer, with the digests of it."""
    name = hashlib.blake2b(data, digest_size=20).hexdigest()
    (folder / name).write_bytes(data)
    for each in folder.iterdir():
        if "." in each.name:
            read = msgspec.json.decode(each.read_bytes(), type=Exchange)
            forged = replace(read, body=name, size=len(data))
            each.write_bytes(msgspec.json.encode(replace(forged, check=forged.digest)))


def test_a_record_that_a_stranger_wrote_is_an_error_in_words(recorded: Recorded) -> None:
    urn = Urn(999)
    for words, data in BODIES.items():
        forge(exchanges(recorded[1]), data)
        with replaying(recorded, urn) as sandbox:
            error = error_of(sandbox.execute("draw(1)"))
        assert error.startswith("HostFunctionError:") and words in error, error
    assert urn.calls == []
