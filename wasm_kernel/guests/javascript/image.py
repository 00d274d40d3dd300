"""The base image of the JavaScript guest: an interpreter whose agent is loaded and waits."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import NoReturn

import msgspec

from wasm_kernel.engine.cache import REINSTALL, Cache
from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.compiler import Compiled
from wasm_kernel.engine.host_calls import GuestMemory
from wasm_kernel.engine.instance import Instance, InstanceOptions
from wasm_kernel.engine.streams import OutputStreams
from wasm_kernel.errors import GuestStopped, ImageError
from wasm_kernel.guests.dlmalloc import find_allocator
from wasm_kernel.guests.javascript.files import JavaScriptFiles
from wasm_kernel.guests.javascript.guest import HostImports, Interrupts, JavaScriptAddresses
from wasm_kernel.guests.javascript.host_functions import FUNCTIONS
from wasm_kernel.guests.javascript.modules import ModuleLoader
from wasm_kernel.guests.javascript.quickjs import FULFILLED, OK, REJECTED, QuickJs
from wasm_kernel.state import image
from wasm_kernel.state.image import ImageRecord

BOOT = "1"
"""The version of the guest's boot; a part of the image's name."""

_MEMORY = 512 * 1024 * 1024
_SCRIPT_NAME, _AGENT_NAME = b"eval_script", b"wasm-kernel"
_DRAW = b"Math.random()"
_REJECT = b"Promise.reject()"
_ANOTHER_VERSION = f"the JavaScript guest's files are of another version. {REINSTALL}"
_FORGET = b"delete globalThis.wasmKernel_step"

# Fields of `JSRuntime` in QuickJS-NG's quickjs.c: the first threshold for garbage collection, an
# empty list, and the stack: its size (none is set for WASI), its beginning, and the limit, below
# which a `RangeError` is thrown. Without a limit, deep recursion would end the guest.
_GC_THRESHOLD = 256 * 1024
_RUNTIME = struct.Struct("<6I")
_STACK_TOP, _STACK_LIMIT = 1024 * 1024, 128 * 1024
_WORD = (1 << 64) - 1
_TRACKER = 609  # index in the table of functions; guest/javascript.py has added it


def build_image(compiled: Compiled, files: JavaScriptFiles, cache: Cache, name: str) -> ImageRecord:
    """Boots a guest with code of any flavour, and writes its memory to the cache under a name.

    Call it on a guest thread, since it runs guests. Raises `ImageError`.
    """
    with _raw(compiled) as (instance, _):
        allocator = find_allocator(instance, "qjs_alloc")
    with _raw(compiled) as (instance, host), instance.turn():
        engine, memory = QuickJs(instance), instance.memory
        engine.free(engine.evaluate_quick(_DRAW))
        before = memory.read(0, memory.size)
        engine.free(engine.evaluate_quick(_DRAW))
        found = find_random(before, memory.read(0, len(before)))
        if len(found) != 1:
            raise ImageError("the generator of random numbers was not found in the guest")
        track_rejections(memory, limit_stack(memory))
        try:
            engine.free(engine.evaluate_quick(_REJECT))
        except GuestStopped:  # the tracker is not where it should be
            raise ImageError(_ANOTHER_VERSION) from None
        script_name = memory.read(0, memory.size).find(_SCRIPT_NAME)
        if script_name < 0:
            raise ImageError("the name of scripts was not found in the guest")
        memory.write(script_name, _AGENT_NAME)
        host.loader = ModuleLoader(files.modules, _nothing_else, _nothing_else, lambda: False)
        step = _load_agent(engine, files)
        cache.write(name, lambda path: image.save(instance, path))
        addresses = JavaScriptAddresses(step, engine.slot, script_name, found[0], allocator)
        extra = msgspec.to_builtins(addresses)
        return ImageRecord(memory.size, os.urandom(8).hex(), (), extra)


def _load_agent(engine: QuickJs, files: JavaScriptFiles) -> int:
    """Loads the agent, and returns a handle of its function `step`."""
    everything = engine.evaluate_quick(b"globalThis")
    for name in FUNCTIONS:
        function = engine.new_function(name.encode())
        engine.set(everything, f"wasmKernel_{name}".encode(), function)
    status, promise = engine.evaluate_module(files.modules[files.main], files.main.encode())
    engine.run_jobs()
    state, reason = engine.promise(promise) if status == OK else (REJECTED, engine.exception())
    if state != FULFILLED:
        engine.set(everything, b"problem", reason)
        told = engine.text(engine.evaluate_quick(b"`${problem}\\n${problem?.stack}`"))
        raise ImageError(f"the JavaScript guest could not be prepared: {told}")
    step = engine.get(everything, b"wasmKernel_step")
    for handle in (reason, promise, everything, engine.evaluate_quick(_FORGET)):
        engine.free(handle)
    return step


@contextlib.contextmanager
def _raw(compiled: Compiled) -> Iterator[tuple[Instance, HostImports]]:
    """Runs a guest without an image, with the binary's initial memory."""
    host = HostImports(Interrupts())
    options = InstanceOptions(_MEMORY)
    instance = Instance(compiled, (host,), options, Clock(), OutputStreams())
    with contextlib.closing(instance):
        yield instance, host


def limit_stack(memory: GuestMemory) -> int:
    """Makes the interpreter throw an error before its stack ends; returns the limit's address."""
    whole = memory.read(0, memory.size)
    found, at = [], whole.find(struct.pack("<I", _GC_THRESHOLD))
    while at >= 0:
        if at % 4 == 0 and at + _RUNTIME.size <= len(whole):
            _, _, _, size, top, limit = _RUNTIME.unpack_from(whole, at)
            if size == limit == 0 and 0 < top < _STACK_TOP:
                found.append(at + _RUNTIME.size - 4)
        at = whole.find(struct.pack("<I", _GC_THRESHOLD), at + 1)
    if len(found) != 1:
        raise ImageError("the limit of the stack was not found in the guest")
    memory.write_word(found[0], _STACK_LIMIT)
    return found[0]


def track_rejections(memory: GuestMemory, limit: int) -> None:
    """Makes the interpreter call the function that was added to it for promises that are rejected.

    The word for the function is found by the list of jobs behind it: an empty list, which points to
    itself.
    """
    for at in range(limit + 12, limit + 128, 4):
        is_list = memory.read_word(at) == memory.read_word(at + 4) == at
        if is_list and memory.read_word(at - 8) == memory.read_word(at - 4) == 0:
            memory.write_word(at - 8, _TRACKER)
            return
    raise ImageError("the place for the tracker of promises was not found in the guest")


def find_random(before: bytes, after: bytes) -> list[int]:
    """Returns possible addresses of the generator's state, which took one step of its rule.

    Source of the rule: `xorshift64star` in QuickJS-NG's quickjs.c.
    """
    size = min(len(before), len(after)) // 8 * 8
    old, new = (memoryview(each[:size]).cast("Q") for each in (before, after))
    words = enumerate(zip(old, new, strict=True))
    return [8 * index for index, (was, is_) in words if was != is_ == _next(was)]


def _next(state: int) -> int:
    state ^= state >> 12
    state ^= state << 25 & _WORD
    return state ^ state >> 27


def _nothing_else(*_: object) -> NoReturn:
    raise ImageError("the agent asks for other files than its own modules")
