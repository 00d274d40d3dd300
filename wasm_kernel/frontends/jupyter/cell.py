"""One running cell's way to the front end that sent it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from wasm_kernel.execution.listener import InputRefused
from wasm_kernel.frontends.jupyter import messages, outputs
from wasm_kernel.guests.protocol import Output, Stream
from wasm_kernel.outputs import terminal
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.limits import stopping_if
from wasm_kernel.outputs.removals import Removals
from wasm_kernel.outputs.terminal import StreamCleaner
from wasm_kernel.result import CommMessage

TOLD_MOST = 20  # things left out that one cell is told of

Send = Callable[[str, dict[str, Any]], None]
Talk = Callable[[CommMessage], None]
Sift = Callable[[CommMessage, Removals], CommMessage | None]
Ask = Callable[[str, bool], str]


class CellListener:
    """Hears a cell on the guest's thread and sends what it says to IOPub, under the cell's request.

    Args:
        send: Publishes a message of a type and content, from any thread.
        talk: Publishes a message on a comm, from any thread.
        sift: What of such a message may reach the page.
        ask: Asks the user for a line; None where the front end takes no input.
        terminate: Called when the cell asked that its kernel end.
        mode: How much of rich outputs is shown.
        over: Whether the cell waits no longer for its output to be checked and sent.
    """

    collects = False

    def __init__(
        self,
        send: Send,
        *,
        talk: Talk,
        sift: Sift,
        ask: Ask | None,
        terminate: Callable[[], None],
        mode: Mode = Mode.SAFE,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._over = over
        self._send = send
        self._talk = talk
        self._sift = sift
        self._ask = ask
        self._terminate = terminate
        self._mode = mode
        self._streams: dict[str, StreamCleaner] = {}
        self._told: set[str] = set()
        self.refused: list[str] = []  # comms that the page never heard of

    def emit(self, output: Output) -> None:
        """Send one piece of output, cleaned; what it lost is told once a cell."""
        if isinstance(output, Stream):
            text = self._streams.setdefault(output.name, StreamCleaner()).feed(output.text)
            if not text:
                return
            output = Stream(output.name, text)
        clean, removed = outputs.clean_output(output, self._mode, self._over)
        self._send(*messages.of_output(clean))
        self._tell(removed)

    def comm(self, message: CommMessage) -> None:
        """Send a message on a comm, as far as it may reach the page."""
        removals = Removals()
        with stopping_if(self._over):
            passed = self._sift(message, removals)
        if passed is not None:
            self._talk(passed)
        elif message.kind == "open":
            self.refused.append(message.comm_id)
        self._tell(removals.phrases)

    def _tell(self, removed: Iterable[str]) -> None:
        fresh = [phrase for phrase in removed if phrase not in self._told]
        if fresh and len(self._told) < TOLD_MOST:
            line = outputs.notice(fresh, self._mode, first=not self._told)
            self._told.update(fresh)
            self._send(*messages.of_output(Stream("stderr", line)))

    def ask(self, prompt: str, password: bool) -> str:
        """The user's answer. Raises as `Listener.ask` says."""
        if self._ask is None:
            raise InputRefused(
                "raw_input was called, but this frontend does not support input requests."
            )
        return self._ask(terminal.clean(prompt), password)

    def terminate(self) -> None:
        """The cell asked that its kernel end after this turn."""
        self._terminate()

    def finish(self) -> None:
        """Send what the streams held back; the cell has ended."""
        for name, stream in self._streams.items():
            text = stream.finish()
            if text:
                self._send(*messages.of_output(Stream(name, text)))
