"""A live guest: a store, an instance in it, the host functions around it.

The thread that makes an instance owns it: every call but `Clock.interrupt` comes from there, and
that thread needs a big native stack (`thread.py`), because guest recursion uses it. An instance
that stopped in the middle of a call is unusable; its owner closes it and makes another.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import wasmtime
from msgspec import Struct, field

from wasm_kernel.engine import guest_clock, wasmtime_api
from wasm_kernel.engine.clock import THIS_PROCESS, TICKER, Clock, StopReason
from wasm_kernel.engine.compiler import Compiled
from wasm_kernel.engine.guest_clock import GuestClock, SteppedClock
from wasm_kernel.engine.host_calls import Dispatcher, GuestMemory, Handler, Import
from wasm_kernel.engine.streams import OutputStreams
from wasm_kernel.engine.wasmtime_api import CallEnd
from wasm_kernel.errors import (
    GuestCrashed,
    GuestExited,
    GuestStopped,
    HostFailed,
    OutOfFuel,
    StackExhausted,
)

UNLIMITED_FUEL = 1 << 62
PAGE = 65_536  # bytes of a wasm page
_LOOK_SECONDS = 0.001  # processor time of a guest between two checks of its time


class InstanceOptions(Struct, frozen=True):
    """The options that a guest is started with.

    `memory_bytes` is the most that its memory may grow to. `clock_before` is the monotonic time at
    which the earlier instance ended, in nanoseconds. With `deterministic`, its clock and random
    numbers are those of every such instance. With `refuses_others` it may have imports that no host
    answers; a call of one ends it. `memory` is the name of its memory.
    """

    memory_bytes: int
    argv: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    clock_before: int = 0
    deterministic: bool = False
    refuses_others: bool = False
    memory: str = "memory"


class HostFunctions(Protocol):
    """A part of the host that answers some of a guest's imports."""

    @property
    def imports(self) -> Mapping[Import, str]:
        """The imports that it answers, with shapes: `i` is a 32-bit argument, `I` a 64-bit one, and
        `e` a reference to an object of the host, which is always null.

        The result is an error number, unless the shape names another behind `>`: nothing, `e`, or
        `d`, a whole number that the guest gets as a float.
        """

    def bind(self, guest: Instance) -> Mapping[Import, Handler]:
        """Returns the handlers for one new guest. Their exceptions become error numbers."""


def define_early(compiled: Compiled, hosts: Sequence[Mapping[Import, str]]) -> None:
    """Defines a first instance's host functions ahead, for processes that fork from this one."""
    for clock in (guest_clock.FIRST, guest_clock.LATER):
        shapes = dict(clock)
        for each in hosts:
            shapes.update(each)
        Dispatcher(compiled.engine, shapes).release()


