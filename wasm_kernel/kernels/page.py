"""The page of a notebook: the outputs that it may show, in a front end or in a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from wasm_kernel.errors import SandboxClosed
from wasm_kernel.execution.interfaces import InputRefused
from wasm_kernel.guests.protocol import Output, Stream
from wasm_kernel.kernels import messages
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.cleaner import Cleaner
from wasm_kernel.outputs.terminal import StreamCleaner
from wasm_kernel.result import CommMessage

if TYPE_CHECKING:  # a notebook's cleaner needs no more than its listener
    from wasm_kernel.service.sandbox import Sandbox

Content = dict[str, Any]

REFUSED_MOST = 100  # refused comms that the guest is told of in one cell
REMOVALS_MOST = 20  # removed parts that are named in one cell
_NO_INPUT = "raw_input was called, but this frontend does not support input requests."


class CleanPage(ABC):
    """A page that gets cleaned outputs alone.

    Methods that send or clean are called on the sandbox's thread. `is_ending` is true once a cell
    has asked its kernel to end.
    """

    def __init__(self, sandbox: Sandbox, cleaner: Cleaner) -> None:
        self.cleaner = cleaner
        self.is_ending = False
        self.sandbox = sandbox

    @abstractmethod
    def publish(self, parent: Content, kind: str, content: Content) -> None:
        """Shows a message that belongs to the message `parent`."""

    @abstractmethod
    def send(self, parent: Content, message: CommMessage) -> None:
        """Passes on a message to a widget."""

    def should_stop(self) -> bool:
        """Returns whether the cell was interrupted, and checks of its output should stop."""
        return self.sandbox.interrupted


class CleanListener:
    """A `Listener`: cleans the guest's answers to a message, and shows them on a page."""

    collects = False

    def __init__(self, page: CleanPage, parent: Content) -> None:
        self.parent = parent
        self._page = page
        self._streams: dict[str, StreamCleaner] = {}
        self._named: set[str] = set()
        self._refused: list[str] = []  # comms that the page does not know

    def emit(self, output: Output) -> None:
        """Shows a cleaned piece of output; names each kind of removed part once in a cell."""
        if isinstance(output, Stream):
            stream = self._streams.setdefault(output.name, StreamCleaner())
            output = Stream(output.name, stream.feed(output.text))
            if not output.text:
                return
        cleaner, should_stop = self._page.cleaner, self._page.should_stop
        clean, removed = messages.clean_output(output, cleaner, should_stop)
        self._show(clean)
        self._name(removed)

    def _show(self, output: Output) -> None:
        self._page.publish(self.parent, *messages.of_output(output))

    def comm(self, message: CommMessage) -> None:
        """Passes on the part of a comm message that may reach the page."""
        passed = self._page.cleaner.comm(message, self._page.should_stop)
        if passed.message is not None:
            self._pass(passed.message)
        elif message.kind == "open" and len(self._refused) < REFUSED_MOST:
            self._refused.append(message.comm_id)
        self._name(passed.removed)

    def _pass(self, message: CommMessage) -> None:
        self._page.send(self.parent, message)

    def _name(self, removed: Iterable[str]) -> None:
        fresh = [phrase for phrase in removed if phrase not in self._named]
        if fresh and len(self._named) < REMOVALS_MOST:
            line = messages.removal_notice(fresh, self._page.cleaner.mode, first=not self._named)
            self._named.update(fresh)
            self._show(Stream("stderr", line))

    def ask(self, prompt: str, password: bool) -> str:
        """Raises `InputRefused`."""
        raise InputRefused(_NO_INPUT)

    def terminate(self) -> None:
        """Notes that the cell sent its own kernel a deadly signal."""
        self._page.is_ending = True

    def finish(self) -> None:
        """Shows text that streams held back, and tells the guest of closed comms; called last."""
        for name, stream in self._streams.items():
            if text := stream.finish():
                self._show(Stream(name, text))
        is_safe = self._page.cleaner.mode is Mode.SAFE
        for comm_id in self._refused if is_safe else ():
            with suppress(SandboxClosed):
                self._page.sandbox.comm(CommMessage("close", comm_id))
