"""Reading WebP, by libwebp in npm's `@cwasm/webp`."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from wasm_kernel.codecs.module import CodecInputError, CodecModule, CodecResult, Function, Imports

_SIZE = struct.Struct("<2I")  # width, height


class WebPImports(Imports):
    """Answers nothing: the module reports no texts of errors."""

    allocator = ("malloc", ())


def decode(codec: CodecModule, at: int, length: int, _numbers: tuple[int, ...]) -> CodecResult:
    """Reads a picture; returns its pixels as RGBA, row by row, its width and its height."""
    size = codec.allocate(_SIZE.size)
    place = codec.call("WebPDecodeRGBA", at, length, size, size + 4)
    if not place:
        raise CodecInputError
    width, height = _SIZE.unpack(codec.memory.read(size, _SIZE.size))
    return CodecResult(place, 4 * width * height, (width, height))


FUNCTIONS: Mapping[str, Function] = {"decode": decode}
IMPORTS = WebPImports
