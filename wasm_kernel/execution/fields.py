"""The fields of a frame, each read as what the protocol says it is."""

from __future__ import annotations

from typing import Any

from wasm_kernel.errors import FrameError

Message = dict[str, Any]


def plain(text: str) -> str:
    """`text` without lone surrogates, which no message can carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def cleaned(value: Any) -> Any:
    """A JSON value whose texts can all be carried."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): cleaned(item) for key, item in value.items()}
    return value


def text(message: Message, name: str) -> str:
    """A text that must be there. This and the rest raise `FrameError` for anything else."""
    value = message.get(name)
    if not isinstance(value, str):
        raise FrameError(f"{name} is no text")
    return value


def texts(message: Message, name: str) -> tuple[str, ...]:
    """An array of text; empty where it is left out."""
    value = message.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise FrameError(f"{name} is no array of text")
    return tuple(value)


def mapping(message: Message, name: str) -> Message:
    """An object; empty where it is left out."""
    value = message.get(name, {})
    if not isinstance(value, dict):
        raise FrameError(f"{name} is no object")
    return value


def flag(message: Message, name: str) -> bool:
    """A boolean; False where it is left out."""
    value = message.get(name, False)
    if not isinstance(value, bool):
        raise FrameError(f"{name} is no boolean")
    return value


def whole(message: Message, name: str) -> int:
    """A whole number, from 0 up, that must be there."""
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise FrameError(f"{name} is no whole number in range")
    return value
