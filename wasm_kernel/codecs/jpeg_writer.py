"""Writing JPEG, by libjpeg-turbo in npm's `@cornerstonejs/codec-libjpeg-turbo-8bit`.

Emscripten made the module, with letters as names. The host lays out its class `JPEGEncoder` in
memory, and calls the method `encode` by its place in the module's table. libjpeg-turbo calls some
of its own functions by way of the host, so that an error can end them. At these calls the host sets
what the class does not offer, in libjpeg's public structure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

from msgspec import Struct

from wasm_kernel.codecs.module import CodecInputError, CodecModule, CodecResult, Function, Imports
from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import GuestMemory, Handler, Import
from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import GuestStopped

_TABLE = "S"
_ALLOCATE, _CONSTRUCT = "U", "Q"
_ENCODE = 34  # the places in the table
_DEFAULTS, _DESTINATION, _START, _ROWS, _FINISH = 647, 641, 648, 651, 652
_COPY, _GROW = "C", "y"


def _shapes(table: str) -> dict[str, str]:
    words = table.split()
    return dict(zip(words[::2], words[1::2], strict=True))


# functions that are called by way of the host
_CALLS = _shapes("q ii>i g iii>i j iiii>i a iiiii>i D iiiiiii>i f ii> E iii> d iiii> p iiiii>")
# functions that announce classes and types to JavaScript, and ask for the environment
_IGNORED = _shapes("""
A ii>i G iiiiii> H i> I ii> J iiii> K ii> b iii> c iiiiiiiiii> e iiiii> i iiiiiiiiii> k iii>
m iiiiii> n iiiiiiiiiiiii> r iii> u i> v iiiiiii> z ii>i
""")
_SHAPES = {_COPY: "iii>", _GROW: "i>i", **_CALLS, **_IGNORED}

# The class: the pixels and the file as vectors, width, height, bits, channels, and settings.
_ENCODER = struct.Struct("<6I2H2B2x3I")
_CMYK = 11  # libjpeg-turbo's numbers of pixel formats
_COLOURS_AT = 1404  # the colours of the file, in libjpeg-turbo's own structure
_RGB_FILE, _CMYK_FILE = 0, 3
# Places in libjpeg's structure, of its version 6b
_COLOURS_OF_PIXELS_AT, _YCBCR = 40, 3
_COMPONENTS_AT, _TABLES_AT, _CODING_AT = 68, 72, 184
_CODING = struct.Struct("<6I")  # optimized, -, smoothing, the accurate DCT, restart intervals
_COMPONENT_BYTES, _SAMPLING_AT, _TABLE_OF_COMPONENT_AT = 84, 8, 16
_TABLE_BYTES = 128  # a table has 64 numbers
_PROGRESSIVE, _OPTIMIZED, _KEEPS_RGB, _IS_YCBCR = 1, 2, 4, 8


class Settings(Struct, frozen=True):
    """The settings of a picture to write.

    Attributes:
        at: The address of the pixels.
        channels: 1, 3 or 4: grey, RGB or CMYK.
        subsampling: 0 for none, 1 for 4:2:2, 2 for 4:2:0, 3 for grey.
        flags: Progressive, optimized, RGB in the file, pixels in YCbCr; the bits above the lowest 8
            say how much to smooth.
        restarts: The number of blocks between two markers; the bits above the lowest 16 hold that
            of rows.
        tables: The number of quantization tables behind the pixels, which replace the quality's.
    """

    at: int
    width: int
    height: int
    channels: int
    quality: int
    subsampling: int
    flags: int
    restarts: int
    tables: int

    @property
    def size(self) -> int:
        """The bytes of the pixels."""
        return self.width * self.height * self.channels


class JpegWriterImports(Imports):
    """Calls libjpeg-turbo's functions on its behalf, with the settings of a picture.

    Attributes:
        settings: The settings, until an error ends the writing.
        result: The address and the length of the file, once it is written.
    """

    others: ClassVar[Mapping[Import, str]] = {("a", name): shape for name, shape in _SHAPES.items()}
    allocator: ClassVar[tuple[str, tuple[int, ...]]] = (_ALLOCATE, ())
    constructor: ClassVar[str] = _CONSTRUCT
    memory: ClassVar[str] = "P"

    def __init__(self) -> None:
        super().__init__()
        self.settings: Settings | None = None
        self.result: tuple[int, int] | None = None
        self._file_at = (0, 0)  # the place of the file's address and length

    def bind(self, guest: Instance) -> Mapping[Import, Handler]:
        """Returns the handlers for an instance."""
        handlers: dict[str, Handler] = {name: lambda *_: 0 for name in _IGNORED}
        handlers |= {name: partial(self._call, guest) for name in _CALLS}
        handlers[_COPY] = partial(_copy, guest)
        handlers[_GROW] = partial(_grow, guest)
        return {("a", name): handler for name, handler in handlers.items()}

    def _call(self, guest: Instance, place: int, *args: int) -> int:
        settings = self.settings
        if settings is not None and place in _STEPS:
            args = _STEPS[place](guest.memory, settings, args)
        if settings is not None and place == _START and settings.tables:
            _set_tables(guest, settings, args[0])
        if place == _DESTINATION:
            self._file_at = args[1], args[2]
        try:
            found = guest.call_in_table(_TABLE, place, *args)
        except GuestStopped:  # an error of libjpeg-turbo ended the call: nothing is written
            self.settings = None
            return 0
        if settings is not None and place == _FINISH:
            at, length = self._file_at
            self.result = guest.memory.read_word(at), guest.memory.read_word(length)
        return found


Arguments = tuple[int, ...]


def _defaults(memory: GuestMemory, settings: Settings, args: Arguments) -> Arguments:
    """Chooses the colours of the file, and lets the pixels have four channels."""
    encoder, pixels, *rest = args
    if settings.channels == 4:
        memory.write_word(encoder + _COLOURS_AT, _CMYK_FILE)
        pixels = _CMYK
    elif settings.flags & _KEEPS_RGB:
        memory.write_word(encoder + _COLOURS_AT, _RGB_FILE)
    return (encoder, pixels, *rest)


def _destination(memory: GuestMemory, _: Settings, args: Arguments) -> Arguments:
    """Lets libjpeg-turbo allocate the memory for the file, and more as it needs it."""
    encoder, file, length, _grows = args
    memory.write_word(length, 0)
    return encoder, file, length, 1


def _start(memory: GuestMemory, settings: Settings, args: Arguments) -> Arguments:
    """Sets how the coefficients are made and written."""
    encoder = args[0]
    optimized, smoothing = settings.flags & _OPTIMIZED, settings.flags >> 8
    blocks, rows = settings.restarts & 0xFFFF, settings.restarts >> 16
    memory.write(encoder + _CODING_AT, _CODING.pack(optimized, 0, smoothing, 0, blocks, rows))
    if settings.flags & _IS_YCBCR:
        memory.write_word(encoder + _COLOURS_OF_PIXELS_AT, _YCBCR)
    if settings.channels == 4:
        black = memory.read_word(encoder + _COMPONENTS_AT) + 3 * _COMPONENT_BYTES
        memory.write(black + _SAMPLING_AT, struct.pack("<2I", 1, 1))
    return args


def _rows(memory: GuestMemory, settings: Settings, args: Arguments) -> Arguments:
    """Sets the addresses of the rows, which the class takes to have three channels."""
    _encoder, rows, count = args
    length = settings.width * settings.channels
    first = settings.at + (settings.height - count) * length
    addresses = range(first, first + count * length, length)
    memory.write(rows, struct.pack(f"<{count}I", *addresses))
    return args


_STEPS: Mapping[int, Callable[[GuestMemory, Settings, Arguments], Arguments]] = {
    _DEFAULTS: _defaults,
    _DESTINATION: _destination,
    _START: _start,
    _ROWS: _rows,
}


def _set_tables(guest: Instance, settings: Settings, encoder: int) -> None:
    """Copies the quantization tables behind the pixels to where libjpeg-turbo has its own."""
    components = guest.memory.read_word(encoder + _COMPONENTS_AT)
    for n in range(settings.tables):
        table = guest.memory.read(settings.at + settings.size + n * _TABLE_BYTES, _TABLE_BYTES)
        guest.memory.write(_table(guest, encoder, n), table)
    for n in range(settings.channels):
        which = components + n * _COMPONENT_BYTES + _TABLE_OF_COMPONENT_AT
        guest.memory.write_word(which, min(n, settings.tables - 1))


def _table(guest: Instance, encoder: int, n: int) -> int:
    """Returns the address of a quantization table, which it makes if there is none."""
    place = encoder + _TABLES_AT + 4 * n
    if not guest.memory.read_word(place):
        made = guest.call(_ALLOCATE, _TABLE_BYTES + 4)
        guest.memory.write(made, bytes(_TABLE_BYTES + 4))
        guest.memory.write_word(place, made)
    return guest.memory.read_word(place)


def _copy(guest: Instance, to: int, at: int, length: int) -> int:
    guest.memory.view(to, length)[:] = guest.memory.view(at, length)
    return abi.SUCCESS


def _grow(guest: Instance, size: int) -> int:
    try:
        guest.grow_to(size)
    except MemoryError:
        return 0
    return 1


def encode(codec: CodecModule, at: int, length: int, numbers: tuple[int, ...]) -> CodecResult:
    """Writes a picture; the numbers are those of `Settings`, from the width on."""
    try:
        settings = Settings(at, *numbers)
        encoder = _ENCODER.pack(
            *(at, at + 1, at + 1),  # one byte: the class makes room for more
            *(0, 0, 0),
            *(settings.width, settings.height, 8, min(settings.channels, 3)),
            *(settings.flags & _PROGRESSIVE, settings.quality, settings.subsampling),
        )
    except (TypeError, struct.error):
        raise ValueError(numbers) from None
    if settings.channels not in (1, 3, 4) or settings.tables > 4:
        raise ValueError(numbers)
    if settings.size + settings.tables * _TABLE_BYTES != length:
        raise ValueError(numbers)
    assert isinstance(codec.imports, JpegWriterImports)
    codec.imports.settings = settings
    place = codec.allocate(_ENCODER.size)
    codec.memory.write(place, encoder)
    codec.instance.call_in_table(_TABLE, _ENCODE, place)
    if codec.imports.result is None:
        raise CodecInputError
    return CodecResult(*codec.imports.result)


FUNCTIONS: Mapping[str, Function] = {"encode": encode}
IMPORTS = JpegWriterImports
