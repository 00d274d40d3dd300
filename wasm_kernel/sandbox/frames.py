"""The frames between host and guest agent, as `runtimes/PROTOCOL.md` describes them.

The guest writes frames; hostile code in it may write anything. `read` turns bytes into one of the
event classes below or raises `FrameError`: every field is checked, nothing is trusted, and the cost
of reading is bounded before it begins.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wasm_kernel.errors import FrameError

FRAME_BYTES = 64 * 1024 * 1024
FRAME_NODES = 4_000_000
FRAME_DEPTH = 64

_JOURNEYS = frozenset({"undo", "redo", "restore", "checkpoint", "checkpoints"})

Json = Any


@dataclass(frozen=True)
class Next:
    """The agent asks for the request of this turn."""


@dataclass(frozen=True)
class Stream:
    """Text on standard output or error; made by the host from descriptors 1 and 2."""

    name: str
    text: str


@dataclass(frozen=True)
class Display:
    """`display_data`, or `update_display_data` where `update` is set."""

    data: Mapping[str, Json]
    metadata: Mapping[str, Json] = field(default_factory=dict)
    transient: Mapping[str, Json] = field(default_factory=dict)
    update: bool = False


@dataclass(frozen=True)
class ClearOutput:
    """The cell's output is cleared, at the next output where `wait` is set."""

    wait: bool = False


@dataclass(frozen=True)
class Result:
    """The value of a cell's last expression."""

    execution_count: int
    data: Mapping[str, Json]
    metadata: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Error:
    """A Python error, with its traceback as IPython renders it."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True)
class Input:
    """The cell asks its user for a line."""

    prompt: str
    password: bool = False


@dataclass(frozen=True)
class Limit:
    """The cell lowers its own limits; `seconds` counts from now."""

    fuel: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Travel:
    """The cell asks to go elsewhere in the session's history when its turn is over.

    `how` is `undo`, `redo`, `restore`, `checkpoint` (name the state after this cell) or
    `checkpoints` (list them).
    """

    how: str
    cells: int = 1
    name: str = ""


@dataclass(frozen=True)
class Terminate:
    """The cell asks that its kernel end after this turn."""


@dataclass(frozen=True)
class Immortal:
    """Addresses of objects that never die; only said while the base image is built."""

    addresses: tuple[int, ...]


@dataclass(frozen=True)
class Done:
    """The agent's reply to the turn's request."""

    reply: Mapping[str, Json]


Output = Stream | Display | ClearOutput | Result | Error
Said = Input | Limit | Travel | Terminate | Immortal | Done
Frame = Next | Display | ClearOutput | Result | Error | Said


def write(message: Mapping[str, Json]) -> bytes:
    """A request or an answer as the guest reads it; lone surrogates are replaced."""
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def read(data: bytes) -> Frame:
    """The frame that `data` holds.

    Raises:
        FrameError: it holds none, or one that breaks the protocol.
    """
    _bound(data)
    message = _parse(data)
    if not isinstance(message, dict):
        raise FrameError("it is no object")
    build = _BUILDERS.get(message["op"]) if isinstance(message.get("op"), str) else None
    if build is None:
        raise FrameError("its op is unknown")
    return build(message)


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


def plain(text: str) -> str:
    """`text` without lone surrogates, which no message can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _clean(value: Json) -> Json:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): _clean(item) for key, item in value.items()}
    return value


def _text(message: dict[str, Json], name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str):
        raise FrameError(f"{name} is no text")
    return plain(value)


def _object(message: dict[str, Json], name: str) -> dict[str, Json]:
    value = message.get(name, {})
    if not isinstance(value, dict):
        raise FrameError(f"{name} is no object")
    return {plain(key): _clean(item) for key, item in value.items()}


def _flag(message: dict[str, Json], name: str) -> bool:
    value = message.get(name, False)
    if not isinstance(value, bool):
        raise FrameError(f"{name} is no boolean")
    return value


def _whole(message: dict[str, Json], name: str) -> int:
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise FrameError(f"{name} is no whole number in range")
    return value


def _bundle(message: dict[str, Json]) -> dict[str, Json]:
    data = _object(message, "data")
    for mime, content in data.items():
        if not (isinstance(content, str) or mime.endswith("json")):
            raise FrameError(f"the content of {mime[:80]!r} is no text")
    return data


def _display(message: dict[str, Json]) -> Display:
    return Display(
        data=_bundle(message),
        metadata=_object(message, "metadata"),
        transient=_object(message, "transient"),
        update=message["op"] == "update_display",
    )


def _result(message: dict[str, Json]) -> Result:
    return Result(
        _whole(message, "execution_count"), _bundle(message), _object(message, "metadata")
    )


def _error(message: dict[str, Json]) -> Error:
    lines = message.get("traceback", [])
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise FrameError("traceback is no array of text")
    return Error(
        _text(message, "ename"), _text(message, "evalue"), tuple(plain(line) for line in lines)
    )


def _limit(message: dict[str, Json]) -> Limit:
    seconds = message.get("seconds")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        raise FrameError("seconds is no number")
    if seconds is not None and not 0 < seconds < 1e9:
        raise FrameError("seconds is out of range")
    fuel = _whole(message, "fuel") if message.get("fuel") is not None else None
    return Limit(fuel, None if seconds is None else float(seconds))


def _travel(message: dict[str, Json]) -> Travel:
    how = _text(message, "how")
    if how not in _JOURNEYS:
        raise FrameError("how names no journey")
    cells = _whole(message, "cells") if "cells" in message else 1
    return Travel(how, cells, _text(message, "name") if "name" in message else "")


def _immortal(message: dict[str, Json]) -> Immortal:
    try:
        data = base64.b64decode(_text(message, "addresses"), validate=True)
        return Immortal(tuple(address for (address,) in struct.iter_unpack("<I", data)))
    except (ValueError, struct.error):
        raise FrameError("addresses are no array of 32-bit words") from None


_BUILDERS: dict[str, Callable[[dict[str, Json]], Frame]] = {
    "next": lambda message: Next(),
    "display": _display,
    "update_display": _display,
    "clear_output": lambda message: ClearOutput(_flag(message, "wait")),
    "result": _result,
    "error": _error,
    "input": lambda message: Input(_text(message, "prompt"), _flag(message, "password")),
    "limit": _limit,
    "immortal": _immortal,
    "travel": _travel,
    "terminate": lambda message: Terminate(),
    "done": lambda message: Done(_object(message, "reply")),
}
