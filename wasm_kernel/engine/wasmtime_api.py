"""Every private name of wasmtime-py that this package touches, each with its reason.

wasmtime-py has no public way to

- set the async stack size, without which an engine with a large wasm stack is refused
  (`wasmtime_config_async_stack_size_set`);
- compile with the baseline compiler, and what that asks for with exceptions
  (`wasmtime_config_strategy_set`, `…_wasm_exceptions_set`, `…_gc_support_set`);
- define a host function without an object for each value (`wasmtime_linker_define_func_unchecked`)
  and call back into the guest the same way (`wasmtime_func_call_unchecked`): ten times faster;
- read a trap's code and an exit status without going through exceptions
  (`wasmtime_trap_code`, `wasmtime_error_exit_status`), or free them;
- have a page that can't be read end the guest and not the process (`trap_unreadable_pages`);
- get at the handles behind `Store`, `Linker`, `Func` and `Memory` that these calls take.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import wasmtime
from msgspec import Struct
from wasmtime import _bindings, _ffi


def _version() -> str:
    """Returns wasmtime-py's version, from its metadata folder's name: it has no `__version__`.
    `importlib.metadata` takes longer to import than wasmtime does.
    """
    for folder in Path(wasmtime.__file__).parents[1].glob("wasmtime-*.dist-info"):
        return folder.name.removeprefix("wasmtime-").removesuffix(".dist-info")
    from importlib.metadata import version

    return version("wasmtime")


VERSION = _version()

SLOT = 16  # bytes of one wasmtime_val_raw_t: arguments and results lie in an array of these
_SIGACTION_BYTES = 512  # larger than struct sigaction on any system
_WINCH = 2  # wasmtime_strategy_enum: auto, Cranelift, Winch
_UNOPTIMIZED = 0  # wasmtime_opt_level_enum

HostFunction = Callable[[int, int], None]
"""Called with the address of the argument slots and their number; writes its result to slot 0."""

_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)
_NO_FINALIZER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)()
# The same C function under a prototype of our own: a raw address instead of a typed pointer for
# the slots, which come to host functions as an address.
_call = ctypes.CFUNCTYPE(
    ctypes.POINTER(_bindings.wasmtime_error_t),
    ctypes.POINTER(_bindings.wasmtime_context_t),
    ctypes.POINTER(_bindings.wasmtime_func_t),
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.POINTER(_bindings.wasm_trap_t)),
)(("wasmtime_func_call_unchecked", _ffi.dll))
_TrapPointer = ctypes.POINTER(_bindings.wasm_trap_t)


def set_async_stack(config: wasmtime.Config, size: int) -> None:
    """Sets the async stack in bytes. An engine needs it to be larger than the wasm stack."""
    _bindings.wasmtime_config_async_stack_size_set(config.ptr(), size)


def use_baseline_compiler(config: wasmtime.Config) -> None:
    """Makes Winch compile modules; it needs exceptions to be allowed.

    Cranelift still makes the trampolines from the host into each function that has an address (a
    guest has tens of thousands), a third of the work. They are hardly used, so they are not
    optimised. Cranelift's single-pass register allocator would save another second of 12, but
    wasmtime advises against it where security matters, and issues no advisories for it.
    """
    _bindings.wasmtime_config_strategy_set(config.ptr(), _WINCH)
    _bindings.wasmtime_config_cranelift_opt_level_set(config.ptr(), _UNOPTIMIZED)
    _bindings.wasmtime_config_wasm_exceptions_set(config.ptr(), True)
    _bindings.wasmtime_config_gc_support_set(config.ptr(), True)


def trap_unreadable_pages() -> None:
    """Makes a guest trap if a file mapped into its memory was truncated, or if its disk fails.

    Linux then sends SIGBUS, which would end the process. wasmtime's handler understands SIGBUS,
    which guard pages raise on other systems, but on Linux wasmtime installs it for SIGSEGV only.
    A SIGBUS outside of a guest's code ends the process as before. Call it once there is an engine.
    """
    system = ctypes.CDLL(None, use_errno=True)
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    for number, new, old in ((signal.SIGSEGV, None, action), (signal.SIGBUS, action, None)):
        if system.sigaction(number, new, old):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def context_of(store: wasmtime.Store) -> Any:
    """Returns the store's C context, valid until the store is closed."""
    return store._context()


def define(
    linker: wasmtime.Linker, module: str, name: str, kind: wasmtime.FuncType, function: HostFunction
) -> object:
    """Defines a host function in `linker`. The object returned must outlive every instance."""

    def callback(_env: int, _caller: int, slots: int, count: int) -> int:
        function(slots, count)
        return 0

    kept = _CALLBACK(callback)
    spelled = (module.encode(), name.encode())
    error = _bindings.wasmtime_linker_define_func_unchecked(
        linker.ptr(),
        ctypes.create_string_buffer(spelled[0]),
        len(spelled[0]),
        ctypes.create_string_buffer(spelled[1]),
        len(spelled[1]),
        kind.ptr(),
        ctypes.cast(kept, _bindings.wasmtime_func_unchecked_callback_t),
        None,
        _NO_FINALIZER,
    )
    if ctypes.cast(error, ctypes.c_void_p).value:
        raise wasmtime.WasmtimeError._from_ptr(error)
    return kept


class CallEnd(Struct, frozen=True):
    """The way in which a call into the guest ended early.

    `trap` is wasmtime's trap code, `status` the exit status of `proc_exit`; both are None if its
    time is over (or wasmtime failed otherwise).
    """

    trap: wasmtime.TrapCode | None = None
    status: int | None = None


class WasmFunction:
    """A wasm function that is called with slots in memory, without conversions."""

    def __init__(self, context: Any, func: wasmtime.Func) -> None:
        self._context = context
        self._func = func
        self._handle = ctypes.byref(func._func)

    def __call__(self, slots: int, count: int) -> CallEnd | None:
        """Calls the function with `count` slots at address `slots`; the result is in slot 0."""
        trap = _TrapPointer()
        error = _call(self._context, self._handle, slots, count, ctypes.byref(trap))
        if not (bool(trap) or bool(error)):
            return None
        return _end_of(trap, error)


def _end_of(trap: Any, error: Any) -> CallEnd:
    if ctypes.cast(trap, ctypes.c_void_p).value:
        code = ctypes.c_uint8()
        known = _bindings.wasmtime_trap_code(trap, ctypes.byref(code))
        _bindings.wasm_trap_delete(trap)
        return CallEnd(trap=wasmtime.TrapCode(code.value) if known else None)
    status = ctypes.c_int()
    exited = _bindings.wasmtime_error_exit_status(error, ctypes.byref(status))
    _bindings.wasmtime_error_delete(error)
    return CallEnd(status=status.value if exited else None)


class RawMemory:
    """The place and size of a guest's linear memory in this process."""

    def __init__(self, context: Any, memory: wasmtime.Memory) -> None:
        self._context = context
        self._memory = memory
        self._handle = ctypes.byref(memory._memory)

    def address(self) -> int:
        """Returns the address of byte 0."""
        pointer = _bindings.wasmtime_memory_data(self._context, self._handle)
        return ctypes.cast(pointer, ctypes.c_void_p).value or 0

    def size(self) -> int:
        """Returns the size in bytes, which only ever grows."""
        return int(_bindings.wasmtime_memory_data_size(self._context, self._handle))
