"""KeyboardInterrupt into a guest that is busy computing.

CPython notes "signal N arrived" in a few words of its memory: one that says any signal did, one
for the signal, and a bit in the evaluation loop's own word. Turned on from outside, they make the
loop run the signal's handler at its next look, as after a real signal. Their addresses are the
same for every instance of one artifact. They are found once, when the base image is built, by
watching which words `_thread.interrupt_main()` turns on: three C calls in a row, with no bytecode
between them, give a look at memory before it and one after.
"""

from __future__ import annotations

from collections.abc import Mapping

from wasm_kernel.engine.reach import Reach

_PAGE = 4096

CALIBRATION_SETUP = (
    "import _host, _thread, collections, functools, operator, signal\n"
    "signal.signal(signal.SIGINT, lambda *_: None)\n"
    "_look = [functools.partial(_host.call, b'before'), _thread.interrupt_main, "
    "functools.partial(_host.call, b'after')]\n"
)
CALIBRATION_ROUND = "collections.deque(map(operator.call, _look), maxlen=0)\n"


def candidates(before: bytes, after: bytes, rest: bytes) -> dict[int, int]:
    """Words that are 0 before, a single low bit after, and 0 again at rest: `{address: bits}`."""
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


class Words:
    """The words of one instance that make an interrupt pending; the guest's thread owns it."""

    def __init__(self, words: Mapping[int, int], reach: Reach) -> None:
        self._words = dict(words)
        self._reach = reach

    def raise_(self) -> None:
        """Make the interrupt pending."""
        for at, bits in self._words.items():
            self._reach.write_word(at, self._reach.read_word(at) | bits)

    def pending(self) -> bool:
        """Whether the interpreter has not taken it yet."""
        return bool(self._words) and all(
            self._reach.read_word(at) & bits for at, bits in self._words.items()
        )

    def clear(self) -> None:
        """Take it back."""
        for at, bits in self._words.items():
            self._reach.write_word(at, self._reach.read_word(at) & ~bits)