class Instance:
    """A guest, from instantiation to `close`. `random` makes random bytes for it."""

    def __init__(
        self,
        compiled: Compiled,
        hosts: Sequence[HostFunctions],
        options: InstanceOptions,
        clock: Clock,
        streams: OutputStreams,
    ) -> None:
        """Instantiates a guest; the clock and the streams outlive it.

        `hosts` answer the imports that neither the engine nor wasmtime answers. Raises `HostFailed`
        if there is no memory for the guest.
        """
        self._owner = threading.get_ident()
        self._processor_time = time.pthread_getcpuclockid(self._owner)
        self._ran = 0.0  # its processor time at the last check
        self._clock, self._streams = clock, streams
        self._engine = compiled.engine
        self._flavour = compiled.flavour
        self._fuel: int | None = None
        self._closed = False
        self._functions: dict[str, wasmtime_api.WasmFunction] = {}
        self.random: Callable[[int], bytes] = os.urandom
        self._time = GuestClock(clock, streams, options.clock_before)
        if options.deterministic:
            self._time = stepped = SteppedClock(clock, streams, options.clock_before)
            self.random = stepped.random
        self._store = self._make_store(options)
        hosts = (self._time, *hosts)
        shapes = {key: shape for host in hosts for key, shape in host.imports.items()}
        self._dispatcher = Dispatcher.of(self._engine, shapes)
        try:
            if options.refuses_others:
                self._dispatcher.linker.define_unknown_imports_as_traps(compiled.module)
            self._instantiate(compiled, hosts, options.memory)
        except BaseException as problem:
            self.close()
            if isinstance(problem, wasmtime.WasmtimeError):
                raise _no_room() from problem
            raise

    def _make_store(self, options: InstanceOptions) -> wasmtime.Store:
        store = wasmtime.Store(self._engine)
        store.set_limits(memory_size=options.memory_bytes)
        if self._flavour.fuel:
            store.set_fuel(UNLIMITED_FUEL)
        earliest = time.monotonic_ns()
        wasi = wasmtime.WasiConfig()
        wasi.argv = list(options.argv)
        wasi.env = list(options.env.items())
        store.set_wasi(wasi)  # without any folder: the host answers file calls itself
        self._time.started(earliest)
        return store

    def _instantiate(self, compiled: Compiled, hosts: Sequence[HostFunctions], memory: str) -> None:
        instance = self._dispatcher.linker.instantiate(self._store, compiled.module)
        exports: Any = instance.exports(self._store)
        self._exports: Mapping[str, Any] = exports
        self._context = wasmtime_api.context_of(self._store)
        self._memory: Any = self._exports[memory]
        self.memory = GuestMemory(wasmtime_api.RawMemory(self._context, self._memory))
        for host in hosts:
            self._dispatcher.bind(host.bind(self))

    def _watch(self) -> None:
        """Checks the guest on the ticker's thread, while it computes.

        If the guest is in a host call, the check follows when that call ends.
        """
        if self._dispatcher.is_in_host:
            self._dispatcher.after_call = self._tick
        else:
            self._tick()

    def _tick(self) -> None:
        self._streams.on_tick()
        try:
            ran = time.clock_gettime(self._processor_time)
        except OSError:  # its turn is over, and its thread has ended
            return
        if ran - self._ran < _LOOK_SECONDS:
            return  # on a busy machine a grace can pass before the guest has had a chance
        self._ran = ran
        if (reason := self._clock.watch()) is not None:
            THIS_PROCESS.kill(reason)

    def count_work(self, fuel: int) -> bool:
        """Burns fuel for work that the host does in the guest's place.

        Returns whether to do the work. If not, fuel or time is over, and the guest ends soon. The
        ticker's thread checks the time during the work, as while the guest computes.
        """
        if (left := self.fuel_left) is not None:
            self._store.set_fuel(max(0, left - fuel))
            if left < fuel:
                return False
        self._dispatcher.is_in_host = False
        return self._clock.reason is None

    def monotonic(self) -> int:
        """Returns the guest's monotonic time in nanoseconds."""
        return self._time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleeps in the guest's place; an interrupt or the turn's end cuts the sleep short."""
        self._time.sleep(int(seconds * 1e9))

    def grow_to(self, size: int) -> None:
        """Grows the memory to `size` bytes or more. `MemoryError` above the policy's limit."""
        missing = size - self.memory.size
        if missing > 0:
            try:
                self._memory.grow(self._store, -(-missing // PAGE))
            except wasmtime.WasmtimeError:
                raise MemoryError(f"memory_bytes is too small: {size} bytes are needed") from None

    @contextlib.contextmanager
    def turn(self, fuel: int | None = None) -> Iterator[None]:
        """Lets calls run: they burn `fuel`, unless it is None; every tick checks the time."""
        if self._flavour.fuel:
            self._store.set_fuel(UNLIMITED_FUEL if fuel is None else fuel)
        self._fuel = fuel
        TICKER.add(id(self), self._watch)
        try:
            yield
        finally:
            TICKER.remove(id(self))

    def call(self, export: str, *args: int) -> int:
        """Calls a function that the guest exports, with 32-bit arguments; returns its result.

        A host function may call, too. After `GuestStopped` the instance is unusable.
        """
        return self.call_for(1, export, *args)[0]

    def call_for(self, results: int, export: str, *args: int) -> tuple[int, ...]:
        """Calls a function like `call`; returns its first `results` results."""
        function = self._functions.get(export)
        if function is None:
            function = wasmtime_api.WasmFunction(self._context, self._exports[export])
            self._functions[export] = function
        return self._called(function, results, args)

    def call_in_table(self, table: str, place: int, *args: int) -> int:
        """Calls a function in a table that the guest exports, like `call`.

        A hostile guest may name any place, so the function's type is checked, as the guest's own
        calls are: `_called` does not.
        """
        found = self._exports[table].get(self._store, place)
        kind = found.type(self._store) if isinstance(found, wasmtime.Func) else None
        if kind is None or len(kind.params) != len(args) or len(kind.results) > 1:
            raise GuestCrashed("bad signature")
        return self._called(wasmtime_api.WasmFunction(self._context, found), 1, args)[0]

    def _called(
        self, function: wasmtime_api.WasmFunction, results: int, args: tuple[int, ...]
    ) -> tuple[int, ...]:
        if threading.get_ident() != self._owner:
            raise RuntimeError("an instance was called from a thread that does not own it")
        slots = (ctypes.c_uint64 * (2 * max(results, len(args))))()
        slots[: 2 * len(args) : 2] = list(args)
        from_host, self._dispatcher.is_in_host = self._dispatcher.is_in_host, False
        end = function(ctypes.addressof(slots), len(slots) // 2)
        self._dispatcher.is_in_host = from_host
        if end is None and self._clock.reason is not None and not from_host:
            end = CallEnd()  # it took the interrupt, which came because its time was over
        if end is not None:
            raise stop_error(end, self._clock.reason, fuel=self._fuel)
        return tuple(slot & 0xFFFFFFFF for slot in slots[: 2 * results : 2])

    @property
    def fuel_left(self) -> int | None:
        """The fuel that is left of this turn, or None if code is unmetered."""
        return self._store.get_fuel() if self._flavour.fuel else None

    def lower_fuel(self, most: int | None) -> int:
        """Lowers the running turn's fuel to `most`; returns the fuel taken away.

        Changes nothing if the code counts no fuel, or if `most` is None.
        """
        left = self.fuel_left
        if left is None or most is None or left <= most:
            return 0
        self._store.set_fuel(most)
        return left - most

    def close(self) -> None:
        """Frees the guest's memory and its other resources. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._store.close()
            self._dispatcher.release()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn("a guest instance was not closed", ResourceWarning, stacklevel=2)


def _no_room() -> HostFailed:
    """Returns the error of an instance that finds no room, which names a limit of this process."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return HostFailed("a new interpreter finds no room in memory")
    return HostFailed(
        f"a new interpreter finds no room in the {most >> 20:,} MiB of address space that its "
        "process may have",
        "Allow more (ulimit -v in a shell, LimitAS= in a service), or set no such limit: only a "
        "small part of it becomes memory. Then start anew.",
    )


def stop_error(end: CallEnd, reason: StopReason | None, *, fuel: int | None) -> GuestStopped:
    """Returns the error for the end of a call, chosen by code, never by text.

    `reason` is None if the clock did not end it; `fuel` is the turn's budget, None if unmetered.
    """
    if end.status is not None:
        return GuestExited(end.status)
    if end.trap is wasmtime.TrapCode.OUT_OF_FUEL:
        return OutOfFuel(fuel or 0)
    if end.trap is wasmtime.TrapCode.STACK_OVERFLOW:
        return StackExhausted()
    if end.trap is None and reason is not None:
        return reason.error()
    return GuestCrashed(end.trap.name.lower().replace("_", " ") if end.trap else "host error")
