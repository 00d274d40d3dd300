"""Sounds and films: files that hold what is heard and seen.

Browsers also take lists of further addresses for a sound or a film (HLS, DASH), and fetch from
those. Such a list is a text, and what is recorded is not.
"""

from __future__ import annotations

import base64
import re

from wasm_kernel.outputs.raster import is_base64
from wasm_kernel.outputs.words import words

_HEAD = 512  # characters that hold more than any signature needs

FORMATS = words("""
    3gpp aac flac m4a matroska mov mp3 mp4 mp4a-latm mpeg ogg opus quicktime wav wave webm x-aac
    x-flac x-m4a x-m4v x-matroska x-mpeg x-ms-wma x-wav vnd.wave
    """)
_SIGNATURES = (
    re.compile(rb"(?:RIFF|RIFX|RF64|OggS|fLaC|ID3|\x1aE\xdf\xa3)"),
    re.compile(rb"[\x00-\xff]{4}(?:ftyp|moov|mdat|wide|free|skip|styp)"),  # MPEG-4's boxes
    re.compile(rb"\xff[\xe0-\xff]|\x00\x00\x01[\xb3\xba]|\x0b\x77"),  # MPEG, AAC
)


def is_known(data: bytes) -> bool:
    """Whether a file begins as a sound or a film does."""
    return any(signature.match(data) for signature in _SIGNATURES)


def is_recording(kind: str, content: str) -> bool:
    """Whether `content` is base64 of a sound or a film, and of the MIME type `kind` of one."""
    family, _, subtype = kind.partition("/")
    if family not in ("audio", "video") or subtype not in FORMATS or not is_base64(content):
        return False
    head = "".join(content[: 2 * _HEAD].split())[:_HEAD]
    try:
        return is_known(base64.b64decode(head[: len(head) // 4 * 4]))
    except ValueError:
        return False
