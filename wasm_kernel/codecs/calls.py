"""The calls of codecs by one guest: bytes of the guest's memory in, bytes of its memory out.

A call runs in a fresh instance, within the cell's time, fuel and interrupts, and with the memory
that the guest itself may have. A codec that has read a hostile file is hostile, so its results are
checked like a guest's frames.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from wasm_kernel.codecs.module import CodecInputError, CodecModule, Function
from wasm_kernel.codecs.table import CODECS, Codec
from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.compiler import Compiled
from wasm_kernel.engine.host_calls import OutOfBounds
from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import GuestStopped, WasmKernelError

_DONE, _FAILED = 0, 1
_HEAD = struct.Struct("<4I")  # done or failed; three numbers. Its size keeps the rest aligned
_NUMBERS = 3
_NO_WORDS = "the data is damaged, or more memory is needed than the sandbox has"

Word = Annotated[int, Meta(ge=0, lt=1 << 32)]


class _CodecRequest(Struct, frozen=True):
    """A guest's request: names of a codec and its function, the place of the input, and numbers."""

    codec: str
    function: str
    at: Word
    length: Word
    numbers: Annotated[tuple[Word, ...], Meta(max_length=8)] = ()


class CodecCalls:
    """Runs codecs for one guest. Only the guest's thread uses it.

    `compiled` returns a codec's module, or raises `WasmKernelError`. The clock is that of the
    guest's turns; a codec's memory may grow to `memory_bytes`.
    """

    def __init__(
        self,
        guest: Instance,
        compiled: Callable[[Codec], Compiled],
        clock: Clock,
        memory_bytes: int,
    ) -> None:
        self._guest, self._compiled = guest, compiled
        self._clock, self._memory_bytes = clock, memory_bytes

    def answer(self, request: bytes) -> tuple[int, int]:
        """Serves a request; returns the address and the length of the answer in the guest's memory.

        The address is 0 if the guest has no room for it.
        """
        try:
            asked = msgspec.json.decode(request, type=_CodecRequest)
            codec = CODECS[asked.codec]
            function = codec.functions[asked.function]
            data = self._guest.memory.view(asked.at, asked.length)
        except (msgspec.MsgspecError, KeyError, OutOfBounds):
            return self._hand_over(_FAILED, b"there is no such function, or it has no input")
        try:
            with self._open(codec) as module:
                return self._run(module, function, data, asked.numbers)
        except WasmKernelError as problem:
            return self._hand_over(_FAILED, (str(problem) or _NO_WORDS).encode())

    def _run(
        self, module: CodecModule, function: Function, data: memoryview, numbers: tuple[int, ...]
    ) -> tuple[int, int]:
        try:
            result = function(module, module.put(data), len(data), numbers)
            found = module.memory.view(result.at, result.length)
            return self._hand_over(_DONE, found, result.numbers)
        except CodecInputError as problem:
            words = str(problem)
        except (GuestStopped, OutOfBounds, ValueError):
            words = module.imports.text
        return self._hand_over(_FAILED, (words or _NO_WORDS).encode())

    @contextlib.contextmanager
    def _open(self, codec: Codec) -> Iterator[CodecModule]:
        """Yields an instance, which burns the cell's fuel."""
        guest, compiled = self._guest, self._compiled(codec)
        module = CodecModule(compiled, codec.imports(), self._clock, self._memory_bytes)
        try:
            with module.instance.turn(guest.fuel_left):
                yield module
        finally:
            guest.lower_fuel(module.instance.fuel_left)
            module.instance.close()

    def _hand_over(
        self, status: int, data: bytes | memoryview, numbers: tuple[int, ...] = ()
    ) -> tuple[int, int]:
        """Writes an answer into the guest's memory; returns its address and length."""
        head = _HEAD.pack(status, *numbers, *(0,) * (_NUMBERS - len(numbers)))
        length = len(head) + len(data)
        try:
            place = self._guest.call("host_alloc", length)
        except GuestStopped:
            place = 0  # the outer call ends for the same reason
        if place:
            self._guest.memory.write(place, head)
            self._guest.memory.view(place + len(head), len(data))[:] = data
        return place, length
