"""The text that the guest writes to descriptors 1 and 2: decoded, gathered, limited, handed on.

Bytes arrive in any pieces: a character split between two writes is put together, and bytes that are
not UTF-8 are replaced. Small writes are gathered and handed on after `HOLD_SECONDS` at the latest
(by the ticker while the guest computes), or when the other stream, a frame or the turn's end comes,
so that output stays in order. A text that is too long to be shown is written, complete, to a file
of the workspace, if the policy allows it.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import BinaryIO

from msgspec import Struct

from wasm_kernel.linux.folders import Folder

HOLD_SECONDS = 0.05
HOLD_CHARS = 64 * 1024
_TRIES = 100  # names for an overflow file
NAMES = {1: "stdout", 2: "stderr"}
"""The names of the streams by the guest's descriptors."""


class StreamLimit(Struct, frozen=True):
    """The number of bytes of a stream that are shown.

    `setting` names the limit. Beyond it, the user is told the limit that was `reached`, and what to
    do (`advice`, or empty).
    """

    bytes: int
    setting: str
    reached: str
    advice: str = ""


def limit_of(name: str, most: int) -> StreamLimit:
    """Returns a cell's own limit for a stream."""
    return StreamLimit(most, f"{name}_bytes", f"The cell wrote more than {most:,} bytes to {name}")


class OverflowFiles:
    """Files of the workspace with the whole text of a cell, `most` bytes per stream; none if 0.

    The guest may remove or rename the files while they are written; the host does not follow
    anything that it puts in their place. The guest's thread owns them.
    """

    def __init__(self, workspace: Folder, most: int) -> None:
        self._workspace = workspace
        self.most = most
        self._cell = 0
        self._files: dict[str, BinaryIO] = {}
        self._left: dict[str, int] = {}

    def begin(self, cell: int) -> None:
        """Begins the cell with this number."""
        self.end()
        self._cell = cell

    def open(self, name: str) -> str:
        """Begins the file of a stream; returns its name, or an empty string without a file."""
        for number in range(1, _TRIES) if self.most else ():
            again = f"-{number}" if number > 1 else ""
            file = f"output-{self._cell}-{name}{again}.txt"
            try:
                made = self._workspace.open_regular(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            except OSError:
                return ""
            self._files[name], self._left[name] = os.fdopen(made, "wb"), self.most
            return file
        return ""

    def write(self, name: str, data: bytes) -> None:
        """Writes more text of a stream; text over the limit or without disk space is lost."""
        file = self._files.get(name)
        if file is None:
            return
        left = self._left[name]
        self._left[name] = left - len(data)
        try:
            file.write(data[: max(0, left)])
        except OSError:
            self._close(name)
        if self._left[name] < 0:
            self._close(name)

    def takes(self, name: str) -> bool:
        """Returns whether a stream's text is still written to a file."""
        return name in self._files

    def end(self) -> None:
        """Ends the cell: closes its files."""
        for name in list(self._files):
            self._close(name)

    def _close(self, name: str) -> None:
        with contextlib.suppress(OSError):  # the disk is full: the file keeps the text it has
            self._files.pop(name).close()


NO_OVERFLOW = OverflowFiles(Folder(-1), 0)


class OutputStreams:
    """The two streams of one sandbox. The guest's thread owns it; it outlives instances.

    If a text is cut, the whole of it goes to an `overflow` file.

    Only `on_tick` may be called on another thread, while the guest computes. The guest's thread
    waits for it before it hands on anything itself.
    """

    def __init__(self, overflow: OverflowFiles = NO_OVERFLOW) -> None:
        self._sink: Callable[[str, str], None] = lambda name, text: None
        self._limits: dict[str, StreamLimit] = {}
        self._left: dict[str, int] = {}
        self._overflow = overflow
        self._shown: dict[str, list[bytes]] = {}
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder("replace") for name in NAMES.values()}
        self._held: list[str] = []
        self._held_chars = 0
        self._held_name = "stdout"
        self._due = 0.0
        self._using = threading.RLock()

    def begin(
        self, sink: Callable[[str, str], None], limits: Mapping[str, StreamLimit], cell: int = 0
    ) -> None:
        """Begins a turn: text goes to `sink(name, text)`, as far as `limits` allow."""
        self._sink, self._limits = sink, dict(limits)
        self._left = {name: limit.bytes for name, limit in limits.items()}
        self._shown = {name: [] for name in limits}
        self._overflow.begin(cell)

    def end(self) -> None:
        """Ends the turn: hands on held text, with a replacement sign for half a character."""
        for name, decoder in self._decoders.items():
            self._hold(name, decoder.decode(b"", True))
        self.flush()
        self._sink, self._left, self._shown = lambda name, text: None, {}, {}
        self._overflow.end()

    @property
    def cut(self) -> set[str]:
        """The names of the limits that this turn has reached."""
        return {self._limits[name].setting for name, left in self._left.items() if left < 0}

    def wants(self, name: str) -> bool:
        """Returns whether anything that is written to a stream is still shown or kept."""
        return self._left.get(name, -1) >= 0 or self._overflow.takes(name)

    def feed(self, name: str, data: bytes) -> None:
        """Takes bytes from the guest."""
        if not self.wants(name):  # over its limit, or between turns
            return
        left = self._left[name]
        if left < 0:
            self._overflow.write(name, data)
            return
        self._left[name] = left - len(data)
        if len(data) <= left:
            if self._overflow.most:
                self._shown[name].append(data)
            self._hold(name, self._decoders[name].decode(data))
            return
        self._left[name] = -1
        self._hold(name, self._decoders[name].decode(data[:left], True))
        self._hold(name, self._notice(name, self._begin_file(name, data)))

    def _notice(self, name: str, file: str) -> str:
        limit = self._limits[name]
        kept = f"; the whole text is in /app/{file}" if file else "; the rest is cut"
        advice = f" {limit.advice}" if limit.advice else ""
        return f"\n[wasm-kernel] {limit.reached}{kept}.{advice}\n"

    def _begin_file(self, name: str, data: bytes) -> str:
        """Begins the overflow file of a stream with its text so far; returns its name, if any."""
        file = self._overflow.open(name)
        for piece in (*self._shown.pop(name, []), data):
            self._overflow.write(name, piece)
        return file

    def _hold(self, name: str, text: str) -> None:
        if not text:
            return
        with self._using:
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
        """Hands on held text."""
        with self._using:
            if self._held:
                text = "".join(self._held)
                self._held, self._held_chars = [], 0
                self._sink(self._held_name, text)

    def on_tick(self) -> None:
        """Hands on text that was held for `HOLD_SECONDS`."""
        if self._held and time.monotonic() >= self._due and self._using.acquire(blocking=False):
            try:
                self.flush()
            finally:
                self._using.release()
