"""MIME bundles made fit for a frame."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from wasm_kernel_agent.display import NotSendable, jsonable, mime_data, plain_object


@pytest.mark.parametrize(
    ("value", "carried"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (b"123", "MTIz"),
        ((1, {2}), [1, [2]]),
        ({3: None}, {"3": None}),
        (date(2026, 1, 2), "2026-01-02"),
    ],
)
def test_what_json_lacks_is_translated(value: Any, carried: Any) -> None:
    assert jsonable(value) == carried


def test_a_circle_is_not_carried() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(NotSendable, match="nested too deeply"):
        jsonable(circle)


def test_a_value_without_json_is_left_out_of_an_object() -> None:
    assert plain_object({"a": object(), "b": 1}) == {"b": 1}


def test_the_order_of_types_is_kept() -> None:
    kept = mime_data({"text/html": "long" * 9, "text/plain": "x"})
    assert list(kept) == ["text/html", "text/plain"]


def test_notes_follow_the_plain_text() -> None:
    note = "[wasm-kernel] the MIME type 1 is not text; it was left out"
    assert mime_data({"text/plain": "a", 1: "b"}) == {"text/plain": f"a\n{note}"}
