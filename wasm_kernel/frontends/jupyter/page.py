"""The front end's page: sends cleaned outputs and comm messages to it, and takes its messages."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from typing import Any

import zmq
from jupyter_client.session import Session

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.execution.interfaces import OfferedMessage
from wasm_kernel.frontends.jupyter.channels import StdinChannel
from wasm_kernel.frontends.jupyter.connection import KernelSockets
from wasm_kernel.frontends.jupyter.startup import StartProgress
from wasm_kernel.frontends.jupyter.timeline import KernelTimeline
from wasm_kernel.guests.protocol import (
    ClearOutput,
    Display,
    Output,
    Result,
    Stream,
    UpdateDisplay,
)
from wasm_kernel.kernels import messages
from wasm_kernel.kernels.page import CleanListener, CleanPage
from wasm_kernel.outputs import terminal
from wasm_kernel.outputs.bundle import WIDGET_VIEW, Mode
from wasm_kernel.outputs.cleaner import Cleaner
from wasm_kernel.result import CommMessage

Content = dict[str, Any]

COMM_MESSAGES = ("comm_open", "comm_msg", "comm_close")
_NOT_ADMITTED = (
    "[wasm-kernel] The page opened a comm that is not a widget's; it was closed, as only widgets "
    "may talk to the page. c.WasmKernel.outputs = 'trusted' allows others.\n"
)
_UNDELIVERED = "[wasm-kernel] What the page sent to a widget was not delivered: {why}\n"
_TIMELINE = re.compile(r"^[ \t]*+%timeline[ \t\r]*$", re.MULTILINE)
_SHOWN_HEADER = ("msg_id", "msg_type")
_ANSWER_SECONDS = 1  # for a client to answer an output in an `Output` widget, also under load
_LOOK_SECONDS = 0.002
_LOG = logging.getLogger("wasm_kernel")


class Page(CleanPage):
    """The kernel's connection to the page; methods of its own run on the main thread's loop."""

    def __init__(
        self, starting: StartProgress, session: Session, sockets: KernelSockets, cleaner: Cleaner
    ) -> None:
        super().__init__(starting.sandbox, cleaner)
        self.starting = starting
        self._gate = cleaner
        self.timeline = KernelTimeline(self.sandbox, self.send)
        self.stdin = StdinChannel(sockets.stdin, session)
        self.ident = str(uuid.uuid4())
        self.offered = 0  # comm messages that came while a cell ran
        self._last_outputs: dict[str, str] = {}  # waiting messages with all outputs of an `Output`
        self._is_answered = True  # true until a client has not answered
        self.session = session
        self._iopub: Any = sockets.iopub

    # -- to the page

    def publish(self, parent: Content, kind: str, content: Content) -> None:
        """Sends on IOPub, from any thread."""
        ident = f"kernel.{self.ident}.{kind}".encode()
        self.session.send(self._iopub, kind, content, parent=parent, ident=ident)

    def send(self, parent: Content, message: CommMessage) -> None:
        """Sends a message on a comm, from any thread."""
        self.session.send(
            self._iopub,
            *messages.of_comm(message),
            parent=parent,
            ident=f"comm-{message.comm_id}".encode(),
            buffers=list(message.buffers),
            metadata=dict(message.metadata),
        )

    async def show_timeline(self, code: str, parent: Content) -> None:
        """Shows a widget below `%timeline` if the page has no panel for it and may have widgets.

        The cell's own text decides that, and not the guest.
        """
        if _TIMELINE.search(code) and self.cleaner.mode is not Mode.STATIC:
            data = await self.timeline.widget(parent)
            if data:
                content = {"data": data, "metadata": {}, "transient": {}}
                self.publish(parent, "display_data", content)

    # -- from the page

    def parse(self, frames: list[zmq.Frame], *, content: bool = True) -> Content:
        """Returns a message with its signature checked.

        Raises an error if it is not a message of this session, or was received before.
        """
        _, parts = self.session.feed_identities(frames, copy=False)
        parsed: Content = self.session.deserialize(parts, content=content, copy=False)
        return parsed

    def kind_of(self, frames: list[zmq.Frame]) -> str:
        """Returns a message's type; empty if it can't be read, which dispatching reports."""
        try:
            return str(self.parse(frames, content=False)["header"]["msg_type"])
        except Exception:
            return ""

    def offer(self, frames: list[zmq.Frame], cell: Content) -> OfferedMessage | None:
        """Offers a comm message to the running cell, which may take it while it awaits something.

        Returns None if it is not a comm message, if the guest may not get it, or if a later one
        replaces it. `cell` is the message that runs the cell.
        """
        try:
            parent = self.parse(frames, content=False)
            if parent["header"]["msg_type"] not in COMM_MESSAGES:
                return None
            parent["content"] = self.session.unpack(parent["content"])
            message = message_of(parent)
        except Exception:  # dispatching refuses and reports a message that can't be read
            return None
        if message is None or self.timeline.takes(message) or not self._gate.admits(message):
            return None
        self.offered += 1
        if _has_all_outputs(message):
            self._is_answered = True
            self._last_outputs[message.comm_id] = parent["header"]["msg_id"]
            return None
        offered = PageMessage(message, KernelListener(self, parent), cell)
        self.sandbox.offer(offered)
        return offered

    async def await_answers(self, listener: KernelListener) -> None:
        """Waits until nbclient has answered the outputs that a cell put into `Output` widgets.

        nbclient answers each output by a comm message. If the cell's reply came at that moment,
        nbclient would miss it until the cell's time-out, or for ever, as jupyter_client sends past
        its event loop. Other clients never answer: after `_ANSWER_SECONDS` without an answer the
        wait ends, and later cells do not wait until an answer has come.
        """
        if not self._is_answered or self.offered >= listener.answers_due:
            return
        self._is_answered = False
        seen, end = self.offered, time.monotonic() + _ANSWER_SECONDS
        while self.offered < listener.answers_due and time.monotonic() < end:
            await asyncio.sleep(_LOOK_SECONDS)
            if self.offered > seen:
                seen, end = self.offered, time.monotonic() + _ANSWER_SECONDS

    async def deliver(self, parent: Content) -> None:
        """Passes a message of the page to the guest; closes a comm that the guest can't answer.

        Clients send all outputs of an `Output` widget again after each new one. Of such messages,
        only the latest that waits is delivered.
        """
        message, listener = message_of(parent), KernelListener(self, parent)
        if message is None:
            return
        if _has_all_outputs(message):
            self._is_answered = True
            sent = parent["header"]["msg_id"]
            if self._last_outputs.get(message.comm_id, sent) != sent:
                return
            self._last_outputs.pop(message.comm_id, None)
        if self.timeline.takes(message):
            self.timeline.answer(parent, message)
            return
        try:
            if not self._gate.admits(message):
                if self.cleaner.mode is Mode.SAFE:
                    listener.emit(Stream("stderr", _NOT_ADMITTED))
                self.send(parent, CommMessage("close", message.comm_id))
            elif await self.starting.is_up():
                about = header_of(parent)
                future = self.sandbox.comm(message, parent=about, listener=listener)
                await asyncio.wrap_future(future)
            elif message.target_name:
                listener.comm(CommMessage("close", message.comm_id))
        except WasmKernelError as problem:
            why = terminal.printable(str(problem))
            _LOG.warning("a widget's message was not delivered: %s", why)
            listener.emit(Stream("stderr", _UNDELIVERED.format(why=problem)))
        listener.finish()
        self.timeline.changed()

    async def open_comms(self, parent: Content) -> Content:
        """The open comms, all or those to one target, as `comm_info_reply` lists them."""
        target, found = parent["content"].get("target_name"), {}
        try:
            if await self.starting.is_up():
                comms = self.sandbox.comms(KernelListener(self, parent))
                found = await asyncio.wrap_future(comms)
        except WasmKernelError as problem:
            _LOG.warning("the open comms are not known: %s", terminal.printable(str(problem)))
        return {i: {"target_name": name} for i, name in found.items() if target in (None, name)}


class KernelListener(CleanListener):
    """A listener that may ask the user for input.

    `ident` is the front end that sent the message; `may_ask` says whether it takes input.
    `answers_due` is the `Page.offered` at which nbclient has answered all outputs so far.
    """

    def __init__(
        self, page: Page, parent: Content, ident: Any = None, *, may_ask: bool = False
    ) -> None:
        super().__init__(page, parent)
        self.page = page
        self._ident = ident
        self._may_ask = may_ask
        self._captors: set[str] = set()  # `Output` widgets that take the cell's outputs
        self.answers_due = page.offered

    def comm(self, message: CommMessage) -> None:
        """Passes on a comm message, unless it pretends to be the front end's own."""
        if not self.page.timeline.takes(message):
            super().comm(message)

    def _show(self, output: Output) -> None:
        shown = output.data.get(WIDGET_VIEW) if isinstance(output, Display | Result) else None
        if not self.page.timeline.is_named_in(shown):
            self.answers_due += bool(self._captors) and _is_answered(output)
            super()._show(output)

    def _pass(self, message: CommMessage) -> None:
        if not self.page.timeline.is_named_in(message.data):
            state = message.data.get("state")
            if isinstance(state, dict) and "msg_id" in state:
                change = self._captors.add if state["msg_id"] else self._captors.discard
                change(message.comm_id)
            super()._pass(message)

    def ask(self, prompt: str, password: bool) -> str:
        """Returns the user's answer. Raises as `Listener.ask`."""
        if not self._may_ask:
            return super().ask(prompt, password)
        return self.page.stdin.ask(
            terminal.clean(prompt),
            password,
            parent=self.parent,
            ident=self._ident,
            interrupted=self.page.should_stop,
        )


