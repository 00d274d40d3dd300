"""What a cell shows, on its way to the host."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

from wasm_kernel_agent import bundles
from wasm_kernel_agent.door import Door, FrameTooLarge

_KNOWN = frozenset(
    {"over the cap of messages to widgets", "no such comm is open", "the turn is over"}
)
"""Refusals of messages on comms that the host tells itself, once, or that nobody has to know."""


class Outbox:
    """Sends a cell's rich output; what the host refuses becomes a note on standard error."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._refused = ""

    def begin(self) -> None:
        """A cell begins; what is refused is noted again."""
        self._refused = ""

    def bundle(self, op: str, data: Any, metadata: Any, **fields: Any) -> None:
        """A frame of kind `op` that carries a MIME bundle, and `fields` beside it."""
        kept, notes = bundles.mime_data(data)
        frame = {
            "op": op,
            "data": bundles.with_notes(kept, notes),
            "metadata": bundles.plain_object(metadata),
            **fields,
        }
        try:
            self.plain(frame)
        except (FrameTooLarge, RecursionError, ValueError) as problem:
            frame["data"] = {"text/plain": f"[wasm-kernel] the output was left out: {problem}"}
            frame["metadata"] = {}
            self.plain(frame)

    def plain(self, frame: Mapping[str, Any]) -> None:
        """A frame that is sent as it is, after what was printed before it."""
        self._send(frame, "the output")

    def comm(self, frame: Mapping[str, Any]) -> None:
        """A message on a comm, after what was printed before it."""
        self._send(frame, "a message to the page", _KNOWN)

    def _send(self, frame: Mapping[str, Any], what: str, known: Collection[str] = ()) -> None:
        flush()
        refused = self._door.send(frame).get("refused")
        if refused and refused != self._refused and refused not in known:
            self._refused = refused
            note(f"{what} was refused: {refused}")

    def error(self, ename: str, evalue: str, traceback: list[str]) -> None:
        """A Python error, as IPython renders it."""
        try:
            self.plain({"op": "error", "ename": ename, "evalue": evalue, "traceback": traceback})
        except FrameTooLarge as problem:
            short = [f"[wasm-kernel] the traceback was left out: {problem}"]
            self.plain(
                {"op": "error", "ename": ename, "evalue": evalue[:10_000], "traceback": short}
            )


def flush() -> None:
    """Let standard output and error catch up, so that output stays in order."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:  # a cell may put anything there; the next cell gets working streams
            continue


def note(text: str) -> None:
    """A sentence from the sandbox, on standard error."""
    try:
        print(f"[wasm-kernel] {text}", file=sys.stderr)
    except Exception:  # as above: nothing to tell it with
        return
