"""Functions of a program that cells can call: their values, their annotations, their callers."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

from tests.documented import Heard
from tests.faces import says, wait_for
from tests.service.offered import Meeting, Sandboxes, Streams, echo, fails, put_off
from wasm_kernel import HostFunction, create_sandbox
from wasm_kernel.service.arrow_tables import NotPlainError
from wasm_kernel.service.plain_data import GuestData

KEY = "the secret place"


class Silent(ValueError):
    def __str__(self) -> str:
        raise NotImplementedError


def open_secret() -> str:
    """Fails as the system does."""
    return Path(f"/{KEY}/file").read_text()


def everything() -> object:
    """Returns what no cell can have."""
    return threading.current_thread()


class Parcel(pydantic.BaseModel):
    """A parcel."""

    weight: float


def send(parcel: Parcel) -> Parcel:
    return parcel


def test_plain_data_passes_both_ways_and_takes_the_annotated_types(offering: Sandboxes) -> None:
    def parts() -> list[Any]:
        return [b"a", bytearray(b"b"), memoryview(b"cd")]

    sandbox = offering(put_off, echo, parts, Streams().numbers, send)
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
    assert says(sandbox, "print(parts(), send({'weight': 2}))") == (
        "[b'a', b'b', b'cd'] {'weight': 2.0}"
    )
    assert "not longdouble" in fails(sandbox, "echo(np.longdouble(1))")
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
    assert "Thread is not plain data" in fails(sandbox, "everything()")
    assert "not object" in fails(sandbox, "put_off(object())")


def test_values_that_no_message_can_carry_are_errors_in_words(
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
    for n in (1000, 2000, 5000):
        assert "it is nested too deeply" in fails(sandbox, f"deep({n})")
    assert "surrogates not allowed" in fails(sandbox, "name()")
    assert fails(sandbox, "no_such()") == "LookupError: odd?name"
    assert fails(sandbox, "no_text()") == "Silent: <exception str() failed>"
    for argument in ("'odd\\udc80name'", "[{'odd\\udc80name': 1}]"):
        assert "surrogates not allowed" in fails(sandbox, f"echo({argument})")


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


def test_each_call_is_an_event_without_its_content(offering: Sandboxes, heard: Heard) -> None:
    sandbox = offering(echo, open_secret, logger=heard.logger)
    says(sandbox, "echo('my content')")
    fails(sandbox, "open_secret()")
    told = heard.of("function.called")
    assert [(each["function"], each["outcome"]) for each in told] == [
        ("echo", "returned"),
        ("open_secret", "FileNotFoundError"),
    ]
    assert "my content" not in str(heard.events) and KEY not in str(heard.events)


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
def test_arguments_of_callables_are_checked(offering: Sandboxes, function: Any, call: str) -> None:
    """Formerly, a cell saw the annotations of such a function, and could pass anything."""
    sandbox = offering(HostFunction(function, name="page"))
    assert "Invalid enum value 'c'" in fails(sandbox, f"{call}('c')")
    if function is not Page:
        assert says(sandbox, f"print({call}('b'))") == "b"


def test_an_annotation_that_no_plain_data_fits_or_that_is_hidden_is_refused() -> None:
    def lock(held: threading.Event) -> None: ...

    with pytest.raises(TypeError, match="an annotation of lock: Event is not a type of plain data"):
        create_sandbox(functions=[lock])

    def unread(held: Any) -> None: ...

    unread.__annotations__["held"] = "Missing"
    with pytest.raises(TypeError, match="an annotation of unread: name 'Missing' is not defined"):
        create_sandbox(functions=[unread])
    with pytest.raises(TypeError, match="parameter shelf can't be read, so it can't be checked"):
        create_sandbox(functions=[HostFunction(_hiding, name="page")])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": 5}, "the name of a function of the host is of type str, not int"),
        ({"name": "a b"}, r"not 'a b'; give one: HostFunction\(function, name=...\)"),
        ({"seconds": "5"}, "seconds of echo is of type float . int, not str"),
        ({"seconds": True}, "seconds of echo is of type float . int, not bool"),
        ({"calls_a_minute": 1.5}, "calls_a_minute of echo is of type int, not float"),
    ],
)
def test_a_limit_or_a_name_of_a_wrong_type_is_refused(options: dict[str, Any], words: str) -> None:
    """Formerly, some raised the errors of another function, and a fraction failed each call."""
    with pytest.raises((TypeError, ValueError), match=words):
        HostFunction(echo, **options)


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
