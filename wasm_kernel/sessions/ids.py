"""Session ids: their shape, and new ones."""

from __future__ import annotations

import hashlib
import re
import uuid

from wasm_kernel.errors import WasmKernelError

ID_LENGTH = 64
_SHAPE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9-]{{0,{ID_LENGTH - 1}}}", re.ASCII)


class SessionIdError(WasmKernelError, ValueError):
    """The error of a text that is not a session id."""

    def __init__(self) -> None:
        super().__init__(
            f"A session id is 1 to {ID_LENGTH} letters, digits and hyphens, and starts with a "
            "letter or a digit. Nothing was opened. Choose another id, or leave it out."
        )


def checked(text: str) -> str:
    """Returns a session id, safe as a folder's name everywhere, or raises `SessionIdError`."""
    if not isinstance(text, str) or not is_id(text):
        raise SessionIdError
    return text


def is_id(text: str) -> bool:
    """Returns whether a text is a session id."""
    return _SHAPE.fullmatch(text) is not None


def new() -> str:
    """Returns a new random id."""
    return str(uuid.uuid4())


def uuid_in(text: str) -> str | None:
    """Returns `text` as a UUID in its usual spelling; None if it is not a UUID."""
    try:
        found = str(uuid.UUID(text))
    except ValueError:
        return None
    return found if found == text.lower() else None


def derived(*parts: bytes) -> str:
    """Returns an id, shaped like a UUID, that depends on `parts` alone."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return str(uuid.UUID(bytes=digest.digest()[:16], version=4))
