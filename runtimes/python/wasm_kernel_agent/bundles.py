"""MIME bundles made fit for a frame: text keys, JSON values, binary content as base64 text.

What a cell hands to `display()` may be anything. What can be carried is carried; what can't is left
out, and a note in the cell says so.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import date
from numbers import Integral, Real
from typing import Any

from wasm_kernel_agent.door import FRAME_BYTES

_DEPTH = 48  # the protocol carries 64 levels, the frame around the bundle among them
_ROOM = FRAME_BYTES - 1024 * 1024  # what a frame has beside its largest content


class NotCarried(ValueError):
    """A value that no frame can carry; the text says why."""


def jsonable(value: Any, depth: int = 0) -> Any:
    """`value` as plain JSON: bytes as base64, numpy's numbers as numbers, NaN as its text.

    Raises:
        NotCarried: there is no JSON for it.
    """
    if value is None or isinstance(value, bool) or type(value) in (str, int):
        return value
    if depth > _DEPTH:
        raise NotCarried("it is nested too deeply")
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
    raise NotCarried(f"it holds a {type(value).__name__}")


def plain_object(value: Any) -> dict[str, Any]:
    """`value` as a JSON object, without the entries that can't be carried."""
    if not isinstance(value, Mapping):
        return {}
    kept: dict[str, Any] = {}
    for key, item in value.items():
        try:
            kept[str(key)] = jsonable(item)
        except Exception:
            continue
    return kept


def mime_data(data: Any) -> tuple[dict[str, Any], list[str]]:
    """The part of the bundle `data` that a frame can carry, and a note for each part left out."""
    if not isinstance(data, Mapping):
        return {}, [f"display data must be a dict of MIME types, not {type(data).__name__}"]
    kept: dict[str, Any] = {}
    notes: list[str] = []
    room = _ROOM
    for key, value in sorted(data.items(), key=_weight):
        if not isinstance(key, str):
            notes.append(f"the MIME type {key!r:.80} is no text; it was left out")
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
    return _as_given(kept, data), notes


def _too_large(key: str, size: int) -> str:
    return (
        f"{key:.80} of {size / 1e6:.1f} MB is too large to show "
        f"(a message carries {FRAME_BYTES >> 20} MiB) and was left out"
    )


def _content(key: str, value: Any) -> Any:
    if type(value) is str:
        return value
    carried = jsonable(value)
    if isinstance(carried, str) or key.endswith("json"):
        return carried
    raise NotCarried(f"its content must be text or bytes, not {type(value).__name__}")


def _size(value: Any) -> int:
    """Roughly the bytes that `value` takes in a frame; nested values are measured later."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, bytes | bytearray):
        return len(value) * 4 // 3
    return 0


def _weight(pair: tuple[Any, Any]) -> int:
    return _size(pair[1])


def _as_given(kept: dict[str, Any], data: Mapping[Any, Any]) -> dict[str, Any]:
    """`kept` in the order of `data`: front ends take the first type they like."""
    return {key: kept[key] for key in data if isinstance(key, str) and key in kept}


def with_notes(data: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """The bundle with its notes as part of the plain text."""
    if not notes:
        return data
    lines = [f"[wasm-kernel] {note}" for note in notes]
    before = data.get("text/plain")
    return {**data, "text/plain": "\n".join(([before] if before else []) + lines)}
