"""One running cell's way to the front end that sent it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wasm_kernel.frontends.jupyter import messages, outputs
from wasm_kernel.frontends.jupyter.terminal import StreamCleaner
from wasm_kernel.sandbox.frames import Output, Stream
from wasm_kernel.sandbox.listener import InputRefused

Send = Callable[[str, dict[str, Any]], None]
Ask = Callable[[str, bool], str]


class CellListener:
    """Hears a cell on the guest's thread and sends what it says to IOPub, under the cell's request.

    Args:
        send: Publishes a message of a type and content, from any thread.
        ask: Asks the user for a line; None where the front end takes no input.
        terminate: Called when the cell asked that its kernel end.
    """

    def __init__(self, send: Send, ask: Ask | None, terminate: Callable[[], None]) -> None:
        self._send = send
        self._ask = ask
        self._terminate = terminate
        self._streams: dict[str, StreamCleaner] = {}

    def emit(self, output: Output) -> None:
        """Send one piece of output, cleaned."""
        if isinstance(output, Stream):
            text = self._streams.setdefault(output.name, StreamCleaner()).feed(output.text)
            if not text:
                return
            output = Stream(output.name, text)
        self._send(*messages.of_output(outputs.clean_output(output)))

    def ask(self, prompt: str, password: bool) -> str:
        """The user's answer. Raises as `Listener.ask` says."""
        if self._ask is None:
            raise InputRefused(
                "raw_input was called, but this frontend does not support input requests."
            )
        return self._ask(prompt, password)

    def terminate(self) -> None:
        """The cell asked that its kernel end after this turn."""
        self._terminate()

    def finish(self) -> None:
        """Send what the streams held back; the cell has ended."""
        for name, stream in self._streams.items():
            text = stream.finish()
            if text:
                self._send(*messages.of_output(Stream(name, text)))
