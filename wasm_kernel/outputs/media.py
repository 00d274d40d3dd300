"""Raster images, sounds and films: base64 text whose content has the type that is claimed.

Browsers also take lists of further addresses for a sound or a film (HLS, DASH), and fetch from
those. Such a list is a text, which no signature below matches.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

from wasm_kernel.outputs.removals import words

# Every run is possessive, so that the time is linear in the text.
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*+={0,2}\s*+\Z")
_IMAGE_HEAD, _SOUND_HEAD = 64, 512  # characters that hold more than any signature needs

IMAGE_SIGNATURES: dict[str, Callable[[bytes], bool]] = {
    "image/png": lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "image/jpeg": lambda data: data.startswith(b"\xff\xd8\xff"),
    "image/gif": lambda data: data.startswith((b"GIF87a", b"GIF89a")),
    "image/webp": lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP",
    "image/bmp": lambda data: data.startswith(b"BM"),
}


def is_base64(content: str) -> bool:
    """Returns whether a text is base64 to its end; white space between its characters is fine."""
    return _BASE64.match(content) is not None


def is_image(kind: str, content: str) -> bool:
    """Returns whether `content` is base64 to its end, of an image of the MIME type `kind`.

    Front ends put the text between quotes into an address. The signature keeps other formats from
    being handed to a browser under an image's name.
    """
    signature = IMAGE_SIGNATURES.get(kind)
    if signature is None or not is_base64(content):
        return False
    return signature(_decoded_head(content, _IMAGE_HEAD))


FORMATS = words("""
    3gpp aac flac m4a matroska mov mp3 mp4 mp4a-latm mpeg ogg opus quicktime wav wave webm x-aac
    x-flac x-m4a x-m4v x-matroska x-mpeg x-ms-wma x-wav vnd.wave
    """)
_SOUND_SIGNATURES = (
    re.compile(rb"(?:RIFF|RIFX|RF64|OggS|fLaC|ID3|\x1aE\xdf\xa3)"),
    re.compile(rb"[\x00-\xff]{4}(?:ftyp|moov|mdat|wide|free|skip|styp)"),  # MPEG-4's boxes
    re.compile(rb"\xff[\xe0-\xff]|\x00\x00\x01[\xb3\xba]|\x0b\x77"),  # MPEG, AAC
)


def is_recorded(data: bytes) -> bool:
    """Returns whether a file begins as a sound or a film does."""
    return any(signature.match(data) for signature in _SOUND_SIGNATURES)


def is_recording(kind: str, content: str) -> bool:
    """Returns whether `content` is base64 of a sound or a film, and `kind` a MIME type of one."""
    family, _, subtype = kind.partition("/")
    if family not in ("audio", "video") or subtype not in FORMATS or not is_base64(content):
        return False
    return is_recorded(_decoded_head(content, _SOUND_HEAD))


def _decoded_head(content: str, characters: int) -> bytes:
    """The bytes that a base64 text begins with."""
    head = "".join(content[: 2 * characters].split())[:characters]
    return base64.b64decode(head[: len(head) // 4 * 4])
