"""`QuickJs`: the exports of the interpreter, with texts and values instead of addresses.

A value of the guest is known by a handle, the address of a box in its memory. Callers free each
handle that they get from here, unless they hand it back. The guest's answers are never trusted: all
reads stay inside its memory, whatever the handle.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from wasm_kernel.engine.host_calls import OutOfBounds
from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import GuestCrashed

OK, FAILED = 0, 1
_PANIC, _NO_ENGINE = 3, 4
PENDING, FULFILLED, REJECTED = 0, 1, 2
NAME_BYTES = 11
"""The length of the name that scripts have in stacks: `eval_script` in the binary."""
TEXT_MOST = 128 * 1024 * 1024
"""The most bytes of a text or a typed array that the host takes at once."""

# `JSValue` in QuickJS-NG's quickjs.h for 32 bits: a tag above an address or nothing.
_UNDEFINED, _OBJECT = struct.pack("<II", 0, 3), -1
_BOX_BYTES = 24  # the bytes of a handle's box
_SLOT_BYTES = 64  # for results that exports write to an address, and for the arguments of a call
_ARGUMENTS_AT = 16
_ARGUMENTS_MOST = (_SLOT_BYTES - _ARGUMENTS_AT) // 4


class QuickJs:
    """The interpreter in one instance. Only the guest's thread uses it.

    Exports write their results to the address `slot`, which is allocated by default; `script_name`
    is the address of the name that scripts have in stack traces.
    """

    def __init__(self, instance: Instance, slot: int = 0, script_name: int = 0) -> None:
        self._call = instance.call
        self._memory = instance.memory
        self.slot = slot or _allocated(self._call("qjs_alloc", _SLOT_BYTES))
        self._script_name = script_name

    def evaluate(self, source: bytes, name: str) -> tuple[int, int]:
        """Evaluates a script that may use `await`; its name in stacks has `NAME_BYTES`.

        Returns `OK` and a promise of `{value}`, or `FAILED` (see `exception`).
        """
        self._memory.write(self._script_name, name.encode()[:NAME_BYTES])
        with self._lend(source) as at:
            return self._result("eval_async", at, len(source), self.slot)

    def evaluate_function(self, source: bytes, name: str) -> tuple[int, int]:
        """Returns `OK` and the function that a source defines, or `FAILED` and the exception."""
        status, promise = self.evaluate(b"(" + source + b")", name)
        if status != OK:
            return FAILED, self.exception() or self.new_undefined()
        state, result = self.promise(promise)
        self.free(promise)
        if state != FULFILLED:
            return FAILED, result or self.new_undefined()
        function = self.get(result, b"value")
        self.free(result)
        return OK, function or self.new_undefined()

    def evaluate_module(self, source: bytes, name: bytes) -> tuple[int, int]:
        """Evaluates a module; returns `OK` and a promise of its end, or `FAILED`."""
        with self._lend(source) as at, self._lend(name) as name_at:
            given = (at, len(source), name_at, len(name))
            return self._result("eval_module_async", *given, self.slot)

    def call_function(self, function: int, arguments: Sequence[int]) -> tuple[int, int]:
        """Calls a function; frees the arguments. Returns `OK` and its value, or `FAILED`."""
        this = self._call("new_undefined")
        packed = struct.pack(f"<{len(arguments)}I", *arguments[:_ARGUMENTS_MOST])
        at = self.slot + _ARGUMENTS_AT
        self._memory.write(at, packed)
        result = self._result("call_function", function, this, at, len(arguments), self.slot)
        for handle in (this, *arguments):
            self.free(handle)
        return result

    def exception(self) -> int:
        """Returns the last uncaught exception; 0 if there is none."""
        status, handle = self._result("last_exception", self.slot)
        return handle if status == OK else 0

    def run_jobs(self) -> int:
        """Runs the pending reactions of promises; returns how many ran."""
        return self._call("execute_pending_jobs")

    def promise(self, handle: int) -> tuple[int, int]:
        """Returns a promise's state, and a handle of its value if it is settled."""
        status, state = self._result("promise_state", handle, self.slot)
        if status != OK or state == PENDING:  # or not a promise
            return PENDING, 0
        return state, self._result("promise_result", handle, self.slot)[1]

    def held(self, address: int) -> int:
        """Returns a handle of the object at an address, which the caller must know to be right."""
        handle = self._call("new_undefined")
        box = self._memory.read(handle, _BOX_BYTES)
        place = handle + box.index(_UNDEFINED)
        self._memory.write_word(address, self._memory.read_word(address) + 1)  # one owner more
        self._memory.write(place, struct.pack("<Ii", address, _OBJECT))
        return handle

    def text(self, handle: int, most: int = TEXT_MOST) -> str | None:
        """Returns a string's text; None for another value, one with a lone surrogate, or one of
        more bytes than `most`: a character can take four times as many here.
        """
        raw = self.raw_text(handle, most)
        return None if raw is None else raw.decode("utf-8", "replace")

    def raw_text(self, handle: int, most: int = TEXT_MOST) -> bytes | None:
        """Returns a string as UTF-8; None as for `text`."""
        return self._taken(most) if self._call("get_string", handle) == OK else None

    def data(self, handle: int) -> bytes | None:
        """Returns the bytes of a `Uint8Array`; None for another value, or one that is too large."""
        at = self.slot
        if self._call("get_typed_array_buffer", handle, at, at + 4, at + 8) != OK:
            return None
        return self._taken(TEXT_MOST)

    def new_text(self, text: bytes) -> int:
        """Returns a string, made from UTF-8."""
        if not text:  # the guest takes no empty input
            return self.evaluate_quick(b"''")
        with self._lend(text) as at:
            return self._call("new_string", at, len(text))

    def new_data(self, data: bytes) -> int:
        """Returns a new `Uint8Array`."""
        if not data:
            return self.evaluate_quick(b"new Uint8Array()")
        with self._lend(data) as at:
            return self._result("new_uint8array", at, len(data), self.slot)[1]

    def evaluate_quick(self, source: bytes) -> int:
        """Evaluates an expression at once; returns its value, 0 if that failed."""
        with self._lend(source) as at:
            status, handle = self._result("eval_code", at, len(source), self.slot)
        return handle if status == OK else 0

    def new_undefined(self) -> int:
        """Returns `undefined`."""
        return self._call("new_undefined")

    def new_array(self, *values: int) -> int:
        """Returns an array of values, which are freed."""
        made = self._call("new_array")
        for index, handle in enumerate(values):
            self._call("set_index", made, index, handle)
            self.free(handle)
        return made

    def new_function(self, name: bytes) -> int:
        """Returns a function that calls the host's function of this name."""
        with self._lend(name) as at:
            return self._call("new_function", at, len(name))

    def get(self, holder: int, name: bytes) -> int:
        """Returns a property; 0 if it can't be read."""
        with self._lend(name) as at:
            return self._result("get_prop", holder, at, len(name), self.slot)[1]

    def set(self, holder: int, name: bytes, value: int) -> None:
        """Sets a property, and frees the value."""
        with self._lend(name) as at:
            self._call("set_prop", holder, at, len(name), value)
        self.free(value)

    def free(self, handle: int) -> None:
        """Frees a value."""
        if handle:
            self._call("free_value", handle)

    def _result(self, export: str, *args: int) -> tuple[int, int]:
        status = self._call(export, *args)
        if status in (_PANIC, _NO_ENGINE):
            raise GuestCrashed("a fault of the interpreter")
        return status, self._memory.read_word(self.slot)

    def _taken(self, most: int) -> bytes | None:
        length, data = self._call("qjs_last_len"), None
        if length <= most:
            data = self._memory.read(self._call("qjs_last_ptr"), length) if length else b""
        self._call("qjs_result_free")
        return data

    @contextmanager
    def _lend(self, data: bytes) -> Iterator[int]:
        """Puts bytes into the guest's memory for the time of a block; yields their address."""
        at = _allocated(self._call("qjs_alloc", len(data)))
        try:
            self._memory.write(at, data)
        except OutOfBounds:
            raise GuestCrashed("a broken allocator") from None
        yield at
        self._call("qjs_free", at, len(data))


def _allocated(address: int) -> int:
    if address == 0:
        raise GuestCrashed("out of memory")
    return address
