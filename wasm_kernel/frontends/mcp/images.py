"""Images for a client: recognises them, measures them, and makes large ones smaller.

No untrusted image is decoded here: its size is read from its head, and the guest makes large ones
smaller.
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from mcp_types import ImageContent
from msgspec import Struct

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.mcp.sessions import AgentSession
from wasm_kernel.policy import MIB, RuntimeType

EDGE = 1568
"""The longest edge of an image in a reply, in pixels; clients make larger ones smaller."""
IMAGE_BYTES = 3 * MIB
"""The most bytes of an image in a reply."""
REPLY_IMAGE_BYTES = 6 * MIB
"""The most bytes of all images in a reply."""
_HEAD_BYTES = 64
IMAGES: Mapping[str, tuple[re.Pattern[bytes], bytes]] = {
    "image/png": (re.compile(rb"\x89PNG\r\n\x1a\n.{4}IHDR", re.DOTALL), b"IEND\xae\x42\x60\x82"),
    "image/jpeg": (re.compile(rb"\xff\xd8\xff", re.DOTALL), b"\xff\xd9"),
    "image/gif": (re.compile(rb"GIF8[79]a.{4}", re.DOTALL), b";"),
    "image/webp": (re.compile(rb"RIFF.{4}WEBPVP8[ LX].{14}", re.DOTALL), b""),
}
"""The types of images that clients show, with the beginning and end of such files.

A model's provider may refuse a whole conversation because of one file that is not an image.
"""
_SEGMENTS_MOST = 1_000  # segments of a JPEG before the one with its size
_SCALE = f"""
def scaled(path):
    import io
    from IPython.display import Image
    from PIL import Image as Picture
    with Picture.open(path) as picture:
        picture.thumbnail(({EDGE}, {EDGE}), Picture.LANCZOS)
        made = io.BytesIO()
        picture.save(made, "PNG")
    return Image(made.getvalue(), format="png")
"""


class Picture(Struct, frozen=True):
    """An image that a cell showed: its MIME type and its content."""

    mime_type: str
    data: bytes

    @property
    def is_fit(self) -> bool:
        """True if clients can show the image unchanged."""
        if len(self.data) > IMAGE_BYTES or not self.is_image:
            return False
        edge = max(_size(self))
        return 0 < edge <= EDGE

    @property
    def is_image(self) -> bool:
        """True if the content begins and ends as images of its type do."""
        head, end = IMAGES[self.mime_type]
        return head.match(self.data[:_HEAD_BYTES]) is not None and self.data.endswith(end)


def picture_in(data: Any) -> Picture | None:
    """Returns the image in a MIME bundle; None if there is none."""
    if not isinstance(data, Mapping):
        return None
    for mime_type in IMAGES:
        if isinstance(content := data.get(mime_type), str):
            try:
                return Picture(mime_type, b64decode(content))
            except ValueError:
                continue
    return None


def image_block(picture: Picture) -> ImageContent:
    """Returns an image as a block."""
    data = b64encode(picture.data).decode()
    return ImageContent(type="image", data=data, mime_type=picture.mime_type)


async def fitting(session: AgentSession, picture: Picture, path: str) -> Picture | None:
    """Returns the image or a smaller one, which clients can show; None if there is none.

    The session's guest makes the file at `path` smaller, unless it would have to wait for a cell.
    """
    if picture.is_fit:
        return picture
    can_be_scaled = picture.is_image and path
    if not can_be_scaled or session.language != RuntimeType.PYTHON or session.running:
        return None
    asked = f"(lambda d: (exec({_SCALE!r}, d), d['scaled'])[1])({{}})({f'/app/{path}'!r})"
    try:
        result = await session.sandbox.execute(
            "", silent=True, user_expressions={"picture": asked}, timeout_seconds=30.0
        )
        made = picture_in(result.reply["user_expressions"]["picture"]["data"])
    except (WasmKernelError, KeyError, TypeError):
        return None
    return made if made is not None and made.is_fit else None


def _size(picture: Picture) -> tuple[int, int]:
    """Returns the width and height of an image in pixels, from its head; zeros if unknown."""
    data = picture.data
    match picture.mime_type, data[12:16]:
        case "image/png", _:
            width, height = struct.unpack(">II", data[16:24])
        case "image/gif", _:
            width, height = struct.unpack("<HH", data[6:10])
        case "image/webp", b"VP8X":
            width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
        case "image/webp", b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case "image/webp", _:
            width, height = (each & 0x3FFF for each in struct.unpack("<HH", data[26:30]))
        case _:
            width, height = _size_of_jpeg(data)
    return width, height


def _size_of_jpeg(data: bytes) -> tuple[int, int]:
    """Returns the size in the first frame's segment."""
    at = 2
    for _ in range(_SEGMENTS_MOST):
        head = data[at : at + 9]
        if len(head) < 9 or head[0] != 0xFF:
            break
        if head[1] in range(0xC0, 0xD0) and head[1] not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", head[5:9])
            return width, height
        at += 2 + int.from_bytes(head[2:4], "big")
    return 0, 0
