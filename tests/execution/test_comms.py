"""Frames of comms, and the table of open comms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.listening import Page
from wasm_kernel.errors import FrameError
from wasm_kernel.execution.comms import TARGETS_MOST, Comms
from wasm_kernel.guests.protocol import CommTarget, decode
from wasm_kernel.result import COMMS_MOST, CommMessage

OPENED = {"op": "comm_open", "comm_id": "c", "target_name": "t"}


def frame(**fields: Any) -> Any:
    return decode(json.dumps(OPENED | fields).encode())


def test_the_number_of_targets_is_limited() -> None:
    comms = Comms()
    for one in range(TARGETS_MOST):
        comms.add_target(str(one))
    with pytest.raises(FrameError):
        comms.add_target("one more")


def test_a_message_is_read_with_its_buffers() -> None:
    got = frame(data={"a": 1}, metadata={"v": "2"}, buffers=["AAE=", ""], target_module="m")
    assert got == CommMessage("open", "c", {"a": 1}, "t", "m", {"v": "2"}, (b"\0\1", b""))
    assert frame(op="comm_close") == CommMessage("close", "c")
    assert frame(op="comm_target", name="t") == CommTarget("t")


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("$.comm_id", {"comm_id": ""}),
        ("$.comm_id", {"comm_id": "x" * 201}),
        ("comm_id is not a name", {"comm_id": "a\nb"}),
        ("target_name is not a name", {"target_name": "\x1b[2J"}),
        ("$.data", {"data": [1]}),
        ("$.buffers", {"buffers": "AAE="}),
        ("$.buffers", {"buffers": ["A"]}),
        ("$.buffers", {"buffers": ["AA\n=="]}),
        ("$.buffers", {"buffers": [""] * 10_001}),
        ("`name`", {"op": "comm_target"}),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(why: str, fields: dict[str, Any]) -> None:
    with pytest.raises(FrameError) as caught:
        frame(**fields)
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (CommMessage("msg", "c", {"x": float("nan")}), "can't be delivered"),
        (CommMessage("msg", "c", buffers=(bytes(49 << 20),)), "the most is 48 MiB"),
    ],
)
def test_messages_that_fit_no_frame_are_refused_in_words(message: CommMessage, words: str) -> None:
    comms, told = Comms(), Page()
    comms.from_guest(frame())
    assert comms.from_page(message, {}, told) is None
    assert words in told.text


# -- the table


def opened(*ids: str) -> Comms:
    comms = Comms()
    comms.sync({})
    for one in ids:
        comms.from_guest(CommMessage("open", one, target_name="t"))
    return comms


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"comms": [], "targets": {}},
        {"comms": {"x" * 201: "t", "a": 1, "": "t"}, "targets": [1, None, "\n"]},
        {"comms": {str(n): "t" for n in range(COMMS_MOST + 5)}, "targets": ["t"] * 5000},
    ],
)
def test_a_hostile_answer_is_taken_as_far_as_it_makes_sense(reply: dict[str, Any]) -> None:
    comms = opened("stale")
    assert comms.sync(reply) == ["stale"]
    assert len(comms.open) <= COMMS_MOST


def test_a_page_opens_comms_to_registered_targets_only() -> None:
    comms = Comms()
    assert comms.from_page(frame(), {}, Page()) is None
    assert comms.open == {}
    comms.add_target("t")
    assert comms.from_page(frame(), {}, Page()) is not None
    assert comms.open == {"c": "t"}