class PageMessage(OfferedMessage):
    """A message of the page, which is told when a cell serves it."""

    def __init__(self, message: CommMessage, listener: KernelListener, cell: Content) -> None:
        super().__init__(message, header_of(listener.parent), listener)
        self._listener, self._cell = listener, cell

    def began(self) -> None:
        """Tells the page that its message is being served."""
        self._publish_state("busy", self._listener.parent)

    def ended(self) -> None:
        """Tells the page that it may send the next one; the kernel is still busy with the cell."""
        self._listener.finish()
        self._publish_state("idle", self._listener.parent)
        self._publish_state("busy", self._cell)

    def _publish_state(self, state: str, parent: Content) -> None:
        self._listener.page.publish(parent, "status", {"execution_state": state})


def _is_answered(output: Output) -> bool:
    """Returns whether nbclient tells an `Output` widget of this output at once."""
    if isinstance(output, ClearOutput):
        return not output.wait
    return not isinstance(output, UpdateDisplay)


def _has_all_outputs(message: CommMessage) -> bool:
    """Returns whether a message holds all outputs of an `Output` widget, and nothing else."""
    state = message.data.get("state")
    if not (isinstance(state, dict) and state.keys() == {"outputs"}):
        return False
    outputs = state["outputs"]
    return isinstance(outputs, list) and all(
        isinstance(each, dict) and "output_type" in each for each in outputs
    )


def message_of(parent: Content) -> CommMessage | None:
    """A front end's comm message; None if it is not a valid one."""
    content, kind = parent["content"], parent["header"]["msg_type"].removeprefix("comm_")
    comm_id, data = content.get("comm_id"), content.get("data")
    target = content.get("target_name", "")
    if not (isinstance(comm_id, str) and isinstance(target, str)):
        return None
    buffers = (getattr(each, "buffer", each) for each in parent.get("buffers") or ())
    return CommMessage(
        kind,
        comm_id,
        data if isinstance(data, dict) else {},
        target_name=target,
        metadata=parent.get("metadata") or {},
        buffers=tuple(bytes(memoryview(each)) for each in buffers),
    )


def header_of(parent: Content) -> dict[str, str]:
    """The part of a message's header that the guest may know: its id and type, not its sender."""
    header = parent.get("header") or {}
    return {name: str(header[name])[:200] for name in _SHOWN_HEADER if name in header}
