"""The codecs: how long compiling them takes, and how much room they take."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import wasmtime

from tests.benchmarks.sides import Side
from wasm_kernel.codecs.table import CODECS
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import UNCHECKED


@dataclass(frozen=True)
class CodecRow:
    """One codec."""

    HEAD: ClassVar[tuple[str, ...]] = (
        "a codec",
        "compiling, s",
        "in the cache",
        "in the wheel",
        "",
    )

    what: str
    seconds: float
    cached: int
    packed: int

    def line(self) -> tuple[str, ...]:
        """The row as text; its time is the processor's."""
        sizes = (f"{size / 1e6:.2f} MB" for size in (self.cached, self.packed))
        return (self.what, f"{self.seconds:.1f}", *sizes, "")


def codecs(_sides: tuple[Side, Side], _rounds: int) -> Iterator[CodecRow]:
    """Compiles each codec once."""
    for codec in CODECS.values():
        engine = Compiler(Cache()).engine(UNCHECKED, codec.binary.stack_bytes)
        wasm = codec.binary.path.read_bytes()
        begun = time.process_time()
        module = wasmtime.Module(engine, wasm)
        seconds = time.process_time() - begun
        yield CodecRow(codec.title, seconds, len(module.serialize()), len(zlib.compress(wasm)))
