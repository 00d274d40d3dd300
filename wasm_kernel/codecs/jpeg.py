"""Reading JPEG, by libjpeg-turbo in npm's `@cwasm/jpeg-turbo`.

On a fatal error, libjpeg-turbo calls an import that jumps out of its functions. The host refuses
the import, so the call ends. After a lesser fault, such as a file that was cut off, it returns
pixels, as in other programs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import ClassVar

from wasm_kernel.codecs.module import CodecInputError, CodecModule, CodecResult, Function, Imports
from wasm_kernel.engine.host_calls import Handler, Import
from wasm_kernel.engine.instance import Instance

_SET_JUMP = ("env", "setjmp")
_HEADER = struct.Struct("<4i")  # width, height, subsampling, colour space
_CHANNELS = {0: 3, 6: 1, 11: 4}  # libjpeg-turbo's pixel formats: RGB, grey, CMYK
_SCALES = (1, 2, 4, 8)
_MOST = 2**31 - 1


class JpegImports(Imports):
    """Lets a call of libjpeg-turbo begin; reports no texts of errors."""

    others: ClassVar[Mapping[Import, str]] = {_SET_JUMP: "i"}
    allocator: ClassVar[tuple[str, tuple[int, ...]]] = ("malloc", ())

    def bind(self, guest: Instance) -> Mapping[Import, Handler]:
        """Returns the handlers for an instance."""
        return {_SET_JUMP: lambda _: 0}


def decode(codec: CodecModule, at: int, length: int, numbers: tuple[int, ...]) -> CodecResult:
    """Reads a picture; numbers: the pixel format, and the factor by which the sides are smaller.

    Returns its pixels row by row, its width and its height.
    """
    pixels, scale = numbers
    if pixels not in _CHANNELS or scale not in _SCALES:
        raise ValueError(numbers)
    decoder = codec.call("tjInitDecompress")
    header = codec.allocate(_HEADER.size)
    places = (header + 4 * n for n in range(4))
    codec.memory.write(header, bytes(_HEADER.size))
    codec.call("tjDecompressHeader3", decoder, at, length, *places)  # fails for lesser faults, too
    width, height, *_ = _HEADER.unpack(codec.memory.read(header, _HEADER.size))
    width, height = -(-width // scale), -(-height // scale)
    row = width * _CHANNELS[pixels]
    if not 0 < row * height <= _MOST:
        raise CodecInputError
    place = codec.allocate(row * height)
    codec.call("tjDecompress2", decoder, at, length, place, width, row, height, pixels, 0)
    return CodecResult(place, row * height, (width, height))


FUNCTIONS: Mapping[str, Function] = {"decode": decode}
IMPORTS = JpegImports
