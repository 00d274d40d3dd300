"""The listener that takes a cell's output to the front end, and the progress of a slow start."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from wasm_kernel.execution.listener import InputRefused
from wasm_kernel.frontends.jupyter import messages
from wasm_kernel.guests.protocol import Output, Stream
from wasm_kernel.outputs import terminal
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.limits import stopping_if
from wasm_kernel.outputs.removals import Removals
from wasm_kernel.outputs.terminal import StreamCleaner
from wasm_kernel.result import CommMessage

TOLD_MOST = 20  # removed things that are named in one cell

Send = Callable[[str, dict[str, Any]], None]
Talk = Callable[[CommMessage], None]
CleanComm = Callable[[CommMessage, Removals], CommMessage | None]
Ask = Callable[[str, bool], str]


class KernelListener:
    """Cleans a cell's output and sends it to IOPub, under the cell's request. Guest thread.

    Args:
        send: Publishes a message of a type and content, from any thread.
        talk: Publishes a message on a comm, from any thread.
        clean_comm: Returns what of such a message may reach the page; None for nothing.
        ask: Asks the user for a line; None if the front end takes no input.
        terminate: Called when the cell asked its kernel to end.
        mode: How much of rich outputs is shown.
        should_stop: Says that the cell does not wait any more for its output to be checked.
    """

    collects = False

    def __init__(
        self,
        send: Send,
        *,
        talk: Talk,
        clean_comm: CleanComm,
        ask: Ask | None,
        terminate: Callable[[], None],
        mode: Mode = Mode.SAFE,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._should_stop = should_stop
        self._send = send
        self._talk = talk
        self._clean_comm = clean_comm
        self._ask = ask
        self._terminate = terminate
        self._mode = mode
        self._streams: dict[str, StreamCleaner] = {}
        self._told: set[str] = set()
        self.refused: list[str] = []  # comms that the page does not know

    def emit(self, output: Output) -> None:
        """Sends one piece of output, cleaned; says once a cell what was removed."""
        if isinstance(output, Stream):
            text = self._streams.setdefault(output.name, StreamCleaner()).feed(output.text)
            if not text:
                return
            output = Stream(output.name, text)
        clean, removed = messages.clean_output(output, self._mode, self._should_stop)
        self._send(*messages.of_output(clean))
        self._tell(removed)

    def comm(self, message: CommMessage) -> None:
        """Sends a message on a comm, as far as it may reach the page."""
        removals = Removals()
        with stopping_if(self._should_stop):
            passed = self._clean_comm(message, removals)
        if passed is not None:
            self._talk(passed)
        elif message.kind == "open":
            self.refused.append(message.comm_id)
        self._tell(removals.phrases)

    def _tell(self, removed: Iterable[str]) -> None:
        fresh = [phrase for phrase in removed if phrase not in self._told]
        if fresh and len(self._told) < TOLD_MOST:
            line = messages.removal_notice(fresh, self._mode, first=not self._told)
            self._told.update(fresh)
            self._send(*messages.of_output(Stream("stderr", line)))

    def ask(self, prompt: str, password: bool) -> str:
        """Returns the user's answer. Raises as `Listener.ask`."""
        if self._ask is None:
            raise InputRefused(
                "raw_input was called, but this frontend does not support input requests."
            )
        return self._ask(terminal.clean(prompt), password)

    def terminate(self) -> None:
        """Ends the kernel after this turn, as the cell asked for."""
        self._terminate()

    def finish(self) -> None:
        """Sends what the streams held back; the cell has ended."""
        for name, stream in self._streams.items():
            text = stream.finish()
            if text:
                self._send(*messages.of_output(Stream(name, text)))


# -- a slow start

QUIET_SECONDS = 1.0  # seconds of silence; a warm start needs far less
PROGRESS_SECONDS = 5.0  # seconds between two lines


class StartProgress:
    """The progress of the sandbox's start, shown in the cell that waits for it.

    A first start on a cold cache takes a minute or two. Any thread may `tell`; the event loop runs
    `narrate`.
    """

    def __init__(self) -> None:
        self._latest = "starting the sandbox"

    def tell(self, sentence: str) -> None:
        """Remembers how far the start is."""
        self._latest = sentence

    async def narrate(
        self, started: Future[None], cell: asyncio.Future[Any], say: Callable[[str], None]
    ) -> None:
        """Calls `say` now and then with the progress, in one line, until `started` or `cell` ends.

        The line ends with the start, on the thread that starts, so the cell's own output comes
        after it.
        """
        line = ProgressLine(say)
        started.add_done_callback(lambda _: line.end())
        begun, patience = time.monotonic(), QUIET_SECONDS
        while not (started.done() or cell.done()):
            await asyncio.wait((cell,), timeout=patience)
            if cell.done():
                break
            seconds = time.monotonic() - begun
            line.put(f"[wasm-kernel] {self._latest} ({seconds:.0f} s so far)")
            patience = PROGRESS_SECONDS
        line.end()


class ProgressLine:
    """One line on the screen that is rewritten; any thread may end it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._guard = threading.Lock()
        self._width = 0
        self._ended = False

    def put(self, text: str) -> None:
        """Replaces the line by `text`; does nothing after the end."""
        with self._guard:
            if not self._ended:
                self._say(f"\r{text:<{self._width}}")
                self._width = len(text)

    def end(self) -> None:
        """Ends the line."""
        with self._guard:
            if self._width and not self._ended:
                self._say("\n")
            self._ended = True
