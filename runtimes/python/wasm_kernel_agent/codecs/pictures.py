"""JPEG and WebP for Pillow, whose own code has neither here.

Pillow itself reads a JPEG's markers, so size, mode, EXIF, ICC profile and comments are as
elsewhere; only the pixels come from a codec.
"""

from __future__ import annotations

import struct
from typing import Any

from PIL import Image, ImageFile

from wasm_kernel_agent.codecs.calls import CodecError, call

_PIXELS = {"RGB": 0, "L": 6, "CMYK": 11}  # libjpeg-turbo's numbers of pixel formats
_BROKEN = "the picture can't be decoded: {}"
_UNWRITTEN = "the picture can't be encoded: {}"
_DEFAULT_QUALITY = 75  # libjpeg's default
_CHANNELS = {"L": 1, "RGB": 3, "YCbCr": 3, "CMYK;I": 4}
_PER_INCH = 1
_JFIF, _EXIF, _ADOBE, _COMMENT = 0xE0, 0xE1, 0xEE, 0xFE
_SCAN, _END = b"\xff\xda", b"\xff\xd9"  # markers, which no compressed data contain


def decoded(data: Any) -> Image.Image:
    """Returns the picture that bytes hold, in mode RGBA. Raises `OSError` if it is broken."""
    try:
        pixels, (width, height, _) = call("webp", "decode", data)
    except CodecError as problem:
        raise OSError(_BROKEN.format(problem)) from None
    return Image.frombuffer("RGBA", (width, height), pixels, "raw", "RGBA", 0, 1)


def encoded(codec: str, function: str, pixels: bytes, *numbers: int) -> bytearray:
    """Returns the bytes of a picture's file. Raises `OSError` if it can't be written."""
    try:
        data, _ = call(codec, function, pixels, *numbers)
    except CodecError as problem:
        raise OSError(_UNWRITTEN.format(problem)) from None
    return bytearray(data)


class JpegDecoder(ImageFile.PyDecoder):
    """Pillow's decoder `jpeg`: decodes the whole file at once."""

    _pulls_fd = True

    def decode(self, buffer: Any) -> tuple[int, int]:
        """Reads the file from its position on."""
        assert self.fd is not None
        data = self.fd.read()
        end = data.rfind(_END)
        if (end < 0 or _SCAN in data[end:]) and not ImageFile.LOAD_TRUNCATED_IMAGES:
            raise OSError("image file is truncated")
        stored = "RGB" if self.mode == "YCbCr" else self.mode
        scale = self.args[2] if len(self.args) > 2 else 1  # the scale of a draft
        try:
            pixels, found = call("jpeg", "decode", data, _PIXELS[stored], scale)
        except CodecError as problem:
            raise OSError(_BROKEN.format(problem)) from None
        if found[:2] != (self.state.xsize, self.state.ysize):
            raise OSError(_BROKEN.format("its size is another than its header says"))
        if stored != self.mode:
            pixels = Image.frombuffer(stored, found[:2], pixels).convert(self.mode).tobytes()
        self.set_as_raw(pixels, self.args[0])
        return -1, 0


