"""What is said on comms, the channels between objects in the guest and the front end's page."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from wasm_kernel.errors import FrameError
from wasm_kernel.execution import fields
from wasm_kernel.execution.fields import Message
from wasm_kernel.record import record

ID_CHARACTERS = 200  # of a comm's id and of its target's name
BUFFERS = 10_000  # in one message

OPEN, MSG, CLOSE = "open", "msg", "close"


@record
class CommMessage:
    """One message on a comm, in either direction, as Jupyter's `comm_*` messages have it.

    Attributes:
        kind: `open`, `msg` or `close`.
        comm_id: The comm's name, which both ends know.
        data: What is said, as JSON.
        target_name: Who is to answer at the other end; only with `open`.
        target_module: A page's module to load the target from; only with `open`.
        metadata: The message's metadata.
        buffers: Binary content, which `data` refers to by position.
    """

    kind: str
    comm_id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    target_name: str = ""
    target_module: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    buffers: tuple[bytes, ...] = ()


@record
class CommTarget:
    """From now on front ends may open comms to the target of this name."""

    name: str


@record
class CommNext:
    """The cell awaits something: it would take what the front end says meanwhile."""


@record
class CommDone:
    """What was taken has been served."""


def read_comm(message: Message) -> CommMessage:
    """The message of a `comm_open`, `comm_msg` or `comm_close` frame; raises as `frames.read`."""
    kind = message["op"].removeprefix("comm_")
    return CommMessage(
        kind=kind,
        comm_id=_name(message, "comm_id"),
        data=fields.mapping(message, "data"),
        target_name=_name(message, "target_name") if kind == OPEN else "",
        target_module=_module(message) if kind == OPEN else None,
        metadata=fields.mapping(message, "metadata"),
        buffers=_buffers(message),
    )


def read_target(message: Message) -> CommTarget:
    """The target of a `comm_target` frame."""
    return CommTarget(_name(message, "name"))


def request_of(message: CommMessage, parent: Mapping[str, Any]) -> Message:
    """The request that hands the front end's message to the guest.

    Args:
        message: The message.
        parent: What the guest may know of the front end's own message: `msg_id` and `msg_type`.
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


def _name(message: Message, name: str) -> str:
    text = fields.text(message, name)
    if not text or len(text) > ID_CHARACTERS or not text.isprintable():
        raise FrameError(f"{name} is no name")
    return text


def _module(message: Message) -> str | None:
    return None if message.get("target_module") is None else _name(message, "target_module")


def _buffers(message: Message) -> tuple[bytes, ...]:
    texts = fields.texts(message, "buffers")
    if len(texts) > BUFFERS:
        raise FrameError("buffers are too many")
    try:
        return tuple(base64.b64decode(text, validate=True) for text in texts)
    except (binascii.Error, ValueError):
        raise FrameError("buffers are no base64") from None
