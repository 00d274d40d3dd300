"""Rich output: MIME bundles made fit for a frame, and IPython's ways to send them.

A cell may hand anything to `display()`. The parts that a frame can carry are sent: text keys, JSON
values, binary content as base64 text. The rest is left out, and a note in the cell says so.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from numbers import Integral, Real
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

from wasm_kernel_agent.embedded_files import embedded
from wasm_kernel_agent.host import FRAME_BYTES, FrameChannel, FrameTooLarge, flush, note

_DEPTH = 48  # the protocol carries 64 levels, the frame around the bundle among them
_ROOM = FRAME_BYTES - 1024 * 1024  # leaves 1 MiB for the rest of the frame
_SILENT_REFUSALS = frozenset(
    {"over the cap of messages to widgets", "no such comm is open", "the turn is over"}
)  # the host itself reports these refusals of comm messages, once or not at all


class NotSendable(ValueError):
    """No frame can carry a value; the text says why."""


def jsonable(value: Any, depth: int = 0) -> Any:
    """Returns `value` as plain JSON: bytes as base64, numpy's numbers as numbers, NaN as its text.

    Raises:
        NotSendable: There is no JSON for it.
    """
    if value is None or isinstance(value, bool) or type(value) in (str, int):
        return value
    if depth > _DEPTH:
        raise NotSendable("it is nested too deeply")
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {str(key): jsonable(item, depth + 1) for key, item in value.items()}
    return _scalar_or_list(value, depth)


def _scalar_or_list(value: Any, depth: int) -> Any:
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else repr(number)
    if isinstance(value, date):
        return value.isoformat()
    item = getattr(value, "item", None)
    if getattr(value, "shape", None) == () and callable(item):  # numpy's booleans and 0-d arrays
        return jsonable(item(), depth + 1)
    if isinstance(value, Iterable):
        return [jsonable(each, depth + 1) for each in value]
    raise NotSendable(f"it holds a {type(value).__name__}")


def plain_object(value: Any) -> dict[str, Any]:
    """Returns `value` as a JSON object, without the entries that can't be sent."""
    if not isinstance(value, Mapping):
        return {}
    kept: dict[str, Any] = {}
    for key, item in value.items():
        try:
            kept[str(key)] = jsonable(item)
        except Exception:
            continue
    return kept


def mime_data(data: Any) -> dict[str, Any]:
    """Returns the part of a bundle that a frame can carry; its text names the parts left out."""
    if not isinstance(data, Mapping):
        return _noted({}, [f"display data must be a dict of MIME types, not {type(data).__name__}"])
    kept: dict[str, Any] = {}
    notes: list[str] = []
    room = _ROOM
    for key, value in sorted(data.items(), key=lambda pair: _size(pair[1])):
        if not isinstance(key, str):
            notes.append(f"the MIME type {key!r:.80} is not text; it was left out")
            continue
        if _size(value) > room:
            notes.append(_too_large(key, _size(value)))
            continue
        try:
            kept[key] = _content(key, value)
        except Exception as problem:
            notes.append(f"{key:.80} was left out: {problem!s:.200}")
            continue
        room -= _size(kept[key])
    # in the given order: front ends take the first type they like
    return _noted({key: kept[key] for key in data if key in kept}, notes)


def _too_large(key: str, size: int) -> str:
    return (
        f"{key:.80} of {size / 2**20:.1f} MiB is too large to show "
        f"(a message carries {FRAME_BYTES >> 20} MiB) and was left out"
    )


def _content(key: str, value: Any) -> Any:
    if type(value) is str:
        return value
    sendable = jsonable(value)
    if isinstance(sendable, str) or key.endswith("json"):
        return sendable
    raise NotSendable(f"its content must be text or bytes, not {type(value).__name__}")


def _size(value: Any) -> int:
    """Roughly the bytes that `value` takes in a frame; nested values are measured later."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, bytes | bytearray):
        return len(value) * 4 // 3
    return 0


def _noted(data: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    if not notes:
        return data
    lines = [f"[wasm-kernel] {note}" for note in notes]
    before = data.get("text/plain")
    return {**data, "text/plain": "\n".join(([before] if before else []) + lines)}


class Outbox:
    """Sends a cell's rich output. A refusal by the host becomes a note on standard error."""

    def __init__(self, channel: FrameChannel) -> None:
        self._channel = channel
        self._refused = ""

    def begin(self) -> None:
        """Begins a cell: the next refusal is noted, even if an earlier cell met the same one."""
        self._refused = ""

    def send_bundle(self, op: str, data: Any, metadata: Any, **fields: Any) -> None:
        """Sends a frame of kind `op` that carries a MIME bundle, and `fields` beside it."""
        about = plain_object(metadata)
        frame = {"op": op, "data": mime_data(embedded(data)), "metadata": about, **fields}
        try:
            self.send(frame)
        except (FrameTooLarge, RecursionError, ValueError) as problem:
            frame["data"] = {"text/plain": f"[wasm-kernel] the output was left out: {problem}"}
            frame["metadata"] = {}
            self.send(frame)

    def send(self, frame: Mapping[str, Any]) -> None:
        """Sends a frame as it is, after the text that was printed before it."""
        self._send(frame, "the output")

    def send_comm(self, frame: Mapping[str, Any]) -> None:
        """Sends a message on a comm, after the text that was printed before it."""
        self._send(frame, "a message to the page", _SILENT_REFUSALS)

    def _send(self, frame: Mapping[str, Any], what: str, silent: Collection[str] = ()) -> None:
        flush()
        refused = self._channel.send(frame).get("refused")
        if refused and refused != self._refused and refused not in silent:
            self._refused = refused
            note(f"{what} was refused: {refused}")

    def send_error(
        self, ename: str, evalue: str, traceback: list[str], *, memory: bool = False
    ) -> None:
        """Sends a Python error, as IPython renders it; `memory` if memory was refused."""
        frame: dict[str, Any] = {"op": "error", "ename": ename, "evalue": evalue}
        frame["traceback"] = traceback
        if memory:
            frame["memory"] = True
        try:
            self.send(frame)
        except FrameTooLarge as problem:
            short = [f"[wasm-kernel] the traceback was left out: {problem}"]
            self.send({**frame, "evalue": evalue[:10_000], "traceback": short})


class FramePublisher(DisplayPublisher):
    """Sends the arguments of `display()`. `outbox` is set by the shell that owns it."""

    outbox: Outbox

    def publish(
        self,
        data: Any,
        metadata: Any = None,
        source: Any = None,
        *,
        transient: Any = None,
        update: bool = False,
        **kwargs: Any,
    ) -> None:
        """Sends a display, or with `update` a change of the one with the same `display_id`."""
        op = "update_display" if update else "display"
        self.outbox.send_bundle(op, data, metadata, transient=plain_object(transient))

    def clear_output(self, wait: bool = False) -> None:
        """Clears the cell's output; with `wait`, not before there is a next output."""
        self.outbox.send({"op": "clear_output", "wait": bool(wait)})


class FrameHook(DisplayHook):
    """Shows the value of a cell's last expression. `outbox` is set by the shell that owns it."""

    outbox: Outbox

    def write_output_prompt(self) -> None:
        """Does nothing: the frame carries the number."""

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        """Sends the value in the forms that IPython's formatters gave it."""
        self.outbox.send_bundle("result", format_dict, md_dict, execution_count=self.prompt_count)

    def finish_displayhook(self) -> None:
        """Ends the display of a value."""
        self._is_active = False
