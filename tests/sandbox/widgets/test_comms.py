"""Frames of comms, and the table of those that are open."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wasm_kernel.errors import FrameError
from wasm_kernel.execution.frames import read
from wasm_kernel.execution.listener import Silence
from wasm_kernel.execution.widgets.comm_frames import CommMessage, CommTarget, request_of
from wasm_kernel.execution.widgets.comms import COMMS, TARGETS, Comms, CommsFull

OPENED = {"op": "comm_open", "comm_id": "c", "target_name": "t"}


def frame(**fields: Any) -> Any:
    return read(json.dumps(OPENED | fields).encode())


def test_a_message_is_read_with_its_buffers() -> None:
    got = frame(data={"a": 1}, metadata={"v": "2"}, buffers=["AAE=", ""], target_module="m")
    assert got == CommMessage("open", "c", {"a": 1}, "t", "m", {"v": "2"}, (b"\0\1", b""))
    assert frame(op="comm_close") == CommMessage("close", "c")
    assert frame(op="comm_target", name="t") == CommTarget("t")


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("comm_id is no text", {"comm_id": 1}),
        ("comm_id is no name", {"comm_id": ""}),
        ("comm_id is no name", {"comm_id": "x" * 201}),
        ("comm_id is no name", {"comm_id": "a\nb"}),
        ("target_name is no text", {"target_name": None}),
        ("target_name is no name", {"target_name": "\x1b[2J"}),
        ("target_module is no text", {"target_module": 1}),
        ("data is no object", {"data": [1]}),
        ("metadata is no object", {"metadata": "x"}),
        ("buffers is no array of text", {"buffers": "AAE="}),
        ("buffers is no array of text", {"buffers": [1]}),
        ("buffers are no base64", {"buffers": ["A"]}),
        ("buffers are no base64", {"buffers": ["AA\n=="]}),
        ("buffers are no base64", {"buffers": ["é"]}),
        ("buffers are too many", {"buffers": [""] * 10_001}),
        ("name is no text", {"op": "comm_target"}),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(why: str, fields: dict[str, Any]) -> None:
    with pytest.raises(FrameError) as caught:
        frame(**fields)
    assert caught.value.why == why


def test_what_a_front_end_says_becomes_a_request() -> None:
    message = CommMessage("msg", "c", {"a": 1}, buffers=(b"\0\1",))
    request = request_of(message, {"msg_id": "m"})
    assert request["buffers"] == ["AAE="]
    assert (request["op"], request["parent"]) == ("comm", {"msg_id": "m"})


# -- the table


def opened(*ids: str) -> Comms:
    comms = Comms()
    comms.settle({})
    for one in ids:
        comms.said(CommMessage("open", one, target_name="t"))
    return comms


def test_a_comm_is_open_from_its_opening_to_its_close() -> None:
    comms = opened("a", "b")
    comms.said(CommMessage("close", "a"))
    assert comms.open == {"b": "t"}


@pytest.mark.parametrize("kind", ["msg", "close"])
def test_nothing_is_said_on_a_comm_that_is_not_open(kind: str) -> None:
    with pytest.raises(FrameError, match="no such comm"):
        opened("a").said(CommMessage(kind, "b"))


def receives(comms: Comms, kind: str, comm_id: str = "a", target: str = "mine") -> bool:
    """Whether the guest gets a message of the front end."""
    message = CommMessage(kind, comm_id, target_name=target if kind == "open" else "")
    return comms.received(message, {}, Silence()) is not None


def test_a_front_end_opens_comms_to_registered_targets_only() -> None:
    comms = opened()
    assert not receives(comms, "open")
    comms.aim("mine")
    assert receives(comms, "open")
    assert receives(comms, "msg")
    assert receives(comms, "close")
    assert not receives(comms, "msg")
    assert not receives(comms, "close")


def test_so_many_comms_and_targets_and_no_more() -> None:
    comms = opened(*map(str, range(COMMS)))
    comms.aim("t")
    with pytest.raises(CommsFull):
        comms.said(CommMessage("open", "one more", target_name="t"))
    assert not receives(comms, "open", "one more", "t")
    comms.said(CommMessage("open", "5", target_name="again"))
    for one in range(TARGETS - 1):
        comms.aim(str(one))
    with pytest.raises(FrameError):
        comms.aim("one more")


def test_what_the_front_end_has_and_the_guest_forgot_is_stale() -> None:
    comms = opened("a", "b")
    assert comms.question == {"op": "comms", "open": ["a", "b"]}
    assert comms.settle({"comms": {"b": "t", "c": "t"}, "targets": ["t"]}) == ["a"]
    assert comms.open == {"b": "t", "c": "t"}
    assert receives(comms, "open", "x", "t")


def test_before_the_first_answer_nobody_knows_what_the_front_end_has() -> None:
    assert Comms().question == {"op": "comms", "open": None}


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"comms": [], "targets": {}},
        {"comms": {"x" * 201: "t", "a": 1, "": "t"}, "targets": [1, None, "\n"]},
        {"comms": {str(n): "t" for n in range(COMMS + 5)}, "targets": ["t"] * 5000},
    ],
)
def test_a_hostile_answer_is_taken_as_far_as_it_makes_sense(reply: dict[str, Any]) -> None:
    comms = opened("stale")
    assert comms.settle(reply) == ["stale"]
    assert len(comms.open) <= COMMS