class JpegEncoder(ImageFile.PyEncoder):
    """Pillow's encoder `jpeg`: writes the file that Pillow writes elsewhere."""

    _pushes_fd = True

    def encode(self, bufsize: int) -> tuple[int, int, bytes]:
        """Returns the whole file's bytes."""
        rawmode, quality, progressive, smoothing, optimized, keeps_rgb, _, dpi = self.args[:8]
        subsampling, blocks, rows, tables, comment, extra, exif = self.args[8:]
        picture = Image.Image()._new(self.im)
        if not isinstance(subsampling, int):
            raise TypeError(f"subsampling can't be {subsampling!r}")
        if keeps_rgb and subsampling > 0:
            raise OSError(_UNWRITTEN.format("with keep_rgb there is no subsampling"))
        channels = _CHANNELS[rawmode]
        if channels == 1 or subsampling not in (0, 1, 2):
            subsampling = {1: 3, 3: 0 if keeps_rgb else 2, 4: 0}[channels]
        wanted = (progressive, optimized, keeps_rgb, rawmode == "YCbCr")
        flags = sum(1 << n for n, each in enumerate(wanted) if each) | smoothing << 8
        numbers = _scaled(tables or [], quality)
        data = encoded(
            "jpeg_writer",
            "encode",
            picture.tobytes("raw", rawmode) + struct.pack(f"<{len(numbers)}H", *numbers),
            *picture.size,
            channels,
            _DEFAULT_QUALITY if quality < 0 else min(max(quality, 1), 100),
            subsampling,
            flags,
            blocks | rows << 16,
            len(numbers) // 64,
        )
        if any(dpi):
            jfif = struct.pack(">5s3B2H2x", b"JFIF", 1, 1, _PER_INCH, *dpi)
            data[2 : 20 if data[3] == _JFIF else 2] = _segment(_JFIF, jfif)
        start = 2
        while data[start + 1] in (_JFIF, _ADOBE):
            start += 2 + int.from_bytes(data[start + 2 : start + 4], "big")
        data[start:start] = _segment(_EXIF, exif) + extra + _segment(_COMMENT, comment)
        return len(data), 0, bytes(data)


