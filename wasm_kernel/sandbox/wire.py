"""What goes over the door: bytes that hold one JSON object, checked before it costs anything.

Hostile code may send anything; the cost of reading it is bounded before it begins.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from wasm_kernel.errors import FrameError

FRAME_BYTES = 64 * 1024 * 1024
FRAME_NODES = 4_000_000
FRAME_DEPTH = 64

Json = Any


def write(message: Mapping[str, Json]) -> bytes:
    """A request or an answer as the guest reads it; lone surrogates are replaced."""
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def parse(data: bytes) -> dict[str, Json]:
    """The object that `data` holds.

    Raises:
        FrameError: it holds none, or one that is too large.
    """
    _bound(data)
    message = _parse(data)
    if not isinstance(message, dict):
        raise FrameError("it is no object")
    return message


def _bound(data: bytes) -> None:
    if len(data) > FRAME_BYTES:
        raise FrameError(f"it is larger than {FRAME_BYTES // 2**20} MiB")
    if data.count(b"[") + data.count(b"{") + data.count(b",") > FRAME_NODES:
        raise FrameError("it holds too many values")


# Each match runs to the next bracket outside a text, or to the end. It never fails, and no run
# gives back what it took: the time is linear in the frame, whatever stands in it.
_TO_BRACKET = re.compile(rb'(?:"(?:[^"\\]++|\\.)*+"?|[^"\[\]{}]++)*+(?:([\[\]{}])|\Z)', re.DOTALL)


def _depth_of(data: bytes) -> int:
    depth = deepest = 0
    for match in _TO_BRACKET.finditer(data):
        bracket = match.group(1)
        if bracket in (b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
        elif bracket is not None:
            depth -= 1
    return deepest


def _parse(data: bytes) -> Json:
    brackets = data.count(b"[") + data.count(b"{")
    if brackets > FRAME_DEPTH and _depth_of(data) > FRAME_DEPTH:
        raise FrameError("it is nested too deeply")
    try:
        text = data.decode("utf-8")
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (UnicodeDecodeError, ValueError, RecursionError) as problem:
        raise FrameError("it is no JSON") from problem


def _no_constant(name: str) -> Json:
    raise FrameError(f"it holds {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise FrameError("it holds a number out of range")
    return value
