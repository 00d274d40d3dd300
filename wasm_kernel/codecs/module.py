"""A codec while it serves one call: a fresh instance without any way to the outside.

Codecs are C, or Rust compiled for JavaScript by wasm-bindgen, which imports a hundred functions of
a browser. Only those that a codec's `Imports` names are answered, such as those that report the
text of an error; a call of any other import ends the codec. None of them reaches anything outside
of the codec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

from msgspec import Struct

from wasm_kernel.engine import abi
from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.compiler import Compiled
from wasm_kernel.engine.host_calls import GuestMemory, Handler, Import
from wasm_kernel.engine.instance import Instance, InstanceOptions
from wasm_kernel.engine.streams import OutputStreams

_TEXT_MOST = 1000  # bytes of an error's text
_BYTE = 1  # the alignment of what is put into the codec's memory


class CodecInputError(Exception):
    """A codec refused its input; `str()` has the codec's words, empty if it gave none."""


class CodecResult(Struct, frozen=True):
    """The result of a codec's function: bytes in its memory, and up to three numbers."""

    at: int
    length: int
    numbers: tuple[int, ...] = ()


class Imports:
    """Answers the imports by which a codec reports an error: a `HostFunctions`.

    A codec's file has a subclass, which names them, and may answer others.

    Attributes:
        reports: The imports that get an error's text, with their shapes.
        others: Further imports that are answered.
        allocator: The export that allocates memory, and its arguments behind the length.
        constructor: The export to call before all others, or an empty text.
        memory: The export that is the memory.
        text: The last error's text.
    """

    reports: ClassVar[Mapping[Import, str]] = {}
    others: ClassVar[Mapping[Import, str]] = {}
    allocator: ClassVar[tuple[str, tuple[int, ...]]] = ("__wbindgen_malloc", (_BYTE,))
    constructor: ClassVar[str] = ""
    memory: ClassVar[str] = "memory"

    def __init__(self) -> None:
        self.text = ""

    @property
    def imports(self) -> Mapping[Import, str]:
        """All imports that are answered."""
        return {**self.reports, **self.others}

    def bind(self, guest: Instance) -> Mapping[Import, Handler]:
        """Returns the handlers for an instance."""
        return {key: partial(self._report, guest.memory) for key in self.reports}

    def _report(self, memory: GuestMemory, at: int, length: int) -> int:
        self.text = text_at(memory, at, length)
        return abi.SUCCESS


def text_at(memory: GuestMemory, at: int, length: int) -> str:
    """Returns a text in a codec's memory, cut if it is long."""
    return memory.read(at, min(length, _TEXT_MOST)).decode("utf-8", "replace")


class CodecModule:
    """One instance of a codec; its maker closes `instance`.

    The clock is that of the cell that waits for it; its memory may grow to `memory_bytes`. `call`
    calls a function with one result, `call_for` one with several; both raise `GuestStopped` if it
    does not return.
    """

    def __init__(
        self, compiled: Compiled, imports: Imports, clock: Clock, memory_bytes: int
    ) -> None:
        self.imports = imports
        options = InstanceOptions(memory_bytes, refuses_others=True, memory=imports.memory)
        self.instance = Instance(compiled, (imports,), options, clock, OutputStreams())
        self.memory = self.instance.memory
        self.call, self.call_for = self.instance.call, self.instance.call_for

    def put(self, data: memoryview) -> int:
        """Begins the codec, and copies its input into its memory; returns the address."""
        if self.imports.constructor:
            self.call(self.imports.constructor)
        at = self.allocate(len(data))
        self.memory.view(at, len(data))[:] = data
        return at

    def allocate(self, length: int) -> int:
        """Returns the address of `length` free bytes of the codec's memory."""
        export, more = self.imports.allocator
        at = self.call(export, length, *more)
        if not at:
            raise CodecInputError
        return at


Function = Callable[[CodecModule, int, int, tuple[int, ...]], CodecResult]
"""A function of a codec: takes its module, the address and length of its input, and numbers.

It raises `ValueError` for numbers that it does not take.
"""
