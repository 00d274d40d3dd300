"""Frames: every good one is read; every bad one raises `FrameError` in bounded time and memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from wasm_kernel.errors import FrameError
from wasm_kernel.guests import protocol
from wasm_kernel.guests.protocol import FRAME_DEPTH, decode, encode
from wasm_kernel.linux.channel import FRAME_BYTES, FRAME_NODES

GOLDEN = Path(__file__).resolve().parents[2] / "runtimes" / "golden"

GOOD: list[dict[str, Any]] = [
    {"op": "next"},
    {"op": "terminate"},
    {"op": "done", "reply": {"status": "ok"}},
    {"op": "display", "data": {"text/plain": "1"}, "transient": {"display_id": "a"}},
    {"op": "update_display", "data": {"application/json": [1]}, "metadata": {"a": 1}},
    {"op": "clear_output", "wait": True},
    {"op": "result", "execution_count": 3, "data": {"text/plain": "'é'"}, "metadata": {}},
    {"op": "error", "ename": "E", "evalue": "v", "traceback": ["a", "b"]},
    {"op": "input", "prompt": "> ", "password": True},
    {"op": "limit", "fuel": 10, "seconds": 2},
    {"op": "command", "name": "a", "line": "", "cell": "b"},
    {"op": "call", "function": "f", "args": [1], "kwargs": {"a": None}, "later": True},
    {"op": "item", "function": "f", "stream": 1},
    {"op": "finished", "seconds": 0.5},
    {"op": "drop", "number": 3},
]


@pytest.mark.parametrize("message", GOOD, ids=lambda message: str(message["op"]))
def test_a_good_frame_is_read(message: dict[str, Any]) -> None:
    found = json.loads(msgspec.json.encode(decode(json.dumps(message).encode())))
    assert found | message == found | {"op": message["op"]}


BAD_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("missing required field `op`", {}),
    ("Invalid value 'NEXT' - at `$.op`", {"op": "NEXT"}),
    ("$.data", {"op": "display", "data": "text"}),
    ("the content of 'text/plain' is not text", {"op": "display", "data": {"text/plain": 1}}),
    ("missing required field `execution_count`", {"op": "result", "data": {}}),
    ("$.execution_count", {"op": "result", "execution_count": True, "data": {}}),
    ("$.execution_count", {"op": "result", "execution_count": 2**62, "data": {}}),
    ("$.traceback", {"op": "error", "ename": "E", "evalue": "", "traceback": [1]}),
    ("$.password", {"op": "input", "prompt": "", "password": "yes"}),
    ("$.fuel", {"op": "limit", "fuel": -1}),
    ("$.seconds", {"op": "limit", "seconds": 0}),
    ("$.seconds", {"op": "limit", "seconds": 1e300}),
    ("missing required field `name`", {"op": "command", "line": "3"}),
    ("$.reply", {"op": "done", "reply": []}),
]


@pytest.mark.parametrize(("why", "message"), BAD_FIELDS, ids=lambda value: str(value)[:50])
def test_a_field_of_the_wrong_kind_is_refused(why: str, message: dict[str, Any]) -> None:
    with pytest.raises(FrameError) as caught:
        decode(json.dumps(message).encode())
    assert why in caught.value.why


BAD_BYTES: dict[str, bytes] = {
    "empty": b"",
    "a text": b'"next"',
    "no UTF-8": b'{"op":"input","prompt":"\xff"}',
    "NaN": b'{"op":"done","reply":{"a":NaN}}',
    "a number out of range": b'{"op":"done","reply":{"a":1e999}}',
    "a whole number of 5,000 digits": b'{"op":"limit","fuel":' + b"9" * 5000 + b"}",
    "a raw NUL in a text": b'{"op":"input","prompt":"\x00"}',
    "a pickle": b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00.",
    "arrays 200,000 deep": b'{"op":"done","reply":{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}}",
    "brackets never closed": b"[" * 200_000,
    "depth hidden behind an open text": b'{"op":"done","reply":{"a":"\\"' + b"[" * 200_000,
}


@pytest.mark.parametrize("data", BAD_BYTES.values(), ids=BAD_BYTES.keys())
def test_bytes_that_are_not_a_frame_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode(data)


def nested(depth: int) -> bytes:
    inner = depth - 2  # the frame and its reply are two levels
    return b'{"op":"done","reply":{"a":' + b"[" * inner + b"]" * inner + b"}}"


def test_the_deepest_frame_allowed_is_read_one_deeper_is_not_and_texts_do_not_count() -> None:
    assert isinstance(decode(nested(FRAME_DEPTH)), protocol.Done)
    with pytest.raises(FrameError, match="nested"):
        decode(nested(FRAME_DEPTH + 1))
    prompt = "[{" * 1000 + '"\\'
    assert decode(encode({"op": "input", "prompt": prompt})) == protocol.Input(prompt)


LARGE = {
    # a list of the values alone would have four times as many bytes
    "64 MiB": (b'{"op":"input","prompt":"' + b"a" * FRAME_BYTES + b'"}', 1_000_000),
    "too many values": (b'{"op":"done","reply":{"a":[' + b"0," * 4_000_001 + b"0]}}", 16_000_000),
}


@pytest.mark.parametrize("why", LARGE)
def test_a_frame_over_the_size_or_of_too_many_values_is_refused_unparsed(why: str) -> None:
    data, most = LARGE[why]
    tracemalloc.start()
    with pytest.raises(FrameError, match=why):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most


def test_marks_in_a_text_do_not_count_as_values() -> None:
    prompt = ',[{\\" ' * (FRAME_NODES // 2)
    assert decode(encode({"op": "input", "prompt": prompt})) == protocol.Input(prompt)
    more = b'{"op":"done","reply":{"a":"\\\\","b":[' + b"[]," * FRAME_NODES + b'"\\""]}}'
    with pytest.raises(FrameError, match="too many values"):
        decode(more)


def test_of_duplicate_fields_the_last_counts_two_ops_are_refused_unknown_ones_ignored() -> None:
    assert decode(b'{"op":"input","prompt":"a","prompt":"b"}') == protocol.Input("b")
    with pytest.raises(FrameError):
        decode(b'{"op":"next","op":"terminate"}')
    forged = {"op": "input", "prompt": "", "session": "other", "cell": 7, "__class__": "x"}
    assert decode(json.dumps(forged).encode()) == protocol.Input("")


@pytest.mark.parametrize("reply", [{"a\ud800": 1}, {"a": ["\udfff"]}, {"a": {"b": "\ud83d"}}])
def test_lone_surrogates_never_come_through(reply: dict[str, Any]) -> None:
    with pytest.raises(FrameError):  # the agent replaces them
        decode(json.dumps({"op": "done", "reply": reply}).encode())
    raw = json.dumps({"op": "done", "reply": reply}, ensure_ascii=False)
    with pytest.raises(FrameError):
        decode(raw.encode("utf-8", "surrogatepass"))


def test_answers_are_short_and_requests_hold_no_surrogate_and_no_nan() -> None:
    with pytest.raises(FrameError) as caught:
        decode(json.dumps({"op": "display", "data": {"x" * 10**6: 1}}).encode())
    assert len(caught.value.why) < 200
    assert json.loads(encode({"code": "a\ud800b"})) == {"code": "a?b"}
    with pytest.raises(ValueError, match="JSON compliant"):
        encode({"a": float("nan")})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OPS = sorted({message["op"] for message in GOOD})
FIELDS = [*("data", "metadata", "transient", "wait", "execution_count", "ename", "evalue")]
FIELDS += ["traceback", "prompt", "password", "fuel", "seconds", "reply", "name", "line", "cell"]


def golden() -> dict[str, bytes]:
    return {file.name: file.read_bytes().strip() for file in sorted(GOLDEN.glob("*.json"))}


def read(data: bytes) -> dict[str, Any]:
    """Returns the JSON of a frame, without the bytes behind it."""
    found: dict[str, Any] = json.loads(data.partition(b"\0")[0])
    return found


def test_every_golden_frame_is_read_and_every_request_is_what_the_host_writes() -> None:
    assert bool(golden()) == GOLDEN.is_dir()
    for name, data in golden().items():
        if read(data).get("op") in OPS:
            assert isinstance(decode(data), protocol.Frame), name
    for name, data in golden().items():
        message = read(data)
        if message.get("op") not in OPS:
            assert encode(message) == data, name


def test_the_bytes_behind_a_frame_are_not_read_as_json() -> None:
    frame = decode(b'{"op":"call","function":"f"}\0' + b"[," * protocol.FRAME_DEPTH * 10_000)
    assert isinstance(frame, protocol.CallFunction)
    assert len(frame.raw) == 2 * protocol.FRAME_DEPTH * 10_000
    with pytest.raises(FrameError, match="larger"):
        decode(b'{"op":"call","function":"f"}\0' + bytes(FRAME_BYTES))


def sent_or_refused(data: bytes) -> None:
    """Check that anything that `read` accepts can be part of a message."""
    try:
        frame = decode(data)
    except FrameError as refused:
        assert refused.why
        return
    words = json.dumps(asdict(frame), ensure_ascii=False, allow_nan=False, default=bytes.hex)
    words.encode("utf-8")


@given(st.text(alphabet='{}[]",:\\ a1-.eEopnxt\ud800\0', max_size=200))
def test_any_text_that_looks_like_json_is_read_or_refused(text: str) -> None:
    sent_or_refused(text.encode("utf-8", "surrogatepass"))


@given(st.sampled_from(OPS), st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=6))
def test_any_values_in_known_fields_are_read_or_refused(op: str, fields: dict[str, Any]) -> None:
    sent_or_refused(json.dumps({"op": op, **fields}).encode())


@given(st.sampled_from([json.dumps(message).encode() for message in GOOD]), st.data())
def test_a_frame_with_one_byte_changed_is_read_or_refused(good: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(good) - 1))
    byte = data.draw(st.integers(0, 255))
    sent_or_refused(good[:at] + bytes([byte]) + good[at + 1 :])
