"""The frames between host and guest agent, as `runtimes/PROTOCOL.md` describes them.

The guest writes frames; hostile code in it may write anything. `read` turns bytes into one of the
event classes below or raises `FrameError`: every field is checked, nothing is trusted.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping
from dataclasses import field

from wasm_kernel.errors import FrameError
from wasm_kernel.execution import fields, wire
from wasm_kernel.execution.fields import Message, plain
from wasm_kernel.execution.widgets.comm_frames import (
    CommDone,
    CommMessage,
    CommNext,
    CommTarget,
    read_comm,
    read_target,
)
from wasm_kernel.execution.wire import FRAME_BYTES, FRAME_DEPTH, Json, write
from wasm_kernel.record import record

__all__ = ["FRAME_BYTES", "FRAME_DEPTH", "plain", "read", "write"]

_JOURNEYS = {"undo", "redo", "restore", "checkpoint", "checkpoints", "history_tree"}


@record
class Next:
    """The agent asks for the request of this turn."""


@record
class Stream:
    """Text on standard output or error; made by the host from descriptors 1 and 2."""

    name: str
    text: str


@record
class Display:
    """`display_data`, or `update_display_data` where `update` is set."""

    data: Mapping[str, Json]
    metadata: Mapping[str, Json] = field(default_factory=dict)
    transient: Mapping[str, Json] = field(default_factory=dict)
    update: bool = False


@record
class ClearOutput:
    """The cell's output is cleared, at the next output where `wait` is set."""

    wait: bool = False


@record
class Result:
    """The value of a cell's last expression."""

    execution_count: int
    data: Mapping[str, Json]
    metadata: Mapping[str, Json] = field(default_factory=dict)


@record
class Error:
    """A Python error, with its traceback as IPython renders it."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()


@record
class Input:
    """The cell asks its user for a line."""

    prompt: str
    password: bool = False


@record
class Limit:
    """The cell lowers its own limits; `seconds` counts from now."""

    fuel: int | None = None
    seconds: float | None = None


@record
class Travel:
    """The cell asks to go elsewhere in the session's history when its turn is over.

    `how` is the magic's name, `line` the words behind it. `checkpoint` names the state after this
    cell, `checkpoints` and `history_tree` only list what there is.
    """

    how: str
    line: str = ""


@record
class Errand:
    """A magic asks the host to do what reaches beyond the guest (`errands.py`)."""

    name: str
    line: str
    cell: str | None = None


@record
class Terminate:
    """The cell asks that its kernel end after this turn."""


@record
class Immortal:
    """Addresses of objects that never die; only said while the base image is built."""

    addresses: tuple[int, ...]


@record
class Done:
    """The agent's reply to the turn's request."""

    reply: Mapping[str, Json]


Output = Stream | Display | ClearOutput | Result | Error
Talked = CommMessage | CommTarget | CommNext | CommDone
Said = Input | Limit | Travel | Errand | Talked | Terminate | Immortal | Done
Frame = Next | Display | ClearOutput | Result | Error | Said


def read(data: bytes) -> Frame:
    """The frame that `data` holds.

    Raises:
        FrameError: it holds none, or one that breaks the protocol.
    """
    message = wire.parse(data)
    build = _BUILDERS.get(message["op"]) if isinstance(message.get("op"), str) else None
    if build is None:
        raise FrameError("its op is unknown")
    return build(message)


def _bundle(message: Message) -> Message:
    data = fields.mapping(message, "data")
    for mime, content in data.items():
        if not (isinstance(content, str) or mime.endswith("json")):
            raise FrameError(f"the content of {mime[:80]!r} is no text")
    return data


def _display(message: Message) -> Display:
    return Display(
        data=_bundle(message),
        metadata=fields.mapping(message, "metadata"),
        transient=fields.mapping(message, "transient"),
        update=message["op"] == "update_display",
    )


def _result(message: Message) -> Result:
    return Result(
        fields.whole(message, "execution_count"),
        _bundle(message),
        fields.mapping(message, "metadata"),
    )


def _error(message: Message) -> Error:
    traceback = fields.texts(message, "traceback")
    return Error(fields.text(message, "ename"), fields.text(message, "evalue"), traceback)


def _limit(message: Message) -> Limit:
    seconds = message.get("seconds")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        raise FrameError("seconds is no number")
    if seconds is not None and not 0 < seconds < 1e9:
        raise FrameError("seconds is out of range")
    fuel = fields.whole(message, "fuel") if message.get("fuel") is not None else None
    return Limit(fuel, None if seconds is None else float(seconds))


def _travel(message: Message) -> Travel:
    how = fields.text(message, "how")
    if how not in _JOURNEYS:
        raise FrameError("how names no journey")
    return Travel(how, fields.text(message, "line") if "line" in message else "")


def _errand(message: Message) -> Errand:
    cell = fields.text(message, "cell") if message.get("cell") is not None else None
    return Errand(fields.text(message, "name"), fields.text(message, "line"), cell)


def _immortal(message: Message) -> Immortal:
    try:
        data = base64.b64decode(fields.text(message, "addresses"), validate=True)
        return Immortal(tuple(address for (address,) in struct.iter_unpack("<I", data)))
    except (ValueError, struct.error):
        raise FrameError("addresses are no array of 32-bit words") from None


_BUILDERS: dict[str, Callable[[Message], Frame]] = {
    "next": lambda message: Next(),
    "display": _display,
    "update_display": _display,
    "clear_output": lambda message: ClearOutput(fields.flag(message, "wait")),
    "result": _result,
    "error": _error,
    "input": lambda message: Input(
        fields.text(message, "prompt"), fields.flag(message, "password")
    ),
    "limit": _limit,
    "comm_open": read_comm,
    "comm_msg": read_comm,
    "comm_close": read_comm,
    "comm_target": read_target,
    "comm_next": lambda message: CommNext(),
    "comm_done": lambda message: CommDone(),
    "immortal": _immortal,
    "travel": _travel,
    "errand": _errand,
    "terminate": lambda message: Terminate(),
    "done": lambda message: Done(fields.mapping(message, "reply")),
}
