"""A running Python guest: its channel to the host, and what the host reaches for in its memory.

Signals. CPython notes "signal N arrived" in a few words of its memory: one that says any signal
did, one for the signal, and a bit in the evaluation loop's own word. Turned on from outside, they
make the loop run the signal's handler at its next look, as after a real signal.

SQLite's PRNG, the generator behind `random()` in SQL. Its state is part of a base image, so it
would give the same numbers in every session; and SQLite in a guest, which has no `/dev/urandom`,
would seed it with the time in seconds. No call of SQLite's seeds it anew from Python, so the host
does. Source of the layout: `sqlite3Prng` in SQLite's random.c, since 3.42: 16 words of ChaCha20's
state (the constant, 8 of key, 1 that counts, 3 of nonce), 64 bytes of output, and how many of those
are left.

The addresses are the same for every instance of one artifact; `image.py` finds them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from wasm_kernel.engine import abi
from wasm_kernel.engine.clock import Signals
from wasm_kernel.engine.host_calls import BoundGuest, GuestMemory, Handler, Import, OutOfBounds
from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import GuestCrashed, GuestStopped
from wasm_kernel.wasi_files.calls import WasiFiles

ARGV = ("python",)
PRNG_CONSTANT = b"expand 32-byte k"
PRNG_STATE, PRNG_LEFT = 64, 128
"""The size of a generator's state, and where it says how many bytes of output are left."""

# The agent's anchor (in `wasm_kernel_agent/agent.py`): a turn that needs no import and no builtin,
# so that it works whatever a cell did to either.
_TURN = b"0j.__class__.__subclasses__()[0].turn()"
_REQUEST_BYTES = 80 * 1024 * 1024
_REFUSED = 1  # the guest's `_host.call` raises OSError for any answer but 0


class Addresses(Struct, frozen=True):
    """The addresses that the host reaches for in a guest with the image's memory.

    Attributes:
        signal_words: The words that make an interrupt pending, and the bits to turn on.
        sqlite_prngs: Where the states of SQLite's generators begin.
    """

    signal_words: Mapping[int, int]
    sqlite_prngs: Sequence[int] = ()


class SignalWords:
    """The words of one guest that make an interrupt pending; the guest's thread owns it."""

    def __init__(self, words: Mapping[int, int], memory: GuestMemory) -> None:
        self._words = dict(words)
        self._memory = memory

    def raise_(self) -> None:
        """Makes the interrupt pending."""
        for at, bits in self._words.items():
            self._memory.write_word(at, self._memory.read_word(at) | bits)

    def pending(self) -> bool:
        """Whether the interpreter has not taken it yet."""
        return bool(self._words) and all(
            self._memory.read_word(at) & bits for at, bits in self._words.items()
        )

    def clear(self) -> None:
        """Takes it back."""
        for at, bits in self._words.items():
            self._memory.write_word(at, self._memory.read_word(at) & ~bits)


def reseed_sqlite(memory: GuestMemory, prngs: Sequence[int]) -> None:
    """Seeds SQLite's generators anew, between two turns."""
    for at in prngs:
        state = PRNG_CONSTANT + os.urandom(32) + bytes(4) + os.urandom(12)
        memory.write(at, state.ljust(PRNG_STATE, b"\0"))
        memory.write(at + PRNG_LEFT, b"\0")


class HostChannel:
    """The guest's `host.call`: it hands over bytes and gets bytes back. It never raises across.

    Args:
        answer: Answers a request, on the guest's thread.
    """

    imports: Mapping[Import, str] = {("host", "call"): "iiii"}

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer

    def bind(self, guest: BoundGuest) -> Mapping[Import, Handler]:
        """Returns the handler for a guest."""
        memory = guest.memory

        def call(at: int, length: int, answer_at: int, answer_length_at: int) -> int:
            if length > _REQUEST_BYTES:
                return _REFUSED
            answer = self._answer(memory.read(at, length))
            try:
                place = guest.call("host_alloc", max(1, len(answer)))
            except GuestStopped:
                place = 0  # the outer call ends for the same reason
            if place == 0:
                return _REFUSED
            memory.write(place, answer)
            memory.write_word(answer_at, place)
            memory.write_word(answer_length_at, len(answer))
            return abi.SUCCESS

        return {("host", "call"): call}


class PythonGuest:
    """An interpreter: a `Guest`. Only the guest's thread uses it; close it."""

    def __init__(self, instance: Instance, files: WasiFiles, addresses: Addresses) -> None:
        self.instance = instance
        self.files = files
        self.signals: Signals = SignalWords(addresses.signal_words, instance.memory)
        self._sqlite_prngs = addresses.sqlite_prngs

    def run_turn(self, fuel: int | None) -> bool:
        """Runs one turn; as `Guest` has it."""
        return self.run(_TURN, fuel)

    def run(self, source: bytes, fuel: int | None = None) -> bool:
        """Runs Python source in the guest's `__main__`; returns whether it raised nothing.

        Raises:
            GuestStopped: the guest did not come back; it is of no more use.
        """
        self.files.begin_turn()
        with self.instance.turn(fuel):
            at = self.instance.call("host_alloc", len(source))
            if at == 0:
                raise GuestCrashed("out of memory")
            try:
                self.instance.memory.write(at, source)
            except OutOfBounds:
                raise GuestCrashed("a broken allocator") from None
            return self.instance.call("turn", at, len(source)) == 0

    def reseed(self) -> None:
        """Seeds SQL's `random()` anew: no other guest has the same numbers."""
        reseed_sqlite(self.instance.memory, self._sqlite_prngs)

    def close(self) -> None:
        """Closes its files and its instance. Safe to call twice."""
        self.files.close()
        self.instance.close()
