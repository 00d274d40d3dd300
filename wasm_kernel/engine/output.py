"""What the guest writes to descriptors 1 and 2: decoded, coalesced, capped, handed on.

Bytes arrive in any pieces; a character split between two writes is put together, and what is no
UTF-8 is replaced. Small writes are gathered and handed on at the latest `HOLD_SECONDS` later (the
epoch tick sees to it while the guest computes), or when the other stream, a frame or the end of
the turn comes, so that what people see is in order.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable

from wasm_kernel.engine import abi
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call

HOLD_SECONDS = 0.05
HOLD_CHARS = 64 * 1024
NAMES = {1: "stdout", 2: "stderr"}


class Streams:
    """The two streams of one sandbox. The guest's thread owns it; it outlives instances."""

    def __init__(self) -> None:
        self._sink: Callable[[str, str], None] = lambda name, text: None
        self._caps: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._decoders = {name: self._decoder() for name in NAMES.values()}
        self._held: list[str] = []
        self._held_chars = 0
        self._held_name = "stdout"
        self._due = 0.0

    @staticmethod
    def _decoder() -> codecs.IncrementalDecoder:
        return codecs.getincrementaldecoder("utf-8")("replace")

    def begin(self, sink: Callable[[str, str], None], caps: dict[str, int]) -> None:
        """A turn begins: text goes to `sink(name, text)`, at most `caps[name]` bytes a stream."""
        self._sink, self._caps, self._left = sink, dict(caps), dict(caps)
        self._decoders = {name: self._decoder() for name in NAMES.values()}

    def end(self) -> None:
        """The turn ends: what is held is handed on, half a character as a replacement sign."""
        for name, decoder in self._decoders.items():
            self._hold(name, decoder.decode(b"", True))
        self.flush()
        self._sink, self._left = lambda name, text: None, {}

    @property
    def cut(self) -> set[str]:
        """The names of the caps that this turn has reached."""
        return {f"{name}_bytes" for name, left in self._left.items() if left < 0}

    def wants(self, name: str) -> bool:
        """Whether anything that is written to a stream is still shown."""
        return self._left.get(name, -1) >= 0

    def feed(self, name: str, data: bytes) -> None:
        """Bytes from the guest."""
        if not self.wants(name):  # over its cap; between turns nobody listens
            return
        left = self._left[name]
        self._left[name] = left - len(data)
        if len(data) <= left:
            self._hold(name, self._decoders[name].decode(data))
            return
        self._left[name] = -1
        self._hold(name, self._decoders[name].decode(data[:left], True))
        self._hold(name, self._notice(name))

    def _notice(self, name: str) -> str:
        return (
            f"\n[wasm-kernel] The cell wrote more than {self._caps[name]:,} bytes to {name}; "
            f"the rest is cut. Raise {name}_bytes to see more.\n"
        )

    def _hold(self, name: str, text: str) -> None:
        if not text:
            return
        if name != self._held_name:
            self.flush()
            self._held_name = name
        if not self._held:
            self._due = time.monotonic() + HOLD_SECONDS
        self._held.append(text)
        self._held_chars += len(text)
        if self._held_chars >= HOLD_CHARS:
            self.flush()

    def flush(self) -> None:
        """Hand on what is held."""
        if self._held:
            text = "".join(self._held)
            self._held, self._held_chars = [], 0
            self._sink(self._held_name, text)

    def on_tick(self) -> None:
        """Hand on what is held for long enough."""
        if self._held and time.monotonic() >= self._due:
            self.flush()


class Writes:
    """The guest's `fd_write` for descriptors 1 and 2."""

    def __init__(self, streams: Streams, reach: Reach) -> None:
        self._streams = streams
        self._reach = reach

    def write(self, call: Call) -> int:
        """Take what is written; everything is always written."""
        fd, table, count, written = call.args
        total, name = 0, NAMES[fd]
        wanted = self._streams.wants(name)
        for at, length in self._reach.buffers(table, count):
            if wanted:
                self._streams.feed(name, self._reach.read(at, length))
            total += length
        self._reach.write_word(written, total)
        return abi.SUCCESS