def _scaled(tables: list[list[int]], quality: int) -> list[int]:
    """Returns the numbers of quantization tables, which a quality scales as in libjpeg."""
    if quality < 0:
        percent, most = 100, 0x7FFF
    else:
        percent, most = 5000 // max(quality, 1) if quality < 50 else 200 - 2 * quality, 255
    numbers = (number for table in tables for number in table)
    return [min(max((number * percent + 50) // 100, 1), most) for number in numbers]


def _segment(marker: int, content: bytes | str | None) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content if content else b""


# -- WebP. Source of the layout: RFC 9649.

_ICC_FLAG, _ALPHA_FLAG, _EXIF_FLAG, _XMP_FLAG, _ANIMATION_FLAG = 0x20, 0x10, 0x08, 0x04, 0x02
_EXTENDED = struct.Struct("<B3x3s3s")  # the content of VP8X: flags, width - 1, height - 1
_FRAME_HEAD = 16
_OVERWRITES, _IS_DISPOSED = 2, 1  # bits of a frame's flags
_HEADER_BYTES, _CHUNK_HEAD = 12, 8
# The byte and the bit that say whether a lossless picture has transparent pixels.
_OPAQUE_AT, _OPAQUE_BIT = _HEADER_BYTES + _CHUNK_HEAD + 4, 0x10
_LOSSLESS, _LOSSY = b"VP8L", b"VP8 "
_STILL = b"\xff\xff\xff\xff\1\0"  # a white background, shown once


class WebPAnimDecoder:
    """Reads a WebP, which may be animated, as Pillow's compiled class does."""

    def __init__(self, data: bytes) -> None:
        if len(data) < _CHUNK_HEAD + _number(data[4:8]):
            raise OSError(_BROKEN.format("it is cut off"))
        self._data = data
        self._chunks = _chunks(data, _HEADER_BYTES)
        first = dict(reversed(self._chunks))
        self._first = first
        self._frames = [each for name, each in self._chunks if name == b"ANMF"]
        flags = 0
        if b"VP8X" in first:
            flags, width, height = _EXTENDED.unpack_from(first[b"VP8X"])
            self._size = (_number(width) + 1, _number(height) + 1)
        elif _LOSSLESS in first:
            (bits,) = struct.unpack_from("<I", first[_LOSSLESS], 1)
            self._size = ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
            flags = _ALPHA_FLAG if bits >> 28 & 1 else 0
        else:
            width, height = struct.unpack_from("<HH", first[_LOSSY], 6)
            self._size = (width & 0x3FFF, height & 0x3FFF)
        self._mode = "RGBA" if flags & _ALPHA_FLAG else "RGBX"
        self.reset()

    def get_info(self) -> tuple[tuple[int, int], int, int, int, str]:
        """Returns the size, the loops, the background, the number of frames, and the mode."""
        background, loops = struct.unpack_from("<IH", self._first.get(b"ANIM", _STILL))
        return self._size, loops, background, max(1, len(self._frames)), self._mode

    def get_chunk(self, name: str) -> bytes | None:
        """Returns the content of a chunk, such as `EXIF`."""
        return self._first.get(name.encode())

    def reset(self) -> None:
        """Goes back to the first frame."""
        self._next, self._time = 0, 0
        self._canvas: Image.Image | None = None

    def get_next(self) -> tuple[bytes, int] | None:
        """Returns the pixels of the next frame, and the time of its end in milliseconds."""
        if self._next >= max(1, len(self._frames)):
            return None
        if not self._frames:
            shown = decoded(self._data)
        else:
            shown = self._composed(self._frames[self._next])
        if shown.size != self._size:
            raise OSError(_BROKEN.format("its size is another than its header says"))
        self._next += 1
        return shown.tobytes(), self._time

    def _composed(self, frame: bytes) -> Image.Image:
        """Returns the canvas with a frame on it."""
        if len(frame) < _FRAME_HEAD:
            raise OSError(_BROKEN.format("a frame is cut off"))
        if self._canvas is None:
            self._canvas = Image.new("RGBA", self._size)
        x, y, width, height, duration = (_number(frame[at : at + 3]) for at in range(0, 15, 3))
        flags, place = frame[15], (2 * x, 2 * y)
        extended = _EXTENDED.pack(_ALPHA_FLAG, frame[6:9], frame[9:12])
        picture = decoded(_container(_chunk(b"VP8X", extended) + frame[_FRAME_HEAD:]))
        if picture.size != (width + 1, height + 1):
            raise OSError(_BROKEN.format("a frame's size is another than its header says"))
        shown = self._canvas.copy()
        if flags & _OVERWRITES:
            shown.paste(picture, place)
        else:
            shown.alpha_composite(picture, place)
        self._canvas = shown.copy()
        if flags & _IS_DISPOSED:
            self._canvas.paste((0, 0, 0, 0), (*place, place[0] + width + 1, place[1] + height + 1))
        self._time += duration
        return shown


def save_webp(picture: Image.Image, file: Any, _name: Any) -> None:
    """Writes a picture as lossless WebP, with its ICC profile, EXIF and XMP."""
    options = picture.encoderinfo
    exif = options.get("exif", b"")
    exif = (exif.tobytes() if isinstance(exif, Image.Exif) else exif).removeprefix(b"Exif\0\0")
    icc, xmp = options.get("icc_profile") or b"", options.get("xmp", b"")
    pixels = (picture if picture.mode == "RGBA" else picture.convert("RGBA")).tobytes()
    data = encoded("pictures", "encode_webp", pixels, *picture.size)
    has_alpha = picture.has_transparency_data
    if not has_alpha:
        data[_OPAQUE_AT] &= ~_OPAQUE_BIT
    if icc or exif or xmp:
        flags = _ALPHA_FLAG if has_alpha else 0
        for flag, content in ((_ICC_FLAG, icc), (_EXIF_FLAG, exif), (_XMP_FLAG, xmp)):
            flags |= flag if content else 0
        width, height = ((side - 1).to_bytes(3, "little") for side in picture.size)
        whole = _chunk(b"VP8X", _EXTENDED.pack(flags, width, height)) + _chunk(b"ICCP", icc)
        whole += bytes(data[_HEADER_BYTES:]) + _chunk(b"EXIF", exif) + _chunk(b"XMP ", xmp)
        data = bytearray(_container(whole))
    file.write(data)


class WebPAnimEncoder:
    """Refuses to write an animation."""

    def __init__(self, *_: object) -> None:
        raise OSError("the sandbox writes no animated WebP; animated GIF and PNG it does")


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _chunks(data: bytes, at: int) -> list[tuple[bytes, bytes]]:
    """Returns the names and contents of a file's chunks; one that is cut off is shorter."""
    found = []
    while at + _CHUNK_HEAD <= len(data):
        name, length = data[at : at + 4], _number(data[at + 4 : at + 8])
        at += _CHUNK_HEAD
        found.append((name, data[at : at + length]))
        at += length + length % 2
    return found


def _chunk(name: bytes, content: bytes) -> bytes:
    if not content:
        return b""
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def _container(chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks
