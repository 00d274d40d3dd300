"""Functions of a program that cells can call: their values, their limits, their callers."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.faces import PATIENCE, says, wait_for
from wasm_kernel import (
    ExecutionPolicy,
    HostFunction,
    SandboxLogger,
    create_sandbox,
    get_session_sandbox,
)
from wasm_kernel.errors import GuestClosed
from wasm_kernel.guests.protocol import CallFunction, FinishedCalls
from wasm_kernel.linux.task import QUIET
from wasm_kernel.result import SandboxResult
from wasm_kernel.service import running_call
from wasm_kernel.service.arrow_tables import NotPlainError
from wasm_kernel.service.function_calls import CallRefused, FunctionCalls
from wasm_kernel.service.host_function import bound_by_name
from wasm_kernel.service.plain_data import GuestData

KEY = "the secret place"


@dataclass
class Order:
    number: int
    due: date
    label: bytes = b""


class UnknownOrder(LookupError):
    pass


class Silent(ValueError):
    def __str__(self) -> str:
        raise NotImplementedError


def put_off(order: Order, days: int = 1, *, why: str = "rain") -> Order:
    """Puts an order off."""
    if order.number < 0:
        raise UnknownOrder(f"there is no order {order.number}")
    later = date.fromordinal(order.due.toordinal() + days)
    return Order(order.number, later, order.label + why.encode())


def echo(value: Any) -> Any:
    """Returns the value."""
    return value


def open_secret() -> str:
    """Fails as the system does."""
    return Path(f"/{KEY}/file").read_text()


def exit_plainly() -> None:
    """Exits."""
    raise SystemExit(3)


def everything() -> object:
    """Returns what no cell can have."""
    return threading.current_thread()


class Streams:
    """Streams of numbers, which note their ends."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    def numbers(self, n: int) -> Iterator[int]:
        """Counts."""
        try:
            yield from range(n)
        finally:
            self.closed.append("numbers")

    async def slow_numbers(self, n: int) -> AsyncIterator[int]:
        """Counts, too."""
        try:
            for each in range(n):
                yield each
        finally:
            self.closed.append("slow_numbers")


class Meeting:
    """An `async` function that returns when all of them have come."""

    def __init__(self) -> None:
        self._come = 0
        self.cancelled = threading.Event()

    async def meet(self, people: int) -> int:
        """Waits for the other people."""
        self._come += 1
        try:
            while self._come < people:
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self._come


class Door:
    """A plain function that waits until the test opens the door."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.knocked = threading.Event()

    def knock(self) -> str:
        """Waits."""
        self.knocked.set()
        assert self.opened.wait(PATIENCE)
        return "in"


Sandboxes = Callable[..., Any]


@pytest.fixture
def offering(warm: None, tmp_path: Path) -> Iterator[Sandboxes]:
    """Makes sandboxes whose cells may call functions."""
    made: list[Any] = []

    def make(*functions: Any, **options: Any) -> Any:
        if "session_id" in options:
            options["workspace_root"] = tmp_path
            made.append(get_session_sandbox(functions=functions, **options))
        else:
            folder = tmp_path / f"app{len(made)}"
            made.append(create_sandbox(functions=functions, workspace=folder, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def fails(sandbox: Any, code: str) -> str:
    """Runs a cell that ends with an error; returns the error in words."""
    result: SandboxResult = sandbox.execute(code)
    assert result.error is not None, result.stdout
    return f"{result.error.ename}: {result.error.evalue}"


def test_plain_data_passes_both_ways_and_takes_the_types_of_the_annotations(
    offering: Sandboxes,
) -> None:
    def parts() -> list[Any]:
        return [b"a", bytearray(b"b"), memoryview(b"cd")]

    sandbox = offering(put_off, echo, parts, Streams().numbers)
    said = says(
        sandbox,
        "from dataclasses import dataclass; from datetime import date\n"
        "@dataclass\nclass Mine:\n    number: int; due: date; label: bytes\n"
        "print(put_off(Mine(2**70, date(2026, 12, 31), bytes([255])), days=2))\n"
        "odd = {'$': 1, 'n': float('inf'), 'b': bytearray(b'x'), 'deep': [{'a': (1, None)}]}\n"
        "print(echo(odd) == odd | {'deep': [{'a': [1, None]}]})\n"
        "import numpy as np; print(echo(np.float64(0.5)), echo(np.int32(3)))",
    )
    first, *others = said.splitlines()
    assert first == str({"number": 2**70, "due": "2027-01-02", "label": b"\xffrain"})
    assert others == ["True", "0.5 3"]
    assert says(sandbox, "print(parts())") == "[b'a', b'b', b'cd']"
    shown = says(sandbox, "help(put_off); print(numbers)")
    assert "put_off(order: Order, days: int = 1, *, why: str = 'rain') -> Order" in shown
    assert "Puts an order off." in shown and "function numbers" in shown


def test_errors_are_of_the_same_class_and_name_no_place_of_the_host(offering: Sandboxes) -> None:
    sandbox = offering(put_off, open_secret, everything)
    says(sandbox, "order = {'number': -1, 'due': '2026-01-01'}")
    assert fails(sandbox, "put_off(order)") == "UnknownOrder: there is no order -1"
    assert says(sandbox, "try: put_off(order)\nexcept LookupError: print('caught')") == "caught"
    assert "Expected `int`, got `str` - at `$.number`" in fails(
        sandbox, "put_off(order | {'number': 'x'})"
    )
    assert "TypeError: put_off() missing a required argument: 'order'" in fails(
        sandbox, "put_off()"
    )
    assert fails(sandbox, "open_secret()") == "FileNotFoundError: No such file or directory"
    assert "Thread is no plain data" in fails(sandbox, "everything()")
    assert "not object" in fails(sandbox, "put_off(object())")


def test_what_no_message_can_carry_is_an_error_in_words(
    offering: Sandboxes, caplog: pytest.LogCaptureFixture
) -> None:
    def deep(n: int) -> Any:
        value: Any = 1
        for _ in range(n):
            value = [value]
        return value

    def name() -> str:
        return "odd\udc80name"

    def no_such() -> str:
        raise LookupError("odd\udc80name")

    def no_text() -> None:
        raise Silent

    sandbox = offering(deep, name, no_such, no_text, echo)
    for n in (500, 900, 5000):
        assert "its result can't be passed to a cell: maximum" in fails(sandbox, f"deep({n})")
    assert "surrogates not allowed" in fails(sandbox, "name()")
    assert fails(sandbox, "no_such()") == "LookupError: odd?name"
    assert fails(sandbox, "no_text()") == "Silent: <exception str() failed>"
    for argument in ("'odd\\udc80name'", "[{'odd\\udc80name': 1}]"):
        assert "surrogates not allowed" in fails(sandbox, f"echo({argument})")


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


def test_awaited_calls_run_at_the_same_time_and_are_cancelled_with_their_task(
    offering: Sandboxes,
) -> None:
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


def test_a_cell_that_does_other_work_while_it_awaits_a_call_keeps_its_worker(
    offering: Sandboxes,
) -> None:
    """Before, each short wait was a request, and the worker was ended for too many of them."""
    seldom = HostFunction(Meeting().meet, seconds=1, calls_a_cell=1)
    assert says(offering(seldom), BUSY) == "done"


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


def test_calls_that_never_end_are_bounded(
    offering: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    """Before, every later call of the session ended with a `TimeoutError`."""
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


@pytest.mark.parametrize("runtime", ["python", "javascript"])
def test_an_interrupt_ends_an_awaited_call_however_early_it_comes(
    offering: Sandboxes, runtime: str
) -> None:
    """Before, half of them in JavaScript cost the worker, after two seconds."""
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE)

    sandbox = offering(endless, runtime=runtime)
    for _ in range(8):
        begun.clear()
        future: Future[SandboxResult] = sandbox.submit("await endless()")
        assert begun.wait(PATIENCE)
        sandbox.interrupt()
        error = future.result(PATIENCE).error
        assert error is not None and error.ename == "KeyboardInterrupt"


def test_a_sandbox_that_is_closed_during_a_call_keeps_its_variables(offering: Sandboxes) -> None:
    """Before, closing it took 5 seconds, and its worker ended as after a crash."""
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


def test_functions_are_there_after_a_lost_guest_and_in_a_fork(offering: Sandboxes) -> None:
    sandbox = offering(echo, policy=ExecutionPolicy(cell_timeout=PATIENCE))
    says(sandbox, "x = 3")
    assert not sandbox.execute("import os; os.abort()").success
    assert says(sandbox, "print(echo(x))") == "3"
    [fork] = sandbox.fork()
    with fork:
        assert says(fork, "print(echo(x + 1))") == "4"


def test_another_program_offers_others_to_the_same_variables(offering: Sandboxes) -> None:
    first = offering(echo, put_off, session_id="one")
    says(first, "mine = echo; x = 1")
    first.close()
    again = offering(HostFunction(put_off, name="echo"), session_id="one")
    assert "put_off" not in says(again, "print(x, echo is mine, 'put_off' in dir(__builtins__))")
    assert says(again, "print(echo({'number': 1, 'due': '2026-01-01'})['number'])") == "1"


def test_functions_that_are_offered_again_change_nothing_in_a_running_cell(
    offering: Sandboxes,
) -> None:
    """Before, the cell's streams ended, and its limits began anew."""
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


FORGED = """
import _host, json
def ask(**frame): return _host.call(json.dumps(frame).encode()).decode()
"""


def test_a_guest_reaches_nothing_but_what_is_offered(offering: Sandboxes) -> None:
    sandbox = offering(echo)
    says(sandbox, FORGED)
    for name in ("put_off", "__class__", "CallFunction", "eval"):
        asked = says(sandbox, f"print(ask(op='call', function={name!r}, args=['1']))")
        assert "offers no such function" in asked
    for value in (
        {"$": "pickle", "value": "gASV"},
        {"$": "int", "value": "9" * 5000},
        {"$": "float", "value": "1"},
        {"$": 1},
    ):
        asked = says(sandbox, f"print(ask(op='call', function='echo', args=[{value!r}]))")
        assert "not in the form that cells send" in asked
    assert says(sandbox, "print(ask(op='item', function='echo', stream=1))").count("ended") == 1


def test_a_worker_that_was_taken_over_gets_no_more_than_a_cell() -> None:
    """It may ask at any time, and for anything."""
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


def test_each_call_is_an_event_without_its_content(offering: Sandboxes) -> None:
    heard: list[tuple[str, dict[str, Any]]] = []

    class Log:
        def info(self, event: str, /, **fields: Any) -> None:
            heard.append((event, fields))

        warning = info

    sandbox = offering(echo, open_secret, logger=SandboxLogger(Log()))
    says(sandbox, "echo('my content')")
    fails(sandbox, "open_secret()")
    told = [fields for event, fields in heard if event == "function.called"]
    assert [(each["function"], each["outcome"]) for each in told] == [
        ("echo", "returned"),
        ("open_secret", "FileNotFoundError"),
    ]
    assert "my content" not in json.dumps(heard) and KEY not in json.dumps(heard)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (HostFunction(echo), "two functions"),
        (lambda value: value, "Python identifier"),
        (print, "would hide Python's own"),
        (3, "is callable"),
    ],
)
def test_a_function_that_can_not_be_offered_is_refused(function: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        create_sandbox(functions=[echo, function])


def _page_of(shelf: threading.Event, book: Literal["a", "b"]) -> str:
    return book


async def _awaited_page(shelf: threading.Event, book: Literal["a", "b"]) -> str:
    return book


def _hiding(*rest: Any) -> Any:
    return _page_of(*rest)


vars(_hiding)["__wrapped__"] = _page_of


class Page:
    """A page, whose class is its function."""

    def __init__(self, book: Literal["a", "b"]) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("function", "call"),
    [
        (functools.partial(_page_of, threading.Event()), "page"),
        (functools.partial(functools.partial(_awaited_page), threading.Event()), "await page"),
        (Page, "page"),
    ],
    ids=["partial", "async partial", "class"],
)
def test_arguments_are_checked_whatever_is_callable(
    offering: Sandboxes, function: Any, call: str
) -> None:
    """Before, a cell saw the annotations of such a function, and could pass anything."""
    sandbox = offering(HostFunction(function, name="page"))
    assert "Invalid enum value 'c'" in fails(sandbox, f"{call}('c')")
    if function is not Page:
        assert says(sandbox, f"print({call}('b'))") == "b"


def test_a_function_that_hides_the_annotations_it_shows_is_refused() -> None:
    with pytest.raises(TypeError, match="parameter shelf can't be read, so it can't be checked"):
        create_sandbox(functions=[HostFunction(_hiding, name="page")])


def test_an_annotation_that_no_plain_data_fits_is_refused() -> None:
    def lock(held: threading.Event) -> None: ...

    with pytest.raises(TypeError, match="an annotation of lock: Event is no type of plain data"):
        create_sandbox(functions=[lock])


def test_cells_in_javascript_call_them_too(offering: Sandboxes) -> None:
    streams, meeting = Streams(), Meeting()
    offered = (echo, put_off, streams.numbers, streams.slow_numbers, meeting.meet)
    sandbox = offering(*offered, runtime="javascript")
    said = says(
        sandbox,
        """
const odd = { $: 1, n: [NaN, 2n ** 70n], b: new Uint8Array([255]), none: undefined };
const { n, b, $ } = echo(odd);
console.log(n[1] === 2n ** 70n, Number.isNaN(n[0]), b[0], $);
console.log([...numbers(3)].join(), (await Promise.all([meet(2), meet(2)])).join());
for await (const n of slow_numbers(9)) { console.log(n); break; }
try { put_off({ number: -1, due: "2026-01-01" }) } catch (problem) { console.log(`${problem}`); }
try { echo({ "odd\\udc80name": 1 }) } catch (problem) { console.log(`${problem}`); }
console.log(put_off({ number: 1, due: "2026-01-01" }, 2, { why: "snow" }).due, `${put_off}`);
""",
    )
    assert said.splitlines() == [
        "true true 255 1",
        "0,1,2 2,2",
        "0",
        "UnknownOrder: there is no order -1",
        "TypeError: a text with a lone surrogate can't be sent to the host",
        "2026-01-03 put_off(order: Order, days: int = 1, { why: str = 'rain' }): Order",
        "",
        "Puts an order off.",
    ]
    wait_for(lambda: sorted(streams.closed) == ["numbers", "slow_numbers"], "the streams' ends")


@pytest.mark.parametrize(
    "parts",
    [[[0, 5]], [[-1, 2]], [[3, -1]], [[0, 3], [0, 3]], [[2**70, 0]], [[0.0, 1]], ["ab"], [[0]]],
    ids=str,
)
def test_a_guest_gets_no_other_bytes_than_it_sent_and_none_twice(parts: list[Any]) -> None:
    sent = GuestData(b"abcd")
    values = [{"$": "bytes", "value": part} for part in parts]
    with pytest.raises(NotPlainError):
        sent.decoded(values, lambda *_: None)
    kept = {"$": "bytes", "value": [1, 3]}
    assert GuestData(b"abcd").decoded(kept, lambda *_: None) == b"bcd"
