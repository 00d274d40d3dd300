"""ATTACKS 25-27 over real sockets: the outputs that leave the kernel, in every message that can
carry them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.conftest import starting_in
from tests.end_to_end.real_kernel import SECONDS, RealKernel
from tests.outputs.payloads import PAYLOADS
from tests.outputs.routes import ROUTES, cells
from tests.outputs.strict import problems_in

Message = dict[str, Any]
ARMED = [payload.armed("http://127.0.0.1:9") for payload in PAYLOADS]
KNOWN = {"width", "height", "needs_background", "unconfined", "expanded", "embed_options"}
CONTROL = re.compile(r"\x1b(?!\[[0-9;:]*m)|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
HOSTILE = """
class Hostile:
    '''<img src=x onerror=alert(1)> \\x1b]52;c;eA==\\x07'''
    def _repr_mimebundle_(self, **kwargs):
        return {'text/html': '<img src=x onerror=alert(1)>', 'text/plain': '\\x1b]0;x\\x07plain',
                'application/javascript': 'alert(1)'}
    def __dir__(self):
        return ['a\\x1b]0;x\\x07b', 'plain']
hostile = Hostile()
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKernel]:
    with starting_in(tmp_path_factory.mktemp("sessions")) as start:
        yield start()


def said(kernel: RealKernel, code: str, **options: Any) -> tuple[Message, list[Message]]:
    """The reply to a cell and the messages published under it."""
    return kernel.told(code, stop_on_error=False, **options)


def check_texts(value: Any) -> None:
    """Check that no text in a message acts on a terminal."""
    if isinstance(value, str):
        assert not CONTROL.search(value), repr(CONTROL.search(value))
    elif isinstance(value, dict):
        for item in value.values():
            check_texts(item)
    elif isinstance(value, list):
        for item in value:
            check_texts(item)


@pytest.mark.parametrize(
    ("route", "every"),
    [
        *((route, 8) for route in ROUTES),
        *(pytest.param(route, 1, marks=pytest.mark.soak) for route in ROUTES),
    ],
)
def test_nothing_harmful_leaves_the_kernel(kernel: RealKernel, route: str, every: int) -> None:
    begin, *sending = cells(ARMED[::every], [route])
    assert said(kernel, begin)[0]["status"] == "ok"
    bundles = 0
    for source in sending:
        for message in said(kernel, source)[1]:
            content = message["content"]
            if "data" in content:
                bundles += 1
                assert problems_in(content["data"]) == []
                for mime, fields in content["metadata"].items():
                    assert set(fields if "/" in mime else {mime}) <= KNOWN
                assert set(content.get("transient", {})) <= {"display_id"}
            elif message["msg_type"] in ("stream", "error"):
                check_texts(content)
    sends_bundles = route not in ("stdout", "stderr", "error")
    assert bundles >= len(ARMED[::every]) if sends_bundles else bundles == 0


def test_a_cell_is_told_once_what_was_left_out(kernel: RealKernel) -> None:
    source = "for _ in range(3): display({'text/html': '<script>1</script>'}, raw=True)"
    _, heard = said(kernel, source)
    notices = [m["content"]["text"] for m in heard if m["msg_type"] == "stream"]
    assert len(notices) == 1
    assert re.search(r"scripts\..*run code.*c\.WasmKernel\.outputs = 'trusted'", notices[0])


def test_replies_hold_nothing_harmful(kernel: RealKernel) -> None:
    reply, _ = said(kernel, HOSTILE, user_expressions={"it": "hostile"})
    assert problems_in(reply["user_expressions"]["it"]["data"]) == []
    assert "application/javascript" not in reply["user_expressions"]["it"]["data"]
    reply, _ = said(kernel, "hostile?")
    (page,) = reply["payload"]
    check_texts(page)
    assert problems_in(page["data"]) == []
    found = kernel.reply(kernel.client.inspect("hostile", 7))
    check_texts(found)
    assert problems_in(found["data"]) == []
    completed = kernel.reply(kernel.client.complete("hostile.", 8))
    check_texts(completed)
    reply, heard = said(kernel, "raise type('\\x1b]0;x\\x07E', (Exception,), {})('\\x1b[2Jgone')")
    check_texts(reply)
    check_texts([message["content"] for message in heard])


def test_the_question_of_an_input_is_text(kernel: RealKernel) -> None:
    asked_for: list[str] = []

    def answer(message: Message) -> None:
        asked_for.append(message["content"]["prompt"])
        kernel.client.input("x")

    kernel.client.execute_interactive(
        "input('\\x1b]52;c;eA==\\x07\\x1b[2JName: ')", timeout=SECONDS, stdin_hook=answer,
        allow_stdin=True, output_hook=lambda message: None,
    )  # fmt: skip
    assert asked_for == ["Name: "]
