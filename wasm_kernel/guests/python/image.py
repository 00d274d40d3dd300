"""The base image of the Python guest: what the host must know of a booted interpreter's memory.

Signals. CPython notes "signal N arrived" in a few words of its memory: one that says any signal
did, one for the signal, and a bit in the evaluation loop's own word. Turned on from outside, they
make the loop run the signal's handler at its next look, as after a real signal. They are found by
watching which words `_thread.interrupt_main()` turns on: three C calls in a row, with no bytecode
between them, give a look at memory before it and one after.

SQLite's PRNG, the generator behind `random()` in SQL. Its state is part of a base image, so it
would give the same numbers in every session; and SQLite in a guest, which has no `/dev/urandom`,
would seed it with the time in seconds. No call of SQLite's seeds it anew from Python, so the host
does. It is found by a look before and a look after a number is drawn. Source of the layout:
`sqlite3Prng` in SQLite's random.c, since 3.42: 16 words of ChaCha20's state (the constant, 8 of
key, 1 that counts, 3 of nonce), 64 bytes of output, and how many of those are left.

Immortal objects. CPython writes an object's reference count at every use, but not for an immortal
object (PEP 683). Pages that hold only such objects stay as they are in the image: shared between
kernels, neither copied nor saved with a commit. Source of the layout: `Include/refcount.h` of
CPython 3.14 and later, the branch for 32-bit systems.

The addresses are the same for every instance of one artifact, and are looked for once, when the
base image is built.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wasm_kernel.engine.host_calls import GuestMemory, OutOfBounds
from wasm_kernel.record import record

_PAGE = 4096

SIGNALS_SETUP = (
    "import _host, _thread, collections, functools, operator, signal\n"
    "signal.signal(signal.SIGINT, lambda *_: None)\n"
    "_look = [functools.partial(_host.call, b'before'), _thread.interrupt_main, "
    "functools.partial(_host.call, b'after')]\n"
)
SIGNALS_ROUND = "collections.deque(map(operator.call, _look), maxlen=0)\n"

_PRNG_CONSTANT = b"expand 32-byte k"
_PRNG_STATE, _PRNG_LEFT = 64, 128
_PRNG_DRAWN = 8  # bytes of one `random()`
PRNG_ROUND = (
    "import _host, sqlite3\n"
    "_draw = sqlite3.connect(':memory:').execute\n"
    "_draw('select random()').fetchone()\n"
    "_host.call(b'before')\n"
    "_draw('select random()').fetchone()\n"
    "_host.call(b'after')\n"
)

_IMMORTAL = 5 << 28  # _Py_IMMORTAL_INITIAL_REFCNT
_PLAUSIBLE = 1 << 24


@record
class Addresses:
    """What the host reaches for in a guest that has the image's memory.

    Attributes:
        signal_words: The words that make an interrupt pending, and the bits to turn on.
        sqlite_prngs: Where the states of SQLite's generators begin.
    """

    signal_words: Mapping[int, int]
    sqlite_prngs: Sequence[int] = ()

    def as_extra(self) -> dict[str, Any]:
        """Returns them as the language's part of an image's record."""
        words = {str(at): bits for at, bits in self.signal_words.items()}
        return {"signal_words": words, "sqlite_prngs": list(self.sqlite_prngs)}

    @classmethod
    def of_extra(cls, extra: Mapping[str, Any]) -> Addresses:
        """Reads them from there.

        Raises:
            KeyError, ValueError, TypeError, AttributeError: it is not what `as_extra` returns.
        """
        words = {int(at): int(bits) for at, bits in extra["signal_words"].items()}
        return cls(words, [int(at) for at in extra["sqlite_prngs"]])


def signal_candidates(before: bytes, after: bytes, rest: bytes) -> dict[int, int]:
    """Returns words that are 0 before, a single low bit after, and 0 again at rest, by address."""
    found: dict[int, int] = {}
    size = min(len(before), len(after), len(rest))
    for page in range(0, size, _PAGE):
        old, new = before[page : page + _PAGE], after[page : page + _PAGE]
        if old == new:
            continue
        now = rest[page : page + _PAGE]
        words = zip(*(memoryview(part).cast("I") for part in (old, new, now)), strict=True)
        for index, (was, became, rests) in enumerate(words):
            if was == 0 and became in (1, 2) and rests == 0:
                found[page + 4 * index] = became
    return found


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


def find_sqlite_prngs(before: bytes, after: bytes) -> list[int]:
    """Returns where a generator can lie: the state is as it was, and there are as many bytes less
    as were drawn.
    """
    found, at = [], before.find(_PRNG_CONSTANT)
    while at >= 0 and at + _PRNG_LEFT < min(len(before), len(after)):
        same = before[at : at + _PRNG_LEFT] == after[at : at + _PRNG_LEFT]
        if same and before[at + _PRNG_LEFT] - after[at + _PRNG_LEFT] == _PRNG_DRAWN:
            found.append(at)
        at = before.find(_PRNG_CONSTANT, at + 1)
    return found


def reseed_sqlite(memory: GuestMemory, prngs: Sequence[int]) -> None:
    """Seeds SQLite's generators anew, between two turns."""
    for at in prngs:
        state = _PRNG_CONSTANT + os.urandom(32) + bytes(4) + os.urandom(12)
        memory.write(at, state.ljust(_PRNG_STATE, b"\0"))
        memory.write(at + _PRNG_LEFT, b"\0")


def make_immortal(memory: GuestMemory, addresses: Iterable[int]) -> int:
    """Marks the objects at these addresses as immortal; returns how many were marked.

    An address at which no reference count can be is passed over.
    """
    marked = 0
    for at in addresses:
        try:
            count = memory.read_word(at)
        except OutOfBounds:
            continue
        if 0 < count < _PLAUSIBLE and at % 8 == 0:
            memory.write_word(at, _IMMORTAL)
            marked += 1
    return marked
