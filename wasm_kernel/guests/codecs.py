"""The compiled code of codecs: in the cache, or made when a cell first needs it."""

from __future__ import annotations

from contextlib import suppress

from wasm_kernel.codecs.table import Codec
from wasm_kernel.engine.compiler import Compiled, Compiler
from wasm_kernel.engine.flavours import UNCHECKED, Flavour
from wasm_kernel.engine.streams import OutputStreams
from wasm_kernel.guests.broker_handlers import PrepareCodec
from wasm_kernel.linux.broker import Broker, EmptyReply

_WAIT = "[wasm-kernel] compiling {}, once on this machine: some seconds\n"


def compiled_codec(
    codec: Codec, flavour: Flavour, compiler: Compiler, broker: Broker, streams: OutputStreams
) -> Compiled:
    """Returns a codec's module for a guest of a flavour.

    The broker compiles it if the cache lacks it, which takes seconds; the cell is told so. Raises
    `WasmKernelError`.
    """
    flavour = UNCHECKED if flavour.is_baseline else flavour
    if not _is_compiled(codec, flavour, compiler):
        streams.feed("stderr", _WAIT.format(codec.title).encode())
        streams.flush()
        broker.call(PrepareCodec(codec.name, flavour.name), EmptyReply)
    return compiler.module(codec.binary, flavour, lambda text: None)


def _is_compiled(codec: Codec, flavour: Flavour, compiler: Compiler) -> bool:
    with suppress(PermissionError):  # a file there can't be trusted; the broker replaces it
        return compiler.load(codec.binary, flavour)
    return False
