"""The frames between the host and a guest's agent, as `runtimes/PROTOCOL.md` describes them.

The guest writes frames; hostile code in it may write anything. `decode` bounds the cost of reading
before it begins, checks every field, and returns one of the frame classes below or raises
`FrameError`.
"""

# Annotations are values here, not texts, which msgspec would compile at every start.

import base64
import json
import struct
from collections.abc import Mapping
from sys import getsizeof
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple

from wasm_kernel.errors import FrameError
from wasm_kernel.guests.base import CommandLine
from wasm_kernel.linux.channel import check_size, read
from wasm_kernel.result import CommKind, CommMessage

FRAME_DEPTH = 64
TEXT_CHARACTERS = 1024 * 1024  # characters of one piece of text
NAME_CHARACTERS = 200  # characters of a comm's id, or of its target's name

_REASON_CHARACTERS = 150
_BYTES = (bytes, bytearray, memoryview)

Json = Any
Object = dict[str, Json]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)]
Count = Annotated[int, Meta(ge=0, lt=2**62)]
Seconds = Annotated[float, Meta(gt=0, lt=1e9)]
Buffers = Annotated[tuple[bytes, ...], Meta(max_length=10_000)]  # bytes, in base64


class _Frame(Struct, frozen=True, tag_field="op"):
    """A frame; its tag is the `op` of the protocol."""


class Next(_Frame, frozen=True, tag="next"):
    """The agent asks for the request of this turn."""


class Stream(_Frame, frozen=True, tag="stream"):
    """Text on standard output or error; made by the host from descriptors 1 and 2, not by agents.

    Attributes:
        name: `stdout` or `stderr`.
        text: The printed text.
    """

    name: Annotated[str, Meta(pattern=r"^(stdout|stderr)\Z")]
    text: Annotated[str, Meta(max_length=TEXT_CHARACTERS)]


class Display(_Frame, frozen=True, tag="display"):
    """A rich output, such as a figure."""

    data: Object = {}
    metadata: Object = {}
    transient: Object = {}


class UpdateDisplay(Display, frozen=True, tag="update_display"):
    """New content for an output that is shown already."""


class ClearOutput(_Frame, frozen=True, tag="clear_output"):
    """The cell's output is cleared, or only when the next output comes if `wait` is set."""

    wait: bool = False


class Result(_Frame, frozen=True, tag="result"):
    """The value of a cell's last expression."""

    execution_count: Count
    data: Object = {}
    metadata: Object = {}


class ErrorOutput(_Frame, frozen=True, tag="error"):
    """An error of the cell, with its traceback as the guest renders it.

    `memory` says that the guest was refused memory.
    """

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()
    memory: bool = False


class Input(_Frame, frozen=True, tag="input"):
    """The cell asks its user for a line."""

    prompt: str
    password: bool = False


class Limit(_Frame, frozen=True, tag="limit"):
    """The cell lowers its own limits; `seconds` counts from now."""

    fuel: Count | None = None
    seconds: Seconds | None = None


class Terminate(_Frame, frozen=True, tag="terminate"):
    """The cell asks that its kernel end after this turn."""


class Immortal(_Frame, frozen=True, tag="immortal"):
    """Addresses of objects that never die; only sent while the base image is built."""

    addresses: bytes

    @property
    def words(self) -> tuple[int, ...]:
        """The addresses."""
        return struct.unpack(f"<{len(self.addresses) // 4}I", self.addresses)


class Done(_Frame, frozen=True, tag="done"):
    """The agent's reply to the turn's request."""

    reply: Object = {}


class CallFunction(_Frame, frozen=True, tag="call"):
    """The cell calls a function of the host; the arguments are plain data with their `raw` bytes.

    With `later`, the answer of an `async` function comes with `FinishedCalls`.
    """

    function: Name
    args: list[Json] = []
    kwargs: Object = {}
    later: bool = False
    raw: bytes = b""


class NextItem(_Frame, frozen=True, tag="item"):
    """The cell wants the next item of a stream that a function of the host returned."""

    function: Name
    stream: Count
    later: bool = False


class FinishedCalls(_Frame, frozen=True, tag="finished"):
    """The cell waits for one of the calls that it awaits, up to `seconds`."""

    seconds: Annotated[float, Meta(ge=0, le=60)]


class DropCall(_Frame, frozen=True, tag="drop"):
    """The cell needs a call's answer, or a stream's items, no more."""

    number: Count


FunctionFrame = CallFunction | NextItem | FinishedCalls | DropCall


class FunctionReply(Struct, frozen=True):
    """The owner's reply to a `FunctionFrame`: the answer for the guest, with its bytes."""

    answer: Object
    raw: bytes = b""


Answer = Mapping[str, Json] | FunctionReply


class CommTarget(_Frame, frozen=True, tag="comm_target"):
    """From now on front ends may open comms to the target of this name."""

    name: Name


class CommNext(_Frame, frozen=True, tag="comm_next"):
    """The cell awaits something, and can take a message of the front end in the meantime."""


