"""What the guest writes to descriptors 1 and 2: decoded, coalesced, capped, handed on.

Bytes arrive in any pieces; a character split between two writes is put together, and what is no
UTF-8 is replaced. Small writes are gathered and handed on at the latest `HOLD_SECONDS` later (the
epoch tick sees to it while the guest computes), or when the other stream, a frame or the end of
the turn comes, so that what people see is in order.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Mapping

from wasm_kernel.engine import abi
from wasm_kernel.engine.overflow import Overflow
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call
from wasm_kernel.linux.folders import Folder
from wasm_kernel.record import record

HOLD_SECONDS = 0.05
HOLD_CHARS = 64 * 1024
STEP = 1024 * 1024  # bytes that are copied out of the guest at once
NAMES = {1: "stdout", 2: "stderr"}


@record
class Cap:
    """How many bytes of a stream are shown; `setting` says so, `reached` is said beyond them."""

    bytes: int
    setting: str
    reached: str


def cap_of(name: str, most: int) -> Cap:
    """A cell's own limit for a stream."""
    return Cap(most, f"{name}_bytes", f"The cell wrote more than {most:,} bytes to {name}")


class Streams:
    """The two streams of one sandbox. The guest's thread owns it; it outlives instances.

    Args:
        overflow: Takes the whole text of a stream that is cut, where somebody wants it.
    """

    def __init__(self, overflow: Overflow | None = None) -> None:
        self._sink: Callable[[str, str], None] = lambda name, text: None
        self._caps: dict[str, Cap] = {}
        self._left: dict[str, int] = {}
        self._overflow = overflow if overflow is not None and overflow.wanted else None
        self._shown: dict[str, list[bytes]] = {}
        self._decoders = {name: self._decoder() for name in NAMES.values()}
        self._held: list[str] = []
        self._held_chars = 0
        self._held_name = "stdout"
        self._due = 0.0

    @classmethod
    def keeping(cls, workspace: Folder, most: int) -> Streams:
        """Streams whose whole text, up to `most` bytes of each, goes to files where it is cut."""
        return cls(Overflow(workspace, most))

    @staticmethod
    def _decoder() -> codecs.IncrementalDecoder:
        return codecs.getincrementaldecoder("utf-8")("replace")

    def begin(
        self, sink: Callable[[str, str], None], caps: Mapping[str, Cap], cell: int = 0
    ) -> None:
        """A turn of a cell begins: text goes to `sink(name, text)`, as far as `caps` allow."""
        self._sink, self._caps = sink, dict(caps)
        self._left = {name: cap.bytes for name, cap in caps.items()}
        self._shown = {name: [] for name in caps}
        if self._overflow is not None:
            self._overflow.begin(cell)
        self._decoders = {name: self._decoder() for name in NAMES.values()}

    def end(self) -> None:
        """The turn ends: what is held is handed on, half a character as a replacement sign."""
        for name, decoder in self._decoders.items():
            self._hold(name, decoder.decode(b"", True))
        self.flush()
        self._sink, self._left, self._shown = lambda name, text: None, {}, {}
        if self._overflow is not None:
            self._overflow.end()

    @property
    def cut(self) -> set[str]:
        """The names of the caps that this turn has reached."""
        return {self._caps[name].setting for name, left in self._left.items() if left < 0}

    def wants(self, name: str) -> bool:
        """Whether anything that is written to a stream is still shown or kept."""
        return self._left.get(name, -1) >= 0 or self._keeps(name)

    def _keeps(self, name: str) -> bool:
        return self._overflow is not None and self._overflow.takes(name)

    def feed(self, name: str, data: bytes) -> None:
        """Bytes from the guest."""
        if not self.wants(name):  # over its cap; between turns nobody listens
            return
        left = self._left[name]
        if left < 0:
            self._keep(name, data)
            return
        self._left[name] = left - len(data)
        if len(data) <= left:
            if self._overflow is not None:
                self._shown[name].append(data)
            self._hold(name, self._decoders[name].decode(data))
            return
        self._left[name] = -1
        self._hold(name, self._decoders[name].decode(data[:left], True))
        self._hold(name, self._notice(name, self._kept_in(name, data)))

    def _notice(self, name: str, file: str) -> str:
        cap = self._caps[name]
        kept = f"; the whole text is in /app/{file}" if file else "; the rest is cut"
        return f"\n[wasm-kernel] {cap.reached}{kept}. Raise {cap.setting} to see more.\n"

    def _kept_in(self, name: str, data: bytes) -> str:
        """The name of the file that has all of a stream from now on; empty where none has."""
        file = self._overflow.open(name) if self._overflow is not None else ""
        for piece in (*self._shown.pop(name, []), data):
            self._keep(name, piece)
        return file

    def _keep(self, name: str, data: bytes) -> None:
        if self._overflow is not None:
            self._overflow.write(name, data)

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

    def __init__(self, streams: Streams, reach: Reach, over: Callable[[], bool]) -> None:
        self._streams = streams
        self._reach = reach
        self._over = over

    def write(self, call: Call) -> int:
        """Take what is written: all of it, or what was taken before the cell was to stop."""
        fd, table, count, written = call.args
        total = 0
        for at, length in self._reach.buffers(table, count):
            taken = self._feed(NAMES[fd], at, length)
            total += taken
            if taken < length:
                break
        self._reach.write_word(written, total)
        return abi.SUCCESS

    def _feed(self, name: str, at: int, length: int) -> int:
        """Copy a buffer in steps, and no further than somebody wants what is in it."""
        for start in range(0, length, STEP):
            if not self._streams.wants(name):
                break
            if start and self._over():
                return start
            self._streams.feed(name, self._reach.read(at + start, min(STEP, length - start)))
        return length
