"""Host functions in the guest's imports: how a call's arguments arrive, and how WASI is forwarded
to.

WASI's own functions look up `memory` on whoever calls them, so a host function can't call them
itself. A small forwarding module imports the guest's memory, exports it again, and stands between.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Callable, Mapping
from typing import Any

import wasmtime

from wasm_kernel.engine import abi, seams
from wasm_kernel.engine.reach import OutOfBounds

_LOG = logging.getLogger("wasm_kernel.engine")
_KINDS = {"i": wasmtime.ValType.i32(), "I": wasmtime.ValType.i64()}


class Call:
    """One call from the guest into the host: its arguments, unsigned, and a way to pass it on."""

    __slots__ = ("_count", "_forward", "_slots", "args")

    def __init__(
        self, slots: int, count: int, args: tuple[int, ...], forward: seams.RawFunc | None
    ) -> None:
        self._slots, self._count = slots, count
        self.args = args
        self._forward = forward

    def forward(self) -> int:
        """Let wasmtime's WASI do it; its error number."""
        if self._forward is None:
            return abi.ENOTSUP
        block = ctypes.string_at(self._slots, seams.SLOT * self._count)
        stop = self._forward(self._slots, max(self._count, 1))
        answer = abi.EIO if stop else ctypes.c_uint32.from_address(self._slots).value
        ctypes.memmove(self._slots, block, len(block))
        return answer


Shadow = Callable[[Call], int]


def _unpacker(shape: str) -> Callable[[bytes], tuple[int, ...]]:
    return struct.Struct("<" + "".join("I12x" if c == "i" else "Q8x" for c in shape)).unpack


def host_function(
    name: str, shape: str, shadow: Shadow, forwards: Mapping[str, seams.RawFunc]
) -> seams.HostFunction:
    """`shadow` as wasmtime calls it. Whatever goes wrong inside is an error number to the guest:
    an exception that escaped a callback would end up in another guest's call.
    """
    unpack, size = _unpacker(shape), seams.SLOT * len(shape)

    def function(slots: int, count: int) -> None:
        try:
            args = unpack(ctypes.string_at(slots, size))
            answer = int(shadow(Call(slots, count, args, forwards.get(name))))
        except OutOfBounds:
            answer = abi.EFAULT
        except BaseException:
            _LOG.exception("the host's %s failed", name)
            answer = abi.EIO
        ctypes.c_uint32.from_address(slots).value = answer

    return function


def define(
    linker: wasmtime.Linker,
    module: str,
    shadows: Mapping[str, Shadow],
    shapes: Mapping[str, str],
    forwards: Mapping[str, seams.RawFunc],
) -> list[object]:
    """Define `shadows` in `linker`; what comes back must outlive the instance."""
    kept = []
    for name, shadow in shadows.items():
        kind = wasmtime.FuncType([_KINDS[c] for c in shapes[name]], [_KINDS["i"]])
        function = host_function(name, shapes[name], shadow, forwards)
        kept.append(seams.define(linker, module, name, kind, function))
    return kept


def _forwarding_text() -> str:
    imports, functions = [], []
    for name, shape in abi.FORWARDED.items():
        params = " ".join("i32" if c == "i" else "i64" for c in shape)
        loads = " ".join(f"(local.get {i})" for i in range(len(shape)))
        kind = f"(param {params}) (result i32)"
        imports.append(f'(import "{abi.WASI}" "{name}" (func ${name} {kind}))')
        functions.append(f'(func (export "{name}") {kind} (call ${name} {loads}))')
    memory = '(import "guest" "memory" (memory 1)) (export "memory" (memory 0))'
    return "(module " + " ".join([*imports, memory, *functions]) + ")"


_forwarding: dict[int, tuple[wasmtime.Engine, wasmtime.Module]] = {}


def forwarding_module(engine: wasmtime.Engine) -> wasmtime.Module:
    """The forwarding module, compiled once an engine (a few milliseconds)."""
    if id(engine) not in _forwarding:
        _forwarding[id(engine)] = (engine, wasmtime.Module(engine, _forwarding_text()))
    return _forwarding[id(engine)][1]


def forwards(
    engine: wasmtime.Engine, store: wasmtime.Store, memory: wasmtime.Memory
) -> dict[str, seams.RawFunc]:
    """WASI's own functions, working on `memory`, by name."""
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    linker.define(store, "guest", "memory", memory)
    exports: Any = linker.instantiate(store, forwarding_module(engine)).exports(store)
    context = seams.context_of(store)
    return {name: seams.RawFunc(context, exports[name]) for name in abi.FORWARDED}
