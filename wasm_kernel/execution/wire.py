"""What goes over the door: bytes that hold one JSON object, checked before it costs anything.

Hostile code may send anything; the cost of reading it is bounded before it begins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from sys import getsizeof
from typing import Any

from wasm_kernel.errors import FrameError
from wasm_kernel.execution.fields import cleaned

FRAME_BYTES = 64 * 1024 * 1024
FRAME_MEMORY = 128 * 1024 * 1024  # of a frame's text, as Python keeps it
FRAME_NODES = 500_000
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
    if len(data) * _WIDEST > FRAME_MEMORY and len(data) * _width(data) > FRAME_MEMORY:
        raise FrameError(f"its text takes more than {FRAME_MEMORY // 2**20} MiB of memory")


# Python keeps each character of a text in as many bytes as the widest of them needs.
_WIDEST = 4
_LATIN_1, _PLANE_0 = bytes(range(0xC4)), bytes(range(0xF0))  # of UTF-8, with what follows


def _width(data: bytes) -> int:
    beyond = data.translate(None, _LATIN_1)
    if beyond.translate(None, _PLANE_0) or _may_have_surrogates(data):
        return _WIDEST
    return 2 if beyond or b"\\u" in data else 1


def _may_have_surrogates(data: bytes) -> bool:
    return b"\\ud" in data or b"\\uD" in data


def _parse(data: bytes) -> Json:
    try:
        message = json.loads(data.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite)
    except RecursionError as problem:
        raise FrameError("it is nested too deeply") from problem
    except (UnicodeDecodeError, ValueError) as problem:
        raise FrameError("it is no JSON") from problem
    if data.count(b"[") + data.count(b"{") > FRAME_DEPTH:
        _check_depth(message)
    return cleaned(message) if _may_have_surrogates(data) else message


def _check_depth(message: Json) -> None:
    containers = [message]
    for _ in range(FRAME_DEPTH):
        containers = [
            inner
            for value in containers
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
    if containers:
        raise FrameError("it is nested too deeply")


def weight(value: Json) -> int:
    """How many bytes a value takes in the host's memory, with everything in it."""
    total, waiting = 0, [value]
    while waiting:
        value = waiting.pop()
        total += getsizeof(value)
        if isinstance(value, dict):
            waiting.extend(value)
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
    return total


def _no_constant(name: str) -> Json:
    raise FrameError(f"it holds {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise FrameError("it holds a number out of range")
    return value
