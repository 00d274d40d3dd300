"""The host's functions that cells can call, as a turn sees them, with their limits.

The functions run in the process of the program that owns the sandbox
(`wasm_kernel/service/function_calls.py`). That side checks each call again.
"""

# Annotations are values here, not texts, which msgspec would compile at every start.

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from wasm_kernel.guests.base import CommandRefused
from wasm_kernel.guests.protocol import (
    CallFunction,
    DropCall,
    FinishedCalls,
    FunctionFrame,
    FunctionReply,
    NextItem,
)
from wasm_kernel.linux.broker import Broker
from wasm_kernel.linux.task import QUIET
from wasm_kernel.policy import MIB

CALL_BYTES = 16 * MIB - 4096
"""The most bytes of one call's frame; the rest is for the message around it."""

NETWORK = "wasm_kernel_network_"
"""The beginning of the names of functions that the guest's sockets call."""

_SENDING = (f"{NETWORK}send", f"{NETWORK}receive")
_LOOK_SECONDS = 0.05  # between two looks for finished calls, beside one for each call
_REST_SECONDS = 0.005  # between two looks at facts
_SPARE_DROPS = 100  # drops of streams that an earlier cell has left


class Parameter(Struct, frozen=True, omit_defaults=True):
    """A parameter of an offered function, for its signature in the guest.

    The kind is one of `inspect.Parameter`'s five, as a number; the type and the default are texts.
    """

    name: str
    kind: int
    type: str = ""
    default: str | None = None


class OfferedFunction(Struct, frozen=True):
    """A function of the host, as cells see it; its docstring and annotations as texts.

    Cells await it if it `is_async`, and get an iterator from it if it `is_stream`. One cell may
    have `calls_a_cell` calls and items of streams.
    """

    name: str
    doc: str
    parameters: tuple[Parameter, ...]
    returns: str
    is_async: bool
    is_stream: bool
    calls_a_cell: int


Offered = tuple[OfferedFunction, ...]


NOT_FINISHED: Mapping[str, Any] = {"finished": [], "left": 1}
"""The answer if the host does not look for finished calls: none has finished."""


def as_request(offered: Sequence[OfferedFunction]) -> Any:
    """Returns the description of functions for the guest, as plain values."""
    return msgspec.to_builtins([*offered])


def sends(asked: FunctionFrame) -> bool:
    """Returns whether a call sends a part of a request to the network."""
    return isinstance(asked, CallFunction) and asked.function in _SENDING and bool(asked.raw)


class RequestFacts:
    """The facts about a session's requests for `%session_info`, which its owner knows.

    A cell may ask as often as it likes; it waits a moment in between.
    """

    function = f"{NETWORK}requests"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._asked_at = 0.0

    def now(self) -> dict[str, Any]:
        """Returns the facts; raises `WasmKernelError` if no cell runs."""
        time.sleep(max(0.0, self._asked_at + _REST_SECONDS - time.monotonic()))
        self._asked_at = time.monotonic()
        answer = self._broker.call(CallFunction(self.function), FunctionReply, QUIET).answer
        return {f"network_{name}": value for name, value in answer["value"].items()}


class TurnFunctions:
    """The calls of the host's functions in one turn, counted.

    The owner would end a worker that asked too often.
    """

    def __init__(self, offered: Sequence[OfferedFunction]) -> None:
        self._most = {each.name: each.calls_a_cell for each in offered}
        self._made: Counter[str] = Counter()
        self._looks_left, self._drops_left = 0, _SPARE_DROPS  # each call adds one of each
        self._looked_at = 0.0

    def rests(self, asked: FunctionFrame) -> bool:
        """Waits if the last look for finished calls was a moment ago.

        Returns True if it has waited; the guest then gets `NOT_FINISHED`.
        """
        if not isinstance(asked, FinishedCalls):
            return False
        now = time.monotonic()
        rest = _LOOK_SECONDS - (now - self._looked_at)
        if self._looks_left == 0 and rest > 0:
            time.sleep(min(rest, asked.seconds))
            return True
        self._looks_left, self._looked_at = max(0, self._looks_left - 1), now
        return False

    def check(self, asked: FunctionFrame, size: int) -> None:
        """Counts a call whose frame has `size` bytes; raises `CommandRefused` if it is refused.

        The owner alone knows whether a cell runs.
        """
        if isinstance(asked, DropCall):
            self._drops_left -= 1
            if self._drops_left < 0:
                raise CommandRefused("as many calls were dropped as were made")
        if not isinstance(asked, CallFunction | NextItem):
            return
        if (most := self._most.get(asked.function)) is None:
            raise CommandRefused("the program that owns this sandbox offers no such function")
        if size > CALL_BYTES:
            raise CommandRefused(f"the arguments take more than {CALL_BYTES // MIB} MiB")
        if self._made[asked.function] >= most:
            raise CommandRefused(f"a cell may call it {most:,} times")
        self._made[asked.function] += 1
        self._looks_left += 1
        self._drops_left += 1
