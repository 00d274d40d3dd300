"""The guest's imports that the host answers, and the guest memory that their arguments point to.

A part of the host that answers some imports is a `HostFunctions`. Its handlers get a call's
arguments as plain unsigned numbers and answer with an error number.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import struct
from collections.abc import Callable, Mapping

import wasmtime

from wasm_kernel.engine import abi, wasmtime_api

_LOG = logging.getLogger("wasm_kernel.engine")
_TYPES = {
    "i": wasmtime.ValType.i32(),
    "I": wasmtime.ValType.i64(),
    "e": wasmtime.ValType.externref(),
    "d": wasmtime.ValType.f64(),
}
_SLOTS = {"i": "I12x", "e": "I12x", "I": "Q8x"}  # arguments in their slots
_BUFFERS_MOST = 1024

Import = tuple[str, str]
"""An import's module and name, such as `("wasi_snapshot_preview1", "fd_write")`."""

Handler = Callable[..., int]
"""Answers one import: takes its arguments, unsigned; returns an error number, 0 for success."""


class OutOfBounds(Exception):
    """An address or a length from the guest that lies outside its memory."""


class GuestMemory:
    """The memory of one guest: checks each address and length. Only the guest's thread uses it."""

    def __init__(self, memory: wasmtime_api.RawMemory) -> None:
        self._memory = memory
        self.address = memory.address()
        self._known = memory.size()  # a lower bound, since memory only grows
        self._whole = memoryview(bytearray())

    @property
    def size(self) -> int:
        """The size of the memory in bytes."""
        return self._memory.size()

    def _check(self, at: int, length: int) -> int:
        if at < 0 or length < 0 or at + length > self._known:
            self._known = self._memory.size()
            if at < 0 or length < 0 or at + length > self._known:
                raise OutOfBounds(f"{length} bytes at {at}")
        return self.address + at

    def read(self, at: int, length: int) -> bytes:
        """Returns `length` bytes at `at`, or raises `OutOfBounds`."""
        return ctypes.string_at(self._check(at, length), length)

    def write(self, at: int, data: bytes) -> None:
        """Puts `data` at `at`, or raises `OutOfBounds`."""
        ctypes.memmove(self._check(at, len(data)), data, len(data))

    def view(self, at: int, length: int) -> memoryview:
        """Returns a writable view of `length` bytes at `at`, valid within one host call."""
        self._check(at, length)
        if len(self._whole) < at + length:
            memory = (ctypes.c_char * self._known).from_address(self.address)
            self._whole = memoryview(memory).cast("B")
        return self._whole[at : at + length]

    def read_word(self, at: int) -> int:
        """Returns the 32-bit word at `at`."""
        return int(struct.unpack("<I", self.read(at, 4))[0])

    def write_word(self, at: int, value: int) -> None:
        """Puts a 32-bit word at `at`."""
        self.write(at, struct.pack("<I", value & 0xFFFFFFFF))

    def buffers(self, table: int, count: int) -> list[tuple[int, int]]:
        """Returns the (address, length) pairs of an array of WASI's `iovec`."""
        if count > _BUFFERS_MOST:
            raise OutOfBounds(f"{count} buffers")
        return list(struct.iter_unpack("<II", self.read(table, 8 * count)))


class Dispatcher:
    """The host functions of a linker, which serve one instance at a time.

    The linker needs them before there is an instance, so they look up the handlers that `bind`
    sets. Defining them takes a millisecond, so the engine's next instance takes over those of a
    closed one. `is_in_host` is true while the guest waits for a host function. `after_call` is
    called once, on the guest's thread, when the running host call is over.
    """

    def __init__(self, engine: wasmtime.Engine, shapes: Mapping[Import, str]) -> None:
        self.is_in_host = False
        self.after_call: Callable[[], None] | None = None
        self.linker = wasmtime.Linker(engine)
        self.linker.define_wasi()
        self.linker.allow_shadowing = True
        self._engine, self._shapes = engine, shapes
        self._handlers: dict[Import, Handler] = {}
        self._kinds: dict[str, wasmtime.FuncType] = {}  # each belongs to one engine
        self._kept = [self._define(self.linker, key, shape) for key, shape in shapes.items()]

    @classmethod
    def of(cls, engine: wasmtime.Engine, shapes: Mapping[Import, str]) -> Dispatcher:
        """Returns a dispatcher for an instance's imports; its owner must `release` it."""
        for unused in [*_unused]:
            if unused.serves(engine, shapes):
                with contextlib.suppress(ValueError):  # another thread was faster
                    _unused.remove(unused)
                    return unused
        return cls(engine, shapes)

    def serves(self, engine: wasmtime.Engine, shapes: Mapping[Import, str]) -> bool:
        """Returns whether an instance with these imports may use the linker."""
        return self._engine is engine and self._shapes == shapes

    def bind(self, handlers: Mapping[Import, Handler]) -> None:
        """Lets the handlers answer from now on."""
        self._handlers.update(handlers)

    def release(self) -> None:
        """Removes the handlers of a closed instance; the next one may use the linker."""
        self._handlers.clear()
        self.is_in_host, self.after_call = False, None
        if not any(one.serves(self._engine, self._shapes) for one in _unused):
            _unused.append(self)

    def _define(self, linker: wasmtime.Linker, key: Import, shape: str) -> object:
        arguments, other, result = shape.partition(">")
        result = result if other else "i"
        handlers, size = self._handlers, wasmtime_api.SLOT * len(arguments)
        unpack = struct.Struct("<" + "".join(map(_SLOTS.__getitem__, arguments))).unpack

        def function(slots: int, _count: int) -> None:
            self.is_in_host = True
            try:
                answer = int(handlers[key](*unpack(ctypes.string_at(slots, size))))
            except OutOfBounds:
                answer = abi.EFAULT
            except BaseException:
                _LOG.exception("the host's %s failed", key[1])
                answer = abi.EIO
            if result == "d":
                ctypes.c_double.from_address(slots).value = answer
            elif result:
                ctypes.c_uint32.from_address(slots).value = answer if result == "i" else 0
            self.is_in_host = False
            if self.after_call is not None:
                after, self.after_call = self.after_call, None
                after()

        if shape not in self._kinds:
            types = ([_TYPES[each] for each in part] for part in (arguments, result))
            self._kinds[shape] = wasmtime.FuncType(*types)
        return wasmtime_api.define(linker, *key, self._kinds[shape], function)


_unused: list[Dispatcher] = []
"""The dispatchers for the next instances: one at most per engine and set of imports."""
