"""Frames of comms, and the table of open comms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.listening import Page
from wasm_kernel.errors import FrameError
from wasm_kernel.execution.comms import TARGETS_MOST, Comms, TooManyComms
from wasm_kernel.execution.interfaces import NoListener
from wasm_kernel.guests.protocol import CommTarget, decode
from wasm_kernel.result import COMMS_MOST, CommKind, CommMessage

OPENED = {"op": "comm_open", "comm_id": "c", "target_name": "t"}


def frame(**fields: Any) -> Any:
    return decode(json.dumps(OPENED | fields).encode())


def test_a_message_is_read_with_its_buffers() -> None:
    got = frame(data={"a": 1}, metadata={"v": "2"}, buffers=["AAE=", ""], target_module="m")
    assert got == CommMessage("open", "c", {"a": 1}, "t", "m", {"v": "2"}, (b"\0\1", b""))
    assert frame(op="comm_close") == CommMessage("close", "c")
    assert frame(op="comm_target", name="t") == CommTarget("t")


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("$.comm_id", {"comm_id": 1}),
        ("$.comm_id", {"comm_id": ""}),
        ("$.comm_id", {"comm_id": "x" * 201}),
        ("comm_id is no name", {"comm_id": "a\nb"}),
        ("$.target_name", {"target_name": None}),
        ("target_name is no name", {"target_name": "\x1b[2J"}),
        ("$.target_module", {"target_module": 1}),
        ("$.data", {"data": [1]}),
        ("$.metadata", {"metadata": "x"}),
        ("$.buffers", {"buffers": "AAE="}),
        ("$.buffers", {"buffers": [1]}),
        ("$.buffers", {"buffers": ["A"]}),
        ("$.buffers", {"buffers": ["AA\n=="]}),
        ("$.buffers", {"buffers": ["é"]}),
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
def test_what_fits_no_frame_is_refused_in_words(message: CommMessage, words: str) -> None:
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


@pytest.mark.parametrize("kind", ["msg", "close"])
def test_no_message_passes_on_a_comm_that_is_not_open(kind: CommKind) -> None:
    comms = opened("a", "b")
    comms.from_guest(CommMessage("close", "b"))
    assert comms.open == {"a": "t"}
    with pytest.raises(FrameError, match="no such comm"):
        comms.from_guest(CommMessage(kind, "b"))


def receives(comms: Comms, kind: CommKind, comm_id: str = "a", target: str = "mine") -> bool:
    """True if the guest gets a message of the front end."""
    message = CommMessage(kind, comm_id, target_name=target if kind == "open" else "")
    return comms.from_page(message, {}, NoListener()) is not None


def test_a_front_end_opens_comms_to_registered_targets_only() -> None:
    comms = opened()
    assert not receives(comms, "open")
    comms.add_target("mine")
    assert receives(comms, "open")
    assert receives(comms, "msg")
    assert receives(comms, "close")
    assert not receives(comms, "msg")
    assert not receives(comms, "close")


def test_the_numbers_of_comms_and_targets_are_limited() -> None:
    comms = opened(*map(str, range(COMMS_MOST)))
    comms.add_target("t")
    with pytest.raises(TooManyComms):
        comms.from_guest(CommMessage("open", "one more", target_name="t"))
    assert not receives(comms, "open", "one more", "t")
    comms.from_guest(CommMessage("open", "5", target_name="again"))
    for one in range(TARGETS_MOST - 1):
        comms.add_target(str(one))
    with pytest.raises(FrameError):
        comms.add_target("one more")


def test_comms_that_only_the_front_end_knows_are_stale() -> None:
    comms = opened("a", "b")
    assert comms.sync_request == {"op": "comms", "open": ["a", "b"]}
    assert comms.sync({"comms": {"b": "t", "c": "t"}, "targets": ["t"]}) == ["a"]
    assert comms.open == {"b": "t", "c": "t"}
    assert receives(comms, "open", "x", "t")


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
