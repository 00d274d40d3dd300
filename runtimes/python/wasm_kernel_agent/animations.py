"""Pictures that move: matplotlib's animations without the script that plays them."""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_IMAGE = '<img id="_anim_img'
_MOST = 7 * 1024 * 1024
"""The most bytes of a moving picture: as base64, it stands in the page beside the frames."""


def keep_a_picture(animation: ModuleType) -> None:
    """Lets `Animation.to_jshtml` show its frames as one moving picture until a script plays them.

    A page that runs no scripts of outputs would otherwise show an empty place and dead controls.
    """
    writer: Any = animation.HTMLWriter
    original = writer.finish

    def finish(self: Any) -> None:
        original(self)
        if self.embed_frames and self.frame_format == "png" and self._saved_frames:
            frames = [b64decode(frame) for frame in self._saved_frames]
            picture = moving(frames, int(1000 // self.fps), forever=self.default_mode != "once")
            source = f"data:image/png;base64,{b64encode(picture).decode()}"
            path = Path(self.outfile)
            page = path.read_text()
            path.write_text(page.replace(_IMAGE, f'<img src="{source}" id="_anim_img', 1))

    writer.finish = finish


def moving(frames: Sequence[bytes], milliseconds: int, *, forever: bool) -> bytes:
    """Returns PNG images as one animated PNG; the first of them if they can't be put together.

    Nothing is compressed again: the format holds the frames' own data
    (<https://www.w3.org/TR/png-3/#apng-frame-based-animation>).

    Args:
        frames: The images.
        milliseconds: The time for which each is shown.
        forever: True if it repeats.
    """
    chunks = [list(_chunks(frame)) for frame in frames]
    head = chunks[0][0]
    alike = all(each[0] == head for each in chunks)
    if len(frames) < 2 or not alike or sum(map(len, frames)) > _MOST:
        return frames[0]
    parts = [
        _SIGNATURE,
        _chunk(*head),
        _chunk(b"acTL", struct.pack(">II", len(frames), not forever)),
    ]
    size, number = head[1][:8], 0
    for first, each in enumerate(chunks):
        control = size + struct.pack(">IIHHBB", 0, 0, max(1, milliseconds), 1000, 0, 0)
        parts.append(_chunk(b"fcTL", struct.pack(">I", number) + control))
        number += 1
        for data in (data for kind, data in each if kind == b"IDAT"):
            if first == 0:
                parts.append(_chunk(b"IDAT", data))
            else:
                parts.append(_chunk(b"fdAT", struct.pack(">I", number) + data))
                number += 1
    return b"".join([*parts, _chunk(b"IEND", b"")])


def _chunks(image: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the kinds and contents of a PNG's parts, the header first."""
    at = len(_SIGNATURE)
    while at < len(image):
        (size,) = struct.unpack_from(">I", image, at)
        yield image[at + 4 : at + 8], image[at + 8 : at + 8 + size]
        at += 12 + size


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
