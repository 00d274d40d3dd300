"""One live guest: a store, an instance in it, the host's shadows around it.

The thread that makes an instance owns it: every call but `Clock.interrupt` comes from there, and
that thread needs a big native stack (`thread.py`), because guest recursion uses it. An instance
that stopped in the middle of a call is of no more use; its owner closes it and makes another.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import wasmtime

from wasm_kernel.engine import abi, dice, door, seams, shadow
from wasm_kernel.engine.clock import TICKER, Clock
from wasm_kernel.engine.compiler import Compiled
from wasm_kernel.engine.interrupt import Words
from wasm_kernel.engine.output import NAMES, Streams, Writes
from wasm_kernel.engine.reach import OutOfBounds, Reach
from wasm_kernel.engine.seams import Stop
from wasm_kernel.engine.time import GuestTime
from wasm_kernel.engine.traps import classify
from wasm_kernel.engine.waits import Waits
from wasm_kernel.errors import GuestCrashed, HostFailed
from wasm_kernel.record import record
from wasm_kernel.wasi_files.calls import WasiFiles
from wasm_kernel.wasi_files.changes import Changes
from wasm_kernel.wasi_files.descriptors import Descriptors
from wasm_kernel.wasi_files.file_history import NO_FILE_HISTORY, FileHistory
from wasm_kernel.wasi_files.preopens import Preopens
from wasm_kernel.wasi_files.quota import Quota

UNLIMITED_FUEL = 1 << 62
PAGE = 65_536  # bytes of a wasm page
SCRATCH_BYTES = 8
"""Guest memory that belongs to the host: a word that WASI answers in."""


@record
class Surroundings:
    """What an instance finds around it, and what outlives it.

    `handler` answers the door; `clock`, `streams`, `changes` and `history` belong to the sandbox.
    `clock_before` is what the guest's monotonic clock showed in the instance before, in
    nanoseconds.
    """

    handler: door.Handler
    clock: Clock
    streams: Streams
    changes: Changes
    preopens: Preopens
    env: Mapping[str, str]
    memory_bytes: int
    open_files: int
    workspace_bytes: int
    workspace_files: int
    clock_before: int = 0
    history: FileHistory = NO_FILE_HISTORY


class Instance:
    """A guest, from instantiation to `close`."""

    def __init__(self, compiled: Compiled, around: Surroundings) -> None:
        """Makes one.

        Raises:
            HostFailed: there is no memory for it.
        """
        self._owner = threading.get_ident()
        self._around = around
        self._engine = compiled.engine
        self._metered = compiled.metered
        self._closed = False
        self._scratch = 0
        self._dice: tuple[int, ...] = ()
        self.words = Words({}, _NOWHERE)
        self._shadows: dict[str, shadow.Shadow] = {}
        self._store = self._make_store(around)
        self._kept: list[object] = [seams.watch_epochs(self._store, self._on_epoch)]
        self._linker = self._make_linker()
        self._held = contextlib.ExitStack()  # what is given back, the latest first
        self._held.callback(self._linker.close)
        self._held.callback(self._store.close)
        try:
            self._instantiate(compiled)
        except BaseException as problem:
            self.close()
            if isinstance(problem, wasmtime.WasmtimeError):
                raise HostFailed("a new interpreter finds no room in memory") from problem
            raise

    def _instantiate(self, compiled: Compiled) -> None:
        exports: Any = self._linker.instantiate(self._store, compiled.module).exports(self._store)
        context = seams.context_of(self._store)
        self._memory: wasmtime.Memory = exports["memory"]
        self.reach = Reach(seams.RawMemory(context, self._memory))
        self._functions = {
            name: seams.RawFunc(context, exports[name]) for name in ("turn", "host_alloc")
        }
        self._forwards.update(shadow.forwards(self._engine, self._store, self._memory))
        self._surround()

    def _make_store(self, around: Surroundings) -> wasmtime.Store:
        store = wasmtime.Store(self._engine)
        store.set_limits(memory_size=around.memory_bytes)
        if self._metered:
            store.set_fuel(UNLIMITED_FUEL)
        store.set_epoch_deadline(1)
        wasi = wasmtime.WasiConfig()
        wasi.argv = ["python"]
        wasi.env = list(around.env.items())
        store.set_wasi(wasi)  # without any folder: files are the host's own to answer
        return store

    def _make_linker(self) -> wasmtime.Linker:
        """The linker's host functions look their shadows up when called: the shadows need the
        guest's memory, which is there only after instantiation.
        """
        linker = wasmtime.Linker(self._engine)
        linker.define_wasi()
        linker.allow_shadowing = True
        self._forwards: dict[str, seams.RawFunc] = {}
        shadowed = dict(abi.SHAPES)
        if not self._around.clock_before:
            del shadowed["clock_time_get"]
        late = {name: self._late(name) for name in shadowed}
        self._kept += shadow.define(linker, abi.WASI, late, shadowed, self._forwards)
        host = {door.NAME: self._late(door.NAME)}
        self._kept += shadow.define(linker, door.MODULE, host, {door.NAME: door.SHAPE}, {})
        return linker

    def _late(self, name: str) -> shadow.Shadow:
        shadows = self._shadows

        def shadow_of(call: shadow.Call) -> int:
            return shadows[name](call)

        return shadow_of

    def _surround(self) -> None:
        around, reach = self._around, self.reach
        counted = [preopen for preopen in around.preopens.all if preopen.counted]
        quota = Quota(counted, around.workspace_bytes, around.workspace_files)
        files = WasiFiles(
            around.preopens,
            reach,
            around.changes,
            quota=quota,
            history=around.history,
            open_files=around.open_files,
            must_end=around.clock.over,
        )
        writes = Writes(around.streams, reach, around.clock.over)
        self._files = files
        self._held.callback(files.close)
        self.descriptors = Descriptors(files)
        self._time = GuestTime(reach, self._forwards["clock_time_get"], around.clock_before)
        shadows = files.shadows()
        put = shadows["fd_write"]
        self._shadows |= {
            "clock_time_get": self._time.get,
            **shadows,
            "fd_write": lambda c: writes.write(c) if c.args[0] in NAMES else put(c),
            "poll_oneoff": Waits(around.clock, around.streams, reach, self._time).poll,
            door.NAME: door.Door(around.handler, reach, self.allocate).call,
        }

    def _on_epoch(self) -> bool:
        self._around.streams.on_tick()
        return self._around.clock.on_epoch()

    def arm_interrupts(self, words: Mapping[int, int]) -> None:
        """From now on an interrupt turns on these words of the guest's memory."""
        self.words = Words(words, self.reach)

    def use_scratch(self, at: int) -> None:
        """`SCRATCH_BYTES` of guest memory at this address belong to the host."""
        self._scratch = at

    def use_dice(self, places: Sequence[int]) -> None:
        """SQLite's dice lie at these addresses."""
        self._dice = tuple(places)

    def throw_dice(self) -> None:
        """SQLite's random numbers are others than in any other instance from now on."""
        dice.throw(self.reach, self._dice)

    def clock(self) -> int:
        """What the guest's monotonic clock shows, in nanoseconds; needs `use_scratch`."""
        return self._time.monotonic(self._scratch)

    def grow_to(self, size: int) -> None:
        """Make the memory at least `size` bytes large.

        Raises:
            MemoryError: the policy's `memory_bytes` does not allow it.
        """
        missing = size - self.reach.size
        if missing > 0:
            try:
                self._memory.grow(self._store, -(-missing // PAGE))
            except wasmtime.WasmtimeError:
                raise MemoryError(f"memory_bytes is too small: {size} bytes are needed") from None

    def allocate(self, length: int) -> int:
        """Guest memory for the host to write to: its address, or 0 where there is none left."""
        slots = (ctypes.c_uint64 * 2)(length, 0)
        return 0 if self._call("host_alloc", slots, 1) else slots[0] & 0xFFFFFFFF

    def _call(self, name: str, slots: ctypes.Array[ctypes.c_uint64], count: int) -> Stop | None:
        return self._functions[name](ctypes.addressof(slots), count)

    def turn(self, source: bytes, *, fuel: int | None = None) -> int:
        """Run one turn; 0 where its code ended well, 1 where it raised.

        Args:
            source: Python source, run in the guest's `__main__`.
            fuel: The fuel of this turn, or None for no limit.

        Raises:
            GuestStopped: the guest did not come back; the instance is of no more use.
        """
        if threading.get_ident() != self._owner:
            raise RuntimeError("an instance was called from a thread that does not own it")
        if self._metered:
            self._store.set_fuel(UNLIMITED_FUEL if fuel is None else fuel)
        self._files.begin()
        TICKER.add(id(self), self._engine.increment_epoch)
        try:
            return self._turn(source, fuel)
        finally:
            TICKER.remove(id(self))

    @property
    def limit(self) -> str:
        """The name of the workspace's limit that this turn has met, empty for none."""
        return self._files.limit

    def _turn(self, source: bytes, fuel: int | None) -> int:
        slots = (ctypes.c_uint64 * 4)(len(source), 0)
        stop = self._call("host_alloc", slots, 1)
        at = slots[0] & 0xFFFFFFFF
        if stop is None and at == 0:
            raise GuestCrashed("out of memory")
        if stop is None:
            self._hand_over(at, source)
            slots[:] = [at, 0, len(source), 0]
            stop = self._call("turn", slots, 2)
        if stop is not None:
            raise classify(stop, self._around.clock.reason, fuel=fuel)
        return slots[0] & 0xFFFFFFFF

    def _hand_over(self, at: int, source: bytes) -> None:
        try:
            self.reach.write(at, source)
        except OutOfBounds:
            raise GuestCrashed("a broken allocator") from None

    @property
    def fuel_left(self) -> int | None:
        """The fuel that is left of this turn, or None where code is unmetered."""
        return self._store.get_fuel() if self._metered else None

    def lower_fuel(self, fuel: int) -> int:
        """Leave the running turn at most `fuel`, and say how much was taken away.

        Nothing happens where code is unmetered.
        """
        left = self.fuel_left
        if left is None or left <= fuel:
            return 0
        self._store.set_fuel(fuel)
        return left - fuel

    def close(self) -> None:
        """Give everything back; idempotent."""
        if not self._closed:
            self._closed = True
            self._held.close()
            self._shadows.clear()
            self._kept.clear()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn("a guest instance was not closed", ResourceWarning, stacklevel=2)


class _Nowhere:
    """The reach of an instance that has no words yet."""


_NOWHERE: Any = _Nowhere()
