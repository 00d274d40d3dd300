"""A codec while it serves one call: a fresh instance without any way to the outside.

Codecs are Rust, compiled for JavaScript by wasm-bindgen. Such a module imports a hundred functions
of a browser. Only those that report the text of an error are answered here, and they give the codec
nothing; a call of any other ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct

from wasm_kernel.engine import abi
from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.compiler import Compiled
from wasm_kernel.engine.host_calls import BoundGuest, GuestMemory, Handler, Import
from wasm_kernel.engine.instance import Instance, InstanceOptions
from wasm_kernel.engine.streams import OutputStreams

_TEXT_MOST = 1000  # bytes of an error's text
_BYTE = 1  # the alignment of what is put into the codec's memory


class CodecError(Exception):
    """A codec refused its input; `str()` has its own words, and is empty if it has none."""


class Result(Struct, frozen=True):
    """The result of a codec's function: bytes in its memory, and up to three numbers."""

    at: int
    length: int
    numbers: tuple[int, ...] = ()


class _Reports:
    """Answers the imports by which a codec reports an error: a `HostFunctions`."""

    def __init__(self, imports: Mapping[Import, str]) -> None:
        self.imports = imports
        self.text = ""

    def bind(self, guest: BoundGuest) -> Mapping[Import, Handler]:
        return {key: partial(self._report, guest.memory) for key in self.imports}

    def _report(self, memory: GuestMemory, at: int, length: int) -> int:
        self.text = memory.read(at, min(length, _TEXT_MOST)).decode("utf-8", "replace")
        return abi.SUCCESS


class CodecModule:
    """One instance of a codec; its maker closes `instance`.

    Args:
        compiled: The compiled module.
        reports: Those of its imports that get an error's text.
        clock: The clock of the cell that waits for it.
        memory_bytes: The most that its memory may grow to.
    """

    def __init__(
        self, compiled: Compiled, reports: Mapping[Import, str], clock: Clock, memory_bytes: int
    ) -> None:
        self._reports = _Reports(reports)
        options = InstanceOptions(memory_bytes, refuses_others=True)
        self.instance = Instance(compiled, (self._reports,), options, clock, OutputStreams())

    @property
    def memory(self) -> GuestMemory:
        """Its memory."""
        return self.instance.memory

    @property
    def reported(self) -> str:
        """The text of the last error that it reported."""
        return self._reports.text

    def put(self, data: memoryview) -> int:
        """Copies bytes into its memory; returns their address."""
        at = self.instance.call("__wbindgen_malloc", len(data), _BYTE)
        self.memory.view(at, len(data))[:] = data
        return at

    def call(self, export: str, *args: int) -> int:
        """Calls a function with one result. Raises `GuestStopped` if it does not return."""
        return self.instance.call(export, *args)

    def call_for(self, results: int, export: str, *args: int) -> tuple[int, ...]:
        """Calls a function with several results. Raises `GuestStopped` if it does not return."""
        return self.instance.call_for(results, export, *args)


Function = Callable[[CodecModule, int, int, tuple[int, ...]], Result]
"""A function of a codec: takes its module, the address and length of its input, and numbers.

It raises `ValueError` for other numbers than it takes.
"""