class CommDone(_Frame, frozen=True, tag="comm_done"):
    """The message that was taken has been served."""


class _CommMsg(_Frame, frozen=True, kw_only=True, tag="comm_msg"):
    """The guest sends a message on a comm."""

    comm_id: Name
    data: Object = {}
    metadata: Object = {}
    buffers: Buffers = ()

    @property
    def message(self) -> CommMessage:
        fields = msgspec.structs.asdict(self)
        for name in {"comm_id", "target_name", "target_module"} & fields.keys():
            _check_name(name, fields[name] or "")
        return CommMessage(_KINDS[type(self)], **fields)


class _CommOpen(_CommMsg, frozen=True, kw_only=True, tag="comm_open"):
    """The guest opens a comm."""

    target_name: Name
    target_module: Name | None = None


class _CommClose(_CommMsg, frozen=True, tag="comm_close"):
    """The guest closes a comm."""


_KINDS: dict[type, CommKind] = {_CommOpen: "open", _CommMsg: "msg", _CommClose: "close"}

CommFrame = CommMessage | CommTarget | CommNext | CommDone
_CommWords = _CommOpen | _CommMsg | _CommClose | CommTarget | CommNext | CommDone
RichOutput = Display | UpdateDisplay | ClearOutput | Result | ErrorOutput
Output = Stream | RichOutput
_Asked = Next | Input | Limit | CommandLine | FunctionFrame | Terminate | Immortal | Done
Frame = RichOutput | _Asked | CommFrame

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(RichOutput | _Asked | _CommWords)
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode(message: Answer) -> bytes:
    """Returns a request or an answer as the guest reads it; lone surrogates are replaced.

    Raises `ValueError`, `TypeError` or `RecursionError` if it holds values that JSON has not.
    """
    if isinstance(message, FunctionReply):
        text = encode(message.answer)
        return b"\0".join((text, message.raw)) if message.raw else text
    return _encoder.encode(message).encode("utf-8", "replace")


def decode(data: bytes) -> Frame:
    """Returns the frame that `data` holds, or raises `FrameError`."""
    check_size(data)
    try:
        frame = read(data, _decoder.decode)
    except RecursionError:
        raise FrameError("it is nested too deeply") from None
    except msgspec.ValidationError as problem:
        raise FrameError(str(problem)[:_REASON_CHARACTERS]) from None
    except ValueError as problem:
        raise FrameError("it is not JSON") from problem
    if len(data) > FRAME_DEPTH:
        check_depth(frame)
    return checked(frame)


def comm_request(message: CommMessage, parent: Mapping[str, Any]) -> Object:
    """Returns the request that hands a front end's message to the guest.

    `parent` holds the fields of the front end's message that the guest may know: `msg_id` and
    `msg_type`.
    """
    return {
        "op": "comm",
        "kind": message.kind,
        "comm_id": message.comm_id,
        "target_name": message.target_name,
        "data": dict(message.data),
        "metadata": dict(message.metadata),
        "buffers": [base64.b64encode(each).decode("ascii") for each in message.buffers],
        "parent": dict(parent),
    }


def without_surrogates(text: str) -> str:
    """Returns `text` without lone surrogates, which no message can carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def memory_size(value: Json) -> int:
    """Returns how many bytes a value takes in the host's memory, with everything in it."""
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


def checked(frame: Any) -> Frame:
    """Returns a decoded frame, checked beyond the types of its fields, or raises `FrameError`."""
    match frame:
        case Display(data=data) | Result(data=data):
            for mime, content in data.items():
                if not (isinstance(content, str) or mime.endswith("json")):
                    raise FrameError(f"the content of {mime[:80]!r} is not text")
        case CommTarget():
            _check_name("name", frame.name)
        case Immortal() if len(frame.addresses) % 4:
            raise FrameError("addresses are not an array of 32-bit words")
        case _CommMsg():
            return frame.message
    found: Frame = frame
    return found


def _check_name(field: str, name: str) -> None:
    if not name.isprintable():
        raise FrameError(f"{field} is not a name")


def check_depth(frame: Struct | list[Any]) -> None:
    """Raises `FrameError` if objects and arrays are nested too deep; the frame is one level."""
    containers: list[Any] = [frame]
    for _ in range(FRAME_DEPTH):
        if not containers:
            return
        containers = [
            inner
            for value in containers
            for inner in (
                value.values()
                if isinstance(value, dict)
                else astuple(value)
                if isinstance(value, Struct)
                else value
            )
            if isinstance(inner, dict | list | tuple | Struct)
        ]
    if containers:
        raise FrameError("it is nested too deeply")


def check_request(request: Struct) -> None:
    """Raises `FrameError`, `TypeError` or `ValueError` if a worker could not read a request."""
    check_depth(request)
    plain = msgspec.to_builtins(request, builtin_types=_BYTES, str_keys=True)
    msgspec.convert(plain, type(request))
