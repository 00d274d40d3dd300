"""A JavaScript guest: the agent's turns, and the host's answers while they run.

The agent (`runtimes/javascript`) never runs a cell inside of a call of its own: it returns the next
action, the host does that at the top of the guest's stack, and tells the agent the result. So a
cell that is stopped leaves no half-done call behind, and promises are served between actions.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import Struct

from wasm_kernel.engine.clock import Signals
from wasm_kernel.engine.compiler import Compiled
from wasm_kernel.engine.host_calls import Handler, Import, OutOfBounds
from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import GuestStopped
from wasm_kernel.guests.base import GuestSetup
from wasm_kernel.guests.dlmalloc import Dlmalloc
from wasm_kernel.guests.javascript.host_functions import RUNS_CODE, AgentCalls
from wasm_kernel.guests.javascript.modules import NAME_BYTES_MOST, ModuleLoader
from wasm_kernel.guests.javascript.quickjs import FAILED, NAME_BYTES, OK, QuickJs
from wasm_kernel.guests.javascript.stripper import TypeScriptError, first_unexpected, strip
from wasm_kernel.state.pages import Heap

_T = TypeVar("_T")

_MODULE = "env"
_HOST_ERROR = 0xFFFFFFFF  # -1: the guest throws an error of its own
_WAIT_MOST = 10.0**7  # seconds; timers are due in 2**31 milliseconds at most
_SOUGHT_CHARACTERS = 50_000  # characters of a text in which the place of an error is sought
_ENDS_CHARACTERS = 8 * _SOUGHT_CHARACTERS
_SPARE_BYTES = 16 * 1024 * 1024  # bytes of the memory limit that JavaScript's values can't have


class JavaScriptAddresses(Struct, frozen=True):
    """The addresses that the host uses in a guest with the image's memory.

    `step` is the handle of the agent's function of that name. Exports write their results to
    `slot`; scripts have the name at `script_name` in stacks. The others are the states of
    `Math.random`, and of the C library's allocator; 0 if that is another one.
    """

    step: int
    slot: int
    script_name: int
    random: int
    allocator: int = 0


class Interrupts(Signals):
    """The interrupts of one guest. The interpreter asks for them now and then.

    `taken` says that the interpreter has taken an interrupt since `taken` was last reset. While
    `is_held`, an interrupt waits until the host has answered the interpreter.
    """

    def __init__(self) -> None:
        self._is_pending = False
        self.taken = self.is_held = False

    def raise_(self) -> None:
        """Makes the interrupt pending."""
        self._is_pending = True

    def pending(self) -> bool:
        """Returns whether the interpreter has not taken the interrupt yet."""
        return self._is_pending

    def clear(self) -> None:
        """Takes the interrupt back."""
        self._is_pending = False

    def answered(self) -> None:
        """Keeps the interrupt pending: a cell can catch the error that its call throws."""
        self._is_pending = True

    def pop_pending(self) -> bool:
        """Returns whether an interrupt is pending; the interpreter has taken it then."""
        if not self._is_pending or self.is_held:
            return False
        self._is_pending, self.taken = False, True
        return True


class HostImports:
    """The interpreter's imports besides WASI: a `HostFunctions` that never raises.

    `calls` answers the agent and `loader` finds modules; both are set once there is an instance.
    `stopped` is the exception that stopped the guest in a call from one of these functions.
    """

    imports: Mapping[Import, str] = {
        (_MODULE, "host_call"): "iiiii",
        (_MODULE, "host_interrupt"): "",
        (_MODULE, "host_module_normalize"): "iiiii",
        (_MODULE, "host_module_load"): "iii",
    }

    loader: ModuleLoader

    def __init__(self, interrupts: Interrupts) -> None:
        self.calls: AgentCalls | None = None
        self.stopped: GuestStopped | None = None
        self.interrupts = interrupts

    def bind(self, guest: Instance) -> Mapping[Import, Handler]:
        """Returns the handlers for a guest."""
        self._memory, self._guest = guest.memory, guest
        return {
            (_MODULE, "host_call"): self._safely(self._call, _HOST_ERROR),
            (_MODULE, "host_interrupt"): self.interrupts.pop_pending,
            (_MODULE, "host_module_normalize"): self._safely(self._normalize, 0),
            (_MODULE, "host_module_load"): self._safely(self._load, 0),
        }

    def _safely(self, handler: Handler, failure: int) -> Handler:
        """Returns a handler that keeps the exception of a stopped guest, and answers `failure`."""

        def answer(*args: int) -> int:
            try:
                return handler(*args)
            except GuestStopped as stopped:
                self.stopped = self.stopped or stopped
            except Exception:  # an address from the guest, a value of the wrong type
                return failure
            return failure

        return answer

    def _call(self, name_at: int, length: int, this: int, count: int, handles_at: int) -> int:
        if self.calls is None:
            return _HOST_ERROR
        if length == 0:  # a rejected promise, not a function's name: see guest/javascript.py
            self.calls.note_rejection(count, is_handled=bool(this))
            return 0
        name = self._name(name_at, length)
        handles = [self._memory.read_word(handles_at + 4 * index) for index in range(min(count, 8))]
        was_held = self.interrupts.is_held
        # the interpreter panics if it is interrupted while it reads a typed array for the host
        self.interrupts.is_held = name not in RUNS_CODE
        try:
            return self.calls.answer(name, handles)
        finally:
            self.interrupts.is_held = was_held

    def _normalize(self, base: int, base_length: int, at: int, length: int, out: int) -> int:
        found = self.loader.resolve(self._name(base, base_length), self._name(at, length))
        return self._lent(found.encode(), out)

    def _load(self, at: int, length: int, out: int) -> int:
        return self._lent(self.loader.load(self._name(at, length)), out)

    def _name(self, at: int, length: int) -> str:
        """Returns a name, or the beginning of one that is too long."""
        return self._memory.read(at, min(length, NAME_BYTES_MOST)).decode("utf-8", "replace")

    def _lent(self, data: bytes, out: int) -> int:
        place = self._guest.call("qjs_alloc", len(data))
        if place:
            self._memory.write(place, data)
            self._memory.write_word(out, len(data))
        return place


class JavaScriptGuest:
    """An interpreter with its agent: a `Guest`. Only the guest's thread uses it; close it."""

    def __init__(
        self,
        instance: Instance,
        addresses: JavaScriptAddresses,
        host: HostImports,
        setup: GuestSetup,
        stripper: Callable[[], Compiled],
    ) -> None:
        self.instance, self.files, self.flavour = instance, setup.files, setup.flavour
        self.interrupts = host.interrupts
        self.signals: Signals = host.interrupts
        self.heap: Heap = Dlmalloc(addresses.allocator, instance.memory)
        self.engine = QuickJs(instance, addresses.slot, addresses.script_name)
        self._addresses, self._host = addresses, host
        self._setup, self._stripper = setup, stripper

    def run_turn(self, fuel: int | None) -> bool:
        """Runs one turn; as `Guest` has it."""
        self.files.quota.begin_turn()
        self.interrupts.taken = self.interrupts.is_held = False
        with self.instance.turn(fuel):
            self.instance.call("set_memory_limit", max(0, self._setup.memory_bytes - _SPARE_BYTES))
            try:
                action = self._step("begin")
                while action:
                    action = self._do(action)
                if self._host.calls is not None:
                    self._host.calls.forget_rejections()
            except (ValueError, OutOfBounds):
                return False  # the agent's answer is not an action: a cell has broken the agent
        return action is not None

    def _do(self, action: str) -> str | None:
        match action[0]:
            case "e":
                return self._evaluate(action[1 : NAME_BYTES + 1], action[NAME_BYTES + 1 :])
            case "t":
                return self._strip(action[1:])
            case "p":
                return self._step("placed", self._text(str(self._first_unexpected(action[1:]))))
            case "w":
                return self._wait(float(action[1:]))
        return self._step("jobs", self._text(str(self._checked(self.engine.run_jobs))))

    def _evaluate(self, name: str, source: str) -> str | None:
        status, value = self._checked(lambda: self.engine.evaluate(source.encode() or b" ", name))
        if status == OK:
            return self._step("promise", value)
        return self._step("uncompiled", self.engine.exception() or self.engine.new_undefined())

    def _strip(self, source: str) -> str | None:
        try:
            text = self._stripped(source)
        except TypeScriptError as problem:
            self.interrupts.pop_pending()
            return self._step("unstripped", self._text(str(problem)))
        return self._step("stripped", self._text(text))

    def without_types(self, source: str) -> str:
        """Returns a module's text without its types, each piece on its line, while a cell runs.

        Raises `TypeScriptError` if it can't be parsed, `GuestStopped` if time or fuel are over.
        """
        marked = self._laid("mark", source)
        try:
            stripped = self._stripped(marked)
        except TypeScriptError as problem:
            told = [source, self._first_unexpected(source), str(problem)]
            raise TypeScriptError(self._laid("place", json.dumps(told))) from None
        return self._laid("lay", stripped)

    def _first_unexpected(self, source: str) -> int:
        """Returns the number of tokens in front of the first one that is not valid TypeScript.

        It is -1 for a text that is too long, and after a cell has broken the agent.
        """
        if len(source) > _SOUGHT_CHARACTERS:
            return -1
        try:
            told = self._laid("tokens", source)[:_ENDS_CHARACTERS]
            ends = msgspec.json.decode(told, type=list[int])
        except (TypeScriptError, msgspec.MsgspecError):
            return -1
        return first_unexpected(source, ends, self._stripped)

    def _stripped(self, source: str) -> str:
        return strip(source, self._stripper(), self._setup, self.instance)

    def _laid(self, event: str, text: str) -> str:
        arguments = [self._text(event), self._text(text)]
        status, result = self.engine.call_function(self._addresses.step, arguments)
        laid = self.engine.text(result) if status == OK else None
        self.engine.free(result)
        if laid is None:
            raise TypeScriptError("it is too large")
        return laid

    def _wait(self, milliseconds: float) -> str | None:
        self.instance.sleep(min(max(0.0, milliseconds / 1000), _WAIT_MOST))
        self.interrupts.pop_pending()
        return self._step("waited")

    def _step(self, event: str, value: int = 0) -> str | None:
        """Calls the agent; returns the next action, empty at the turn's end, None if it failed."""
        if self.interrupts.taken or (event != "begin" and self.interrupts.pop_pending()):
            self.engine.free(value)
            event, value, self.interrupts.taken = "interrupted", 0, False
            self.engine.free(self.engine.exception())
        arguments = [self._text(event), value or self.engine.new_undefined()]
        call = partial(self.engine.call_function, self._addresses.step, arguments)
        status, result = self._checked(call)
        if status == FAILED:
            return self._step("interrupted") if self.interrupts.taken else None
        action = self.engine.text(result)
        self.engine.free(result)
        return action

    def _checked(self, call: Callable[[], _T]) -> _T:
        """Returns the result of a call into the guest; raises if a call inside it was stopped."""
        result = call()
        if self._host.stopped is not None:
            raise self._host.stopped
        return result

    def _text(self, text: str) -> int:
        return self.engine.new_text(text.encode("utf-8", "replace"))

    def reseed(self) -> None:
        """Reseeds `Math.random`, so that no other guest has the same numbers."""
        seed = int.from_bytes(self.instance.random(8)) or 1
        self.instance.memory.write(self._addresses.random, struct.pack("<Q", seed))

    def close(self) -> None:
        """Closes the guest's files and its instance. Safe to call twice."""
        if not self._setup.shares_files:
            self.files.close()
        self.instance.close()
