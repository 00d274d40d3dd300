"""Rich output: the parts that are carried, and notes for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wasm_kernel_agent.display import Outbox
from wasm_kernel_agent.host import FrameChannel, FrameTooLarge

Serve = Callable[..., list[Any]]


def test_clear_output_says_whether_to_wait(serve: Serve) -> None:
    [turn] = serve("from IPython.display import clear_output; clear_output(wait=True)")
    assert turn.frames == [{"op": "clear_output", "wait": True}]


def test_values_that_json_lacks_are_translated(serve: Serve) -> None:
    values = "{(1, 2): [b'123', {4}], 'd': __import__('datetime').date(2026, 1, 2), 's': '\\ud800'}"
    [turn] = serve(f"display({{'image/png': b'123', 'a/json': {values}}}, raw=True)")
    carried = {"(1, 2)": ["MTIz", [4]], "d": "2026-01-02", "s": "?"}
    assert turn.frames[0]["data"] == {"image/png": "MTIz", "a/json": carried}


def test_the_magic_clear_clears_the_cells_output(serve: Serve) -> None:
    [turn] = serve("%clear")
    assert turn.frames == [{"op": "clear_output", "wait": False}]


def test_a_display_is_updated_in_place(serve: Serve) -> None:
    [turn] = serve("h = display('a', display_id='x'); h.update('b')")
    assert [each["op"] for each in turn.frames] == ["display", "update_display"]


@pytest.mark.parametrize(
    ("bundle", "note"),
    [
        ("{'text/plain': 5}", "text/plain was left out"),
        ("{'text/plain': 'a', 3: 'b'}", "a\n[wasm-kernel] the MIME type 3 is not text"),
        ("{'a/json': eval('[' * 60 + ']' * 60)}", "nested too deeply"),
        ("{'a/json': object()}", "a/json was left out"),
        ("{'image/png': b'x' * 60_000_000}", "too large to show"),
    ],
)
def test_content_that_no_frame_can_carry_becomes_a_note(
    serve: Serve, bundle: str, note: str
) -> None:
    [turn] = serve(f"display({bundle}, raw=True)")
    [frame] = turn.sent("display")
    assert list(frame["data"]) == ["text/plain"]
    assert note in frame["data"]["text/plain"]
    assert turn.reply["status"] == "ok"


def test_the_order_of_types_is_kept(serve: Serve) -> None:
    [turn] = serve("display({'text/html': 'long' * 9, 'text/plain': 'x'}, raw=True)")
    assert list(turn.frames[0]["data"]) == ["text/html", "text/plain"]


def test_metadata_without_json_is_left_out(serve: Serve) -> None:
    [turn] = serve("display({'text/plain': 'x'}, raw=True, metadata={'a': object(), 'b': 1})")
    assert turn.frames[0]["metadata"] == {"b": 1}


def test_a_result_that_is_too_large_becomes_a_note(serve: Serve) -> None:
    [turn] = serve("class R:\n    def __repr__(self): return 'y' * 70_000_000\nR()")
    assert "[wasm-kernel] text/plain of 66.8 MiB is too large" in turn.text


def test_a_frame_over_the_limit_is_not_sent() -> None:
    sent: list[bytes] = []
    with pytest.raises(FrameTooLarge, match="64 MiB"):
        FrameChannel(lambda data: sent.append(data) or b"").send({"op": "x" * (1 << 26)})  # type: ignore[func-returns-value]
    assert not sent


def test_a_refusal_is_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Outbox(FrameChannel(lambda data: b'{"refused":"too much"}')).send({"op": "clear_output"})
    assert capsys.readouterr().err == "[wasm-kernel] the output was refused: too much\n"
