"""ATTACKS 25-27 over real sockets: the outputs in every message that can carry them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.end_to_end.real_kernel import RealKernel
from tests.outputs.payloads import PAYLOADS
from tests.outputs.routes import ROUTES, cells
from tests.outputs.strict import problems_in

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
    assert kernel.run(begin).reply["status"] == "ok"
    bundles = 0
    for source in sending:
        for message in kernel.run(source, stop_on_error=False).messages:
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


def test_a_cell_is_told_once_what_was_left_out_and_a_question_is_text(kernel: RealKernel) -> None:
    source = "for _ in range(3): display({'text/html': '<script>1</script>'}, raw=True)"
    (notice,) = kernel.run(source).of("stream")
    assert re.search(r"scripts\..*run code.*c\.WasmKernel\.outputs = 'trusted'", notice["text"])
    shown = kernel.run("input('\\x1b]52;c;eA==\\x07\\x1b[2JName: ')", ["x"])
    assert shown.asked == ["Name: "]


def test_replies_hold_nothing_harmful(kernel: RealKernel) -> None:
    reply = kernel.run(HOSTILE, user_expressions={"it": "hostile"}).reply
    assert problems_in(reply["user_expressions"]["it"]["data"]) == []
    assert "application/javascript" not in reply["user_expressions"]["it"]["data"]
    (page,) = kernel.run("hostile?").reply["payload"]
    check_texts(page)
    assert problems_in(page["data"]) == []
    found = kernel.reply(kernel.client.inspect("hostile", 7))
    check_texts(found)
    assert problems_in(found["data"]) == []
    completed = kernel.reply(kernel.client.complete("hostile.", 8))
    check_texts(completed)
    shown = kernel.run("raise type('\\x1b]0;x\\x07E', (Exception,), {})('\\x1b[2Jgone')")
    check_texts(shown.reply)
    check_texts([message["content"] for message in shown.messages])
