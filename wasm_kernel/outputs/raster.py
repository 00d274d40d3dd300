"""Raster images: base64 text that holds what its type says."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

# No run gives back what it took, so that the time is linear in the text.
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*+={0,2}\s*+\Z")
_HEAD = 64  # characters that hold more than any signature needs

SIGNATURES: dict[str, Callable[[bytes], bool]] = {
    "image/png": lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "image/jpeg": lambda data: data.startswith(b"\xff\xd8\xff"),
    "image/gif": lambda data: data.startswith((b"GIF87a", b"GIF89a")),
    "image/webp": lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP",
    "image/bmp": lambda data: data.startswith(b"BM"),
}


def is_base64(content: str) -> bool:
    """Whether a text is base64 to its end, with white space between its characters or without."""
    return _BASE64.match(content) is not None


def is_image(kind: str, content: str) -> bool:
    """Whether `content` is base64 of an image of the MIME type `kind`.

    Front ends put the text between quotes into an address, so it must be base64 to its end; the
    signature keeps other formats from being handed to a browser under an image's name.
    """
    signature = SIGNATURES.get(kind)
    if signature is None or not is_base64(content):
        return False
    head = "".join(content[: 2 * _HEAD].split())[:_HEAD]
    try:
        return signature(base64.b64decode(head[: len(head) // 4 * 4]))
    except ValueError:
        return False
